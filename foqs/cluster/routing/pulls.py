"""Dequeues on all hosts: from this host first, unless another one has more urgent or older items, or the only ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple

import structlog

from foqs.background.tasks import Tasks
from foqs.cluster.homes.directory import best_of, last_as_urgent
from foqs.cluster.homes.interests import Wait
from foqs.cluster.homes.topic_homes import TopicHomes
from foqs.cluster.peers.peer_table import Peer
from foqs.contract.requests import DequeueRequest, Nack, NackRequest, TopicDemand, changed
from foqs.contract.verbs import Method
from foqs.host import arguments
from foqs.model import limits
from foqs.model.aging import aging_place
from foqs.model.calls import CallContext, Delivery, PositionErrors
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.stocks import ANY_TOPIC, Pointer, Topic, is_any
from foqs.model.topic_name import hidden

PULL_TRIES_MAX = 3
"""Hosts that a call without a wait asks for items, one after the other."""
FIND_WAIT_MS = 250
"""Time that a call without a wait gives the homes of its topics to answer; most do so in a few ms."""
PULL_WAIT_MS_MAX = 1 * limits.SECOND_MS
"""Time that a call waits for another host beyond its wait_ms, and while items can be here."""
PULL_MS_MAX = 2 * limits.SECOND_MS
"""Time that a call waits for one host if another one has items, too: the link to the first can be cut."""
STOP_MS_MAX = 1 * limits.SECOND_MS
"""Time for which a host that stops waits for the items of pulls whose calls have ended, to release these items."""

Waits = Callable[[CallContext, int, DequeueRequest], AbstractContextManager[None]]
"""Counts a call, in the namespace of this number, among those that wait for items."""

_log = structlog.get_logger(__name__)


class _Wanted(NamedTuple):
    """The arguments of a call."""

    context: CallContext
    request: DequeueRequest
    by_topic: Mapping[Topic, TopicDemand | None]
    """None for any topic, of which the call wants `count` items of the request."""
    answer_s: float
    """The time of the event loop at which the call must be answered, even if other hosts have not responded."""


class Pulls:
    """The verb dequeue on all shards of the cluster. It owns the pulls whose callers have left or wait no more.

    A pull is a dequeue at another host without a wait. So no items are claimed for calls that can be over. Items that
    arrive after their call was answered are released, as if they had not been available to the caller yet.
    """

    def __init__(
        self,
        local: Method,
        homes: TopicHomes,
        remote: Callable[[str], Peer | None],
        number_of: Callable[[str], int | None],
        serves_any: Callable[[], bool],
        nack: Method,
        aging_ms: Callable[[Topic], int] = lambda topic: 0,
        waits: Waits = lambda context, number, request: nullcontext(),
    ) -> None:
        """`local` does a dequeue by this host alone. `remote` returns a host by its id.

        `number_of` returns the number of a namespace, None if this host does not know it. `nack` nacks deliveries
        at the current hosts of their shards, because a shard can move during a pull. `aging_ms` returns the
        wait in which items of a topic become more urgent by one priority. `waits` counts a call that waits for items of
        other hosts alone.
        """
        self._local = local
        self._homes = homes
        self._remote = remote
        self._number_of = number_of
        self._serves_any = serves_any
        self._nack = nack
        self._aging_ms = aging_ms
        self._waits_elsewhere = waits
        self._waits: dict[Wait, None] = {}
        self._is_draining = False
        self.pulls_total: Counter[str] = Counter(dict.fromkeys(("items", "empty", "failed", "late", "given_back"), 0))
        """The pulls by outcome."""
        self.items_total = 0
        self._tasks = Tasks("pulls")
        self._first_pulls: set[tuple[str, Topic]] = set()
        """The pending pulls of better items, by host and topic; meanwhile other calls take the items here."""
        self._late: Counter[tuple[str, Topic]] = Counter()
        """The pulls, by host and topic, for which no call waits any more; no others are sent until these end."""

    async def dequeue(self, context: CallContext, request: DequeueRequest) -> Sequence[Delivery]:
        """Lease items of any host; wait up to `wait_ms` while none are ready.

        Calls that name no topic use the host whose turn it is, by the weights of the topics with items there.
        """
        topics, topic_prefix, wait_ms = request.topics, request.topic_prefix, request.wait_ms
        number = self._number_of(request.namespace_name)
        if number is None or not isinstance(wait_ms, int) or not 0 <= wait_ms <= limits.WAIT_MS_MAX:
            return list(await self._local(context, request))  # It raises the error.
        until_s = asyncio.get_running_loop().time() + wait_ms / 1000
        if context.deadline_s is not None:
            until_s = min(until_s, context.deadline_s)
        answer_s = until_s + PULL_WAIT_MS_MAX / 1000
        by_topic: dict[Topic, TopicDemand | None] = {
            (number, hidden(demand.topic or "?", demand.group)): demand for demand in topics
        }
        all_topics = number, hidden(ANY_TOPIC, request.group)
        if topic_prefix is not None:
            by_topic = {all_topics: None}
        wanted = _Wanted(context, request, by_topic, answer_s)
        items = await (self._take(wanted) if topic_prefix is None else self._take_any(wanted, all_topics))
        # Only now, so that names of calls that were refused above are not kept.
        if topic_prefix is None:
            self._homes.asked(by_topic)
        else:
            self._homes.asked_any(all_topics)
        if items:
            return items
        wait = self._homes.wait(
            {topic: (demand.count if demand is not None else request.count) or 1 for topic, demand in by_topic.items()}
        )
        self._waits[wait] = None
        try:
            if until_s > asyncio.get_running_loop().time() and not self._is_draining:
                return await self._wait(wanted, wait, until_s)
            return await self._take_elsewhere(wanted, wait)
        finally:
            self._waits.pop(wait, None)
            self._homes.leave(wait)

    async def serve(self, context: CallContext, request: DequeueRequest) -> Sequence[Delivery]:
        """Serve another host's pull."""
        items: Sequence[Delivery] = await self._local(context, request)
        if items and (number := self._number_of(request.namespace_name)) is not None:
            if request.topic_prefix is None and len(request.topics) == 1:
                asked = request.topics[0]
                self._homes.pulled({(number, hidden(asked.topic or "", asked.group)): len(items)})
            else:
                self._homes.pulled(Counter([(number, hidden(item.topic, item.group)) for item in items]))
        return items

    def drain(self) -> None:
        """End the waits of all calls."""
        self._is_draining = True
        for wait in self._waits:
            wait.end()

    async def _take(self, wanted: _Wanted) -> Sequence[Delivery]:
        """Take items without a wait, from another host first if that has better ones."""
        pointer = self._homes.better(wanted.by_topic)
        if pointer is None or (first := (pointer.host_id, pointer.topic)) in self._first_pulls:
            return await self._dequeue_here(wanted)
        self._first_pulls.add(first)
        try:
            items = await self._pull_first(wanted, pointer)
        finally:
            self._first_pulls.discard(first)
        return items or await self._dequeue_here(wanted)

    async def _take_any(self, wanted: _Wanted, all_topics: Topic) -> Sequence[Delivery]:
        """Take items of any topic without a wait, from the host whose turn it is, or else from this one."""
        turn = self._homes.begin_turn(all_topics, min(max(1, wanted.request.count or 1), limits.BATCH_ITEMS_MAX))
        if turn is None:
            return await self._dequeue_here(wanted)
        items: Sequence[Delivery] = []
        try:
            if turn.pointer is not None:
                items = await self._pull_first(wanted, turn.pointer) or []
            else:
                items = await self._dequeue_here(wanted)
        finally:
            self._homes.end_turn(turn, len(items))
        return items or (await self._dequeue_here(wanted) if turn.pointer is not None else [])

    async def _dequeue_here(self, wanted: _Wanted, wait_ms: int = 0) -> Sequence[Delivery]:
        """Take items of this host. Raises the errors of the call, except the one that this host has no shard."""
        request = wanted.request if wait_ms == wanted.request.wait_ms else changed(wanted.request, wait_ms=wait_ms)
        try:
            items: Sequence[Delivery] = await self._local(wanted.context, request)
            return items
        except UnavailableError:
            if self._serves_any():
                raise
            # That error can come before the check of the arguments.
            self._check(wanted.request)
            return []

    @staticmethod
    def _check(request: DequeueRequest) -> None:
        arguments.check_demands(request)

    async def _take_elsewhere(self, wanted: _Wanted, wait: Wait) -> Sequence[Delivery]:
        """Take items of other hosts without a wait."""
        loop = asyncio.get_running_loop()
        for _ in range(PULL_TRIES_MAX):
            try:
                async with asyncio.timeout_at(min(loop.time() + FIND_WAIT_MS / 1000, wanted.answer_s)):
                    await wait.answered()
            except TimeoutError:
                return []
            if not wait.pointers:
                return []  # No host has any.
            if items := await self._pull_best(wanted, wait):
                return items
        return []

    async def _wait(self, wanted: _Wanted, wait: Wait, until_s: float) -> Sequence[Delivery]:
        """Wait for items of this and other hosts, and take the first ones."""
        loop = asyncio.get_running_loop()
        while (left_s := until_s - loop.time()) > 0 and not self._is_draining:
            if self._serves_any():
                items, is_over = await self._wait_here(wanted, wait, left_s)
                if items or is_over:
                    return items
            else:
                number, request = next(iter(wanted.by_topic))[0], wanted.request
                with suppress(TimeoutError), self._waits_elsewhere(wanted.context, number, request):
                    async with asyncio.timeout(left_s):
                        await wait.arrived()
            items_there = await self._pull_best(wanted, wait)
            if items_there:
                return items_there
            if items_there is not None:
                self._homes.find_again(wait)
        return []

    async def _wait_here(self, wanted: _Wanted, wait: Wait, left_s: float) -> tuple[Sequence[Delivery], bool]:
        """Wait for items of this host until others have some. Returns its items, and True if the time is over."""
        here = self._tasks.lend(self._dequeue_here(wanted, round(left_s * 1000)), "dequeue-here")
        arrived = self._tasks.lend(wait.arrived(), "dequeue-elsewhere")
        try:
            await asyncio.wait([here, arrived], timeout=left_s + 1, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._tasks.spawn(self._release_here(wanted, here), "pull-given-back")
            raise
        finally:
            arrived.cancel()
            here.cancel()
        is_over = here.done() and not wait.pointers and self._serves_any()
        try:
            return await here, is_over
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return [], False

    async def _release_here(self, wanted: _Wanted, here: asyncio.Task[Sequence[Delivery]]) -> None:
        """Release items that this host delivered at the moment at which the caller left."""
        items: Sequence[Delivery] = []
        with suppress(asyncio.CancelledError, FoqsError):  # Then this host has delivered nothing.
            items = await here
        if items:
            await self._release_unseen(None, wanted, items)

    async def _pull_best(self, wanted: _Wanted, wait: Wait) -> Sequence[Delivery] | None:
        """Take items of the best host. None if no host can be asked, because homes would only name it again at once."""
        pointers = wait.take()
        is_any_away = False
        while (pointer := best_of(pointers)) is not None:
            if (items := await self._pull(wanted, pointer, wanted.answer_s, wait)) is not None:
                self._homes.keep_unused([one for one in pointers if one is not pointer])
                return items
            is_any_away = True
            pointers = [one for one in pointers if one.host_id != pointer.host_id]
        return None if is_any_away else []

    async def _pull_first(self, wanted: _Wanted, pointer: Pointer) -> Sequence[Delivery] | None:
        """Pull before the items here are checked; these wait only briefly for it.

        Raises the errors of the arguments, because this host has not checked the call yet.
        """
        self._check(wanted.request)
        until_s = asyncio.get_running_loop().time() + PULL_WAIT_MS_MAX / 1000
        return await self._pull(wanted, pointer, min(until_s, wanted.answer_s))

    async def _pull(
        self, wanted: _Wanted, pointer: Pointer, until_s: float, wait: Wait | None = None
    ) -> Sequence[Delivery] | None:
        """Take items of the topic from the host. None if it does not answer by `until_s`.

        It is also given up, after a while, if the `wait` gets a pointer to another host.

        Raises UnavailableError if it was asked and the outcome is unknown.
        """
        remote = self._remote(pointer.host_id)
        if pointer.topic not in wanted.by_topic:
            return []
        if remote is None:
            return None
        left_s = until_s - asyncio.get_running_loop().time()
        if left_s <= 0 or (pointer.host_id, pointer.topic) in self._late:
            self._homes.was_exhausted(pointer)
            return None
        pull = self._tasks.lend(
            self._dequeue_there(remote, wanted, wanted.by_topic[pointer.topic]), f"pull-{pointer.host_id}"
        )
        try:
            await asyncio.wait([pull], timeout=left_s if wait is None else min(left_s, PULL_MS_MAX / 1000))
            if wait is not None and not pull.done():
                await self._until_another(pull, pointer.host_id, wait, until_s)
        except asyncio.CancelledError:
            self._tasks.spawn(self._release(remote, wanted, pull), "pull-given-back")
            raise
        if not pull.done():
            self._is_late(remote, wanted, pointer, pull)
            return None
        return self._pulled(pointer, pull)

    async def _until_another(
        self, pull: asyncio.Task[Sequence[Delivery]], host_id: str, wait: Wait, until_s: float
    ) -> None:
        """Return when the host has answered, or the wait has a pointer to another one."""
        loop = asyncio.get_running_loop()
        while not pull.done() and (left_s := until_s - loop.time()) > 0 and not wait.drop(host_id):
            arrived = self._tasks.lend(wait.arrived(), "pull-elsewhere")
            try:
                await asyncio.wait([pull, arrived], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                arrived.cancel()

    def _pulled(self, pointer: Pointer, pull: asyncio.Task[Sequence[Delivery]]) -> Sequence[Delivery] | None:
        """Return the items of a completed pull, or None if the host could not be asked."""
        try:
            items = pull.result()
        except FoqsError as error:
            self.pulls_total["failed"] += 1
            self._homes.was_exhausted(pointer)
            if error.nothing_done:
                return None  # Its view of the namespace can differ from this host's, which has admitted the call.
            # Items could be leased to this caller, so an empty response would be wrong.
            if isinstance(error, UnavailableError):
                raise
            raise UnavailableError(f"host {pointer.host_id} was asked for items: {error.message}") from error
        self.pulls_total["items" if items else "empty"] += 1
        self.items_total += len(items)
        if items:
            self._homes.served(pointer)
        if self._is_exhausted(pointer, items):
            self._homes.was_exhausted(pointer)
        return items

    def _is_exhausted(self, pointer: Pointer, pulled: Sequence[Delivery]) -> bool:
        """True if the host has no more items that precede the ones of this host."""
        if not pulled:
            return True
        if is_any(pointer.topic[1]):
            return False
        last, stock = pulled[-1], pointer.stock  # The most urgent items come first.
        if stock.urgency is None:
            return last.priority > stock.priority
        # If this host knows of no aging yet or any more, the next report tells.
        aging_ms = self._aging_ms(pointer.topic)
        place = aging_place(last.deliver_after_ms, last.priority, aging_ms)
        return not aging_ms or place > last_as_urgent(stock, stock.urgency)

    def _is_late(self, remote: Peer, wanted: _Wanted, pointer: Pointer, pull: asyncio.Task[Sequence[Delivery]]) -> None:
        """Give up a pull: its items are released when they arrive, and until then no call waits for the same."""
        self.pulls_total["late"] += 1
        self._homes.was_exhausted(pointer)
        late = pointer.host_id, pointer.topic
        self._late[late] += 1

        def ended(_: object) -> None:
            self._late[late] -= 1
            if not self._late[late]:
                del self._late[late]

        pull.add_done_callback(ended)
        self._tasks.spawn(self._release(remote, wanted, pull), "pull-given-back")

    async def _dequeue_there(self, remote: Peer, wanted: _Wanted, demand: TopicDemand | None) -> Sequence[Delivery]:
        asked = wanted.request
        fields = {"topics": [demand], "topic_prefix": None, "count": None} if demand is not None else {}
        consumer = asked.consumer if asked.consumer is not None else wanted.context.caller or None
        request = changed(asked, wait_ms=0, want_why=None, consumer=consumer, **fields)
        items: Sequence[Delivery] = await remote.call(wanted.context, "dequeue", request)
        return items

    async def _release(self, remote: Peer, wanted: _Wanted, pull: asyncio.Task[Sequence[Delivery]]) -> None:
        """Release the items of a pull whose caller has left or has its answer; other waiting calls get these."""
        try:
            items = await pull
        except FoqsError as error:
            _log_not_released(remote, error)
        except asyncio.CancelledError:
            _log_not_released(remote, "this host stops")
            raise
        else:
            if items:
                self.pulls_total["given_back"] += 1
                await self._release_unseen(remote, wanted, items)

    async def _release_unseen(self, remote: Peer | None, wanted: _Wanted, items: Sequence[Delivery]) -> None:
        """Release items that no caller has seen. The leases of those that cannot be released have to expire."""
        try:
            errors: PositionErrors = await self._nack(wanted.context, _releases_of(wanted, items))
        except FoqsError as error:
            _log_not_released(remote, error, len(items))
        except asyncio.CancelledError:
            _log_not_released(remote, "this host stops", len(items))
            raise
        else:
            if errors:
                _log_not_released(remote, next(iter(errors.values())), len(errors))

    async def stop(self) -> None:
        """End the waits that are left, release the items of late pulls, and cancel the remaining work.

        This runs after the last call.
        """
        self.drain()
        await self._tasks.finish(STOP_MS_MAX)
        await self._tasks.stop()


def _log_not_released(remote: Peer | None, error: FoqsError | str, count: int | None = None) -> None:
    """Log that the leases of items of a host, or of this one, must expire. The count is None if the pull failed."""
    peer = None if remote is None else remote.host_id
    _log.warning("pull_not_given_back", peer=peer, count=count, error=str(error))


def _releases_of(wanted: _Wanted, items: Sequence[Delivery]) -> NackRequest:
    """The nacks that return deliveries that no caller has seen, without counting them."""
    nacks = [Nack(item.receipt, release=True, unseen=True) for item in items]
    return NackRequest(wanted.request.namespace_name, nacks)
