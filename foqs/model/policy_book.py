"""The result of changes to the policies of a namespace: the set fields, and the rows that remain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from foqs.model import limits
from foqs.model.census import Closed, ClosedKind
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.model.policy import (
    NO_POLICY,
    NOTHING_SAID,
    OwnPolicy,
    TopicPolicy,
    TopicPolicyEntry,
    check_aging,
    policy_changes_of,
)
from foqs.model.topic_name import is_of_group


@dataclass(frozen=True, slots=True)
class NamedChange:
    """A change of the policy of one topic, or of one prefix, whose name is valid."""

    name: str
    is_prefix: bool
    changes: object
    """The object whose fields of TopicPolicy are changed, unless they are None."""


@dataclass(slots=True)
class PolicyCounts:
    """The number of entries."""

    topics: int = 0
    """Topics of the namespace."""
    prefixes: int = 0
    """Prefixes of the namespace."""
    all: int = 0
    """Topics and prefixes of all namespaces."""


class Emptied(NamedTuple):
    """The outcome of a census of topics that become serial."""

    asked: frozenset[Closed]
    """The topics and prefixes that took no items meanwhile."""
    held: frozenset[Closed]
    """The topics and prefixes of which a shard holds items."""
    delayed: Mapping[str, str]
    """The topics with a group that delays its copies, each with one such group."""


class PolicyBook:
    """The policies of one namespace during a series of changes, each of which sees the earlier ones.

    It does no I/O. The caller stores `topics_changed` and `prefixes_changed`; an entry without set fields has no row.
    """

    def __init__(
        self,
        namespace_name: str,
        topics: Mapping[str, OwnPolicy],
        prefixes: Mapping[str, OwnPolicy],
        counts: PolicyCounts,
        emptied: Emptied | None = None,
    ) -> None:
        """`topics` has the existing entries of the topics to change, and `prefixes` all prefixes of the namespace.

        A change that makes topics serial needs `emptied`. Without it, such changes are a trial.
        """
        self._namespace_name = namespace_name
        self._topics = dict(topics)
        self._prefixes = dict(prefixes)
        self._counts = counts
        self.topics_changed: dict[str, OwnPolicy] = {}
        self.prefixes_changed: dict[str, OwnPolicy] = {}
        self.made_serial: list[Closed] = []
        """The topics and prefixes that become serial, or get other key_buckets, which need a census."""
        self._emptied = emptied

    def change(self, wanted: NamedChange) -> TopicPolicyEntry:
        """Make one change. Returns the policy in force after it. Raises InvalidArgumentError without any change."""
        given = policy_changes_of(wanted.changes)
        some, changed = self._topics, self.topics_changed
        if wanted.is_prefix:
            some, changed = self._prefixes, self.prefixes_changed
        before = some.get(wanted.name, NOTHING_SAID)
        base = self._base(wanted.name, is_prefix=wanted.is_prefix)
        after = before
        for field, value in given.items():
            after = after.with_field(field, value, is_set=_is_word(field, value, base, is_prefix=wanted.is_prefix))
        if not is_of_group(wanted.name):
            was, now = [_in_force(one, base, is_prefix=wanted.is_prefix) for one in (before, after)]
            if "aging_ms_per_priority" in given or "serial" in given or "key_buckets" in given:
                check_aging(now, wanted.name)
            if now.serial and not was.serial:
                self._admit_serial(wanted)
            if now.key_buckets != was.key_buckets:
                self._admit_emptied(wanted, "get another number of key_buckets")
        if before == NOTHING_SAID != after:
            self._take_room(is_prefix=wanted.is_prefix)
        if after != before:
            some[wanted.name] = changed[wanted.name] = after
        if after == NOTHING_SAID:
            some.pop(wanted.name, None)
            if before != NOTHING_SAID:
                self._give_room(is_prefix=wanted.is_prefix)
        policy: TopicPolicy = after if wanted.is_prefix else after.over(base)
        return TopicPolicyEntry.of(wanted.name, policy, after, is_prefix=wanted.is_prefix)

    def _admit_serial(self, wanted: NamedChange) -> None:
        """Raise InvalidArgumentError if a topic that becomes serial holds items, or has a group with a delay."""
        self._admit_emptied(wanted, "become serial")
        for topic, group in self._emptied.delayed.items() if self._emptied is not None else ():
            if topic == wanted.name or (wanted.is_prefix and topic.startswith(wanted.name)):
                raise InvalidArgumentError(
                    f"group {group!r} of topic {topic!r} delays its copies, and that of a serial topic cannot: delete "
                    "it first"
                )

    def _admit_emptied(self, wanted: NamedChange, effect: str) -> None:
        """Raise InvalidArgumentError if a topic holds items whose order the change would end."""
        one = Closed(ClosedKind.PREFIX if wanted.is_prefix else ClosedKind.TOPIC, wanted.name)
        self.made_serial.append(one)
        emptied = self._emptied
        if emptied is None:
            return
        what = f"the topics that begin with {wanted.name!r}" if wanted.is_prefix else f"topic {wanted.name!r}"
        if one not in emptied.asked:
            raise UnavailableError(
                f"another change came in between, and this one lets {what} {effect} now: nothing was changed, try "
                "again",
                nothing_done=True,
            )
        if one in emptied.held:
            raise InvalidArgumentError(
                f"{what} can {effect} only without items, and a shard holds some (ready, delayed, leased or dead): "
                "consume, delete or purge them, and try again, or use a new topic"
            )

    def _base(self, name: str, *, is_prefix: bool) -> TopicPolicy:
        """Return the policy in force for the topic, or for topics of the prefix, without its own entry."""
        for size in range(len(name) - is_prefix, 0, -1):
            found = self._prefixes.get(name[:size])
            if found is not None:
                return found
        return NO_POLICY

    def _take_room(self, *, is_prefix: bool) -> None:
        counts = self._counts
        if is_prefix:
            _check_room("prefixes", counts.prefixes, limits.TOPIC_PREFIX_POLICIES_MAX, self._namespace_name)
        else:
            _check_room("topics", counts.topics, limits.TOPIC_POLICIES_PER_NAMESPACE_MAX, self._namespace_name)
        if counts.all >= limits.TOPIC_POLICIES_MAX:
            raise InvalidArgumentError(
                f"{counts.all} topics and prefixes of all namespaces have policies, and the limit is "
                f"{limits.TOPIC_POLICIES_MAX}: set those of others back to the defaults"
            )
        self._count(1, is_prefix=is_prefix)

    def _give_room(self, *, is_prefix: bool) -> None:
        self._count(-1, is_prefix=is_prefix)

    def _count(self, change: int, *, is_prefix: bool) -> None:
        self._counts.all += change
        if is_prefix:
            self._counts.prefixes += change
        else:
            self._counts.topics += change


def _in_force(own: OwnPolicy, base: TopicPolicy, *, is_prefix: bool) -> TopicPolicy:
    """Return the policy in force for a topic, or for topics of a prefix, of which it is the whole policy."""
    if is_prefix:
        return base if own == NOTHING_SAID else own
    return own.over(base)


def _is_word(field: str, value: object, base: TopicPolicy, *, is_prefix: bool) -> bool:
    """True if a field that gets this value counts as set, if `base` would be in force without it.

    A prefix overrides shorter ones as a whole, so only a default value can be left unset.
    """
    if is_prefix and value != getattr(NO_POLICY, field):
        return True
    return bool(value != getattr(base, field))


def _check_room(what: str, count: int, most: int, namespace_name: str) -> None:
    if count >= most:
        raise InvalidArgumentError(
            f"{count} {what} of namespace {namespace_name!r} have policies, and the limit is {most}: set those of "
            "others back to the defaults, or use settings of the namespace or policies of prefixes"
        )
