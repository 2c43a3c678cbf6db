"""Verbs of policies: arguments to requests, and responses to results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from foqs.client.admin_verbs import Setting
from foqs.client.checks import check_many, check_request
from foqs.client.entries import Verb
from foqs.client.flows import Call, Flow, Terms, call_flow
from foqs.client.policy_change import TopicPolicyChange
from foqs.client.queue_items import ENQUEUE_BYTES_MAX, entries_of
from foqs.client.queue_verbs import errors_of, settle
from foqs.client.retry import Repeat
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import InternalError, InvalidArgumentError, TooLargeError, shown
from foqs.model.policy import TopicPolicyEntry, TopicPolicyPage, TriState
from foqs.model.serial import OnDead
from foqs.wire import codec as wire

_OVERHEAD_BYTES = 128
"""Size of a change without its texts, in bytes."""
_CHANGE_FIELDS = tuple(field.name for field in fields(TopicPolicyChange))


def set_topic_policy(
    terms: Terms,
    namespace: str,
    topic: str,
    changes: Mapping[str, Setting],
    is_prefix: bool,
    group: str | None = None,
) -> Flow[TopicPolicyEntry]:
    request = wire.structs.SetTopicPolicyRequest(
        namespace_name=namespace, topic=topic, is_prefix=is_prefix or None, group=group, **_wire_values(changes)
    )
    response = yield from call_flow(terms, Call("setTopicPolicy", request, Repeat.ALWAYS))
    ignored = [name for name, value in changes.items() if value is not None and getattr(response, name) is None]
    if ignored:
        raise InternalError(f"the host is too old for {', '.join(ignored)}, and has ignored them: upgrade all hosts")
    policy = _topic_policy(response)
    if is_prefix and not policy.is_prefix:
        raise InternalError(f"the host is too old for prefixes, and has changed the policy of the topic {shown(topic)}")
    return policy


def set_topic_policies(
    terms: Terms, namespace: str, changes: Iterable[TopicPolicyChange], return_errors: bool
) -> Flow[PositionErrors]:
    """Make the changes in calls of limits.BATCH_ITEMS_MAX."""

    def make_call(pending: Sequence[Any], repeated: bool) -> Call:
        request = wire.structs.SetTopicPoliciesRequest(namespace_name=namespace, changes=pending)
        return Call("setTopicPolicies", request, Repeat.ALWAYS)

    check_many("changes", changes, "TopicPolicyChanges")
    entries, faults = entries_of(changes, _entry_of)
    verb = Verb(make_call, errors_of, size_of=_bytes_of)
    return settle("set_topic_policies", terms, verb, entries, faults, False, return_errors)


def get_topic_policy(
    terms: Terms, namespace: str, topic: str, is_prefix: bool, group: str | None = None
) -> Flow[TopicPolicyEntry]:
    request = wire.structs.GetTopicPolicyRequest(
        namespace_name=namespace, topic=topic, is_prefix=is_prefix or None, group=group
    )
    return _topic_policy((yield from call_flow(terms, Call("getTopicPolicy", request, Repeat.READ))))


def topic_policy_page(terms: Terms, namespace: str, prefix: str, page_token: str) -> Flow[TopicPolicyPage]:
    request = wire.structs.ListTopicPoliciesRequest(
        namespace_name=namespace,
        prefix=prefix,
        limit=limits.PAGE_ITEMS_MAX,
        page_token=page_token,
        with_prefixes=True,
    )
    response = yield from call_flow(terms, Call("listTopicPolicies", request, Repeat.READ))
    return TopicPolicyPage(
        [_topic_policy(decoded) for decoded in response.policies or ()], response.next_page_token or ""
    )


def _entry_of(change: object) -> Any:
    """Return the change as a wire struct. Raises InvalidArgumentError or TooLargeError for an invalid one."""
    if not isinstance(change, TopicPolicyChange):
        raise InvalidArgumentError(f"{type(change).__name__} is no TopicPolicyChange")
    values = {name: getattr(change, name) for name in _CHANGE_FIELDS}
    entry = wire.structs.TopicPolicyChange(**_wire_values(values))
    check_request(entry)
    for name in ("topic", "reason", "group"):
        text = getattr(entry, name) or ""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(f"{name} {shown(text)} is not text that UTF-8 can hold") from None
    if _bytes_of(entry) > ENQUEUE_BYTES_MAX:
        raise TooLargeError(f"the change of {shown(entry.topic)} has {_bytes_of(entry)} bytes: no call carries it")
    return entry


def _wire_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a change with flags that can be unset as their numbers."""
    flag = values.get("dead_letter_on_expiry")
    return (
        {**values, "dead_letter_on_expiry": (TriState.ON if flag else TriState.OFF)}
        if isinstance(flag, bool)
        else {**values}
    )


def _bytes_of(entry: Any) -> int:
    """Return the largest size of a change in a frame, in bytes."""
    return 4 * (len(entry.topic or "") + len(entry.reason or "") + len(entry.group or "")) + _OVERHEAD_BYTES


def _topic_policy(w: Any) -> TopicPolicyEntry:
    names = [field.name for field in fields(TopicPolicyEntry)]
    values = {name: value for name in names if (value := getattr(w, name)) is not None}
    values["dead_letter_on_expiry"] = TriState(values.get("dead_letter_on_expiry", TriState.UNSET))
    values["on_dead"] = OnDead(values.get("on_dead", OnDead.CONTINUE))
    return TopicPolicyEntry(**{**values, "own_fields": tuple(w.own_fields or ())})
