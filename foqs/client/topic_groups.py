"""Verbs of consumer groups: arguments to requests, and responses to results."""

from __future__ import annotations

from typing import Any

from foqs.client.checks import check_request
from foqs.client.flows import Call, Flow, Terms, call_flow
from foqs.client.retry import Repeat
from foqs.model import limits
from foqs.model.calls import GroupPage
from foqs.model.groups import TopicGroup
from foqs.wire import codec as wire


def create_group(
    terms: Terms, namespace: str, topic: str, group: str, ttl_ms: int, delay_ms: int, from_queued: bool
) -> Flow[TopicGroup]:
    request = wire.structs.CreateGroupRequest(
        namespace_name=namespace,
        topic=topic,
        group=group,
        ttl_ms=ttl_ms,
        delay_ms=delay_ms,
        from_queued=from_queued or None,
    )
    check_request(request)
    return _group((yield from call_flow(terms, Call("createGroup", request, Repeat.ALWAYS))))


def delete_group(terms: Terms, namespace: str, topic: str, group: str) -> Flow[None]:
    request = wire.structs.DeleteGroupRequest(namespace_name=namespace, topic=topic, group=group)
    check_request(request)
    yield from call_flow(terms, Call("deleteGroup", request, Repeat.ALWAYS))


def group_page(terms: Terms, namespace: str, prefix: str, page_token: str) -> Flow[GroupPage]:
    request = wire.structs.ListGroupsRequest(
        namespace_name=namespace, prefix=prefix, limit=limits.PAGE_ITEMS_MAX, page_token=page_token
    )
    response = yield from call_flow(terms, Call("listGroups", request, Repeat.READ))
    return GroupPage([_group(decoded) for decoded in response.groups or ()], response.next_page_token or "")


def _group(decoded: Any) -> TopicGroup:
    return TopicGroup(
        decoded.topic,
        decoded.group or "",
        bool(decoded.is_deleted),
        decoded.ttl_ms or 0,
        decoded.delay_ms or 0,
        decoded.created_at_ms or 0,
        decoded.copy_job or "",
        bool(decoded.is_copying),
    )
