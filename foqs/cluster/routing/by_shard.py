"""Requests that the owners of shards do: each its positions of a list, or the whole request."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from operator import attrgetter
from typing import Any

from foqs.cluster.peers.peer_table import Peer
from foqs.cluster.routing.routes import Routes
from foqs.contract.requests import changed
from foqs.contract.verbs import VERBS, ByShard, Method, OfShard, Table
from foqs.host.verbs.chosen_dead import choose, page_asked
from foqs.model import ids, limits
from foqs.model.calls import CallContext, DeadLettersResult, PositionErrors
from foqs.model.errors import ShardElsewhereError


class DividedCalls:
    """Finds the owners by the ids in a request, and has each do its part. It owns nothing."""

    def __init__(self, table: Table, routes: Routes, list_dead_letters: Method) -> None:
        """`table` has the methods of this host; `list_dead_letters` lists those of all hosts."""
        self._table = table
        self._routes = routes
        self._list_dead_letters = list_dead_letters

    def by_shard(self, verb: str, context: CallContext, request: Any) -> Awaitable[PositionErrors]:
        """The errors by position. Raises an error that all positions have in common."""
        way, method = VERBS[verb].route, self._table[verb]
        assert isinstance(way, ByShard)
        return self._routes.by_shard(
            _ids_of(way, request),
            lambda some: method(context, _part(way, request, some)),
            lambda remote, some: remote.call(context, verb, _part(way, request, some)),
        )

    async def by_slot(self, verb: str, context: CallContext, request: Any) -> PositionErrors:
        """The errors by position. This host does its part first, because it knows the shards of all other ids."""
        method = self._table[verb]
        errors: PositionErrors = await method(context, request)
        shards = {
            position: error.shard_id
            for position, error in sorted(errors.items())
            if isinstance(error, ShardElsewhereError) and not error.is_sick
        }
        if not shards:
            return errors
        positions, given = list(shards), request.dedup_ids

        def part(some: Sequence[int] | None) -> Any:
            return changed(
                request, dedup_ids=[given[at] for at in (positions if some is None else _at(positions, some))]
            )

        found = await self._routes.by_shard(
            [ids.item_id(shard_id, 0) for shard_id in shards.values()],
            lambda some: method(context, part(some)),
            lambda remote, some: remote.call(context, verb, part(some)),
        )
        for position in positions:
            del errors[position]
        errors.update({positions[at]: error for at, error in found.items()})
        return errors

    async def of_shard(self, verb: str, context: CallContext, request: Any) -> Any:
        """The result of the owner of the shard. This host refuses ids that can be no shard."""
        way, method = VERBS[verb].route, self._table[verb]
        assert isinstance(way, OfShard)
        if way.item_id:
            item_id: str = getattr(request, way.item_id)
        else:
            shard_id = attrgetter(way.shard_id)(request)
            if not isinstance(shard_id, int) or not 0 <= shard_id <= limits.SHARD_ID_MAX:
                return await method(context, request)
            item_id = ids.item_id(shard_id, 0)
        found: list[Any] = []

        async def here(_: Sequence[int] | None) -> PositionErrors:
            found.append(await method(context, request))
            return {}

        async def there(remote: Peer, _: Sequence[int]) -> PositionErrors:
            found.append(await remote.call(context, verb, request))
            return {}

        for error in (await self._routes.by_shard([item_id], here, there)).values():
            raise error
        return found[-1]

    async def chosen(self, verb: str, context: CallContext, request: Any) -> DeadLettersResult:
        """Dead letters by their ids; without them the oldest of all hosts are looked up first."""
        chosen: list[str] = []
        next_token = ""
        if request.ids is None:
            asked = page_asked(request)
            chosen, next_token = await choose(
                lambda token: self._list_dead_letters(context, changed(asked, page_token=token)),
                request.page_token,
                for_redrive=verb == "redriveDeadLetters",
            )
        given = chosen if request.ids is None else request.ids
        method = self._table[verb]

        def part(some: Sequence[int] | None) -> Any:
            return changed(request, ids=_at(given, some), page_token=None)

        async def here(some: Sequence[int] | None) -> PositionErrors:
            return _errors_of(await method(context, part(some)))

        async def there(remote: Peer, some: Sequence[int]) -> PositionErrors:
            return _errors_of(await remote.call(context, verb, part(some)))

        errors = await self._routes.by_shard(given, here, there) if given else {}
        return DeadLettersResult(len(given) - len(errors), errors, chosen, next_token)


def _errors_of(result: DeadLettersResult) -> PositionErrors:
    return result.errors


def _ids_of(way: ByShard, request: Any) -> Sequence[str]:
    """An id or a receipt for each position."""
    values: Sequence[Any] = getattr(request, way.field)
    if way.id_field:
        return [getattr(value, way.id_field) or "" for value in values]
    more = getattr(request, way.also) if way.also else None
    return [*values, *more] if more else values


def _part(way: ByShard, request: Any, some: Sequence[int] | None) -> Any:
    """The request with these positions alone; all of it for None."""
    if some is None:
        return request
    values: Sequence[Any] = getattr(request, way.field)
    more = getattr(request, way.also) if way.also else None
    if not more:
        return changed(request, **{way.field: _at(values, some)})
    count = len(values)
    first = [values[at] for at in some if at < count]
    second = [more[at - count] for at in some if at >= count]
    return changed(request, **{way.field: first, way.also: second or None})


def _at(values: Sequence[Any], positions: Sequence[int] | None) -> Sequence[Any]:
    return values if positions is None else [values[position] for position in positions]
