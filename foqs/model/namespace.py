"""A namespace: the tenant, the unit of quota, with its limits and defaults."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum

from foqs.model import limits
from foqs.model.cluster import tier_problem
from foqs.model.errors import FoqsError, InvalidArgumentError, UnavailableError, shown
from foqs.model.groups import NO_GROUPS, Groups, NamespaceGroups
from foqs.model.policies import NO_POLICIES, NO_POLICIES_IN_FORCE, NamespacePolicies, Policies
from foqs.model.policy import NO_POLICY, TopicPolicy, TriState, rate_problem, reason_problem
from foqs.model.serial import NONE_CLOSED, ClosedTopics, Serials
from foqs.model.topic_name import base_of, is_ordered, parts

_DOUBLINGS_MAX = limits.DELAY_MS_MAX.bit_length()
"""Doublings after which a backoff of 1 ms is longer than any delay."""
NAMESPACES_PER_PREFIX_MAX = 2_000
"""Namespaces that a grant of a prefix can make: a tenth of all, so that one tenant does not use up the cluster's."""
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.NAMESPACE_NAME_CHARS_MAX}}}", re.ASCII)


class DedupScope(IntEnum):
    """The scope in which two items with one dedup id are the same item: their namespace, or one topic alone."""

    NAMESPACE = 0
    TOPIC = 1


class DedupWhenAway(IntEnum):
    """The treatment of an item with a dedup id while the shard of its slot is unserved.

    It is refused, or another shard takes it as if it had no id; then each call with an id makes an item until the shard
    is served again.
    """

    REFUSE = 0
    ACCEPT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSettings:
    """The limits of a namespace and the defaults of its items; docs/configuration.md has their bounds."""

    enqueues_per_minute_max: int = limits.ENQUEUES_PER_MINUTE_DEFAULT
    payload_bytes_max: int = limits.PAYLOAD_BYTES_DEFAULT
    metadata_bytes_max: int = limits.METADATA_BYTES_DEFAULT
    batch_items_max: int = limits.BATCH_ITEMS_MAX
    lease_ms_default: int = limits.LEASE_MS_DEFAULT
    lease_ms_max: int = limits.LEASE_MS_MAX
    delay_ms_max: int = limits.DELAY_MS_MAX
    ttl_ms_default: int = limits.TTL_MS_DEFAULT
    ttl_ms_max: int = limits.TTL_MS_MAX
    attempts_max: int = limits.ATTEMPTS_DEFAULT
    enqueue_paused: bool = False
    dequeue_paused: bool = False
    dedup_ms: int = limits.DEDUP_MS_DEFAULT
    dedup_ids: int = limits.DEDUP_IDS_DEFAULT
    dedup_scope: DedupScope = DedupScope.NAMESPACE
    key_spread: int = 1
    dedup_when_away: DedupWhenAway = DedupWhenAway.REFUSE
    events_per_mille: int = 0
    deliveries_per_second_max: float = 0.0
    pause_reason: str = ""
    tier: str = ""
    dead_letter_on_expiry: bool = False
    errors_bytes_max: int = limits.ERRORS_BYTES_DEFAULT


