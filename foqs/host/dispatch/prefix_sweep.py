"""Finds the topics that changes of prefix policies concern, some in each turn of the event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from foqs.model import limits
from foqs.model.policies import Prefixes
from foqs.model.stocks import Topic

_CHANGES_AT_ONCE = 1_000
"""Changed prefixes for which the topics are gone through once."""
_LOOKS_PER_TURN = 5_000
"""Topics that one turn compares with them."""


class PrefixSweep:
    """Goes through the topics of a host once for some changed prefixes. A topic that comes meanwhile is up to date."""

    def __init__(self) -> None:
        self._left: list[Topic] = []
        self._prefixes: dict[int, Prefixes] = {}

    @property
    def is_under_way(self) -> bool:
        return bool(self._left)

    def take(self, changes: deque[Topic], known: Callable[[], list[Topic]]) -> list[Topic]:
        """Up to limits.SWEEP_QUEUES_MAX topics that changes concern.

        `changes` are changed prefixes by namespace, of which those that are begun with are taken out; `known` tells all
        topics that are here now.
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
        for _ in range(min(len(self._left), _LOOKS_PER_TURN)):
            topic = self._left.pop()
            prefixes = self._prefixes.get(topic[0])
            if prefixes is not None and prefixes.longest(topic[1]) is not None:
                found.append(topic)
                if len(found) >= limits.SWEEP_QUEUES_MAX:
                    break
        return found
