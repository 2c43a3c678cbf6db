"""Membership by nodes of ZooKeeper: an ephemeral one for each host, which its host writes all the time.

ZooKeeper says who is there, and never who is dead: a session ends for many reasons, and after an outage of the ensemble
the nodes of hosts that live well are gone for a moment. So a node that has vanished stands for a host that does not
beat, and foqs.cluster.host_watch decides as it does for rows of the meta database. The session alone is no sign of life
either, for kazoo's threads keep it while the event loop hangs: life is that the node's data change, which each round of
the membership writes.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from foqs.cluster.zookeeper_url import ZookeeperUrl
from foqs.model import limits
from foqs.model.cluster import HostRow, host_name_of
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.model.peer_proof import OLD_PROOF
from foqs.storage.meta import MetaStore

SESSION_MS = 2 * limits.SECOND_MS
"""The session that is asked for. By default servers grant no shorter one than of 4 s, and nothing depends on it.

A server of the ensemble that takes a connection and says nothing is left after its part of it.
"""
RECONNECT_MS_MAX = 500
"""The longest pause between two attempts to connect. By itself kazoo lets up to a minute pass."""
CLIENT_MS_MAX = 3 * limits.SECOND_MS
"""A client that has had no connection for so long, or no answer now and was not replaced for so long, is replaced."""
CONNECT_MS_MAX = 10 * limits.SECOND_MS
"""A host that starts waits so long for the ensemble."""
ROUND_MS_MAX = limits.BEAT_STATEMENT_MS_MAX
"""A round that is not answered in so long has failed, and the host looks for another server of the ensemble.

kazoo itself would wait for two thirds of the session, in which others would take the host for dead.
"""
RETURN_MS = 3 * limits.SECOND_MS
"""After an outage rounds count again when the ensemble has answered for so long: meanwhile others make their nodes."""
VANISHED_MS = limits.MINUTE_MS
"""The row of a host is kept so long after its node has gone, and the mark of one that has ended as well."""
ANNOUNCE_MS = 2 * limits.SECOND_MS
"""The pause between two notes in the meta database that this host's membership is another one."""
_NODE_BYTES_MAX = 4 * limits.KIB
_ENDED = b'{"is_ended": true}'

assert 2 * limits.HEARTBEAT_MS + ROUND_MS_MAX + SESSION_MS // 3 < limits.HOST_DEAD_MS, (
    "a server of three that hangs kills no host, even if the client comes upon it again"
)
assert CLIENT_MS_MAX < RETURN_MS + limits.HOST_DEAD_MS, "a living host is back in time after an outage"
assert VANISHED_MS > 2 * limits.HOST_DEAD_MS, "a host whose node has gone is dead before it is forgotten"

_log = structlog.get_logger(__name__)
_quiet = logging.getLogger(f"{__name__}.kazoo")
"""The logger of kazoo, silenced: a host itself tells what there is to say of an outage."""
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


class _Seen(NamedTuple):
    row: HostRow
    at_s: float
    """The time at which its node was last seen."""


