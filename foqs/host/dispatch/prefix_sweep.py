"""The search for topics that changes of prefix policies concern, in steps of one turn of the event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from foqs.model import limits
from foqs.model.policies import Prefixes
from foqs.model.stocks import Topic

_CHANGES_AT_ONCE = 1_000
"""Changed prefixes that one walk through the topics covers."""
_TOPICS_PER_TURN = 5_000
"""Topics that one turn compares with the prefixes."""


class PrefixSweep:
    """Walks once through the topics of a host for some changed prefixes. A topic added meanwhile is up to date."""

    def __init__(self) -> None:
        self._left: list[Topic] = []
        self._prefixes: dict[int, Prefixes] = {}

    @property
    def is_under_way(self) -> bool:
        return bool(self._left)

    def take(self, changes: deque[Topic], known: Callable[[], list[Topic]]) -> list[Topic]:
        """Return up to limits.SWEEP_QUEUES_MAX topics that changes concern.

        `changes` are pairs of namespace and changed prefix; a new walk removes its prefixes from them. `known` returns
        all topics of this host.
        """
        if not self._left:
            if not changes:
                return []
            changed: dict[int, list[str]] = {}
            for _ in range(min(len(changes), _CHANGES_AT_ONCE)):
                namespace, prefix = changes.popleft()
                changed.setdefault(namespace, []).append(prefix)
            self._prefixes = {number: Prefixes(some) for number, some in changed.items()}
            self._left = known()
        found: list[Topic] = []
        for _ in range(min(len(self._left), _TOPICS_PER_TURN)):
            topic = self._left.pop()
            prefixes = self._prefixes.get(topic[0])
            if prefixes is not None and prefixes.longest(topic[1]) is not None:
                found.append(topic)
                if len(found) >= limits.SWEEP_QUEUES_MAX:
                    break
        return found