SETTING_BOUNDS: dict[str, tuple[int, int]] = {
    "enqueues_per_minute_max": (1, limits.ENQUEUES_PER_MINUTE_MAX),
    "payload_bytes_max": (0, limits.PAYLOAD_BYTES_MAX),
    "metadata_bytes_max": (0, limits.METADATA_BYTES_MAX),
    "batch_items_max": (1, limits.BATCH_ITEMS_MAX),
    "lease_ms_default": (limits.LEASE_MS_MIN, limits.LEASE_MS_MAX),
    "lease_ms_max": (limits.LEASE_MS_MIN, limits.LEASE_MS_MAX),
    "delay_ms_max": (0, limits.DELAY_MS_MAX),
    "ttl_ms_default": (1, limits.TTL_MS_MAX),
    "ttl_ms_max": (1, limits.TTL_MS_MAX),
    "attempts_max": (1, limits.ATTEMPTS_MAX),
    "dedup_ms": (limits.DEDUP_MS_MIN, limits.DEDUP_MS_MAX),
    "dedup_ids": (limits.DEDUP_IDS_MIN, limits.DEDUP_IDS_MAX),
    "key_spread": (1, limits.KEY_SPREAD_MAX),
    "events_per_mille": (0, 1_000),
    "errors_bytes_max": (0, limits.ERRORS_BYTES_MAX),
}
SETTING_CHOICES: dict[str, type[IntEnum]] = {"dedup_scope": DedupScope, "dedup_when_away": DedupWhenAway}
SETTING_RATES = ("deliveries_per_second_max",)
"""Settings that are numbers with fractions, or 0 for none."""
SETTING_TEXTS = ("pause_reason", "tier")
SETTINGS_OF_CREATION = ("dedup_scope", "key_spread")
"""Settings that never change, because they determine the shard that knows a dedup id, and the id's place there."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A stored namespace.

    Its number stands in the rows of the shards and is never used for another namespace.
    """

    number: int
    name: str
    settings: NamespaceSettings
    created_at_ms: int
    closing: bool = False
    """True while it is being deleted, and admits no items."""
    former_name: str = ""
    """The name under which the shards know its number, if it was recovered under another name."""
    policies_version: int = 0
    """A number that changes with every change of a topic policy of the namespace."""

    def is_known_as(self, name: str) -> bool:
        """True if items that a shard stored under this number and `name` are its own."""
        return name in (self.name, self.former_name)


