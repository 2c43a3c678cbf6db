"""A change of a policy as callers give it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from foqs.client.durations import duration_ms
from foqs.model.policy import TriState
from foqs.model.serial import OnDead


@dataclass(frozen=True, slots=True, init=False)
class TopicPolicyChange:
    """A change of the policy of a topic, of one of its groups, or of a prefix. Fields that are None are unchanged.

    topic: the name of the topic, or the prefix.
    backoff or backoff_ms, backoff_max or backoff_ms_max: up to 90 days, as for `set_topic_policy` of an AdminClient,
    which describes the other fields as well.
    Raises InvalidArgumentError for a duration in both forms.
    """

    topic: str
    is_prefix: bool
    enqueue_paused: bool | None
    dequeue_paused: bool | None
    reason: str | None
    deliveries_per_second_max: float | None
    weight: int | None
    attempts_max: int | None
    in_flight_max: int | None
    key_buckets: int | None
    key_batch: int | None
    aging_ms_per_priority: int | None
    group: str | None
    depth_max: int | None
    dead_letter_on_expiry: TriState | bool | None
    backoff_ms: int | None
    backoff_ms_max: int | None
    serial: bool | None
    on_dead: OnDead | None

    def __init__(
        self,
        topic: str,
        is_prefix: bool = False,
        enqueue_paused: bool | None = None,
        dequeue_paused: bool | None = None,
        reason: str | None = None,
        deliveries_per_second_max: float | None = None,
        weight: int | None = None,
        attempts_max: int | None = None,
        in_flight_max: int | None = None,
        key_buckets: int | None = None,
        key_batch: int | None = None,
        aging_ms_per_priority: int | None = None,
        group: str | None = None,
        depth_max: int | None = None,
        dead_letter_on_expiry: TriState | bool | None = None,
        backoff_ms: int | None = None,
        backoff_ms_max: int | None = None,
        serial: bool | None = None,
        on_dead: OnDead | None = None,
        *,
        backoff: timedelta | None = None,
        backoff_max: timedelta | None = None,
        aging_per_priority: timedelta | None = None,
    ) -> None:
        set_field = object.__setattr__
        set_field(self, "topic", topic)
        set_field(self, "is_prefix", is_prefix)
        set_field(self, "enqueue_paused", enqueue_paused)
        set_field(self, "dequeue_paused", dequeue_paused)
        set_field(self, "reason", reason)
        set_field(self, "deliveries_per_second_max", deliveries_per_second_max)
        set_field(self, "weight", weight)
        set_field(self, "attempts_max", attempts_max)
        set_field(self, "in_flight_max", in_flight_max)
        set_field(self, "key_buckets", key_buckets)
        set_field(self, "key_batch", key_batch)
        aging_ms = duration_ms("aging_ms_per_priority", aging_ms_per_priority, aging_per_priority)
        set_field(self, "aging_ms_per_priority", aging_ms)
        set_field(self, "group", group)
        set_field(self, "depth_max", depth_max)
        set_field(self, "dead_letter_on_expiry", dead_letter_on_expiry)
        set_field(self, "backoff_ms", duration_ms("backoff_ms", backoff_ms, backoff))
        set_field(self, "backoff_ms_max", duration_ms("backoff_ms_max", backoff_ms_max, backoff_max))
        set_field(self, "serial", serial)
        set_field(self, "on_dead", on_dead)
