"""Defects of how calls find their host: of what is handed on, of what homes tell, and of pages of several hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from foqs.cluster.homes.directory import Directory
from foqs.cluster.homes.interests import Interests
from foqs.cluster.homes.topic_homes import TopicHomes
from foqs.cluster.peers.peer_table import Peer
from foqs.cluster.routing import by_all, pages, routes
from foqs.cluster.routing.pulls import Pulls
from foqs.cluster.routing.routed_enqueue import RoutedEnqueue
from foqs.cluster.routing.router import Router
from foqs.cluster.routing.routes import Routes
from foqs.contract.requests import changed
from foqs.model.calls import CallContext, EnqueueResult, PositionErrors, TopicPage
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.stocks import Pointer, Topic
from tests.sim.planting import in_place_of

_call = Router._call
_forward = RoutedEnqueue._forward
_in_groups = routes._in_groups
_by_all = Routes.by_all
_merged_topics = pages.merged_topics
_report = Directory.report


@in_place_of(Router, "_call")
def hands_on_what_was_handed_on(self: Router, context: CallContext, verb: str, request: Any) -> Awaitable[Any]:
    return _call(self, replace(context, peer="") if verb == "ack" else context, verb, request)


@in_place_of(RoutedEnqueue, "_forward")
async def says_that_nothing_was_done_where_that_is_not_known(
    self: RoutedEnqueue, context: Any, request: Any, enqueue: Any, positions: Sequence[int], result: EnqueueResult
) -> FoqsError | None:
    failed: FoqsError | None = await _forward(self, context, request, enqueue, positions, result)
    for position in positions:
        error = result.errors.get(position)
        if isinstance(error, UnavailableError):
            result.errors[position] = UnavailableError(error.message, nothing_done=True)
    return failed


@in_place_of(RoutedEnqueue, "_forward")
async def hands_an_enqueue_on_twice(
    self: RoutedEnqueue, context: Any, request: Any, enqueue: Any, positions: Sequence[int], result: EnqueueResult
) -> FoqsError | None:
    items = [request.items[position] for position in positions]
    try:
        await enqueue(context, changed(request, items=items))
    except FoqsError as error:
        return error
    failed: FoqsError | None = await _forward(self, context, request, enqueue, positions, result)
    return failed


@in_place_of(routes, "is_elsewhere")
def tries_again_what_may_have_been_done(error: FoqsError) -> bool:
    return isinstance(error, UnavailableError)


@in_place_of(routes, "_in_groups")
async def drops_acks_that_the_last_owner_refused(*arguments: Any) -> PositionErrors:
    errors = await _in_groups(*arguments)
    return {position: error for position, error in errors.items() if not routes.is_elsewhere(error)}


@in_place_of(Routes, "_remote")
def takes_the_last_owner_for_all_shards(self: Routes, owner: Any) -> Peer | None:
    newest = max(self._owners.owners.values(), key=lambda at: (at.epoch, at.shard_id))
    return self._peers.get(newest.host_id, newest.address) if newest.host_id != self._me and newest.address else None


@in_place_of(Pulls, "_release")
async def drops_what_was_pulled_for_a_caller_who_has_gone(self: Pulls, remote: Peer, wanted: Any, pull: Any) -> None:
    await asyncio.wait([pull])


@in_place_of(Directory, "report")
def forgets_whom_to_send_a_hint(self: Directory, *arguments: Any) -> list[tuple[str, Pointer]]:
    _report(self, *arguments)
    return []


@in_place_of(Interests, "notify")
def drops_hints(self: Interests, pointer: Pointer) -> bool:
    return False


@in_place_of(TopicHomes, "_by_home")
def takes_itself_for_every_home(self: TopicHomes, values: Mapping[Topic, Any]) -> dict[str, dict[Topic, Any]]:
    return {self._me: dict(values)}


@in_place_of(by_all, "merged_topics")
def shows_a_topic_once_for_each_host(parts: Sequence[TopicPage], limit: int) -> TopicPage:
    return TopicPage([topic for page in parts for topic in page.topics], _merged_topics(parts, limit).next_page_token)


@in_place_of(by_all, "merged_topics")
def shows_topics_beyond_the_end_of_a_page(parts: Sequence[TopicPage], limit: int) -> TopicPage:
    """The next page begins behind topics that another host was not asked for."""
    token = max([page.next_page_token for page in parts])
    merged = _merged_topics(parts, limit)
    return TopicPage(merged.topics, token, merged.missing)


@in_place_of(Routes, "by_all")
async def lists_no_host_that_is_missing(
    self: Routes, context: CallContext, here: Any, there: Any, missing: list[str] | None = None
) -> list[Any]:
    return await _by_all(self, context, here, there, None if missing is None else [])


@in_place_of(Routes, "is_unknown")
def looks_for_no_namespace_that_another_host_has_made(self: Routes, namespace_name: str | None) -> bool:
    return False
