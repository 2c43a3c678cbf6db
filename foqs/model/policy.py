"""The policy of a topic: its pauses, cap and weight, its limits on depth and leases, its attempts, its order."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any
from unicodedata import category

from foqs.model import limits
from foqs.model.aging import AGING_MS_MAX
from foqs.model.errors import InvalidArgumentError
from foqs.model.serial import KEY_BATCH_MAX, OnDead
from foqs.model.topic_name import KEY_BUCKETS_MAX, hidden, parts

IN_FLIGHT_MAX = 1_000_000
"""The highest number of items under lease at the same time that a topic can set."""
DEPTH_MAX = 1_000_000_000
"""The largest limit on the depth of a topic, in items."""


class TriState(IntEnum):
    """A flag of a topic that can be unset; then the setting of the namespace applies."""

    UNSET = 0
    ON = 1
    OFF = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """The policy in force for a topic. A topic without settings by operators has the defaults."""

    enqueue_paused: bool = False
    dequeue_paused: bool = False
    reason: str = ""
    """The reason of the pause, which callers get."""
    deliveries_per_second_max: float = 0.0
    """The cap on its deliveries, for items of all priorities; 0 for none."""
    weight: int = 1
    """Its share of the deliveries to calls for any topic, relative to other topics that have items."""
    attempts_max: int = 0
    """The failed attempts after which its items become dead letters; 0 for those of its namespace."""
    depth_max: int = 0
    """The ready, delayed and leased items in the cluster from which on enqueues are refused; 0 for no limit."""
    dead_letter_on_expiry: TriState = TriState.UNSET
    """ON if its items that expire and never failed become dead letters; UNSET for the setting of its namespace."""
    backoff_ms: int = 0
    """The delay after the first failed attempt of an item, doubled with each further one; 0 for no delay."""
    backoff_ms_max: int = 0
    """The longest such delay; 0 for the longest delay of any item."""
    serial: bool = False
    """True if it delivers one item at a time, in the order of priority and commit."""
    on_dead: OnDead = OnDead.CONTINUE
    """The effect of a dead letter on a serial topic."""
    in_flight_max: int = 0
    """The most items under lease at the same time in the cluster; 0 for no limit."""
    key_buckets: int = 0
    """The sequences that its ordering keys share; 0 for one for each key."""
    key_batch: int = 0
    """The most items of a key, or of the serial topic, that one dequeue gets together; 0 for one."""
    aging_ms_per_priority: int = 0
    """The wait in which an item becomes more urgent by one priority; 0 for strict priorities."""


ORDER_FIELDS = ("serial", "on_dead", "key_buckets", "key_batch")
"""The fields of a topic's own policy that hold for each of its groups by itself."""
NO_POLICY = TopicPolicy()
FIELDS = tuple(field.name for field in fields(TopicPolicy))
_BITS = {name: 1 << at for at, name in enumerate(FIELDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPolicy(TopicPolicy):
    """The fields that operators have set for one topic, or for one prefix of topics; other fields have the default.

    A field is set if it has another value than the default, or if its bit in `explicit` is set.
    """

    explicit: int = 0
    """Bits of the fields that are set to the default, in the order of FIELDS, as in storage."""

    def is_set(self, name: str) -> bool:
        return bool(self.explicit & _BITS[name]) or getattr(self, name) != getattr(NO_POLICY, name)

    @property
    def own_fields(self) -> tuple[str, ...]:
        """The fields that are set."""
        return tuple([name for name in FIELDS if self.is_set(name)])

    def over(self, base: TopicPolicy) -> TopicPolicy:
        """Return the policy in force if `base` would be in force without this one."""
        if base == NO_POLICY:
            return self
        return replace(base, **{name: getattr(self, name) for name in self.own_fields})

    def with_field(self, name: str, value: object, *, is_set: bool) -> OwnPolicy:
        """Return the same policy with another value of a field. A field that is not set has the default."""
        default = getattr(NO_POLICY, name)
        bit = _BITS[name] if is_set and value == default else 0
        changes: dict[str, Any] = {name: value if is_set else default, "explicit": self.explicit & ~_BITS[name] | bit}
        return replace(self, **changes)


NOTHING_SAID = OwnPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicyEntry(TopicPolicy):
    """The policy of a topic, with its name; or that of a prefix, which holds for each topic that begins so."""

    topic: str
    """The name of the topic, or the prefix."""
    is_prefix: bool = False
    group: str | None = None
    """The consumer group of the topic whose policy it is; None for the topic's own."""
    own_fields: tuple[str, ...] = ()
    """The fields that are set for the entry itself. Others have the values of the longest prefix, or the defaults."""

    @classmethod
    def of(cls, topic: str, policy: TopicPolicy, own: OwnPolicy | None = None, *, is_prefix: bool) -> TopicPolicyEntry:
        """Return the entry of `policy`, which is in force, and in which the topic or prefix itself has set `own`."""
        values = {name: getattr(policy, name) for name in FIELDS}
        name, group = parts(topic)
        own_fields = own.own_fields if own else ()
        return cls(topic=name, is_prefix=is_prefix, group=group or None, own_fields=own_fields, **values)


@dataclass(slots=True)
class TopicPolicyPage:
    """A page of policies. `next_page_token` is for the next page; it is "" on the last page."""

    policies: list[TopicPolicyEntry]
    next_page_token: str


_PREFIX_MARK = "\x00"
"""The first character of a page token for a prefix. The token for a topic is its name, which never has this."""


def policy_page(found: list[TopicPolicyEntry], limit: int) -> TopicPolicyPage:
    """Return a page of up to `limit` entries. One further entry in `found` shows that more pages follow."""
    if len(found) <= limit:
        return TopicPolicyPage(found, "")
    last = found[limit - 1]
    return TopicPolicyPage(found[:limit], _PREFIX_MARK * last.is_prefix + hidden(last.topic, last.group))


def place_of(page_token: str) -> tuple[bool, str]:
    """Return the start of a page: True if it is after a prefix, and the name that it is after. Prefixes come before
    topics.
    """
    is_prefix = page_token.startswith(_PREFIX_MARK) or not page_token
    return is_prefix, page_token.removeprefix(_PREFIX_MARK)


def policy_changes_of(changes: object) -> dict[str, Any]:
    """Return the fields of a policy that are not None in `changes`, after a check of all.

    Raises InvalidArgumentError, which names every field out of its bounds.
    """
    given = {name: value for name in FIELDS if (value := getattr(changes, name, None)) is not None}
    problems = [problem for name, value in given.items() if (problem := _problem_of(name, value))]
    if problems:
        raise InvalidArgumentError("topic policy: " + "; ".join(problems))
    if "dead_letter_on_expiry" in given:
        given["dead_letter_on_expiry"] = TriState(given["dead_letter_on_expiry"])
    if "on_dead" in given:
        given["on_dead"] = OnDead(given["on_dead"])
    return given


_NUMBERS = {
    "weight": (1, limits.TOPIC_WEIGHT_MAX),
    "attempts_max": (0, limits.ATTEMPTS_MAX),
    "in_flight_max": (0, IN_FLIGHT_MAX),
    "key_buckets": (0, KEY_BUCKETS_MAX),
    "key_batch": (0, KEY_BATCH_MAX),
    "aging_ms_per_priority": (0, AGING_MS_MAX),
    "depth_max": (0, DEPTH_MAX),
    "dead_letter_on_expiry": (min(TriState), max(TriState)),
    "backoff_ms": (0, limits.DELAY_MS_MAX),
    "backoff_ms_max": (0, limits.DELAY_MS_MAX),
}
"""The bounds of the fields that are whole numbers."""


def _problem_of(name: str, value: object) -> str:
    if name == "reason":
        return reason_problem(name, value)
    if name == "deliveries_per_second_max":
        return rate_problem(name, value)
    if name in _NUMBERS:
        least, most = _NUMBERS[name]
        is_within = isinstance(value, int) and least <= value <= most
        return "" if is_within else f"{name} {value!r} is not within {least:d}..{most:d}"
    if name == "on_dead":
        allowed = ", ".join([f"{one.value} ({one.name})" for one in OnDead])
        return "" if value in list(OnDead) else f"on_dead {value!r} is none of {allowed}"
    return "" if isinstance(value, bool) else f"{name} {value!r} is not a bool"


def reason_problem(name: str, value: object) -> str:
    """Return the fault in the reason of a pause, or an empty text."""
    if not isinstance(value, str):
        return f"{name} {value!r} is not a text"
    size_bytes = len(value.encode(errors="replace"))
    if size_bytes > limits.PAUSE_REASON_BYTES_MAX:
        return f"{name} has {size_bytes} bytes, and may have {limits.PAUSE_REASON_BYTES_MAX}"
    return f"{name} {value!r} has control characters" if any(category(char) == "Cc" for char in value) else ""


def rate_problem(name: str, value: object) -> str:
    """Return the fault in the rate of a cap, or an empty text."""
    low, high = limits.DELIVERIES_PER_SECOND_MIN, limits.DELIVERIES_PER_SECOND_MAX
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # A NaN is out of any bounds.
    if isinstance(value, int | float) and is_number and (value == 0 or low <= value <= high):
        return ""
    return f"{name} {value!r} is neither 0, which is no cap, nor within {low}..{high}"


def check_aging(policy: TopicPolicy, name: str) -> None:
    """Raise InvalidArgumentError if a topic, or the topics of a prefix, have an order of their own and also age."""
    order = "serial" if policy.serial else f"key_buckets {policy.key_buckets}" if policy.key_buckets else ""
    if policy.aging_ms_per_priority and order:
        raise InvalidArgumentError(
            f"aging_ms_per_priority {policy.aging_ms_per_priority} is not possible with {order} (of {name!r}), which "
            "has an order of its own: set one of them to the default"
        )


def check_group_of(policy: TopicPolicy, topic: str, delay_ms: int, *, is_copied: bool) -> None:
    """Check that a topic can have a group that delays its copies, or begins with the items that wait.

    Raises InvalidArgumentError for a serial topic, whose copies would not keep their order.
    """
    if not policy.serial:
        return
    if delay_ms:
        raise InvalidArgumentError(
            f"delay_ms {delay_ms} is not possible for a group of topic {topic!r}, which is serial: leave it out"
        )
    if is_copied:
        raise InvalidArgumentError(
            f"from_queued is not possible for a group of topic {topic!r}, which is serial: new items would come before "
            "the copies; leave it out"
        )
