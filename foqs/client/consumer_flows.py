"""Verbs of consumers: arguments to requests, and responses to results."""

from __future__ import annotations

from typing import Any

from foqs.client.checks import check_request
from foqs.client.flows import Call, Flow, Terms, call_flow
from foqs.client.retry import Repeat
from foqs.model import limits
from foqs.model.holder import ConsumerPage, ConsumerRow, ReleaseResult
from foqs.wire import codec as wire


def consumer_page(
    terms: Terms, namespace: str, topic: str, group: str | None, name_prefix: str, page_token: str, partial: bool
) -> Flow[ConsumerPage]:
    request = wire.structs.ListConsumersRequest(
        namespace_name=namespace,
        topic=topic,
        name_prefix=name_prefix,
        limit=limits.PAGE_ITEMS_MAX,
        page_token=page_token,
        partial=partial or None,
        group=group,
    )
    check_request(request)
    response = yield from call_flow(terms, Call("listConsumers", request, Repeat.READ, is_long=True))
    rows = [_row(decoded) for decoded in response.consumers or ()]
    return ConsumerPage(rows, response.next_page_token or "", list(response.missing or ()))


def release_leases(
    terms: Terms, namespace: str, consumer: str, topic: str, group: str | None, at_most_once: bool
) -> Flow[ReleaseResult]:
    request = wire.structs.ReleaseLeasesRequest(
        namespace_name=namespace, consumer=consumer, topic=topic, at_most_once=at_most_once, group=group
    )
    check_request(request)
    response = yield from call_flow(terms, Call("releaseLeases", request, Repeat.UNLESS_UNKNOWN, is_long=True))
    return ReleaseResult(response.released or 0, response.left_at_most_once or 0)


def _row(decoded: Any) -> ConsumerRow:
    return ConsumerRow(
        decoded.name,
        decoded.caller or "",
        decoded.topic or "",
        decoded.waiting_calls or 0,
        decoded.held or 0,
        decoded.held_since_ms or 0,
        decoded.last_dequeue_at_ms or 0,
        list(decoded.hosts or ()),
        decoded.prefix,
        decoded.group,
    )
