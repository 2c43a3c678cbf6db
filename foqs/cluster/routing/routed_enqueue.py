"""Enqueues that this host cannot do, or not all of: others are asked, once, for the items that were certainly not
stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from foqs.cluster.peers.peer_table import Peer
from foqs.cluster.routing.routes import Routes, is_elsewhere, retry_pauses_s
from foqs.contract.requests import EnqueueRequest, changed
from foqs.contract.verbs import Method
from foqs.model import limits
from foqs.model.calls import CallContext, EnqueueResult
from foqs.model.errors import (
    FoqsError,
    HostUnreachableError,
    NoShardError,
    NotWrittenError,
    OverloadedError,
    ShardElsewhereError,
    UnavailableError,
)

FULL_MS = 500
"""A host without room is asked last for this long, unless its answer names a longer time."""
CANDIDATES = 2
"""The hosts with room that are drawn at random; the one that refused longest ago is asked."""


class RoutedEnqueue:
    """The verb enqueue on all shards of the cluster. It owns its knowledge of the room of other hosts.

    Items with dedup ids are sent to the owner of their shard. All others are stored here if this host has room, and
    else sent to another host together: that one takes them or refuses, and asks nobody.
    """

    def __init__(self, local: Method, routes: Routes, choose: Callable[[int], int], now_s: Callable[[], float]) -> None:
        """`local` does it by this host. `choose(count)` draws a number from 0 to below that; `now_s` is monotonic."""
        self._local = local
        self._routes = routes
        self._choose = choose
        self._now_s = now_s
        self._full_until_s: dict[str, float] = {}

    async def enqueue(self, context: CallContext, request: EnqueueRequest) -> EnqueueResult:
        """Write the valid items; `errors` has the rest. Raises FoqsError when no host has written anything."""
        items_count = len(request.items)
        refusal: FoqsError | None = None
        try:
            result: EnqueueResult = await self._local(context, request)
        except FoqsError as error:
            if not _can_continue(error, bulk=request.bulk):
                raise
            refusal = error.with_traceback(None)
            result = EnqueueResult([""] * items_count, dict.fromkeys(range(items_count), refusal))
        if result.errors:
            await self._retry_elsewhere(context, request, result)
        if (
            refusal is not None
            and len(result.errors) == items_count
            and len(reasons := set(result.errors.values())) == 1
        ):
            raise reasons.pop()
        return result

    async def _retry_elsewhere(self, context: CallContext, request: EnqueueRequest, result: EnqueueResult) -> None:
        """Have other hosts store the items that they can store, and enter the outcomes."""
        of_shards, anywhere = [], []
        for position, error in sorted(result.errors.items()):
            if isinstance(error, ShardElsewhereError):
                of_shards.append(position)
            elif _can_continue(error, bulk=request.bulk):
                anywhere.append(position)
        works = [self._to_owners(context, request, of_shards, result)] if of_shards else []
        if anywhere and (remote := self._with_room(request.namespace_name)) is not None:
            works.append(self._to_host_with_room(context, request, remote, anywhere, result))
        if works:
            await asyncio.gather(*works)
            result.duplicates = sorted(result.duplicates)

    async def _to_owners(
        self, context: CallContext, request: EnqueueRequest, positions: Sequence[int], result: EnqueueResult
    ) -> None:
        """Have items done by the owners of their shards.

        A shard that is on its way from one host to another is waited for, for up to limits.ROUTE_WAIT_MS_MAX.
        """
        until_s = self._now_s() + limits.ROUTE_WAIT_MS_MAX / 1000
        offered: set[int] = set()
        pending, pauses = _left_of(positions, result), retry_pauses_s()
        while pending:
            groups = self._by_owner(pending, result)
            await asyncio.gather(
                *[self._forward(context, request, _by(remote), list(some), result) for remote, some in groups]
            )
            pending = _left_of(pending, result)
            left_s = until_s - self._now_s()
            if not pending or left_s <= 0:
                return
            for remote, some in groups:
                for at, shard_id in some.items():
                    if (error := result.errors.get(at)) is not None:
                        self._routes.disowned([shard_id], remote, error)
            away = {
                shard_id
                for _, some in groups
                for at, shard_id in some.items()
                if isinstance(result.errors.get(at), HostUnreachableError)
            }
            if away <= offered:
                await self._routes.wait_for_change(min(left_s, next(pauses)))
            # This host knows best whose they are by now, and whether their namespace takes them without their owner.
            offered |= away
            again = replace(context, away=frozenset(away))
            await self._forward(again, request, self._local, pending, result)
            pending = _left_of(pending, result)

    def _by_owner(self, positions: Sequence[int], result: EnqueueResult) -> list[tuple[Peer, dict[int, int]]]:
        """The other hosts that have shards of these items, with the shard of each position."""
        groups: dict[str, tuple[Peer, dict[int, int]]] = {}
        for position in positions:
            error = result.errors[position]
            if (
                isinstance(error, ShardElsewhereError)
                and (remote := self._routes.remote_of(error.shard_id)) is not None
            ):
                groups.setdefault(remote.host_id, (remote, {}))[1][position] = error.shard_id
        return list(groups.values())

    async def _to_host_with_room(
        self,
        context: CallContext,
        request: EnqueueRequest,
        remote: Peer,
        positions: Sequence[int],
        result: EnqueueResult,
    ) -> None:
        error = await self._forward(context, request, _by(remote), positions, result)
        # An error of the call or its namespace alone says nothing of the room for others.
        if error is not None and _can_continue(error, bulk=False):
            pause_s = max(FULL_MS, error.retry_after_ms or 0) / 1000
            self._full_until_s[remote.host_id] = self._now_s() + pause_s
            result.errors.update(dict.fromkeys(positions, _refused(error)))

    async def _forward(
        self,
        context: CallContext,
        request: EnqueueRequest,
        enqueue: Method,
        positions: Sequence[int],
        result: EnqueueResult,
    ) -> FoqsError | None:
        """Have one host store these items, and enter the outcomes. Returns the error of the whole call, if it has
        failed.
        """
        part = changed(request, items=[request.items[position] for position in positions])
        try:
            stored: EnqueueResult = await enqueue(context, part)
        except FoqsError as error:
            result.errors.update(dict.fromkeys(positions, error.with_traceback(None)))
            return error
        for index, position in enumerate(positions):
            failed = stored.errors.get(index)
            if failed is None:
                del result.errors[position]
                result.ids[position] = stored.ids[index]
            else:
                result.errors[position] = failed
        result.duplicates = [*result.duplicates, *[positions[index] for index in stored.duplicates]]
        return None

    def _with_room(self, namespace_name: str) -> Peer | None:
        """Return a host that serves the tier of the namespace and had room recently, or None."""
        now_s, others = self._now_s(), self._routes.takers(namespace_name)
        known: Mapping[str, float] = self._full_until_s
        free = [remote for remote in others if known.get(remote.host_id, 0.0) <= now_s]
        drawn = [free.pop(self._choose(len(free))) for _ in range(min(CANDIDATES, len(free)))]
        return min(drawn, key=lambda remote: known.get(remote.host_id, 0.0), default=None)


def _by(remote: Peer) -> Method:
    return lambda context, request: remote.call(context, "enqueue", request)


def _can_continue(error: FoqsError, *, bulk: bool) -> bool:
    """True if another host can store items refused with this error. Bulk loads wait rather than push others."""
    if not error.nothing_done:
        return False
    if isinstance(error, UnavailableError | NoShardError):
        return True
    return not bulk and isinstance(error, OverloadedError | NotWrittenError)


def _left_of(positions: Sequence[int], result: EnqueueResult) -> list[int]:
    """The positions that were certainly not done, and that a host can do soon."""
    return [position for position in positions if _comes_soon(result.errors.get(position))]


def _comes_soon(error: FoqsError | None) -> bool:
    if error is None or not is_elsewhere(error):
        return False
    return not (isinstance(error, ShardElsewhereError) and error.is_sick)


def _refused(error: FoqsError) -> FoqsError:
    """The error for a caller when no host had room."""
    if isinstance(error, UnavailableError | OverloadedError):
        return error
    return OverloadedError(error.message, retry_after_ms=error.retry_after_ms or FULL_MS)
