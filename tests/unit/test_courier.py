"""Notices to other hosts: one message at a time to each, and none twice that a host can have got."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from structlog.testing import capture_logs

from foqs.background.outage_log import OutageLog
from foqs.background.tasks import Tasks
from foqs.cluster.peers.courier import Courier, CourierBounds
from foqs.model.errors import UnavailableError
from foqs.testing.manual_loop import ManualLoop

BOUNDS = CourierBounds(kept_max=4, message_max=2, answer_ms_max=1_000, retry_ms=500)
HOSTS = ("a", "b")
Serials = tuple[int, ...]
"""A value: the numbers of all notices that were joined in it."""


class Key(str):
    """A key that counts how often it is looked up."""

    lookups_count = 0

    def __hash__(self) -> int:
        Key.lookups_count += 1
        return super().__hash__()

    __eq__ = str.__eq__


class Post:
    """A courier in virtual time, and the messages that are on their way."""

    def __init__(self, again: Callable[[Serials, bool], Serials | None], bounds: CourierBounds = BOUNDS) -> None:
        self.loop = ManualLoop()
        self.flights: dict[str, tuple[dict[str, Serials], asyncio.Future[None]]] = {}
        self.sent: list[tuple[str, dict[str, Serials]]] = []
        self.tasks = Tasks("courier")
        self.courier: Courier[str, Serials] = Courier(
            self.tasks,
            self._send,
            bounds,
            lambda: OutageLog(self.loop.time, "not_told"),
            lambda older, newer: older + newer,
            again,
        )

    async def _send(self, host_id: str, message: Mapping[str, Serials]) -> None:
        assert host_id not in self.flights, "one message at a time"
        assert 0 < len(message) <= BOUNDS.message_max
        self.sent.append((host_id, dict(message)))
        answer = asyncio.get_running_loop().create_future()
        self.flights[host_id] = dict(message), answer
        try:
            await answer
        finally:
            del self.flights[host_id]

    def put(self, host_id: str, key: str, serial: int) -> bool:
        is_kept: bool = self.loop.call(self.courier.put, host_id, key, (serial,))
        return is_kept

    def answer(self, host_id: str, error: Exception | None = None) -> None:
        _, answer = self.flights[host_id]
        if error is None:
            self.loop.call(answer.set_result, None)
        else:
            self.loop.call(answer.set_exception, error)
        self.loop.turn()

    def pass_ms(self, time_ms: int) -> None:
        self.loop.turn()
        self.loop.move_to(self.loop.time() + time_ms / 1000)
        self.loop.turn()

    def close(self) -> None:
        stopped = self.loop.create_task(self.tasks.stop())
        self.loop.turn()
        assert stopped.done()
        assert not self.flights
        self.loop.close()


def not_twice(value: Serials, nothing_done: bool) -> Serials | None:
    return value if nothing_done else None


class Couriered(RuleBasedStateMachine):
    """The courier beside lists of what each host is still to be told."""

    def __init__(self) -> None:
        super().__init__()
        self.post = Post(not_twice)
        self.serials_count = 0
        self.waiting: dict[str, dict[str, Serials]] = {host_id: {} for host_id in HOSTS}
        self.in_flight: dict[str, dict[str, Serials]] = {host_id: {} for host_id in HOSTS}
        self.withdrawn: dict[str, list[Serials]] = {host_id: [] for host_id in HOSTS}
        """The values of messages in flight that were withdrawn."""
        self.returned: list[int] = []
        self.due: list[int] = []
        """What was returned to those who withdrew it, and what was to be."""
        self.until_s: dict[str, float] = {}
        """The end of the pause of each host after a message that has failed, or of the wait for an answer."""
        self.seen_count = 0
        self.over: list[int] = []
        """The notices that were delivered, can have been, or whose host has gone."""

    def _over(self, *values: Serials) -> None:
        self.over += [serial for value in values for serial in value]

    def _arrived(self, host_id: str) -> None:
        """Note that the message in flight can have arrived."""
        self._over(*self.in_flight[host_id].values(), *self.withdrawn[host_id])
        self.in_flight[host_id], self.withdrawn[host_id] = {}, []

    def _follow(self) -> None:
        """Note the messages that were sent."""
        self.post.loop.turn()
        for host_id, message in self.post.sent[self.seen_count :]:
            assert len(message) == min(BOUNDS.message_max, len(self.waiting[host_id]))
            for key, value in message.items():
                assert self.waiting[host_id].pop(key) == value
            self.in_flight[host_id] = message
            self.until_s[host_id] = self.post.loop.time() + BOUNDS.answer_ms_max / 1000
        self.seen_count = len(self.post.sent)

    def _failed(self, host_id: str, *, nothing_done: bool, at_s: float) -> None:
        back = self.in_flight[host_id] if nothing_done else {}
        if nothing_done:
            self.due += [serial for value in self.withdrawn[host_id] for serial in value]
            self.withdrawn[host_id] = []
        else:
            self._arrived(host_id)
        for key, value in self.waiting[host_id].items():
            back[key] = back.get(key, ()) + value
        self.waiting[host_id], self.in_flight[host_id] = back, {}
        self.until_s[host_id] = at_s + BOUNDS.retry_ms / 1000

    @rule(host_id=st.sampled_from(HOSTS), key=st.sampled_from("uvwxyz"))
    def put(self, host_id: str, key: str) -> None:
        self.serials_count += 1
        waiting = self.waiting[host_id]
        is_full = key not in waiting and len(waiting) + len(self.in_flight[host_id]) >= BOUNDS.kept_max
        assert self.post.put(host_id, key, self.serials_count) is not is_full
        if is_full:
            self._over((self.serials_count,))
        else:
            waiting[key] = (*waiting.get(key, ()), self.serials_count)

    @rule()
    def turn(self) -> None:
        self._follow()

    @rule(host_id=st.sampled_from(HOSTS), key=st.sampled_from("uvwxyz"))
    def recall(self, host_id: str, key: str) -> None:
        self.due += self.waiting[host_id].pop(key, ())
        self.withdrawn[host_id].append(self.in_flight[host_id].pop(key, ()))
        self.post.courier.recall(host_id, key, self.returned.extend)

    @precondition(lambda self: self.post.flights)
    @rule(
        data=st.data(),
        error=st.sampled_from([None, UnavailableError("cut", nothing_done=True), UnavailableError("?"), KeyError()]),
    )
    def end(self, data: st.DataObject, error: Exception | None) -> None:
        self._follow()
        host_id = data.draw(st.sampled_from(sorted(self.post.flights)))
        if error is None:
            self._arrived(host_id)
        else:
            self._failed(host_id, nothing_done=getattr(error, "nothing_done", False), at_s=self.post.loop.time())
        self.post.answer(host_id, error)
        self._follow()

    @rule()
    def pass_time(self) -> None:
        self._follow()
        now_s = self.post.loop.time() + 0.25
        for host_id in HOSTS:
            if host_id in self.post.flights and self.until_s[host_id] <= now_s:
                self._failed(host_id, nothing_done=False, at_s=now_s)
        self.post.pass_ms(250)
        self._follow()

    @rule(host_id=st.sampled_from(HOSTS))
    def go(self, host_id: str) -> None:
        self._follow()
        self.post.loop.call(self.post.courier.keep, set(HOSTS) - {host_id})
        self._over(*self.waiting[host_id].values())
        self.waiting[host_id] = {}
        self._arrived(host_id)
        self.until_s.pop(host_id, None)
        self._follow()
        assert host_id not in self.post.flights

    @invariant()
    def keeps_what_is_to_be_told_and_no_more(self) -> None:
        counts = [len(self.waiting[host_id]) + len(self.in_flight[host_id]) for host_id in HOSTS]
        assert max(counts) <= BOUNDS.kept_max
        assert len(self.post.courier) == sum(counts)

    @invariant()
    def returns_what_was_withdrawn_and_has_not_arrived(self) -> None:
        assert sorted(self.returned) == sorted(self.due)

    @invariant()
    def sends_what_waits(self) -> None:
        self._follow()
        for host_id in HOSTS:
            if self.waiting[host_id] and host_id not in self.post.flights:
                assert self.until_s[host_id] > self.post.loop.time(), "only after a failure, for a moment"

    def teardown(self) -> None:
        for _ in range(8):
            self._follow()
            for host_id in list(self.post.flights):
                self._arrived(host_id)
                self.post.answer(host_id)
                self._follow()
            self.post.pass_ms(250)
        self._follow()
        self.post.close()
        ended = sorted(self.over + self.returned)
        assert ended == list(range(1, self.serials_count + 1)), "each once, and nothing is left"


TestCouriered = Couriered.TestCase
TestCouriered.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.fixture
def new_post() -> Iterator[Callable[..., Post]]:
    made: list[Post] = []

    def make(*arguments: Any) -> Post:
        made.append(Post(*arguments))
        return made[-1]

    yield make
    for post in made:
        post.close()


def test_a_message_that_failed_is_sent_again_until_it_is_delivered_with_one_line_for_the_outage(
    new_post: Callable[..., Post],
) -> None:
    post = new_post(lambda value, nothing_done: value)
    with capture_logs() as logs:
        post.put("a", "k", 1)
        for _ in range(5):
            post.pass_ms(BOUNDS.answer_ms_max)
            post.pass_ms(BOUNDS.retry_ms)
        post.answer("a")
    assert [message for _, message in post.sent] == [{"k": (1,)}] * 6
    assert [(log["event"], log["peer"]) for log in logs] == [("not_told", "a")]
    assert "has not answered in time" in logs[0]["error"]
    with capture_logs() as logs:
        post.put("a", "k", 2)
        post.pass_ms(BOUNDS.answer_ms_max)
    assert len(logs) == 1, "each outage has a line of its own"


def test_values_that_are_put_in_one_turn_of_the_loop_go_in_one_message(new_post: Callable[..., Post]) -> None:
    post = new_post(not_twice)
    for serial, key in enumerate("uuv"):
        post.put("a", key, serial)
    post.loop.turn()
    assert post.sent == [("a", {"u": (0, 1), "v": (2,)})]


def test_a_host_that_does_not_answer_keeps_no_other_one_waiting(new_post: Callable[..., Post]) -> None:
    post = new_post(not_twice)
    post.put("a", "k", 1)
    post.loop.turn()
    post.put("b", "k", 2)
    post.loop.turn()
    assert [host_id for host_id, _ in post.sent] == ["a", "b"]


def test_a_host_that_has_gone_and_come_again_is_sent_nothing_from_before(new_post: Callable[..., Post]) -> None:
    post = new_post(lambda value, nothing_done: value)
    post.put("a", "k", 1)
    post.loop.turn()
    post.put("a", "l", 2)
    post.loop.call(post.courier.keep, {"b"})
    post.put("a", "m", 3)
    post.pass_ms(BOUNDS.answer_ms_max + BOUNDS.retry_ms)
    assert [message for _, message in post.sent] == [{"k": (1,)}, {"m": (3,)}]


def test_nothing_is_sent_once_the_owner_has_stopped(new_post: Callable[..., Post]) -> None:
    post = new_post(not_twice)
    post.loop.call(post.loop.create_task, post.tasks.stop())
    post.loop.turn()
    post.put("a", "k", 1)
    post.pass_ms(BOUNDS.answer_ms_max)
    assert not post.sent
    assert not len(post.tasks)


def test_a_message_that_fails_costs_as_much_as_it_is_long_however_many_notices_wait() -> None:
    post = Post(lambda value, nothing_done: value, BOUNDS._replace(kept_max=10_000))
    for serial in range(10_000):
        assert post.put("a", Key(f"{serial:05}"), serial)
    post.loop.turn()
    Key.lookups_count = 0
    post.answer("a", UnavailableError("away"))
    assert Key.lookups_count <= 20 * BOUNDS.message_max
    assert [list(message) for _, message in post.sent] == [["00000", "00001"]]
    post.pass_ms(BOUNDS.retry_ms)
    assert list(post.sent[-1][1]) == ["00000", "00001"], "the oldest are sent first again"
    post.close()
