"""The reasons why items are not delivered: codes for machines, and sentences for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

REASONS_MAX = 8
"""The most reasons in the response of a dequeue."""
REASONS_EXPLAINED_MAX = 16
"""The most reasons in an explanation."""
TOPICS_JUDGED_MAX = 4
"""The most topics of a dequeue that are checked."""


class ReasonCode(IntEnum):
    """Codes of the reasons. Numbers are never reused."""

    GONE = 1
    DEAD = 2
    DELAYED = 3
    WAKING = 4
    LEASED = 5
    SETTLING = 6
    INHERITED = 7
    CLAIMED = 8
    EXPIRED = 9
    BEHIND = 10
    NO_CONSUMERS = 11
    CONSUMERS_SLOW = 12
    ATTEMPTS_FAIL = 13
    TOPIC_PAUSED = 14
    NAMESPACE_PAUSED = 15
    TOPIC_CAPPED = 16
    NAMESPACE_CAPPED = 17
    CAP_HOME_AWAY = 18
    IN_FLIGHT_FULL = 19
    LEASES_FULL = 20
    PREFETCH_FULL = 21
    REFILLING = 22
    SHARD_SICK = 23
    UNSERVED = 24
    LEAVING = 25
    PARKED = 26
    MAP_DIFFERS = 27
    HOST_SILENT = 28
    OTHER_HOST_LATE = 29
    NOTHING_THERE = 30
    NOT_LOOKED_AT = 31
    ON_THE_WAY = 32
    SERIAL_BUSY = 33
    KEY_BUSY = 34
    HELD_BY_DEAD = 35
    SLOT_MOVING = 36
    COUNTING = 37
    NO_GROUP = 38
    ENQUEUE_PAUSED = 40
    NAMESPACE_CLOSING = 41
    QUOTA_USED = 42
    NO_SHARD_TAKES = 44
    DEPTH_FULL = 48
    UNEXPLAINED = 99


class Verdict(IntEnum):
    """The state of an item, a topic or a namespace, in a word."""

    MOVING = 0
    SLOW = 1
    """They move, and something limits how fast, or they wait for a time that is known."""
    STOPPED = 2
    """They stay until somebody acts."""
    EMPTY = 3
    GONE = 4
    UNEXPLAINED = 5


NOT_ASKED = frozenset(
    {
        ReasonCode.SHARD_SICK,
        ReasonCode.UNSERVED,
        ReasonCode.LEAVING,
        ReasonCode.PARKED,
        ReasonCode.HOST_SILENT,
        ReasonCode.NOT_LOOKED_AT,
        ReasonCode.COUNTING,
    }
)
"""Reasons with which ready items can exist all the same, because not all shards, hosts or topics were asked."""
NOT_READY = frozenset(
    {ReasonCode.DEAD, ReasonCode.DELAYED, ReasonCode.LEASED, ReasonCode.NOTHING_THERE, ReasonCode.NO_GROUP}
)
"""Reasons that prove, if no others are given, that no item is ready."""


@dataclass(slots=True)
class Reason:
    """One reason. text: for people.  until_ms: when it ends, by the host's clock; 0 if unknown.
    count: of the items that it holds back.  topic, host, shard_id: its subject; empty, or -1.  remedy: a command.
    """

    code: int
    text: str
    until_ms: int = 0
    count: int = 0
    topic: str = ""
    host: str = ""
    shard_id: int = -1
    remedy: str = ""


@dataclass(slots=True)
class Explanation:
    """The reasons why an item, a topic or a namespace moves or does not, the decisive one first.

    verdict: a Verdict.  summary: one sentence.  as_of_ms: when this was so, in milliseconds since the epoch.
    ahead_count: the items that come before the item, exactly or at least.  expected_wait_ms: 0 if unknown.
    missing: the hosts and shards that were not asked, in words; empty for callers without WATCH.
    """

    verdict: int
    summary: str
    reasons: list[Reason]
    as_of_ms: int = 0
    ahead_count: int = 0
    ahead_is_exact: bool = True
    expected_wait_ms: int = 0
    missing: list[str] = field(default_factory=list)


class WhyNone(list[Reason]):
    """The reasons of a dequeue that got nothing, in place of its items."""