class ZookeeperBackend:
    """Implements foqs.cluster.view.MembershipBackend. `cluster` names the cluster, `meta` is its meta database.

    The node of a host is `PATH/CLUSTER/hosts/ID`. One that ends in order leaves a mark there, so that the others know
    it from one whose session was lost; they remove the mark after a while.
    """

    def __init__(self, url: ZookeeperUrl, cluster: str, meta: MetaStore, now_s: Callable[[], float]) -> None:
        self._url = url
        self._meta = meta
        self._now_s = now_s
        self._directory = f"{url.path}/{cluster}/hosts"
        self._client: Any = None
        self._seen: dict[str, _Seen] = {}
        """Hosts that have not ended in order, as they were when their nodes were there last."""
        self._ended_s: dict[str, float] = {}
        """When marks of hosts that have ended were seen first."""
        self._is_away = False
        self._back_s: float | None = None
        """When the ensemble came back, until rounds count again."""
        self._lost_s: float | None = None
        """The time since which there is no connection."""
        self._replaced_s = -math.inf
        """When the client was replaced last."""
        self._announced_s: float | None = None

    def join(self, host: HostRow) -> None:
        if others := self._meta.hosts_beating(elsewhere=False):
            raise InvalidArgumentError(
                f"membership is {self._url}, and {others[0]} beats in the meta database: all hosts of a cluster need "
                "the same membership, so stop those hosts and start this one 10 s later"
            )
        self._meta.forget_hosts(host_name_of(host.id))
        self._client = self._connect()
        if not self._client.start_async().wait(CONNECT_MS_MAX / 1000):
            raise UnavailableError(
                f"ZooKeeper at {','.join(self._url.servers)} does not answer within {CONNECT_MS_MAX // 1000} s: "
                "check membership, and that most servers of the ensemble run",
                nothing_done=True,
            )

    def beat(self, host: HostRow) -> list[HostRow]:
        until_s = time.monotonic() + ROUND_MS_MAX / 1000
        try:
            self._require_connection()
            self._write(host, until_s)
            rows, ended = self._read(until_s)
            now_s = self._now_s()
            self._remove_marks(ended, now_s, until_s)
        except (KazooException, KazooTimeoutError) as error:
            self._is_away, self._back_s = True, None
            if isinstance(error, KazooTimeoutError) and self._now_s() - self._replaced_s >= CLIENT_MS_MAX / 1000:
                self._replace_client()
            raise UnavailableError(f"ZooKeeper does not answer: {_cause_of(error)}") from error
        self._require_time_for_others(now_s)
        return self._known(rows, ended, now_s)

    def announce(self, host: HostRow) -> None:
        now_s = self._now_s()
        if self._announced_s is None or now_s - self._announced_s >= ANNOUNCE_MS / 1000:
            self._meta.note_elsewhere(host)
            self._announced_s = now_s

    def leave(self, host: HostRow) -> None:
        until_s = time.monotonic() + ROUND_MS_MAX / 1000
        try:
            self._require_connection()
            # Without a directory nobody knows this host.
            with suppress(NoNodeError):
                self._replace(self._path(host.id), _ENDED, until_s, ephemeral=False)
        except (KazooException, KazooTimeoutError) as error:
            raise UnavailableError(f"ZooKeeper does not answer: {_cause_of(error)}") from error
        self._meta.remove_host(host.id)

    def use_url(self, url: str) -> None:
        return None

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            _close(client)

    def _connect(self) -> Any:
        pauses = {"max_tries": -1, "delay": 0.1, "max_delay": RECONNECT_MS_MAX / 1000}
        return KazooClient(
            ",".join(self._url.servers), timeout=SESSION_MS / 1000, connection_retry=pauses, logger=_quiet
        )

    def _require_connection(self) -> None:
        """Raises ConnectionClosedError at once, instead of adding to what waits for a connection.

        A client that has none for long is replaced: kazoo may have given up, and an ensemble that has lost its data
        refuses a session that has seen later ones.
        """
        client = self._client
        if client is not None and client.connected:
            self._lost_s = None
            return
        now_s = self._now_s()
        self._lost_s = now_s if self._lost_s is None else self._lost_s
        if now_s - self._lost_s >= CLIENT_MS_MAX / 1000:
            self._replace_client()
        raise ConnectionClosedError("there is no connection")

    def _replace_client(self) -> None:
        client, self._client = self._client, self._connect()
        self._client.start_async()
        self._replaced_s = self._now_s()
        self._lost_s = None
        if client is not None:
            # It may wait for a server that hangs, and the next heartbeat must not wait for it.
            threading.Thread(target=_close, args=(client,), name="zookeeper-close", daemon=True).start()

    def _write(self, host: HostRow, until_s: float) -> None:
        """Write this host's row into a node that goes with this session: a lost session's is made anew."""
        path, data = self._path(host.id), _encode(host)
        try:
            stat = self._wait(self._client.set_async(path, data), until_s)
        except NoNodeError:
            self._wait(self._client.create_async(path, data, ephemeral=True, makepath=True), until_s)
            return
        session = self._client.client_id
        if session is None or stat.ephemeralOwner != session[0]:
            self._replace(path, data, until_s, ephemeral=True)

    def _replace(self, path: str, data: bytes, until_s: float, *, ephemeral: bool) -> None:
        """Put a node in the place of the one that is there, if any, so that nobody sees that there is none."""
        transaction = self._client.transaction()
        if self._wait(self._client.exists_async(path), until_s) is not None:
            transaction.delete(path)
        transaction.create(path, data, ephemeral=ephemeral)
        for result in self._wait(transaction.commit_async(), until_s):
            if isinstance(result, Exception):
                raise result

    def _read(self, until_s: float) -> tuple[dict[str, HostRow], set[str]]:
        """The hosts whose nodes are there, and those that have ended in order.

        It comes after a write of the same session, so that no server shows what was before that.
        """
        names = self._wait(self._client.get_children_async(self._directory), until_s)
        if len(names) > limits.HOSTS_MAX:
            # Those that are left out would look as if they had ended.
            raise UnavailableError(
                f"{self._directory} of ZooKeeper has {len(names)} nodes, more than {limits.HOSTS_MAX}, the limit: "
                "delete those of hosts that are not there any more"
            )
        asked = {name: self._client.get_async(self._path(name)) for name in names}
        rows, ended = {}, set()
        for name, answer in asked.items():
            try:
                data, _ = self._wait(answer, until_s)
            except NoNodeError:
                continue
            if data == _ENDED:
                ended.add(name)
            else:
                rows[name] = _decode(self._path(name), name, data)
        return rows, ended

    def _known(self, rows: dict[str, HostRow], ended: set[str], now_s: float) -> list[HostRow]:
        """The hosts of this round, and as they were those that vanished without a word."""
        self._seen.update({name: _Seen(row, now_s) for name, row in rows.items()})
        self._seen = {
            name: seen
            for name, seen in self._seen.items()
            if name not in ended and now_s - seen.at_s < VANISHED_MS / 1000
        }
        return [seen.row for seen in self._seen.values()]

    def _remove_marks(self, ended: set[str], now_s: float, until_s: float) -> None:
        self._ended_s = {name: self._ended_s.get(name, now_s) for name in ended}
        for name, since_s in self._ended_s.items():
            if now_s - since_s >= VANISHED_MS / 1000:
                try:
                    self._wait(self._client.delete_async(self._path(name)), until_s)
                except NoNodeError:
                    continue  # Another host was faster.

    def _require_time_for_others(self, now_s: float) -> None:
        if self._is_away:
            self._is_away, self._back_s = False, now_s
        if self._back_s is None:
            return
        if now_s - self._back_s < RETURN_MS / 1000:
            raise UnavailableError(
                f"ZooKeeper answers again: the other hosts have {RETURN_MS // 1000} s to say that they are there"
            )
        self._back_s = None
        # While it was away nobody's node could be seen.
        self._seen = {name: seen._replace(at_s=now_s) for name, seen in self._seen.items()}

    def _wait(self, answer: Any, until_s: float) -> Any:
        return answer.get(timeout=max(0.0, until_s - time.monotonic()))

    def _path(self, host_id: str) -> str:
        return f"{self._directory}/{host_id}"


def _close(client: Any) -> None:
    try:
        client.stop()
        client.close()
    except KazooException:
        # Its thread stands in a call to a server that hangs, and ends with that.
        _log.warning("zookeeper_client_left_behind", exc_info=True)


def _cause_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _encode(host: HostRow) -> bytes:
    return json.dumps({name: value for name, value in host._asdict().items() if name != "id"}).encode()


def _decode(path: str, host_id: str, data: bytes) -> HostRow:
    """Fields of later versions are nothing to this one.

    Raises UnavailableError for what is no row of a host: nobody may be taken for dead because of it.
    """
    try:
        values = json.loads(data[:_NODE_BYTES_MAX])
        return HostRow(
            host_id,
            str(values["address"]),
            int(values["started_at_ms"]),
            int(values["beat_number"]),
            bool(values["is_leaving"]),
            str(values["tier"]),
            int(values.get("proof", OLD_PROOF)),
            bool(values.get("is_starting", False)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UnavailableError(
            f"the node {path} of ZooKeeper holds no row of a host ({data[:80]!r}): delete it if it is of no host"
        ) from error
