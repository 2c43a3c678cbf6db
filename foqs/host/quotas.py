"""The quotas of all namespaces on this host: which calls it lets in, and the asks for tokens that all hosts share.

A call that finds tokens in hand costs a few additions. Tokens are asked for ahead, all namespaces in one transaction of
the meta database every ASK_MS at most; a call that finds none waits for the next answer. While the meta database is
away, nobody waits: hosts let in what they let in a minute ago. docs/decisions/0032-dated-tokens.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Protocol

import structlog

from foqs.host.quota import SLOW_MS_MAX, WAIT_MS_MAX, Account, Charge
from foqs.model import grants, limits
from foqs.model.errors import FoqsError, OverloadedError, RateLimitedError, TooLargeError, UnavailableError
from foqs.model.grants import Ask, Grant
from foqs.model.namespace import Namespace
from foqs.model.outage import Outage
from foqs.model.service import Service

ASK_MS = 100
"""The pause between two asks."""
RETRY_MS = 500
"""The pause after an ask that failed."""
OUTAGE_MS = 2 * limits.SECOND_MS
"""After an outage that was so long, hosts do not ask for tokens before all have told what they let in without."""
QUOTAS_PER_ASK_MAX = 50
"""Namespaces of one transaction of the meta database."""
LOOK_MAX = 1_000
"""Namespaces that one turn of the event loop looks through for tokens that have expired."""

_log = structlog.get_logger(__name__)


class QuotaBooks(Protocol):
    """Where the books are; foqs.storage.meta.MetaStore is the real one."""

    def ask_quotas(self, host_name: str, asks: Mapping[int, Ask]) -> dict[int, Grant]:
        """Ask the books of namespaces, which are created where there are none; a namespace that is gone has none.

        Blocks. Raises UnavailableError.
        """


class _WaitingCall:
    __slots__ = ("answer", "count", "since_ms", "timer")

    def __init__(self, count: int, since_ms: int, answer: asyncio.Future[Charge], timer: asyncio.TimerHandle) -> None:
        self.count = count
        self.since_ms = since_ms
        self.answer = answer
        self.timer = timer


class _HostedQuota:
    """An account with the calls that wait for its tokens, in their order."""

    __slots__ = ("account", "limit", "name", "told_away_ms", "waiting")

    def __init__(self, namespace: Namespace) -> None:
        self.account = Account(namespace.number)
        self.name = namespace.name
        self.limit = namespace.settings.enqueues_per_minute_max
        self.waiting: deque[_WaitingCall] = deque()
        self.told_away_ms = 0
        """When the book was told last that the meta database had been away."""


class Quotas(Service):
    """Lets enqueues in. `Enqueues` calls `admit`, and `wait` where that finds no tokens."""

    def __init__(
        self,
        books: QuotaBooks,
        host_name: str,
        now_s: Callable[[], float],
        hosts_count: Callable[[], int],
        missed_s: Callable[[], float],
    ) -> None:
        """`now_s` is monotonic and goes on while the event loop stands still: tokens expire all the same.

        `hosts_count` are the hosts that live, this one included.

        `missed_s` is when others on this host failed to reach the meta database last.
        """
        super().__init__("quotas")
        self._books = books
        self._host_name = host_name
        self._now_s = now_s
        self._hosts_count = hosts_count
        self._missed_s = missed_s
        self._by_number: dict[int, _HostedQuota] = {}
        self._wanted: dict[int, _HostedQuota] = {}
        """The quotas that the next ask is for."""
        self._busy: dict[int, _HostedQuota] = {}
        """The quotas that change with time alone."""
        self._has_work = asyncio.Event()
        self._asking_since_ms: int | None = None
        self._away_since_ms: int | None = None
        self._missed_ms = -limits.DAY_MS
        """When the meta database was found last to be away for longer than OUTAGE_MS."""
        self._outage = Outage(now_s)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self.name)
        self._task: asyncio.Task[None] | None = None
        self.waiting_count = 0
        self.waited_total = self.asks_total = self.asks_failed_total = 0
        self.granted_total = self.returned_total = self.replayed_total = 0

    @property
    def is_away(self) -> bool:
        """Whether the meta database did not answer the last ask, or does not answer the present one in time."""
        return self._away_since_ms is not None

    # --- calls ---

    def admit(self, namespace: Namespace, count: int) -> Charge | None:
        """Let in the items of a call at once, or return None: then it has to `wait`.

        Raises TooLargeError for more than can ever fit, and RateLimitedError for more than fit while the meta database
        is away; then none counts.
        """
        limit = namespace.settings.enqueues_per_minute_max
        if count > limit:
            raise TooLargeError(
                f"{count} items in one call can never fit into the {limit} enqueues per minute of namespace "
                f"{namespace.name!r}: send calls of {limit} items at most"
            )
        hosted = self._by_number.get(namespace.number)
        if hosted is None:
            hosted = self._by_number[namespace.number] = _HostedQuota(namespace)
        account = hosted.account
        account.arrived_count += count
        now_ms = self._now_ms()
        if account.limit_seen != limit:
            hosted.limit = account.limit_seen = limit
            account.drop_tokens(now_ms)
        if hosted.waiting:
            return None
        charge = account.spend(count, now_ms)
        if charge is None:
            return self._let_in(hosted, count, now_ms)
        if account.in_hand < account.refill_below:
            self._want(hosted)
        return charge

    async def wait(self, namespace: Namespace, count: int) -> Charge:
        """Let in the items once there are tokens for them: after WAIT_MS_MAX, or SLOW_MS_MAX without an answer, at the
        latest.

        Raises RateLimitedError for more than fit, and OverloadedError when too many calls wait.
        """
        hosted = self._by_number[namespace.number]
        now_ms = self._now_ms()
        self._check_room(hosted, count, now_ms)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Charge] = loop.create_future()
        call = _WaitingCall(count, now_ms, answer, loop.call_later(WAIT_MS_MAX / 1000, self._overdue, hosted))
        hosted.waiting.append(call)
        self.waiting_count += 1
        self.waited_total += 1
        self._want(hosted)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have come in the same turn of the event loop.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().give_back(count)
            raise
        finally:
            call.timer.cancel()
            self.waiting_count -= 1

    def forget(self, namespaces: set[int]) -> None:
        """Drop what is remembered of namespaces that are not in the set, and of those without calls."""
        now_ms = self._now_ms()
        for number, hosted in list(self._by_number.items()):
            if not hosted.waiting and (number not in namespaces or hosted.account.is_idle(now_ms)):
                for known in (self._by_number, self._wanted, self._busy):
                    known.pop(number, None)

    def _let_in(self, hosted: _HostedQuota, count: int, now_ms: int) -> Charge | None:
        """Spend tokens for the items, or do without while the meta database is away. Raises RateLimitedError then."""
        account = hosted.account
        charge = account.spend(count, now_ms)
        if charge is not None or (self._away_since_ms is None and not account.holds(now_ms)):
            return charge
        return self._replay(hosted, count, now_ms)

    def _replay(self, hosted: _HostedQuota, count: int, now_ms: int) -> Charge:
        account = hosted.account
        since_ms = now_ms if self._away_since_ms is None else self._away_since_ms
        account.begin_replay(hosted.limit, self._hosts_count(), since_ms, now_ms)
        charge = account.replay(count, now_ms)
        if self._away_since_ms is not None:
            self._want(hosted)
        elif account.namespace not in self._busy:
            self._busy[account.namespace] = hosted
            self._has_work.set()
        if isinstance(charge, int):
            raise _over(hosted, count, charge)
        self.replayed_total += count
        return charge

    def _check_room(self, hosted: _HostedQuota, count: int, now_ms: int) -> None:
        waiting_count = len(hosted.waiting)
        if waiting_count < limits.QUOTA_CALLS_WAITING_MAX and self.waiting_count < limits.QUOTAS_CALLS_WAITING_MAX:
            return
        if hosted.account.is_over(count):
            raise _over(hosted, count, hosted.account.wait_ms(count, now_ms))
        raise OverloadedError(
            f"{waiting_count} enqueues of namespace {hosted.name!r} and {self.waiting_count} of all wait to be counted "
            f"against their quotas, and the limits are {limits.QUOTA_CALLS_WAITING_MAX} and "
            f"{limits.QUOTAS_CALLS_WAITING_MAX}: nothing was enqueued, try again",
            retry_after_ms=WAIT_MS_MAX,
        )

    def _serve(self, hosted: _HostedQuota, now_ms: int) -> None:
        """Answer the calls that wait, as far as that is possible now."""
        account, waiting = hosted.account, hosted.waiting
        while waiting:
            call = waiting[0]
            if not call.answer.done():
                try:
                    charge = self._let_in(hosted, call.count, now_ms)
                    if charge is None and self._is_in_vain(account, call, now_ms):
                        raise _over(hosted, call.count, account.wait_ms(call.count, now_ms))
                except RateLimitedError as error:
                    call.answer.set_exception(error)
                else:
                    if charge is None:
                        break
                    call.answer.set_result(charge)
            waiting.popleft()
        if waiting:
            self._want(hosted)

    def _is_in_vain(self, account: Account, call: _WaitingCall, now_ms: int) -> bool:
        """Whether the book has said since the call came that there will be no tokens for it in time."""
        if not account.is_answered_since(call.since_ms):
            return False
        return now_ms + account.wait_ms(call.count, now_ms) > call.since_ms + WAIT_MS_MAX

    def _overdue(self, hosted: _HostedQuota) -> None:
        """The first call that waits has done so for long enough, or has had no answer so far."""
        now_ms = self._now_ms()
        account, waiting = hosted.account, hosted.waiting
        while waiting and (waiting[0].answer.done() or now_ms - waiting[0].since_ms >= WAIT_MS_MAX):
            call = waiting[0]
            left_ms = call.since_ms + SLOW_MS_MAX - now_ms
            is_slow = self._away_since_ms is None and not account.is_answered_since(call.since_ms) and left_ms > 0
            if is_slow and not call.answer.done():
                call.timer.cancel()
                call.timer = asyncio.get_running_loop().call_later(left_ms / 1000, self._overdue, hosted)
                break
            waiting.popleft()
            if call.answer.done():
                continue
            try:
                if account.is_answered_since(call.since_ms):
                    raise _over(hosted, call.count, account.wait_ms(call.count, now_ms))
                since_ms = self._asking_since_ms
                if since_ms is not None and now_ms - since_ms >= SLOW_MS_MAX and self._away_since_ms is None:
                    self._away_since_ms = since_ms
                call.answer.set_result(self._replay(hosted, call.count, now_ms))
            except RateLimitedError as error:
                call.answer.set_exception(error)
        self._serve(hosted, now_ms)

    # --- asks ---

    async def _start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def _drain(self) -> None:
        """Give back all tokens: other hosts may have use for them."""
        await self._end_task()
        now_ms = self._now_ms()
        for hosted in self._by_number.values():
            hosted.account.drop_tokens(now_ms)
        with suppress(FoqsError):
            await self._ask_all([hosted for hosted in self._by_number.values() if hosted.account.is_busy])

    async def _stop(self) -> None:
        await self._end_task()
        for hosted in self._by_number.values():
            for call in hosted.waiting:
                if not call.answer.done():
                    call.answer.set_exception(
                        UnavailableError("this host ends: nothing was enqueued", nothing_done=True)
                    )
        await asyncio.to_thread(self._thread.shutdown, wait=True)

    async def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._until_wanted()
            pause_ms = ASK_MS
            try:
                await self._ask_all(list(self._wanted.values()))
                if self._outage.has_ended():
                    _log.info("quotas_back")
            except FoqsError as error:
                pause_ms = RETRY_MS
                if self._outage.is_to_be_told(str(error)):
                    _log.warning("quotas_away", error=str(error))
            except Exception:  # A defect must not end the asks for good.
                _log.error("host_defect", work="quotas", exc_info=True)
            await asyncio.sleep(pause_ms / 1000)

    async def _until_wanted(self) -> None:
        while True:
            self._look()
            if self._wanted:
                return
            self._has_work.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_MS / 1000 if self._busy else None):
                    await self._has_work.wait()

    def _look(self) -> None:
        """Find those whose tokens have expired, or that have something to tell."""
        now_ms = self._now_ms()
        for hosted in list(islice(self._busy.values(), LOOK_MAX)):
            account = hosted.account
            # Others have their turn before it has the next.
            del self._busy[account.namespace]
            account.expire(now_ms)
            if account.is_busy:
                self._busy[account.namespace] = hosted
                if account.is_due(now_ms):
                    self._wanted[account.namespace] = hosted

    def _want(self, hosted: _HostedQuota) -> None:
        if hosted.account.namespace not in self._wanted:
            self._wanted[hosted.account.namespace] = hosted
            self._has_work.set()

    async def _ask_all(self, wanted: list[_HostedQuota]) -> None:
        """Ask the books of the namespaces. Raises FoqsError."""
        for start in range(0, len(wanted), QUOTAS_PER_ASK_MAX):
            await self._ask_some(wanted[start : start + QUOTAS_PER_ASK_MAX])

    async def _ask_some(self, some: list[_HostedQuota]) -> None:
        asked_ms = self._asking_since_ms = self._now_ms()
        missed_ms = max(self._missed_ms, int(max(0.0, self._missed_s()) * 1000))
        asks = {}
        for hosted in some:
            self._wanted.pop(hosted.account.namespace, None)
            asks[hosted.account.namespace] = self._make_ask(hosted, asked_ms, missed_ms)
        self.asks_total += 1
        self.returned_total += sum([count for ask in asks.values() for _, count in ask.returned])
        try:
            loop = asyncio.get_running_loop()
            answers = await loop.run_in_executor(self._thread, self._books.ask_quotas, self._host_name, asks)
        except BaseException as error:
            for hosted in some:
                hosted.account.fail()
            if isinstance(error, FoqsError):
                self._failed(some)
            raise
        finally:
            self._asking_since_ms = None
        self._answered(some, asks, answers, asked_ms)

    def _make_ask(self, hosted: _HostedQuota, now_ms: int, missed_ms: int) -> Ask:
        was_away = missed_ms > hosted.told_away_ms and now_ms - missed_ms < grants.HOLD_MS
        waiting = [call.count for call in hosted.waiting if not call.answer.done()]
        ask = hosted.account.make_ask(
            hosted.limit, sum(waiting), waiting[0] if waiting else 0, now_ms, was_away=was_away
        )
        if self._task is None or self._task.done():
            return ask._replace(wanted_count=0, need=0, demand_per_s=0)
        return ask

    def _answered(
        self, some: Iterable[_HostedQuota], asks: Mapping[int, Ask], answers: Mapping[int, Grant], asked_ms: int
    ) -> None:
        now_ms = self._now_ms()
        self._away_since_ms = None
        if now_ms - asked_ms >= OUTAGE_MS:
            self._missed_ms = now_ms
        for hosted in some:
            account = hosted.account
            number = account.namespace
            grant = answers.get(number)
            if grant is None:
                account.fail()
                account.hold(now_ms + limits.HEARTBEAT_MS)
            else:
                if asks[number].was_away:
                    hosted.told_away_ms = asked_ms
                account.take(asks[number], grant, asked_ms)
                self.granted_total += grant.granted_count
            if account.is_busy:
                self._busy[number] = hosted
            self._serve(hosted, now_ms)

    def _failed(self, some: Iterable[_HostedQuota]) -> None:
        now_ms = self._now_ms()
        self.asks_failed_total += 1
        if self._away_since_ms is None:
            self._away_since_ms = now_ms
        if now_ms - self._away_since_ms >= OUTAGE_MS:
            self._missed_ms = now_ms
        for hosted in some:
            if hosted.account.is_busy:
                self._busy[hosted.account.namespace] = hosted
        for hosted in self._by_number.values():
            if hosted.waiting:
                self._serve(hosted, now_ms)

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)


def _over(hosted: _HostedQuota, count: int, wait_ms: int) -> RateLimitedError:
    return RateLimitedError(
        f"namespace {hosted.name!r} is over its limit of {hosted.limit} enqueues per minute: {count} more fit in "
        f"{wait_ms} ms",
        retry_after_ms=wait_ms,
    )
