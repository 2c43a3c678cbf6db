"""The rules for items of serial topics in an enqueue."""

from __future__ import annotations

from collections.abc import Collection

from foqs.contract.requests import NewItem
from foqs.model import limits
from foqs.model.errors import FoqsError, InvalidArgumentError, UnavailableError
from foqs.model.policy import TopicPolicy
from foqs.model.serial import SERIAL_DUE_AT, Serials
from foqs.model.topic_name import base_of, described, is_keyed, is_ordered, key_buckets_of, ordering_key_of


def serial_fault(serials: Serials, topic: str, placed: Collection[str]) -> FoqsError | None:
    """Return the error for items of a topic that is about to become serial, or has become serial just now.

    `placed` are the serial topics that were placed by their slots.
    """
    if (fault := serials.closed_fault(topic)) is not None:
        return fault
    if is_keyed(topic) and serials.is_serial(topic):
        return InvalidArgumentError(
            f"{described(topic)} is not possible, since the topic is serial: all its items have one order, leave the "
            "key out"
        )
    if topic in placed or not serials.is_serial(topic):
        return None
    return UnavailableError(
        f"topic {topic!r} has just become serial: nothing was enqueued, try again",
        retry_after_ms=limits.TICK_MS,
        nothing_done=True,
    )


def bucket_fault(policy: TopicPolicy, name: str) -> UnavailableError | None:
    """Return the error for items of a keyed topic that was chosen by an earlier number of buckets, or None."""
    if key_buckets_of(name) == policy.key_buckets:
        return None
    return UnavailableError(
        f"key_buckets of {described(base_of(name))} has just changed: nothing was enqueued, try again",
        retry_after_ms=limits.TICK_MS,
        nothing_done=True,
    )


def aging_fault(policy: TopicPolicy, name: str) -> InvalidArgumentError | None:
    """Return the error for items with a key of a topic that ages, or None."""
    if not policy.aging_ms_per_priority:
        return None
    return InvalidArgumentError(
        f"{described(name)} is not possible, since the topic ages (aging_ms_per_priority "
        f"{policy.aging_ms_per_priority}), and the items of a key have their own order: leave the key out, or set "
        "aging_ms_per_priority to 0"
    )


def serial_due_at(new: NewItem) -> int:
    """Return the due time of an item of a serial topic. Raises InvalidArgumentError for an item with a delay."""
    given = "deliver_after_ms" if new.deliver_after_ms is not None else "delay_ms" if new.delay_ms else ""
    if given and is_ordered(new.topic or ""):
        key = ordering_key_of(new.topic or "")
        of_key = "" if key is None else f" {key!r}"
        raise InvalidArgumentError(
            f"{given} {getattr(new, given)} is not possible with ordering_key{of_key}, whose items are delivered in "
            "the order in which they came: leave one of them out"
        )
    if given:
        raise InvalidArgumentError(
            f"{given} {getattr(new, given)} is not possible in topic {new.topic!r}, which is serial and delivers its "
            "items in the order in which they came: leave it out, or use another topic"
        )
    return SERIAL_DUE_AT
