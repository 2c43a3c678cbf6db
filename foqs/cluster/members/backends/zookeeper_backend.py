"""Membership by ephemeral nodes of ZooKeeper; each host keeps writing its own node.

ZooKeeper shows which hosts are present, but never which are dead: a session ends for many reasons, and after an outage
of the ensemble the nodes of healthy hosts are missing for a moment. So a vanished node counts as a host that does not
beat, and foqs.cluster.members.host_watch decides as it does for rows of the meta database. The session alone is no sign
of life either, because kazoo's threads keep it while the event loop hangs. The sign of life is a change of the node's
data, which each round of the membership writes.
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
from kazoo.security import CREATOR_ALL_ACL

from foqs.cluster.members.backends.zookeeper_tls import HiddenText, TlsHandler
from foqs.cluster.members.backends.zookeeper_url import NO_ACCESS, ZookeeperAccess, ZookeeperUrl, login_of
from foqs.model import limits
from foqs.model.cluster import HostRow, host_name_of
from foqs.model.cluster_secret import SECRET_IDS_MAX
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.model.peer_proof import OLD_PROOF
from foqs.storage.meta.meta_store import MetaStore

SESSION_MS = 2 * limits.SECOND_MS
"""The requested session timeout. By default servers grant no less than 4 s, and nothing depends on it.

The client leaves a server that accepts its connection and does not respond after that server's share of this time.
"""
RECONNECT_MS_MAX = 500
"""The longest pause between two attempts to connect. By default kazoo pauses for up to a minute."""
CLIENT_MS_MAX = 3 * limits.SECOND_MS
"""A client is replaced after this long without a connection, and after an unanswered call at most this often."""
CONNECT_MS_MAX = 10 * limits.SECOND_MS
"""Time that a starting host waits for the ensemble."""
ROUND_MS_MAX = limits.BEAT_STATEMENT_MS_MAX
"""Timeout of a round. The round has then failed, and the host tries another server of the ensemble.

kazoo itself would wait for two thirds of the session, and meanwhile the others would consider the host dead.
"""
RETURN_MS = 3 * limits.SECOND_MS
"""Time for which the ensemble must answer after an outage before rounds count again, so that others can rejoin."""
VANISHED_MS = limits.MINUTE_MS
"""Time for which the row of a host is kept after its node has vanished, and the mark of one that has ended as well."""
ANNOUNCE_MS = 2 * limits.SECOND_MS
"""The pause between two notes in the meta database that this host's membership is kept elsewhere."""
_NODE_BYTES_MAX = 4 * limits.KIB
_ENDED = b'{"is_ended": true}'

assert 2 * limits.HEARTBEAT_MS + ROUND_MS_MAX + SESSION_MS // 3 < limits.HOST_DEAD_MS, (
    "a server of three that hangs kills no host, even if the client comes upon it again"
)
assert CLIENT_MS_MAX < RETURN_MS + limits.HOST_DEAD_MS, "a living host is back in time after an outage"
assert VANISHED_MS > 2 * limits.HOST_DEAD_MS, "a host whose node has gone is dead before it is forgotten"

_log = structlog.get_logger(__name__)
_quiet = logging.getLogger(f"{__name__}.kazoo")
"""The logger of kazoo, silenced because the host itself logs outages."""
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


class _Seen(NamedTuple):
    row: HostRow
    at_s: float
    """The time at which its node was last seen."""


