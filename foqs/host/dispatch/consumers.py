"""The consumers that ask this host for items, by their names, and their calls that wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager

from foqs.contract.requests import DequeueRequest
from foqs.model.calls import CallContext
from foqs.model.holder import OTHERS_NAME, LeaseHolder
from foqs.model.topic_name import hidden

CONSUMERS_MAX = 20_000
"""Names that a host distinguishes, and as many addresses of callers without names. All others share one."""
FORGOTTEN_AFTER_S = 600
"""The time after its last call at which a consumer is forgotten, in seconds."""
FORGOTTEN_PER_CALL_MAX = 100
"""Consumers that one new name forgets, so that no call takes long."""


class WaitingConsumer:
    """A dequeue that waits for items, as operators see it."""

    __slots__ = ("group", "holder", "namespace", "prefix", "since_s", "topics")

    def __init__(
        self, holder: LeaseHolder, namespace: int, topics: Collection[str], prefix: str | None, group: str | None
    ) -> None:
        self.holder = holder
        self.namespace = namespace
        self.topics = topics
        """The hidden names of its topics; empty with a prefix."""
        self.prefix = prefix
        self.group = group
        self.since_s = holder.last_s
        """The time at which it began to wait."""


class Consumers:
    """Knows the consumers that have called this host lately, and the calls of this host's own callers that wait.

    The verbs report calls to it, and `ConsumerVerbs` reads it. Items under lease refer to a `LeaseHolder` by
    themselves, so a consumer that is forgotten keeps its name on these.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self.clock = clock
        self.waiting: dict[WaitingConsumer, None] = {}
        self._named = _Known()
        """Consumers by their names."""
        self._unnamed = _Known()
        """Callers without names, by their addresses."""
        self._others: dict[int, LeaseHolder] = {}
        """The consumer that all others of a namespace share, by the number of the namespace."""

    def asks(self, context: CallContext, namespace: int, name: str | None) -> LeaseHolder | None:
        """Note a dequeue, and return its consumer; None without a name and an address."""
        holder = self._of_call(context, namespace, name)
        if holder is not None:
            holder.dequeued_s = holder.last_s
            if not context.peer and holder.name != OTHERS_NAME:
                holder.calls_from(context.caller)
        return holder

    def holds(self, namespace: int, name: str) -> LeaseHolder:
        """Note that a consumer of this name has items, and return it."""
        return self._called(self._named, namespace, name)

    @contextmanager
    def waits(
        self, context: CallContext, namespace: int, topics: Collection[str], request: DequeueRequest
    ) -> Iterator[None]:
        """Count a call of a client among those that wait. Those of other hosts are counted there."""
        holder = None if context.peer else self.asks(context, namespace, request.consumer)
        if holder is None:
            yield
            return
        call = WaitingConsumer(holder, namespace, topics, request.topic_prefix, request.group)
        self.waiting[call] = None
        try:
            yield
        finally:
            del self.waiting[call]

    def waits_elsewhere(
        self, context: CallContext, namespace: int, request: DequeueRequest
    ) -> AbstractContextManager[None]:
        """Do as `waits` does for a call that waits for items of other hosts alone."""
        topics = [hidden(demand.topic or "", demand.group) for demand in request.topics]
        return self.waits(context, namespace, topics, request)

    def known(self) -> list[tuple[int, LeaseHolder]]:
        """Return all known consumers with the numbers of their namespaces. Some may be due to be forgotten."""
        return [*self._named.all(), *self._unnamed.all()]

    def is_forgotten(self, holder: LeaseHolder) -> bool:
        """Return True if its last call is too long ago to be shown."""
        return self.clock() - holder.last_s > FORGOTTEN_AFTER_S

    def _of_call(self, context: CallContext, namespace: int, name: str | None) -> LeaseHolder | None:
        if name is not None:
            return self._called(self._named, namespace, name)
        if context.peer or not context.caller:
            return None  # The address of a host says nothing of its caller.
        return self._called(self._unnamed, namespace, context.caller)

    def _called(self, known: _Known, namespace: int, name: str) -> LeaseHolder:
        now_s = self.clock()
        holder = known.take(namespace, name)
        if holder is None:
            known.forget(namespace, now_s)
            if not known.has_room_for(namespace):
                others = self._others.setdefault(namespace, LeaseHolder(OTHERS_NAME, now_s))
                others.last_s = now_s
                return others
            holder = LeaseHolder(name, now_s)
        known.put(namespace, name, holder)
        holder.last_s = now_s
        return holder


class _Known:
    """Consumers of all namespaces, CONSUMERS_MAX at most, with a fair share for each namespace."""

    def __init__(self) -> None:
        self._of: dict[int, dict[str, LeaseHolder]] = {}
        """Consumers by number of the namespace and by name, the one whose last call is the longest ago first."""
        self._count = 0

    def all(self) -> Iterator[tuple[int, LeaseHolder]]:
        for namespace, own in self._of.items():
            for holder in own.values():
                yield namespace, holder

    def take(self, namespace: int, name: str) -> LeaseHolder | None:
        own = self._of.get(namespace)
        holder = None if own is None else own.pop(name, None)
        self._count -= holder is not None
        return holder

    def put(self, namespace: int, name: str, holder: LeaseHolder) -> None:
        """Add a consumer behind all others of its namespace."""
        self._of.setdefault(namespace, {})[name] = holder
        self._count += 1

    def forget(self, namespace: int, now_s: float) -> None:
        """Forget some consumers of a namespace whose last call is too long ago."""
        own = self._of.get(namespace, {})
        for _ in range(FORGOTTEN_PER_CALL_MAX):
            first = next(iter(own), None)
            if first is None or now_s - own[first].last_s <= FORGOTTEN_AFTER_S:
                break
            del own[first]
            self._count -= 1
        if not own:
            self._of.pop(namespace, None)

    def has_room_for(self, namespace: int) -> bool:
        """Return True if a namespace can have one more, if need be in place of one of the namespace with the most."""
        if self._count < CONSUMERS_MAX:
            return True
        largest = max(self._of, key=lambda number: len(self._of[number]))
        if len(self._of[largest]) <= len(self._of.get(namespace, ())) + 1:
            return False
        del self._of[largest][next(iter(self._of[largest]))]
        self._count -= 1
        return True
