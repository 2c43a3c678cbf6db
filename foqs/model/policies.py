"""The policies of all topics of a namespace: each topic's own word over that of the longest prefix."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from foqs.model.policy import NO_POLICY, OwnPolicy, TopicPolicy

Policies = Mapping[int, Mapping[str, OwnPolicy]]
"""What operators have said of topics, or of prefixes, by the number of the namespace and by name."""
NO_POLICIES: Policies = {}


class Prefixes:
    """Finds the longest of some prefixes with which a name begins."""

    __slots__ = ("_outer", "_sorted")

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._sorted = sorted(prefixes)
        self._outer: list[int] = []
        """The place of the longest other prefix with which each begins, or -1."""
        nested: list[int] = []
        for at, prefix in enumerate(self._sorted):
            while nested and not prefix.startswith(self._sorted[nested[-1]]):
                nested.pop()
            self._outer.append(nested[-1] if nested else -1)
            nested.append(at)

    def longest(self, name: str) -> str | None:
        """The longest prefix of the name, or None.

        All prefixes between it and the name in their order begin with it. So it is the last one before the name, or one
        with which that begins.
        """
        at = bisect_right(self._sorted, name) - 1
        while at >= 0:
            if name.startswith(self._sorted[at]):
                return self._sorted[at]
            at = self._outer[at]
        return None


class NamespacePolicies:
    """What operators have said of topics of a namespace and of their prefixes, and what holds by that. For any thread.

    Nothing of it changes: with a change there is another one, made on the thread that reads the meta database.
    """

    __slots__ = ("_in_force", "_prefixes", "may_pause_enqueues", "prefixes", "topics")

    def __init__(
        self,
        topics: Mapping[str, OwnPolicy],
        prefixes: Mapping[str, OwnPolicy],
        before: NamespacePolicies | None = None,
    ) -> None:
        """What has not changed is the same object as in `before`, and what holds is so, too."""
        self.topics = topics
        self.prefixes = prefixes
        self._prefixes = Prefixes(prefixes) if prefixes else None
        self._in_force: Mapping[str, TopicPolicy] = topics
        """The policies of topics of which something was said."""
        if prefixes:
            known = {} if before is None else before._in_force
            found = {name: own.over(self._of_prefix(name)) for name, own in topics.items()}
            self._in_force = {name: known[name] if known.get(name) == one else one for name, one in found.items()}
        pausing = (one.enqueue_paused for some in (self._in_force, prefixes) for one in some.values())
        self.may_pause_enqueues = any(pausing)

    def of(self, name: str) -> TopicPolicy:
        """The policy that holds for a topic."""
        found = self._in_force.get(name)
        if found is not None:
            return found
        return NO_POLICY if self._prefixes is None else self._of_prefix(name)

    def _of_prefix(self, name: str) -> TopicPolicy:
        assert self._prefixes is not None
        prefix = self._prefixes.longest(name)
        return NO_POLICY if prefix is None else self.prefixes[prefix]

    def changed_topics(self, before: NamespacePolicies) -> list[str]:
        """Topics of which something is or was said and for which another policy holds now, in order."""
        return _changed(self._in_force, before._in_force)

    def changed_prefixes(self, before: NamespacePolicies) -> list[str]:
        """Prefixes that have another policy now, in order: any topic that begins so may have one."""
        return _changed(self.prefixes, before.prefixes)


NO_POLICIES_IN_FORCE = NamespacePolicies({}, {})


def _changed(now: Mapping[str, TopicPolicy], before: Mapping[str, TopicPolicy]) -> list[str]:
    if now is before:
        return []
    return sorted([name for name in now.keys() | before.keys() if now.get(name) is not before.get(name)])