class SettingsTable:
    """The settings of namespaces by number, for shards and the dispatcher; `Namespaces` keeps them up to date."""

    __slots__ = (
        "_policies_in_force",
        "_serials",
        "by_number",
        "caps",
        "closed_topics",
        "declared_groups",
        "dequeue_paused",
        "groups",
        "has_event_log",
        "item_bytes_seen",
        "limits_in_flight",
        "policies",
        "policy_changes",
        "prefix_changes",
        "prefix_policies",
        "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.by_number: Mapping[int, Namespace] = {}
        """All namespaces at one time. It is replaced as a whole and never changed, so any thread can read it."""
        self.dequeue_paused: frozenset[int] = frozenset()
        """The numbers of the namespaces whose dequeues are paused."""
        self.caps: Mapping[int, float] = {}
        """The caps of the namespaces that have one, in items a second."""
        self.policies: Policies = {}
        """The topic policies that operators have set, by namespace and name; replaced as a whole."""
        self.prefix_policies: Policies = {}
        """The prefix policies that operators have set; replaced as a whole."""
        self._policies_in_force: Mapping[int, NamespacePolicies] = {}
        """Both kinds of policies, by namespace, if it has any. They are replaced as a whole, so that no thread sees
        half of a change.
        """
        self._serials: Mapping[int, Serials] = {}
        """The namespaces that have serial topics, or topics that are about to become serial; replaced as a whole."""
        self.closed_topics: Mapping[int, ClosedTopics] = {}
        """The topics that are about to become serial, by namespace; replaced as a whole."""
        self.limits_in_flight = False
        """True if topics of any namespace have a limit of items under lease."""
        self.declared_groups: Groups = {}
        """The groups of topics that were declared, by namespace and hidden name; replaced as a whole."""
        self.groups: Mapping[int, NamespaceGroups] = {}
        """The same groups, for enqueues and dequeues, by namespace if it has any; replaced as a whole."""
        self.policy_changes: deque[tuple[int, str]] = deque()
        """Topics whose policies have changed, by namespace and name; the dispatcher takes them out."""
        self.prefix_changes: deque[tuple[int, str]] = deque()
        """Prefixes whose policies have changed; the dispatcher finds their topics."""
        self.version = 0
        """A number that changes whenever one of the tables is replaced."""
        self.has_event_log = False
        """True if shards report the ends of deliveries and lives. The host sets it before it opens a shard."""
        self.item_bytes_seen: dict[int, int] = {}
        """The largest claimed item by namespace, if it was larger than the limit allows now."""

    def replace(self, by_number: Mapping[int, Namespace]) -> None:
        """Set all namespaces."""
        self.dequeue_paused = frozenset(number for number, found in by_number.items() if found.settings.dequeue_paused)
        caps = {number: found.settings.deliveries_per_second_max for number, found in by_number.items()}
        self.caps = {number: cap for number, cap in caps.items() if cap}
        self.by_number = by_number
        self.version += 1

    def replace_policies(self, policies: Policies, prefix_policies: Policies = NO_POLICIES) -> None:
        """Set the policies of all topics and prefixes.

        Unchanged policies must be the same objects as before.
        """
        before, in_force = self._policies_in_force, dict(self._policies_in_force)
        numbers = before.keys() | policies.keys() | prefix_policies.keys()
        changed = [
            number for number in sorted(numbers)
            if self.policies.get(number) is not policies.get(number)
            or self.prefix_policies.get(number) is not prefix_policies.get(number)
        ]  # fmt: skip
        for number in changed:
            known = before.get(number, NO_POLICIES_IN_FORCE)
            found = NamespacePolicies(policies.get(number, {}), prefix_policies.get(number, {}), known)
            in_force[number] = found
            if not (found.topics or found.prefixes):
                del in_force[number]
        self.policies, self.prefix_policies, self._policies_in_force = policies, prefix_policies, in_force
        self._find_serials()
        self.limits_in_flight = any(found.limits_in_flight for found in in_force.values())
        self.version += 1
        for number in changed:
            known, found = before.get(number, NO_POLICIES_IN_FORCE), in_force.get(number, NO_POLICIES_IN_FORCE)
            self.policy_changes.extend([(number, name) for name in found.changed_topics(known)])
            self.prefix_changes.extend([(number, prefix) for prefix in found.changed_prefixes(known)])

    def close_topics(self, closed: Mapping[int, ClosedTopics]) -> None:
        """Set the topics that are about to become serial. They take no items."""
        self.closed_topics = closed
        self._find_serials()

    def _find_serials(self) -> None:
        in_force, closed = self._policies_in_force, self.closed_topics
        numbers = {number for number, found in in_force.items() if found.has_serial} | closed.keys()
        self._serials = {
            number: Serials(in_force.get(number, NO_POLICIES_IN_FORCE), closed.get(number, NONE_CLOSED))
            for number in numbers
        }

    def serials(self, number: int) -> Serials | None:
        """Return the serial topics of a namespace; None if it has none, and none are about to be."""
        return self._serials.get(number)

    def serial_policy(self, number: int, name: str) -> TopicPolicy | None:
        """Return the policy of a topic, or of the topic of a group, if it is serial; else None.

        The keyed topic of an ordering key is serial by its name.
        """
        if is_ordered(name):
            return self.policy(number, parts(name)[0])
        serials = self._serials.get(number)
        if serials is None:
            return None
        policy = serials.policy(name)
        return policy if policy.serial else None

    def replace_groups(self, declared: Groups) -> None:
        """Set the groups of all topics. Unchanged namespaces must have the same objects as before."""
        before = self.groups
        self.groups = now = {
            number: before[number]
            if number in before and self.declared_groups.get(number) is by_name
            else NamespaceGroups(by_name)
            for number, by_name in declared.items()
            if by_name
        }
        self.declared_groups = declared
        self.version += 1
        for number in sorted(before.keys() | now.keys()):
            known, found = before.get(number, NO_GROUPS), now.get(number, NO_GROUPS)
            if known is not found:
                self.policy_changes.extend([(number, name) for name in found.changed(known)])

    def is_read(self, number: int, name: str) -> bool:
        """Return True if consumers can get items of a topic: nobody reads a deleted or unknown consumer group."""
        return self.groups.get(number, NO_GROUPS).is_read(base_of(name))

    def policies_version(self, number: int) -> int:
        """Return the version of the policies of a namespace; 0 for an unknown one, and for one without policies."""
        namespace = self.by_number.get(number)
        return 0 if namespace is None else namespace.policies_version

    def policy(self, number: int, name: str) -> TopicPolicy:
        """Return the policy in force for a topic."""
        found = self._policies_in_force.get(number)
        return NO_POLICY if found is None else found.of(name)

    def enqueue_pauses(self, number: int) -> NamespacePolicies | None:
        """Return the policies of a namespace if one can pause enqueues of topics, else None."""
        found = self._policies_in_force.get(number)
        return found if found is not None and found.may_pause_enqueues else None

    def depth_limits(self, number: int) -> NamespacePolicies | None:
        """Return the policies of a namespace if one can limit the depth of topics, else None."""
        found = self._policies_in_force.get(number)
        return found if found is not None and found.may_limit_depth else None

    def ages(self, number: int) -> bool:
        """Return True if items of some topics of a namespace age."""
        found = self._policies_in_force.get(number)
        return found is not None and found.has_aging

    def aging_ms(self, number: int, name: str) -> int:
        """Return the wait in which items of a topic become more urgent by one priority; 0 for strict priorities.

        Serial topics have their own order.
        """
        found = self._policies_in_force.get(number)
        if found is None or not found.has_aging or self.serial_policy(number, name) is not None:
            return 0
        return found.of(name).aging_ms_per_priority

    def attempts_max(self, number: int, topic: str) -> int:
        """Return the failed attempts after which an item of the topic becomes a dead letter."""
        if own := self.policy(number, topic).attempts_max:
            return own
        namespace = self.by_number.get(number)
        return limits.ATTEMPTS_DEFAULT if namespace is None else namespace.settings.attempts_max

    def backoff_ms(self, number: int, topic: str, failed_attempts: int) -> int:
        """Return the delay of an item of the topic after this number of failed attempts, at least one."""
        policy = self.policy(number, topic)
        # The shift is bounded, because a number of attempts makes a number of bits.
        doubled_ms = policy.backoff_ms << min(failed_attempts - 1, _DOUBLINGS_MAX)
        return min(doubled_ms, policy.backoff_ms_max or limits.DELAY_MS_MAX)

    def dead_letter_on_expiry(self, number: int, topic: str) -> bool:
        """True if an item of the topic that expires becomes a dead letter even if it never failed."""
        if own := self.policy(number, topic).dead_letter_on_expiry:
            return own is TriState.ON
        namespace = self.by_number.get(number)
        return namespace is not None and namespace.settings.dead_letter_on_expiry

    def events_per_mille(self, number: int) -> int:
        """Return how many in a thousand items of the namespace are in the event log. Any thread can call it."""
        namespace = self.by_number.get(number)
        return 0 if namespace is None else namespace.settings.events_per_mille

    def errors_bytes_max(self, number: int) -> int:
        """Return how many bytes of its failures an item of the namespace keeps; 0 if it keeps none."""
        namespace = self.by_number.get(number)
        return limits.ERRORS_BYTES_DEFAULT if namespace is None else namespace.settings.errors_bytes_max

    def item_bytes_max(self, number: int) -> int:
        """Return the largest content of one item of the namespace, in bytes."""
        namespace = self.by_number.get(number)
        allowed_bytes = limits.CONTENT_BYTES_MAX
        if namespace is not None:
            # The trace context has the same bound in every namespace.
            allowed_bytes -= limits.PAYLOAD_BYTES_MAX - namespace.settings.payload_bytes_max
            allowed_bytes -= limits.METADATA_BYTES_MAX - namespace.settings.metadata_bytes_max
        return max(allowed_bytes, self.item_bytes_seen.get(number, 0))

    def dedup_ids(self, number: int) -> int:
        """Return how many dedup ids of the namespace a shard remembers at least, if they are young enough.

        For a namespace that does not exist it is the maximum, because the namespace can still be recovered.
        """
        namespace = self.by_number.get(number)
        return limits.DEDUP_IDS_MAX if namespace is None else namespace.settings.dedup_ids

    def dedup_ms(self, number: int) -> int:
        """Return the age up to which a shard remembers dedup ids of the namespace, in milliseconds."""
        namespace = self.by_number.get(number)
        return limits.DEDUP_MS_MAX if namespace is None else namespace.settings.dedup_ms

    def note_item_bytes(self, number: int, size_bytes: int) -> None:
        """Note the size of a claimed item, because unread items of the namespace can be as large."""
        if size_bytes > self.item_bytes_max(number):
            self.item_bytes_seen[number] = size_bytes


def number_in_use(namespace: Namespace, name: str, shard_id: int) -> FoqsError:
    """Return the error for a shard that has items of `name` under the number of `namespace`.

    That happens only after the meta database has lost its past. Neither namespace must see the other's items, so the
    host serves no items of either.
    """
    return UnavailableError(
        f"namespace {namespace.name!r} has number {namespace.number}, under which shard {shard_id} holds items of "
        f"{name!r}: nothing was done; see the operations guide, Restoring the meta database",
        nothing_done=True,
    )


def is_namespace_name(name: object) -> bool:
    """True if a namespace can have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_namespace_name(name: object) -> str:
    """Return the name, or raise InvalidArgumentError."""
    if not isinstance(name, str) or not is_namespace_name(name):
        raise InvalidArgumentError(
            f"namespace name {shown(name)} is not valid: "
            f"use 1 to {limits.NAMESPACE_NAME_CHARS_MAX} of A-Z a-z 0-9 . _ -"
        )
    return name


def check_room_under(prefixes: Sequence[str], count_of: Callable[[str], int]) -> None:
    """Raise InvalidArgumentError if grants of these prefixes are all that permit one more namespace, and each is full.

    `count_of` returns the number of namespaces whose names begin with a prefix.
    """
    if prefixes and all(count_of(prefix) >= NAMESPACES_PER_PREFIX_MAX for prefix in prefixes):
        raise InvalidArgumentError(
            f"there are {NAMESPACES_PER_PREFIX_MAX} namespaces whose names begin with {shown(prefixes[0])}, which is "
            "the limit for a grant of a prefix: delete some, use topics, or let an operator create more"
        )


def with_changes(settings: NamespaceSettings, changes: object | None) -> NamespaceSettings:
    """Return `settings` with every field of `changes` that is not None, after a check of all.

    Raises InvalidArgumentError, which names every field out of its bounds.
    """
    given = {f.name: value for f in fields(settings) if (value := getattr(changes, f.name, None)) is not None}
    problems = [problem for name, value in given.items() if (problem := _problem_of(name, value))]
    if not problems:
        chosen = {name: kind(given[name]) for name, kind in SETTING_CHOICES.items() if name in given}
        changed = replace(settings, **given | chosen)
        if changed.lease_ms_default > changed.lease_ms_max:
            problems.append(f"lease_ms_default {changed.lease_ms_default} is over lease_ms_max {changed.lease_ms_max}")
        if changed.ttl_ms_default > changed.ttl_ms_max:
            problems.append(f"ttl_ms_default {changed.ttl_ms_default} is over ttl_ms_max {changed.ttl_ms_max}")
    if problems:
        raise InvalidArgumentError("namespace settings: " + "; ".join(problems))
    return changed


def updated(settings: NamespaceSettings, changes: object) -> NamespaceSettings:
    """Return the changed settings of an existing namespace, whose SETTINGS_OF_CREATION must stay as they are.

    Otherwise ids it has seen would not be found again, and two hosts would send the same id to two shards while the
    change spreads. Raises InvalidArgumentError.
    """
    changed = with_changes(settings, changes)
    for name in SETTINGS_OF_CREATION:
        before, after = getattr(settings, name), getattr(changed, name)
        if before != after:
            raise InvalidArgumentError(
                f"namespace settings: {name} is {_text_of(before)} since the namespace was created and cannot become "
                f"{_text_of(after)}, since dedup ids would not be known again: create another namespace with it, and "
                "move producers there"
            )
    return changed


def _text_of(value: int) -> str:
    return value.name if isinstance(value, IntEnum) else str(value)


def _problem_of(name: str, value: object) -> str:
    """Return the fault in the value of a setting, or an empty text."""
    if name in SETTING_RATES:
        return rate_problem(name, value)
    if name == "tier":
        return tier_problem(value)
    if name in SETTING_TEXTS:
        return reason_problem(name, value)
    bounds, choices = SETTING_BOUNDS.get(name), SETTING_CHOICES.get(name)
    if choices is not None:
        if value not in list(choices):
            allowed = ", ".join(f"{one.value} ({one.name})" for one in choices)
            return f"{name} {value!r} is none of {allowed}"
    elif bounds is None:
        if not isinstance(value, bool):
            return f"{name} {value!r} is not a bool"
    elif not isinstance(value, int) or not bounds[0] <= value <= bounds[1]:
        return f"{name} {value!r} is not within {bounds[0]}..{bounds[1]}"
    elif name == "key_spread" and value & (value - 1):
        return f"key_spread {value} is not a power of two: use 1, 2, 4, 8, 16, 32 or 64"
    return ""
