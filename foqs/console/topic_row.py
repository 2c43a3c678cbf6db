"""A topic as the console keeps it: its counts and rates, and the console's own short judgement of its movement."""

from __future__ import annotations

from enum import IntEnum
from math import log10
from typing import Final

from foqs.console.texts import age, number, per_second
from foqs.model import limits
from foqs.model.calls import TopicStats
from foqs.model.namespace import Namespace
from foqs.model.policy import TopicPolicy
from foqs.model.topic_rates import TopicRates

STUCK_MS: Final = limits.MINUTE_MS
"""A topic whose oldest ready item waits this long while next to nothing is delivered does not move, in milliseconds."""
_STILL_PER_S: Final = 0.02
"""Fewer deliveries a second than this are none: an average of a minute never comes to 0."""
_STILL_SHARE: Final = 0.05
"""The share of the rate of 15 minutes below which the rate of the last minute is the rest of an average alone."""
_FAILING_SHARE: Final = 0.2
_FAILING_PER_S: Final = 0.05


class Movement(IntEnum):
    """The movement of a topic, as far as its counts, rates and policy show it. `explain` knows the reasons."""

    EMPTY = 0
    RESTING = 1
    """It has items, and none is ready."""
    MOVING = 2
    GROWING = 3
    """More comes in than is delivered, and the oldest item waits for a minute and more."""
    CAPPED = 4
    PAUSED = 5
    FAILING = 6
    STUCK = 7


TONES: Final = {
    Movement.EMPTY: "idle",
    Movement.RESTING: "idle",
    Movement.MOVING: "ok",
    Movement.GROWING: "warn",
    Movement.CAPPED: "warn",
    Movement.PAUSED: "warn",
    Movement.FAILING: "bad",
    Movement.STUCK: "bad",
}
"""The classes of the style sheet."""
_WEIGHTS: Final = {"bad": 2.0, "warn": 1.3, "ok": 0.4, "idle": 0.0}
NOT_MOVING: Final = frozenset([Movement.PAUSED, Movement.STUCK])


class TopicRow:
    """A topic of the index, or a consumer group of one. The poller alone writes its fields."""

    __slots__ = (
        "attention", "dead", "delayed", "delivered", "ended", "enqueued", "failed", "group", "in_flight_max",
        "is_serial", "leased", "most_urgent", "movement", "name", "oldest_at_ms", "policy", "ready", "round_number",
    )  # fmt: skip

    def __init__(self, name: str, group: str) -> None:
        self.name = name
        self.group = group
        self.round_number = 0
        self.attention = 0.0

    def take(self, stats: TopicStats, policy: TopicPolicy, namespace: Namespace | None, now_ms: int) -> None:
        """Take the counts and rates of a round, and judge them."""
        self.ready, self.delayed, self.leased, self.dead = stats.ready, stats.delayed, stats.leased, stats.dead
        self.oldest_at_ms, self.most_urgent = stats.oldest_ready_at_ms, stats.most_urgent_priority
        self.is_serial, self.in_flight_max = stats.serial, stats.in_flight_max or 0
        rates = stats.rates
        self.enqueued = rates.enqueued_1min if rates else 0.0
        self.delivered = rates.delivered_1min if rates else 0.0
        self.ended = rates.ended_1min if rates else 0.0
        self.failed = rates.failed_1min if rates else 0.0
        self.policy = policy
        is_paused = policy.dequeue_paused or (namespace is not None and namespace.settings.dequeue_paused)
        self.movement = movement_of(self, rates, is_paused=is_paused, now_ms=now_ms)
        self.attention = _WEIGHTS[TONES[self.movement]] * log10(1 + self.ready + self.dead)

    @property
    def items(self) -> int:
        """The number of its items in any state."""
        return self.ready + self.delayed + self.leased + self.dead

    @property
    def label(self) -> str:
        """Its name for people."""
        return f"{self.name} (group {self.group})" if self.group else self.name

    def why(self, now_ms: int) -> str:
        """Return the judgement in words."""
        waits = age(max(0, now_ms - self.oldest_at_ms)) if self.oldest_at_ms else ""
        match self.movement:
            case Movement.EMPTY:
                return "empty"
            case Movement.RESTING:
                return "nothing is ready"
            case Movement.MOVING:
                return "moving"
            case Movement.GROWING:
                return f"more comes in than is delivered: oldest {waits}"
            case Movement.CAPPED:
                cap = self.policy.deliveries_per_second_max
                return f"capped at {cap:g}/s: {number(self.ready)} wait, {waits}"
            case Movement.PAUSED:
                return f"paused: {self.policy.reason}" if self.policy.reason else "paused"
            case Movement.FAILING:
                share = self.failed / max(self.failed, self.delivered)
                return f"{share:.0%} of attempts fail, {per_second(self.failed)}/s"
            case Movement.STUCK:
                return f"not moving: the oldest waits for {waits}"


def movement_of(row: TopicRow, rates: TopicRates | None, *, is_paused: bool, now_ms: int) -> Movement:
    """Return the movement of a topic by its counts and rates."""
    if is_paused:
        return Movement.PAUSED
    if row.failed > _FAILING_PER_S and row.failed > _FAILING_SHARE * max(row.delivered, row.failed):
        return Movement.FAILING
    if not row.ready:
        if not row.items:
            return Movement.EMPTY
        return Movement.MOVING if row.leased else Movement.RESTING
    waits_ms = now_ms - row.oldest_at_ms if row.oldest_at_ms else 0
    if waits_ms < STUCK_MS:
        return Movement.MOVING
    before = rates.delivered_15min if rates else 0.0
    if row.delivered < max(_STILL_PER_S, _STILL_SHARE * before):
        return Movement.STUCK
    cap = row.policy.deliveries_per_second_max
    if cap and row.delivered > 0.5 * cap:
        return Movement.CAPPED
    return Movement.GROWING if row.enqueued > row.delivered else Movement.MOVING
