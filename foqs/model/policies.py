"""The policies of all topics of a namespace. A topic's own settings override those of its longest prefix."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from foqs.model.policy import NO_POLICY, OwnPolicy, TopicPolicy
from foqs.model.topic_name import base_of

Policies = Mapping[int, Mapping[str, OwnPolicy]]
"""The policies that operators have set for topics or prefixes, by the number of the namespace and by name."""
NO_POLICIES: Policies = {}


class Prefixes:
    """Finds the longest prefix of a name in a set of prefixes."""

    __slots__ = ("_outer", "_sorted")

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._sorted = sorted(prefixes)
        self._outer: list[int] = []
        """The index of the longest other prefix of each prefix, or -1."""
        nested: list[int] = []
        for at, prefix in enumerate(self._sorted):
            while nested and not prefix.startswith(self._sorted[nested[-1]]):
                nested.pop()
            self._outer.append(nested[-1] if nested else -1)
            nested.append(at)

    def longest(self, name: str) -> str | None:
        """Return the longest prefix of the name, or None.

        All prefixes between it and the name in sorted order begin with it. So it is the last prefix before the name, or
        a prefix of that one.
        """
        at = bisect_right(self._sorted, name) - 1
        while at >= 0:
            if name.startswith(self._sorted[at]):
                return self._sorted[at]
            at = self._outer[at]
        return None


class NamespacePolicies:
    """The policies that operators have set for topics and prefixes of a namespace, and the policies in force. For any
    thread.

    It is immutable: the thread that reads the meta database makes a new one for each change.
    """

    __slots__ = (
        "_in_force", "_prefixes", "has_aging", "has_serial", "limits_in_flight", "may_limit_depth",
        "may_pause_enqueues", "prefixes", "topics",
    )  # fmt: skip

    def __init__(
        self,
        topics: Mapping[str, OwnPolicy],
        prefixes: Mapping[str, OwnPolicy],
        before: NamespacePolicies | None = None,
    ) -> None:
        """Keep the objects of `before` for unchanged policies, set and in force."""
        self.topics = topics
        self.prefixes = prefixes
        self._prefixes = Prefixes(prefixes) if prefixes else None
        self._in_force: Mapping[str, TopicPolicy] = topics
        """The policies in force for the topics that have a policy of their own."""
        if prefixes:
            known = {} if before is None else before._in_force
            found = {name: own.over(self._of_prefix(name)) for name, own in topics.items()}
            self._in_force = {name: known[name] if known.get(name) == one else one for name, one in found.items()}
        possible = [one for some in (self._in_force, prefixes) for one in some.values()]
        self.may_pause_enqueues = any(one.enqueue_paused for one in possible)
        self.may_limit_depth = any(one.depth_max > 0 for one in possible)
        self.has_serial = any(one.serial for one in possible)
        """True if a topic can be serial."""
        self.has_aging = any(one.aging_ms_per_priority for one in possible)
        """True if items of a topic can age."""
        self.limits_in_flight = any(one.in_flight_max for some in (topics, prefixes) for one in some.values())
        """True if some topics have a limit of items under lease."""

    def of(self, name: str) -> TopicPolicy:
        """Return the policy in force for a topic. Keyed topics have that of their base."""
        name = base_of(name)
        found = self._in_force.get(name)
        if found is not None:
            return found
        return NO_POLICY if self._prefixes is None else self._of_prefix(name)

    def _of_prefix(self, name: str) -> TopicPolicy:
        assert self._prefixes is not None
        prefix = self._prefixes.longest(name)
        return NO_POLICY if prefix is None else self.prefixes[prefix]

    def changed_topics(self, before: NamespacePolicies) -> list[str]:
        """Return, in order, the topics with a policy of their own, now or before, whose policy in force has changed."""
        return _changed(self._in_force, before._in_force)

    def changed_prefixes(self, before: NamespacePolicies) -> list[str]:
        """Return, in order, the prefixes whose policy has changed. Any topic that begins so can be affected."""
        return _changed(self.prefixes, before.prefixes)


NO_POLICIES_IN_FORCE = NamespacePolicies({}, {})


def _changed(now: Mapping[str, TopicPolicy], before: Mapping[str, TopicPolicy]) -> list[str]:
    if now is before:
        return []
    return sorted([name for name in now.keys() | before.keys() if now.get(name) is not before.get(name)])