class ZookeeperBackend:
    """Implements foqs.cluster.members.view.MembershipBackend. `cluster` names the cluster, `meta` is its meta database.

    The node of a host is `PATH/CLUSTER/hosts/ID`. A host that ends in order leaves a mark there, so that the others can
    distinguish it from one whose session was lost; they remove the mark after a while.
    """

    def __init__(
        self,
        url: ZookeeperUrl,
        cluster: str,
        meta: MetaStore,
        now_s: Callable[[], float],
        access: ZookeeperAccess = NO_ACCESS,
    ) -> None:
        """`access` is used if the URL demands TLS. With a login, only hosts with the same one can use the nodes."""
        self._url = url
        self._access = access
        self._meta = meta
        self._now_s = now_s
        self._directory = f"{url.path}/{cluster}/hosts"
        self._client: Any = None
        self._seen: dict[str, _Seen] = {}
        """Hosts that have not ended in order, with their last rows."""
        self._ended_s: dict[str, float] = {}
        """The time at which the mark of each ended host was first seen."""
        self._is_away = False
        self._back_s: float | None = None
        """The time at which the ensemble came back, until rounds count again."""
        self._lost_s: float | None = None
        """The time since which the client has no connection."""
        self._replaced_s = -math.inf
        """The time at which the client was last replaced."""
        self._announced_s: float | None = None

    def join(self, host: HostRow) -> None:
        if others := self._meta.hosts.beating(elsewhere=False):
            raise InvalidArgumentError(
                f"membership is {self._url}, and {others[0]} beats in the meta database: all hosts of a cluster need "
                "the same membership, so stop those hosts and start this one 10 s later"
            )
        self._meta.hosts.forget(host_name_of(host.id))
        self._client = self._connect()
        if not self._client.start_async().wait(CONNECT_MS_MAX / 1000):
            problem = getattr(self._client.handler, "problem", "")
            raise UnavailableError(
                f"ZooKeeper at {','.join(self._url.servers)} does not answer within {CONNECT_MS_MAX // 1000} s: "
                "check membership, and that most servers of the ensemble run" + (f" ({problem})" if problem else ""),
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
            self._meta.hosts.note_elsewhere(host)
            self._announced_s = now_s

    def leave(self, host: HostRow) -> None:
        until_s = time.monotonic() + ROUND_MS_MAX / 1000
        try:
            self._require_connection()
            # Without a directory no host knows this one.
            with suppress(NoNodeError):
                self._replace(self._path(host.id), _ENDED, until_s, ephemeral=False)
        except (KazooException, KazooTimeoutError) as error:
            raise UnavailableError(f"ZooKeeper does not answer: {_cause_of(error)}") from error
        self._meta.hosts.remove(host.id)

    def use_url(self, url: str) -> None:
        return None

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            _close(client)

    def _connect(self) -> Any:
        pauses = {"max_tries": -1, "delay": 0.1, "max_delay": RECONNECT_MS_MAX / 1000}
        options: dict[str, Any] = {}
        if self._url.is_tls:
            options["handler"] = TlsHandler(self._access)
            if self._access.login is not None:
                options["auth_data"] = [("digest", HiddenText(login_of(self._access.login())))]
                # Nodes are for who has this login; older nodes keep what they have.
                options["default_acl"] = CREATOR_ALL_ACL
        return KazooClient(
            ",".join(self._url.servers), timeout=SESSION_MS / 1000, connection_retry=pauses, logger=_quiet, **options
        )

    def _require_connection(self) -> None:
        """Raise ConnectionClosedError if the client has no connection, instead of adding to the waiting requests.

        A client that stays without one is replaced, because kazoo can have given up, and an ensemble that has lost its
        data refuses a session that has seen later transactions.
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
            # Closing can wait for a server that hangs, and the next heartbeat must not wait for that.
            threading.Thread(target=_close, args=(client,), name="zookeeper-close", daemon=True).start()

    def _write(self, host: HostRow, until_s: float) -> None:
        """Write this host's row into a node of this session; the node of a lost session is replaced."""
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
        """Create a node in place of the present one, if any, in one transaction, so that no host sees it missing."""
        transaction = self._client.transaction()
        if self._wait(self._client.exists_async(path), until_s) is not None:
            transaction.delete(path)
        transaction.create(path, data, ephemeral=ephemeral)
        for result in self._wait(transaction.commit_async(), until_s):
            if isinstance(result, Exception):
                raise result

    def _read(self, until_s: float) -> tuple[dict[str, HostRow], set[str]]:
        """Return the rows of the present hosts, and the ids of those that have ended in order.

        It follows a write of the same session, so that no server returns an older state.
        """
        names = self._wait(self._client.get_children_async(self._directory), until_s)
        if len(names) > limits.HOSTS_MAX:
            # Hosts that are left out would look as if they had ended.
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
        """Return the hosts of this round, and the last rows of those that vanished without a mark."""
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
        # During the outage no node was visible.
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
        # Its thread is in a call to a server that hangs, and ends with that call.
        _log.warning("zookeeper_client_left_behind", exc_info=True)


def _cause_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _encode(host: HostRow) -> bytes:
    return json.dumps({name: value for name, value in host._asdict().items() if name != "id"}).encode()


def _decode(path: str, host_id: str, data: bytes) -> HostRow:
    """Decode a row, ignoring fields of later versions.

    Raises UnavailableError if the data are no row of a host, because no host must count as dead due to them.
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
            tuple([str(one) for one in values.get("secret_ids", ())][:SECRET_IDS_MAX]),
            None if (for_peers := values.get("peer_address")) is None else str(for_peers),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UnavailableError(
            f"the node {path} of ZooKeeper holds no row of a host ({data[:80]!r}): delete it if it is of no host"
        ) from error
