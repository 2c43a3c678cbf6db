"""How many of something each namespace has, so that the one with the most can give way to another one. Pure."""

from __future__ import annotations


class Shares:
    """The count of each namespace, by its number, and the largest count. Each call takes a constant time."""

    def __init__(self) -> None:
        self._count_of: dict[int, int] = {}
        self._with_count: dict[int, dict[int, None]] = {}
        """The namespaces that have each count, as the keys of a dict."""
        self._most = 0

    def of(self, namespace: int) -> int:
        """Return the count of a namespace."""
        return self._count_of.get(namespace, 0)

    def add(self, namespace: int) -> None:
        """Raise the count of a namespace by 1."""
        self._set(namespace, self.of(namespace) + 1)

    def remove(self, namespace: int) -> None:
        """Lower the count of a namespace by 1."""
        self._set(namespace, self.of(namespace) - 1)

    def giving_way_to(self, namespace: int) -> int | None:
        """Return the namespace that gives one to this one; None if its share is as large as the largest one.

        After that the one that gave still has as many as the other, or more, so that nothing is given back and forth.
        """
        if self._most - self.of(namespace) < 2:
            return None
        largest = self._with_count[self._most]
        number, _ = largest.popitem()  # To begin at the front would pass over all that have left there before.
        largest[number] = None
        return number

    def _set(self, namespace: int, count: int) -> None:
        assert count >= 0, "a namespace gives only what it has"
        before = self._count_of.pop(namespace, 0)
        if before:
            alike = self._with_count[before]
            del alike[namespace]
            if not alike:
                del self._with_count[before]
        if count:
            self._count_of[namespace] = count
            self._with_count.setdefault(count, {})[namespace] = None
        if count > self._most:
            self._most = count
        elif before == self._most and before not in self._with_count:
            self._most = count  # It was the only one with the most, and still has more than all others, or as many.
