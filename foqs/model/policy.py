"""The policy of a topic: whether it is paused, how fast it is delivered, and its weight beside others."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from unicodedata import category

from foqs.model import limits
from foqs.model.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """The policy of one topic, as operators have set it. A topic without one has the defaults."""

    enqueue_paused: bool = False
    dequeue_paused: bool = False
    reason: str = ""
    """Why it is paused; callers are told."""
    deliveries_per_second_max: float = 0.0
    """Its cap, whatever the priorities of the items; 0 for none."""
    weight: int = 1
    """Its share of what calls for any topic get, beside the other topics that have something."""


NO_POLICY = TopicPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicyEntry(TopicPolicy):
    """The policy of a topic, with its name."""

    topic: str

    @classmethod
    def of(cls, topic: str, policy: TopicPolicy) -> TopicPolicyEntry:
        return cls(topic=topic, **{field.name: getattr(policy, field.name) for field in fields(TopicPolicy)})


@dataclass(slots=True)
class TopicPolicyPage:
    """A page of policies. `next_page_token` asks for the one behind it; it is "" on the last page."""

    policies: list[TopicPolicyEntry]
    next_page_token: str


def with_policy_changes(policy: TopicPolicy, changes: object) -> TopicPolicy:
    """`policy` with every field of `changes` that is not None, all of them checked.

    Raises InvalidArgumentError that names every field out of its bounds.
    """
    given = {f.name: value for f in fields(policy) if (value := getattr(changes, f.name, None)) is not None}
    problems = [problem for name, value in given.items() if (problem := _problem_of(name, value))]
    if problems:
        raise InvalidArgumentError("topic policy: " + "; ".join(problems))
    return replace(policy, **given)


def _problem_of(name: str, value: object) -> str:
    if name == "reason":
        return reason_problem(name, value)
    if name == "deliveries_per_second_max":
        return rate_problem(name, value)
    if name == "weight":
        is_within = isinstance(value, int) and 1 <= value <= limits.TOPIC_WEIGHT_MAX
        return "" if is_within else f"weight {value!r} is not within 1..{limits.TOPIC_WEIGHT_MAX}"
    return "" if isinstance(value, bool) else f"{name} {value!r} is not a bool"


def reason_problem(name: str, value: object) -> str:
    """The fault in the reason of a pause, or an empty text."""
    if not isinstance(value, str):
        return f"{name} {value!r} is not a text"
    size_bytes = len(value.encode(errors="replace"))
    if size_bytes > limits.PAUSE_REASON_BYTES_MAX:
        return f"{name} has {size_bytes} bytes, and may have {limits.PAUSE_REASON_BYTES_MAX}"
    return f"{name} {value!r} has control characters" if any(category(char) == "Cc" for char in value) else ""


def rate_problem(name: str, value: object) -> str:
    """The fault in the rate of a cap, or an empty text."""
    low, high = limits.DELIVERIES_PER_SECOND_MIN, limits.DELIVERIES_PER_SECOND_MAX
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # A NaN is within no bounds.
    if isinstance(value, int | float) and is_number and (value == 0 or low <= value <= high):
        return ""
    return f"{name} {value!r} is neither 0, which is no cap, nor within {low}..{high}"
