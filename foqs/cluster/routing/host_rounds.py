"""Rounds of questions to all living hosts about themselves: in parallel, and for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from foqs.background.tasks import Tasks
from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.peers.peer_table import PeerSource
from foqs.contract.requests import HostStatusRequest, ListHostsRequest
from foqs.contract.verbs import Method
from foqs.model import limits
from foqs.model.calls import CallContext, ClusterShard, ClusterShards, HostStatus, ShardStatus
from foqs.model.cluster import HostRow, ShardHealth, ShardUse, host_name_of
from foqs.model.cluster_calls import ClusterHost, ClusterHosts, HostState
from foqs.model.errors import FoqsError
from foqs.model.principal import EVERYBODY

ANSWER_MS_MAX = 2 * limits.SECOND_MS
"""Time that a host has to report the shards it serves; then its answer counts as unknown."""
REASONS_MAX = 5
"""The most hosts whose reasons are given for one unserved shard."""
FRESH_MS = 200
"""A question shares a round that began at most this long ago, so that many callers do not each ask all hosts."""

_BY_ITSELF = CallContext("", principal=EVERYBODY)
_LOST = "lost"
_SICK = "sick"
"""`_LOST` and `_SICK` are states of foqs.model.calls.ShardStatus."""


class HostAnswer(NamedTuple):
    """A living host, and its report on itself."""

    host: HostRow
    status: HostStatus | None
    problem: str = ""
    """The reason for a missing status."""

    @property
    def shards(self) -> Sequence[ShardStatus]:
        return self.status.shards if self.status is not None else ()


class _Served(NamedTuple):
    """A host that reports that it has a shard."""

    host: HostRow
    shard: ShardStatus


class HostRounds:
    """Asks all living hosts for their status, and finds the server of each shard in the answers.

    It owns the tasks that ask. `Routing` stops it.
    """

    def __init__(
        self,
        me: str,
        owners: OwnerMap,
        peers: PeerSource,
        local: Method,
        now_s: Callable[[], float],
    ) -> None:
        """`me` is the id of this host, `local` returns its own status, and `now_s` is the time of the event loop."""
        self._me = me
        self._owners = owners
        self._peers = peers
        self._local = local
        self._now_s = now_s
        self._last: asyncio.Task[list[HostAnswer]] | None = None
        self._began_s = 0.0
        self._tasks = Tasks("hosts-asked")

    async def stop(self) -> None:
        """Cancel all questions."""
        await self._tasks.stop()

    async def answers(self) -> list[HostAnswer]:
        """Return the answers of all living hosts, by their ids, within ANSWER_MS_MAX."""
        now_s = self._now_s()
        if self._last is None or self._last.cancelled() or now_s - self._began_s > FRESH_MS / 1000:
            self._began_s = now_s
            self._last = self._tasks.lend(self._ask_all())
        # A caller that gives up must not take the answers from the others.
        return await asyncio.shield(self._last)

    async def described(self, shards: Sequence[ClusterShard]) -> list[ClusterShard]:
        """Return the shards with their current servers and health."""
        by_host = {answer.host.id: answer for answer in await self.answers()}
        served = _served_shards(by_host)
        return [_described(shard, served.get(shard.shard_id), by_host) for shard in shards]

    def surveyed(self, method: Method) -> Method:
        """Return a verb on shards with the current owners in its result; a silent host delays it shortly."""

        async def with_owners(context: CallContext, request: Any) -> ClusterShard | ClusterShards:
            found: ClusterShard | ClusterShards = await method(context, request)
            if isinstance(found, ClusterShards):
                return ClusterShards(await self.described(found.shards))
            return (await self.described([found]))[0]

        return with_owners

    async def list_hosts(self, context: CallContext, request: ListHostsRequest) -> ClusterHosts:
        """Return all living hosts, by name and process, with their current states."""
        answers = await self.answers()
        return ClusterHosts([_host(answer, self._owners.beat_age_ms(answer.host.id)) for answer in answers])

    async def _ask_all(self) -> list[HostAnswer]:
        hosts = [host for _, host in sorted(self._owners.living.items())]
        answers = await asyncio.gather(*[self._ask(host) for host in hosts])
        # A host that was found dead meanwhile is left out; it does not count as silent.
        return [answer for answer in answers if answer.host.id in self._owners.living]

    async def _ask(self, host: HostRow) -> HostAnswer:
        if host.id != self._me and host.is_starting:
            return HostAnswer(host, None, f"host {host.id} is starting: it has not opened its port yet")
        if host.id != self._me and not host.address:
            return HostAnswer(host, None, f"host {host.id} reports no address: set its advertise_address")
        try:
            async with asyncio.timeout(ANSWER_MS_MAX / 1000):
                if host.id == self._me:
                    return HostAnswer(host, await self._local(_BY_ITSELF, HostStatusRequest()))
                peer = self._peers.get(host.id, host.address)
                return HostAnswer(host, await peer.call(_BY_ITSELF, "getHostStatus", HostStatusRequest()))
        except TimeoutError:
            return HostAnswer(host, None, f"host {host.id} has not answered within {ANSWER_MS_MAX} ms")
        except FoqsError as error:
            return HostAnswer(host, None, error.message)


def _host(answer: HostAnswer, beat_age_ms: int) -> ClusterHost:
    host, status = answer.host, answer.status
    shards = sorted(shard.shard_id for shard in answer.shards if shard.state != _LOST)
    is_leaving = host.is_leaving or (status is not None and bool(status.draining))
    if host.is_starting:
        state = HostState.STARTING
    elif status is None:
        state = HostState.SILENT
    elif is_leaving:
        state = HostState.LEAVING
    else:
        state = HostState.SERVING if shards else HostState.STANDBY
    return ClusterHost(
        host_name_of(host.id),
        host.id,
        host.address,
        host.tier,
        (status.version or "") if status is not None else "",
        host.started_at_ms,
        beat_age_ms,
        is_leaving,
        state,
        shards,
        sorted(shard.shard_id for shard in answer.shards if shard.state == _SICK),
        answer.problem,
        host.peer_address or "",
    )


def _served_shards(by_host: Mapping[str, HostAnswer]) -> dict[int, _Served]:
    """Return the host that has each shard; a later epoch wins, because a host considered dead can report its shards."""
    found: dict[int, _Served] = {}
    for answer in by_host.values():
        for shard in answer.shards:
            before = found.get(shard.shard_id)
            if shard.state != _LOST and (before is None or before.shard.epoch < shard.epoch):
                found[shard.shard_id] = _Served(answer.host, shard)
    return found


def _described(shard: ClusterShard, served: _Served | None, by_host: Mapping[str, HostAnswer]) -> ClusterShard:
    if shard.state is ShardUse.REMOVED:
        return replace(shard, owner="", owner_address="", health=ShardHealth.UNSERVED, detail="")
    if served is not None and served.shard.epoch >= shard.epoch:
        is_sick = served.shard.state == _SICK
        return replace(
            shard,
            owner=host_name_of(served.host.id),
            owner_address=served.host.address,
            health=ShardHealth.SICK if is_sick else ShardHealth.SERVED,
            detail=served.shard.detail if is_sick else "",
        )
    last = by_host.get(shard.last_owner)
    if last is not None and last.status is None:
        health, detail = ShardHealth.UNKNOWN, last.problem
    else:
        health, detail = ShardHealth.UNSERVED, _why_unserved(shard, last, by_host)
        if shard.state is ShardUse.PARKED:
            detail = f"it is parked: see foqs shard unpark {shard.shard_id}"
        elif not any(answer.host.tier == shard.tier and not answer.host.is_leaving for answer in by_host.values()):
            detail += f"; no host of tier {shard.tier!r} lives, which it needs"
    return replace(shard, owner="", owner_address="", health=health, detail=detail)


def _why_unserved(shard: ClusterShard, last: HostAnswer | None, by_host: Mapping[str, HostAnswer]) -> str:
    if not shard.last_owner:
        why = "no host has taken it yet"
    elif last is None:
        why = f"host {shard.last_owner} took it last, and lives no more"
    else:
        detail = _detail_of(shard, last)
        why = f"host {shard.last_owner} took it last, and serves it no more" + (f": {detail}" if detail else "")
    others = [answer for answer in by_host.values() if answer is not last]
    details = [f"host {one.host.id}: {detail}" for one in others if (detail := _detail_of(shard, one) or one.problem)]
    more = [f"and {len(details) - REASONS_MAX} more hosts"] if len(details) > REASONS_MAX else []
    return "; ".join([why, *details[:REASONS_MAX], *more])


def _detail_of(shard: ClusterShard, answer: HostAnswer) -> str:
    """Return the reason why this host does not serve the shard, if it tries to."""
    return next((one.detail for one in answer.shards if one.shard_id == shard.shard_id), "")
