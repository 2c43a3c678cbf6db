"""Consumer groups: each group of a topic gets a copy of every item, with leases, attempts and dead letters of its own.

The idea is that of Cherami's consumer groups. A group is a topic with a hidden name (foqs/model/topic_name.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from foqs.model import limits
from foqs.model.errors import (
    AlreadyExistsError,
    FoqsError,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    PausedError,
)
from foqs.model.topic_name import base_of, hidden, in_group, is_keyed, is_of_group, parts

GROUPS_PER_TOPIC_MAX = 16
"""The most consumer groups of a topic, beside its own."""
GROUPS_COPYING_MAX = 16
"""The most consumer groups of a cluster for which items are copied at the same time."""
GROUPS_COPYING_PER_NAMESPACE_MAX = 2
"""The most consumer groups of one namespace for which items are copied at the same time."""
GROUPS_COPYING_PER_PREFIX_MAX = 4
"""The most of the namespaces whose names begin with the prefix of a grant, at the same time."""
COPY_RETRY_MS = 10_000
"""The retry_after_ms of a creation that finds too many copies under way."""
GROUPS_PER_NAMESPACE_MAX = 10_000
"""The most consumer groups of all topics of a namespace, with each deleted group "".

Every host keeps all groups in memory.
"""
COPIES_PER_CALL_MAX = 4_000
"""The most items of one enqueue, counted once for each group that gets a copy."""


_AT_A_TIME = re.compile(r": send (\d+|fewer) items at a time\Z")


def items_at_a_time(error: FoqsError) -> int | None:
    """Return the number of items that an error for a call with too many copies names.

    It is 0 for an error that names none, as one for too many bytes does, and None for any other error.
    """
    found = _AT_A_TIME.search(error.message)
    return None if found is None else int(found[1]) if found[1].isdigit() else 0


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """A declared group of a topic.

    ttl_ms: the time after which its items expire, if their own comes later; 0 for their own. delay_ms: the time by
    which its items are ready later than those of others. is_deleted: it gets no more items, and those that it holds are
    being deleted. created_at_ms: milliseconds since the epoch. copy_job: the id of the job that copies the items that
    waited when the group was created; "" without one. is_copying: that job runs.
    """

    topic: str
    group: str
    is_deleted: bool = False
    ttl_ms: int = 0
    delay_ms: int = 0
    created_at_ms: int = 0
    copy_job: str = ""
    is_copying: bool = False

    @property
    def hidden_name(self) -> str:
        return hidden(self.topic, self.group)

    @property
    def is_plain(self) -> bool:
        """Return True for the group "" of a topic from which it was not deleted. No row is stored for it."""
        return not self.group and not self.is_deleted

    def is_alike(self, other: TopicGroup) -> bool:
        """Return True if both treat their items alike, and both have or have no copies of earlier items."""
        settings, others = (self.ttl_ms, self.delay_ms), (other.ttl_ms, other.delay_ms)
        return settings == others and bool(self.copy_job) == bool(other.copy_job)


class Copy(NamedTuple):
    """How one copy of an enqueued item differs from the item."""

    name: str
    """The hidden name of its topic."""
    ttl_ms: int
    delay_ms: int


Groups = Mapping[int, Mapping[str, TopicGroup]]
"""The groups by the number of the namespace and by hidden name, deleted ones included."""


class NamespaceGroups:
    """The groups of the topics of a namespace. It is immutable, so that any thread can read it."""

    __slots__ = ("_copies", "by_name", "copying", "deleted", "live", "names")

    def __init__(self, by_name: Mapping[str, TopicGroup]) -> None:
        self.by_name = by_name
        self.names = sorted(by_name)
        """The hidden names, in order."""
        self.deleted = frozenset([name for name, one in by_name.items() if one.is_deleted])
        """The hidden names of the deleted groups, whose items are being deleted."""
        self.live = frozenset(by_name) - self.deleted
        """The hidden names of the others."""
        self.copying = tuple([by_name[name] for name in self.names if by_name[name].is_copying])
        """The groups for which items are copied that waited at their creation."""
        of_topic: dict[str, list[TopicGroup]] = {}
        for one in by_name.values():
            of_topic.setdefault(one.topic, []).append(one)
        self._copies = {topic: _copies_of(topic, some) for topic, some in of_topic.items()}

    def copies(self, topic: str) -> tuple[Copy, ...] | None:
        """Return the copies that an item of the topic has; None for the item alone, as without groups.

        Those of an item of a keyed topic have the same key.
        """
        found = self._copies.get(topic)
        if found is not None or not is_keyed(topic) or (found := self._copies.get(base_of(topic))) is None:
            return found
        return tuple([one._replace(name=in_group(topic, one.name)) for one in found])

    def is_read(self, name: str) -> bool:
        """Return True if consumers can get items of the topic of this hidden name."""
        return name in self.live if is_of_group(name) else name not in self.deleted

    def changed(self, before: NamespaceGroups) -> list[str]:
        """Return, in order, the hidden names of topics that consumers can read only now, or only before."""
        return sorted((self.live ^ before.live) | (self.deleted ^ before.deleted))

    def groups_of(self, topic: str) -> list[str]:
        """Return the names of the groups of a topic that exist, in order."""
        declared = self._copies.get(topic)
        return [""] if declared is None else sorted([parts(one.name)[1] for one in declared])


NO_GROUPS = NamespaceGroups({})


def _copies_of(topic: str, declared: list[TopicGroup]) -> tuple[Copy, ...] | None:
    """Return the copies of an item of the topic: of the group "", unless it is closed, and of each declared group."""
    by_group = {one.group: one for one in declared}
    own = by_group.setdefault("", TopicGroup(topic, ""))
    live = [one for _, one in sorted(by_group.items()) if not one.is_deleted]
    if live == [own]:
        return None
    return tuple([Copy(one.hidden_name, one.ttl_ms, one.delay_ms) for one in live])


def check_consumed(groups: NamespaceGroups | None, topic: str, group: str) -> None:
    """Check that the group of the topic exists. Raises NotFoundError, or InvalidArgumentError for a deleted ""."""
    known = (groups or NO_GROUPS).groups_of(topic)
    if group in known:
        return
    named = ", ".join([repr(one) for one in known if one]) or "none"
    if not group:
        raise InvalidArgumentError(
            f"topic {topic!r} is read by its groups alone, since its own was deleted: name one as `group` ({named})"
        )
    raise NotFoundError(f"topic {topic!r} has no group {group!r}: create it first (its groups: {named})")


def check_room_for_copy(copying: Sequence[str], namespace_name: str, prefixes: Sequence[str]) -> None:
    """Raise OverloadedError if too many copies are under way for one more in the namespace.

    `copying` has the name of the namespace of each copy. `prefixes` are those of the grants that permit one more, if
    nothing else does; a prefix has a part of the cluster's copies, as it has of its namespaces.
    """
    of_namespace = copying.count(namespace_name)
    of_prefixes = [sum([name.startswith(prefix) for name in copying]) for prefix in prefixes]
    if len(copying) >= GROUPS_COPYING_MAX:
        count, most, where = len(copying), GROUPS_COPYING_MAX, "the cluster"
    elif of_namespace >= GROUPS_COPYING_PER_NAMESPACE_MAX:
        count, most, where = of_namespace, GROUPS_COPYING_PER_NAMESPACE_MAX, f"namespace {namespace_name!r}"
    elif of_prefixes and min(of_prefixes) >= GROUPS_COPYING_PER_PREFIX_MAX:
        count, most = min(of_prefixes), GROUPS_COPYING_PER_PREFIX_MAX
        where = f"the namespaces whose names begin with {prefixes[0]!r}"
    else:
        return
    raise OverloadedError(
        f"items are copied for {count} new groups of {where}, and the limit is {most}: try again when one of these "
        "jobs has ended, or end one (updateJob with state FAILED)",
        retry_after_ms=COPY_RETRY_MS,
    )


def ended_early(group: TopicGroup) -> AlreadyExistsError:
    """Return the error for a repeated creation of a group whose job was ended before it had copied all items."""
    return AlreadyExistsError(
        f"group {group.group!r} of topic {group.topic!r} exists, and job {group.copy_job!r}, which copied the items "
        "that waited, was ended (state FAILED) and does not continue: delete the group and create it again, "
        "or keep it with the copies that it has"
    )


class GroupBook:
    """The groups of one topic during a change, which it checks. It does no I/O: the caller stores what it returns."""

    def __init__(self, of_topic: Mapping[str, TopicGroup], namespace_count: int) -> None:
        """`of_topic` has the groups of the topic by name; `namespace_count` counts those of the whole namespace."""
        self._of_topic = of_topic
        self._namespace_count = namespace_count

    def create(self, wanted: TopicGroup) -> TopicGroup:
        """Return the group to store; the known one if it is alike, because a creation can be repeated.

        The group "" exists unless it was deleted, and so its creation is one of a known group.
        Raises AlreadyExistsError, PausedError while a deleted group of that name still holds items, and
        InvalidArgumentError for one too many.
        """
        known = self._of_topic.get(wanted.group)
        if known is not None and known.is_deleted:
            raise PausedError(
                f"group {wanted.group!r} of topic {wanted.topic!r} was deleted, and its items are being deleted: try "
                "again",
                retry_after_ms=limits.META_CALLS_RETRY_MS,
            )
        if known is not None:
            if known.is_alike(wanted):
                return known
            raise AlreadyExistsError(
                f"group {wanted.group!r} of topic {wanted.topic!r} exists with ttl_ms {known.ttl_ms}, delay_ms "
                f"{known.delay_ms} and from_queued {bool(known.copy_job)}: delete it, or give these"
            )
        self._check_room(wanted)
        return wanted

    def delete(self, topic: str, group: str) -> TopicGroup:
        """Return the deleted group to store.

        Raises NotFoundError, and InvalidArgumentError if nobody would get the items of the topic, or for one row too
        many.
        """
        known = self._of_topic.get(group)
        if known is None and not group:
            known = TopicGroup(topic, "")
            self._check_closable(topic)
        if known is None:
            raise NotFoundError(f"topic {topic!r} has no group {group!r}")
        return replace(known, is_deleted=True, is_copying=False)

    def _check_closable(self, topic: str) -> None:
        if all(one.is_deleted for one in self._of_topic.values()):
            raise InvalidArgumentError(
                f"topic {topic!r} has no group but its own, which cannot be deleted then: create another one first"
            )
        self._check_namespace()

    def _check_room(self, wanted: TopicGroup) -> None:
        if wanted.is_plain:
            return
        count = len([one for one in self._of_topic if one])
        if count >= GROUPS_PER_TOPIC_MAX:
            raise InvalidArgumentError(
                f"topic {wanted.topic!r} has {count} groups, and the limit is {GROUPS_PER_TOPIC_MAX}: delete one"
            )
        self._check_namespace()

    def _check_namespace(self) -> None:
        if self._namespace_count >= GROUPS_PER_NAMESPACE_MAX:
            raise InvalidArgumentError(
                f"the topics of the namespace have {self._namespace_count} groups, and the limit is "
                f"{GROUPS_PER_NAMESPACE_MAX}: delete some"
            )
