"""The quotas of all namespaces on this host: the admission of calls, and the asks for tokens that all hosts share.

A call that finds tokens in hand costs a few additions. Tokens are asked for ahead, in one transaction of the meta
database every ASK_MS at most; a call without tokens waits for the next answer. While the meta database is unreachable,
no call waits: hosts admit as many items as in the minute before. docs/decisions/0032-dated-tokens.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice

import structlog

from foqs.background.lane import Lane
from foqs.background.outage_log import OutageLog
from foqs.background.service import Service, ServiceState
from foqs.background.tasks import log_defect
from foqs.host.admission.account import SLOW_ANSWER_MS_MAX, SLOW_ANSWERS_AWAY, WAIT_MS_MAX, Account, Charge
from foqs.host.admission.hosted_quota import CallForTokens, HostedQuota, over_limit, used_parts
from foqs.model import grants, limits
from foqs.model.errors import FoqsError, OverloadedError, RateLimitedError, TooLargeError, UnavailableError
from foqs.model.grants import Ask, Grant
from foqs.model.namespace import Namespace
from foqs.model.outage import Outage
from foqs.model.pace import Pace
from foqs.storage.meta.meta_quotas import MetaQuotas

ASK_MS = 100
"""The pause between two asks."""
RETRY_MS = 500
"""The pause after a failed ask."""
OUTAGE_MS = 2 * limits.SECOND_MS
"""After an outage of this length, no tokens are granted until hosts have reported the items admitted without tokens."""
QUOTAS_PER_ASK_MAX = 50
"""Namespaces of one transaction of the meta database."""
REFRESH_MAX = 1_000
"""Namespaces that one turn of the event loop checks for expired tokens."""

_log = structlog.get_logger(__name__)


class Quotas(Service):
    """Admits enqueues. `Enqueues` calls `admit`, and `wait` if that finds no tokens."""

    def __init__(
        self,
        books: MetaQuotas,
        host_name: str,
        now_s: Callable[[], float],
        hosts_count: Callable[[], int],
        missed_s: Callable[[], float],
    ) -> None:
        """`now_s` is monotonic and advances while the event loop is blocked, because tokens expire meanwhile.

        `hosts_count` returns the number of live hosts, this one included.

        `missed_s` returns the time at which other parts of this host last failed to reach the meta database.
        """
        super().__init__("quotas")
        self._books = books
        self._host_name = host_name
        self._now_s = now_s
        self._hosts_count = hosts_count
        self._missed_s = missed_s
        self._by_number: dict[int, HostedQuota] = {}
        self._wanted: dict[int, HostedQuota] = {}
        """The quotas that the next ask is for."""
        self._busy: dict[int, HostedQuota] = {}
        """The quotas that change with time alone."""
        self._turns: dict[int, HostedQuota] = {}
        """The quotas that wait for a turn at their books."""
        self._has_turns = asyncio.Event()
        self._has_work = asyncio.Event()
        self._asking_since_ms: int | None = None
        self._away_since_ms: int | None = None
        self._missed_ms = -limits.DAY_MS
        """When the meta database was found last to be away for longer than OUTAGE_MS."""
        self._outage = OutageLog(now_s, "quotas_away", "quotas_back")
        self._locked = Outage(now_s)
        self._pace = Pace()
        """The duration of asks, in milliseconds."""
        self._lane = Lane(self.name)
        self._turns_lane = Lane(f"{self.name}-turns")
        self._pause_ms: float = 0.0
        """The pause before the next ask."""
        self.waiting_count = 0
        self.waited_total = self.asks_total = self.asks_failed_total = self.books_locked_total = 0
        self.granted_total = self.returned_total = self.replayed_total = 0

    @property
    def is_away(self) -> bool:
        """True if the meta database did not answer the last ask, or is late with the answer to the current one."""
        return self._away_since_ms is not None

    @property
    def ask_ms(self) -> float:
        """The usual time of an ask of the meta database, in milliseconds."""
        return self._pace.usual

    @property
    def refused_count(self) -> int:
        """Namespaces whose books were locked for longer than calls wait, so that their calls need no tokens."""
        now_ms = self._now_ms()
        return sum([hosted.is_refused(now_ms) for hosted in self._by_number.values()])

    def left_ms(self, number: int) -> int:
        """Return the time until the quota of a namespace has room for an item; 0 if it has, as far as is known here."""
        hosted = self._by_number.get(number)
        return hosted.account.wait_ms(1, self._now_ms()) if hosted is not None and hosted.account.is_over(1) else 0

    def used_parts(self) -> dict[str, float]:
        """Return the part of its quota that each namespace has used up here, by name. Any thread can ask."""
        return used_parts(list(self._by_number.values()))

    # --- calls ---

    def admit(self, namespace: Namespace, count: int) -> Charge | None:
        """Admit the items of a call at once, or return None if the call must `wait`.

        Raises TooLargeError for more items than can ever fit, and RateLimitedError for more than fit while the meta
        database is unreachable; no item counts then.
        """
        limit = namespace.settings.enqueues_per_minute_max
        if count > limit:
            raise TooLargeError(
                f"{count} items in one call can never fit into the {limit} enqueues per minute of namespace "
                f"{namespace.name!r}: send calls of {limit} items at most"
            )
        hosted = self._by_number.get(namespace.number)
        if hosted is None:
            hosted = self._by_number[namespace.number] = HostedQuota(namespace)
            hosted.account.answer_ms = self._pace.usual
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
        """Admit the items once they have tokens: at the latest after the account's wait_ms_max, or no_answer_ms_max
        without an answer.

        Raises RateLimitedError for more items than fit, and OverloadedError when too many calls wait.
        """
        hosted = self._by_number[namespace.number]
        now_ms = self._now_ms()
        self._check_room(hosted, count, now_ms)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Charge] = loop.create_future()
        wait_s = hosted.account.wait_ms_max / 1000
        call = CallForTokens(count, now_ms, answer, loop.call_later(wait_s, self._overdue, hosted))
        hosted.waiting.append(call)
        self.waiting_count += 1
        self.waited_total += 1
        self._want(hosted)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer possibly came in the same turn of the event loop.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().refund(count)
            raise
        finally:
            call.timer.cancel()
            self.waiting_count -= 1

    def forget(self, namespaces: set[int]) -> None:
        """Forget namespaces that are not in the set, and namespaces without recent calls."""
        now_ms = self._now_ms()
        for number, hosted in list(self._by_number.items()):
            if not hosted.waiting and (number not in namespaces or hosted.account.is_idle(now_ms)):
                for known in (self._by_number, self._wanted, self._busy, self._turns):
                    known.pop(number, None)

    def _let_in(self, hosted: HostedQuota, count: int, now_ms: int) -> Charge | None:
        """Spend tokens for the items, or admit them without tokens in an outage. Returns None if the call must wait.

        Raises RateLimitedError for more items than fit in an outage.
        """
        account = hosted.account
        charge = account.spend(count, now_ms)
        if charge is not None:
            return charge
        if self._away_since_ms is None and not account.holds(now_ms) and not hosted.is_refused(now_ms):
            return None
        return self._replay(hosted, count, now_ms)

    def _replay(self, hosted: HostedQuota, count: int, now_ms: int) -> Charge:
        account = hosted.account
        since_ms = self._away_since_ms
        if since_ms is None:
            since_ms = hosted.refused_since_ms
        account.begin_replay(hosted.limit, self._hosts_count(), now_ms if since_ms is None else since_ms, now_ms)
        charge = account.replay(count, now_ms)
        if since_ms is not None:
            self._want(hosted)
        elif account.namespace not in self._busy:
            self._busy[account.namespace] = hosted
            self._has_work.set()
        if isinstance(charge, int):
            raise over_limit(hosted, count, charge)
        self.replayed_total += count
        return charge

    def _check_room(self, hosted: HostedQuota, count: int, now_ms: int) -> None:
        waiting_count = len(hosted.waiting)
        if waiting_count < limits.QUOTA_CALLS_WAITING_MAX and self.waiting_count < limits.QUOTAS_CALLS_WAITING_MAX:
            return
        if hosted.account.is_over(count):
            raise over_limit(hosted, count, hosted.account.wait_ms(count, now_ms))
        raise OverloadedError(
            f"{waiting_count} enqueues of namespace {hosted.name!r} and {self.waiting_count} of all wait to be counted "
            f"against their quotas, and the limits are {limits.QUOTA_CALLS_WAITING_MAX} and "
            f"{limits.QUOTAS_CALLS_WAITING_MAX}: nothing was enqueued, try again",
            retry_after_ms=WAIT_MS_MAX,
        )

    def _serve(self, hosted: HostedQuota, now_ms: int) -> None:
        """Answer as many of the waiting calls, in their order, as possible now."""
        account, waiting = hosted.account, hosted.waiting
        while waiting:
            call = waiting[0]
            if not call.answer.done():
                try:
                    charge = self._let_in(hosted, call.count, now_ms)
                    if charge is None and self._is_in_vain(account, call, now_ms):
                        raise over_limit(hosted, call.count, account.wait_ms(call.count, now_ms))
                except RateLimitedError as error:
                    call.answer.set_exception(error)
                else:
                    if charge is None:
                        break
                    call.answer.set_result(charge)
            waiting.popleft()
        if waiting:
            self._want(hosted)

    def _is_in_vain(self, account: Account, call: CallForTokens, now_ms: int) -> bool:
        """True if the book has answered, since the call came, that its tokens will not come in time."""
        if not account.is_answered_since(call.since_ms):
            return False
        return now_ms + account.wait_ms(call.count, now_ms) > call.since_ms + account.wait_ms_max

    def _overdue(self, hosted: HostedQuota) -> None:
        """End the waits of calls that are over, and restart the timer of the next call."""
        now_ms = self._now_ms()
        account, waiting = hosted.account, hosted.waiting
        while waiting:
            call = waiting[0]
            is_answered = account.is_answered_since(call.since_ms)
            bound_ms = account.wait_ms_max if is_answered else account.no_answer_ms_max
            left_ms = call.since_ms + bound_ms - now_ms
            if left_ms > 0 and not call.answer.done():
                call.timer.cancel()
                call.timer = asyncio.get_running_loop().call_later(left_ms / 1000, self._overdue, hosted)
                break
            waiting.popleft()
            if call.answer.done():
                continue
            try:
                if is_answered:
                    raise over_limit(hosted, call.count, account.wait_ms(call.count, now_ms))
                since_ms = self._asking_since_ms
                if since_ms is not None and now_ms - since_ms >= bound_ms and self._away_since_ms is None:
                    self._away_since_ms = since_ms
                call.answer.set_result(self._replay(hosted, call.count, now_ms))
            except RateLimitedError as error:
                call.answer.set_exception(error)
        self._serve(hosted, now_ms)

    # --- asks ---

    async def _start(self) -> None:
        self._tasks.repeat(self._until_wanted, self._ask_wanted, outage=self._outage)
        self._tasks.spawn(self._run_turns(), "turns at quotas")

    async def _drain(self) -> None:
        """Return all tokens, because other hosts can use them."""
        await self._tasks.stop()
        now_ms = self._now_ms()
        for hosted in self._by_number.values():
            hosted.account.drop_tokens(now_ms)
        with suppress(FoqsError):
            await self._ask_all([hosted for hosted in self._by_number.values() if hosted.account.is_busy])

    async def _stop(self) -> None:
        for hosted in self._by_number.values():
            for call in hosted.waiting:
                if not call.answer.done():
                    call.answer.set_exception(
                        UnavailableError("this host ends: nothing was enqueued", nothing_done=True)
                    )
        for lane in (self._lane, self._turns_lane):
            await lane.stop()

    async def _ask_wanted(self) -> None:
        self._pause_ms = ASK_MS
        try:
            await self._ask_all(list(self._wanted.values()))
        except FoqsError:
            self._pause_ms = RETRY_MS
            raise
        if self._hosts_count() > 1:
            # As long as an ask, so that other hosts have their turns at books that are far.
            self._pause_ms = max(ASK_MS, self._pace.usual)

    async def _until_wanted(self) -> None:
        if self._pause_ms:
            await asyncio.sleep(self._pause_ms / 1000)
        while True:
            self._refresh()
            if self._wanted:
                return
            self._has_work.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_MS / 1000 if self._busy else None):
                    await self._has_work.wait()

    def _refresh(self) -> None:
        """Expire tokens, and find quotas that must ask their books."""
        now_ms = self._now_ms()
        for hosted in list(islice(self._busy.values(), REFRESH_MAX)):
            account = hosted.account
            # It is added at the end again, so that the other namespaces have turns before its next one.
            del self._busy[account.namespace]
            account.expire(now_ms)
            if account.is_busy:
                self._busy[account.namespace] = hosted
                if account.is_due(now_ms) and not hosted.has_turn:
                    self._wanted[account.namespace] = hosted

    def _want(self, hosted: HostedQuota) -> None:
        if hosted.account.namespace not in self._wanted and not hosted.has_turn:
            self._wanted[hosted.account.namespace] = hosted
            self._has_work.set()

    async def _run_turns(self) -> None:
        """Wait for turns at single books, one after the other, on a thread of its own that delays no other book."""
        while True:
            await self._has_turns.wait()
            hosted = next(iter(self._turns.values()), None)
            if hosted is None:
                self._has_turns.clear()
                continue
            del self._turns[hosted.account.namespace]
            try:
                await self._ask_some([hosted], waits=True)
            except FoqsError:
                await asyncio.sleep(RETRY_MS / 1000)  # The next ask for all wanted quotas logs the outage.
            except Exception:
                log_defect("turns at quotas")
            finally:
                hosted.has_turn = False
            if hosted.waiting or hosted.is_stuck:
                self._want(hosted)

    async def _ask_all(self, wanted: list[HostedQuota]) -> None:
        """Ask the books of the namespaces. Raises FoqsError."""
        for start in range(0, len(wanted), QUOTAS_PER_ASK_MAX):
            await self._ask_some(wanted[start : start + QUOTAS_PER_ASK_MAX])

    async def _ask_some(self, some: list[HostedQuota], *, waits: bool = False) -> None:
        asked_ms = self._now_ms()
        if not waits:
            self._asking_since_ms = asked_ms
        missed_ms = max(self._missed_ms, int(max(0.0, self._missed_s()) * 1000))
        asks = {}
        for hosted in some:
            self._wanted.pop(hosted.account.namespace, None)
            asks[hosted.account.namespace] = self._make_ask(hosted, asked_ms, missed_ms)
            if hosted.asked_first_ms is None:
                hosted.asked_first_ms = asked_ms
        self.asks_total += 1
        self.returned_total += sum([count for ask in asks.values() for _, count in ask.returned])
        try:
            ask = partial(self._books.ask, self._host_name, asks)
            if waits:
                answers = await self._turns_lane.run(partial(ask, waits=True))
            else:
                answers = await self._lane.run(ask)
        except BaseException as error:
            for hosted in some:
                hosted.account.fail()
            if isinstance(error, FoqsError):
                self._failed(some)
            raise
        finally:
            if not waits:
                self._asking_since_ms = None
        if not waits:
            self._note_pace(self._now_ms() - asked_ms)
        self._answered(some, asks, answers, asked_ms, has_waited=waits)

    def _make_ask(self, hosted: HostedQuota, now_ms: int, missed_ms: int) -> Ask:
        refused_ms = 0 if hosted.refused_since_ms is None else now_ms - hosted.refused_since_ms
        was_away = missed_ms > hosted.reported_away_ms and now_ms - missed_ms < grants.HOLD_MS
        # Other hosts could not ask it either, and have admitted items without tokens.
        was_away = was_away or refused_ms >= hosted.account.no_answer_ms_max
        waiting = [call.count for call in hosted.waiting if not call.answer.done()]
        ask = hosted.account.make_ask(
            hosted.limit, sum(waiting), waiting[0] if waiting else 0, now_ms, was_away=was_away
        )
        if self.state is not ServiceState.RUNNING:
            return ask._replace(wanted_count=0, need=0, demand_per_s=0)
        return ask

    def _note_pace(self, took_ms: int) -> None:
        """Note the time of an ask. One that took much longer than usual was an outage for other hosts."""
        if took_ms >= OUTAGE_MS + SLOW_ANSWERS_AWAY * min(self._pace.usual, SLOW_ANSWER_MS_MAX):
            self._missed_ms = self._now_ms()
        self._pace.note(took_ms)

    def _answered(
        self,
        some: Iterable[HostedQuota],
        asks: Mapping[int, Ask],
        answers: Mapping[int, Grant | UnavailableError],
        asked_ms: int,
        *,
        has_waited: bool,
    ) -> None:
        now_ms = self._now_ms()
        self._away_since_ms = None
        for hosted in some:
            number = hosted.account.namespace
            answer = answers.get(number)
            if isinstance(answer, UnavailableError):
                self._refused(hosted, asks[number], answer, now_ms, has_waited=has_waited)
            else:
                self._granted(hosted, asks[number], answer, asked_ms, now_ms)
            if hosted.account.is_busy:
                self._busy[number] = hosted
            self._serve(hosted, now_ms)

    def _granted(self, hosted: HostedQuota, ask: Ask, grant: Grant | None, asked_ms: int, now_ms: int) -> None:
        """Take the answer of a book, or None if the book was deleted with its namespace."""
        account = hosted.account
        first_ms, hosted.asked_first_ms, hosted.refused_since_ms = hosted.asked_first_ms, None, None
        hosted.is_stuck = False
        if grant is None:
            account.fail()
            account.hold(now_ms + limits.HEARTBEAT_MS)
            return
        if ask.was_away:
            hosted.reported_away_ms = asked_ms
        account.answered_after(now_ms - (asked_ms if first_ms is None else first_ms))
        account.take(ask, grant, asked_ms)
        self.granted_total += grant.granted_count

    def _refused(
        self, hosted: HostedQuota, ask: Ask, error: UnavailableError, now_ms: int, *, has_waited: bool
    ) -> None:
        """Wait once for a turn at a book that cannot be asked now; if that fails, retry it with each ask."""
        self.books_locked_total += 1
        hosted.account.refused(ask)
        if hosted.refused_since_ms is None:
            hosted.refused_since_ms = now_ms
        hosted.is_stuck = hosted.is_stuck or has_waited
        if not hosted.is_stuck:
            hosted.has_turn = True
            self._turns[hosted.account.namespace] = hosted
            self._has_turns.set()
            return
        self._want(hosted)
        if self._locked.is_to_be_logged(f"{hosted.name}: {error}"):
            _log.warning("quota_book_away", namespace=hosted.name, error=str(error))

    def _failed(self, some: Iterable[HostedQuota]) -> None:
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
