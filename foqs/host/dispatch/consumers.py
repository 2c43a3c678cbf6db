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
"""A consumer is forgotten so long after its last call."""
FORGOTTEN_PER_CALL_MAX = 100
"""Consumers that one new name forgets, so that no call takes long."""


class WaitingConsumer:
    """A dequeue that waits for items, as operators see it."""

    __slots__ = ("group", "holder", "namespace", "prefix", "topics")

    def __init__(
        self, holder: LeaseHolder, namespace: int, topics: Collection[str], prefix: str | None, group: str | None
    ) -> None:
        self.holder = holder
        self.namespace = namespace
        self.topics = topics
        """The hidden names of its topics; empty with a prefix."""
        self.prefix = prefix
        self.group = group


class Consumers:
    """Knows the consumers that have called this host lately, and the calls of this host's own callers that wait.

    The verbs report calls to it, and `ConsumerVerbs` reads it. Items under lease refer to a `LeaseHolder` by
    themselves, so a consumer that is forgotten keeps its name on these.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self.clock = clock
        self.waiting: dict[WaitingConsumer, None] = {}
        self._named: dict[tuple[int, str], LeaseHolder] = {}
        """Consumers by the number of the namespace and the name, the one whose last call is the longest ago first."""
        self._unnamed: dict[tuple[int, str], LeaseHolder] = {}
        """The same for callers without names, by their addresses."""
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
        return [(key[0], holder) for known in (self._named, self._unnamed) for key, holder in known.items()]

    def is_forgotten(self, holder: LeaseHolder) -> bool:
        """Return True if its last call is too long ago to be shown."""
        return self.clock() - holder.last_s > FORGOTTEN_AFTER_S

    def _of_call(self, context: CallContext, namespace: int, name: str | None) -> LeaseHolder | None:
        if name is not None:
            return self._called(self._named, namespace, name)
        if context.peer or not context.caller:
            return None  # The address of a host says nothing of its caller.
        return self._called(self._unnamed, namespace, context.caller)

    def _called(self, known: dict[tuple[int, str], LeaseHolder], namespace: int, name: str) -> LeaseHolder:
        now_s = self.clock()
        holder = known.pop((namespace, name), None)
        if holder is None:
            self._forget(known, now_s)
            if len(known) >= CONSUMERS_MAX:
                others = self._others.setdefault(namespace, LeaseHolder(OTHERS_NAME, now_s))
                others.last_s = now_s
                return others
            holder = LeaseHolder(name, now_s)
        known[namespace, name] = holder
        holder.last_s = now_s
        return holder

    def _forget(self, known: dict[tuple[int, str], LeaseHolder], now_s: float) -> None:
        for _ in range(FORGOTTEN_PER_CALL_MAX):
            first = next(iter(known), None)
            if first is None or now_s - known[first].last_s <= FORGOTTEN_AFTER_S:
                return
            del known[first]
