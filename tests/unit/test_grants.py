"""The book of a quota against a plain list of all tokens and of all spends, with their dates."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.model.grants import (
    BOOK_BYTES_MAX,
    BUCKET_MS,
    DEMAND_KEPT_MS,
    HOLD_MS,
    HOSTS_KEPT_MAX,
    QUOTA_WINDOW_MS,
    VALID_MS,
    VALID_PLENTY_MS,
    VALID_SCARCE_MS,
    Ask,
    Grant,
    GrantBook,
)

START_MS = 1_700_000_000_000
LIMIT = 1_000


@dataclass
class Tokens:
    """Of one grant."""

    host: int
    era: int
    date_ms: int
    """By the book's clock."""
    until_ms: int
    """By the true time."""
    left: int


@dataclass
class Oracle:
    """True time and the book's clock are apart, as the clock may be stepped."""

    book: GrantBook = field(default_factory=lambda: GrantBook(1))
    now_ms: int = START_MS
    step_ms: int = 0
    held: list[Tokens] = field(default_factory=list)
    spends: list[tuple[int, int]] = field(default_factory=list)
    """By true time."""

    def ask(self, host: int, ask: Ask, limit: int = LIMIT) -> Grant:
        grant = self.book.ask(host, ask, limit, self.now_ms + self.step_ms)
        self.book = GrantBook.unpack(self.book.pack())
        if grant.granted_count:
            until_ms = self.now_ms + grant.date_ms - grant.now_ms
            self.held.append(Tokens(host, grant.era, grant.date_ms, until_ms, grant.granted_count))
        return grant

    def worst_minute(self) -> int:
        return max(
            [
                sum([count for at_ms, count in self.spends if end_ms - QUOTA_WINDOW_MS < at_ms <= end_ms])
                for end_ms, _ in self.spends
            ],
            default=0,
        )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([1, 50, 99, 100, 101, 700, 2_500, 20_000, 59_000, 60_100])),
        st.tuples(st.just("ask"), st.integers(0, 3), st.integers(0, 1_200), st.integers(0, 50), st.integers(0, 40)),
        st.tuples(st.just("spend"), st.integers(0, 30), st.integers(1, 400)),
        st.tuples(st.just("return"), st.integers(0, 30), st.integers(1, 400)),
        st.tuples(st.just("step back"), st.sampled_from([500, 1_500, 90_000])),
    ),
    max_size=80,
)


@given(STEPS)
def test_whatever_hosts_do_no_minute_has_more_spends_than_the_limit(steps: list[tuple]) -> None:
    world = Oracle()
    for step in steps:
        match step:
            case ("pass", by_ms):
                world.now_ms += by_ms
            case ("step back", by_ms):
                world.step_ms -= by_ms
            case ("ask", host, wanted, need, demand):
                world.ask(host, Ask(wanted, min(need, wanted), demand))
            case ("spend", at, most) if world.held:
                tokens = world.held[at % len(world.held)]
                if world.now_ms <= tokens.until_ms:
                    count = min(most, tokens.left)
                    tokens.left -= count
                    world.spends.append((world.now_ms, count))
            case ("return", at, most) if world.held:
                tokens = world.held[at % len(world.held)]
                count = min(most, tokens.left)
                tokens.left -= count
                world.ask(tokens.host, Ask(era=tokens.era, returned=[(tokens.date_ms, count)]))
    assert world.worst_minute() <= LIMIT


@given(STEPS)
def test_the_book_holds_what_was_granted_for_a_minute_after_its_date_and_grants_the_rest(steps: list[tuple]) -> None:
    """A plain list of tokens says the same. No clock is stepped."""
    world = Oracle()

    def count() -> int:
        return sum([one.left for one in world.held if one.date_ms > world.now_ms - QUOTA_WINDOW_MS - BUCKET_MS])

    for step in steps:
        match step:
            case ("pass", by_ms):
                world.now_ms += by_ms
            case ("ask", host, wanted, *_):
                room = max(0, LIMIT - count())
                grant = world.ask(host, Ask(wanted))
                assert grant.granted_count == min(wanted, room)
                assert grant.excess == count() - LIMIT
            case ("return", at, most) if world.held:
                tokens = world.held[at % len(world.held)]
                given_back = min(most, tokens.left)
                tokens.left -= given_back
                world.ask(tokens.host, Ask(era=1, returned=[(tokens.date_ms, given_back)]))
                assert world.book.count == count()


@given(STEPS, st.integers(1, LIMIT))
def test_after_the_wait_that_a_grant_tells_there_is_room_and_not_before(steps: list[tuple], need: int) -> None:
    world = Oracle()
    for step in steps:
        match step:
            case ("pass", by_ms):
                world.now_ms += by_ms
            case ("ask", host, wanted, *_):
                world.ask(host, Ask(wanted))
    grant = world.ask(0, Ask(LIMIT + 1))
    wait_ms = grant.wait_ms(need)
    assert 0 <= wait_ms <= QUOTA_WINDOW_MS + VALID_PLENTY_MS + BUCKET_MS
    book = world.book.pack()
    for early_ms, fits in ((0, True), (1, False)):
        if wait_ms > early_ms:
            again = GrantBook.unpack(book).ask(0, Ask(need), LIMIT, grant.now_ms + wait_ms - early_ms)
            assert (again.granted_count == need) == fits


def test_tokens_are_valid_for_long_while_there_is_plenty_and_short_when_scarce() -> None:
    for held, valid_ms in ((489, VALID_PLENTY_MS), (490, VALID_MS), (891, VALID_SCARCE_MS)):
        book = GrantBook(1)
        book.ask(0, Ask(held), LIMIT, START_MS)
        grant = book.ask(0, Ask(10), LIMIT, START_MS)
        assert (grant.granted_count, grant.date_ms) == (10, START_MS + valid_ms)


def test_what_is_scarce_goes_to_each_by_its_demand_up_to_a_fair_level() -> None:
    """1,000 a minute are 16 a second: of demands of 2, 100 and 300 the first is met, and the others get the same."""
    book = GrantBook(1)
    for host, demand in ((1, 2), (2, 100), (3, 300)):
        book.ask(host, Ask(demand_per_s=demand), LIMIT, START_MS)
    packed = book.pack()
    granted = {
        host: GrantBook.unpack(packed).ask(host, Ask(LIMIT, 0, demand), LIMIT, START_MS).granted_count
        for host, demand in ((1, 2), (2, 100), (3, 300))
    }
    assert granted[2] == granted[3]
    assert granted[1] == LIMIT * 2 // 16
    # After a while without asks the others have no part any more.
    book = GrantBook.unpack(packed)
    grant = book.ask(3, Ask(LIMIT, 0, 300), LIMIT, START_MS + DEMAND_KEPT_MS)
    assert grant.granted_count == LIMIT


def test_a_call_gets_all_that_it_needs_or_nothing() -> None:
    book = GrantBook(1)
    book.ask(1, Ask(900, 0, 100), LIMIT, START_MS)
    for need, granted in ((101, 0), (100, 100)):
        assert book.ask(2, Ask(need, need, 100), LIMIT, START_MS).granted_count == granted


def test_after_an_outage_nothing_is_granted_before_all_have_told_what_they_let_in() -> None:
    book = GrantBook(1)
    grant = book.ask(1, Ask(10, spent=[(0, 400), (20_000, 200)], was_away=True), LIMIT, START_MS)
    assert (grant.granted_count, grant.hold_ms) == (0, HOLD_MS)
    grant = book.ask(2, Ask(10, spent=[(5_000, 300)]), LIMIT, START_MS + 1_000)
    assert (grant.granted_count, grant.hold_ms) == (0, HOLD_MS - 1_000)
    grant = GrantBook.unpack(book.pack()).ask(3, Ask(LIMIT), LIMIT, START_MS + HOLD_MS)
    assert (grant.granted_count, grant.hold_ms) == (100, 0)


def test_tokens_of_another_era_are_not_taken_back() -> None:
    book = GrantBook(7)
    date_ms = book.ask(1, Ask(10), LIMIT, START_MS).date_ms
    for era, count in ((6, 10), (0, 10), (7, 4)):
        book.ask(1, Ask(era=era, returned=[(date_ms, 6)]), LIMIT, START_MS)
        assert book.count == count


def test_a_lower_limit_grants_nothing_until_there_is_room_and_a_higher_one_at_once() -> None:
    book = GrantBook(1)
    book.ask(1, Ask(600), LIMIT, START_MS)
    assert book.ask(1, Ask(10), 500, START_MS + 1).granted_count == 0
    assert book.ask(1, Ask(5_000), 2_000, START_MS + 2).granted_count == 1_400


def test_a_book_as_full_as_can_be_fits_its_column() -> None:
    book = GrantBook((1 << 32) - 1)
    for at in range(0, QUOTA_WINDOW_MS, 37):
        book.ask(at % 1_000, Ask(1, 0, (1 << 32) - 1, spent=[(-99, 1_000_000)]), 1_000_000_000, START_MS + at)
    for host in range(2_000):
        book.ask(host, Ask(1, 0, 1 << 40), 1_000_000_000, START_MS + QUOTA_WINDOW_MS)
    packed = book.pack()
    assert len(packed) <= BOOK_BYTES_MAX
    assert GrantBook.unpack(packed).pack() == packed
    assert len(book._demands) == HOSTS_KEPT_MAX


@pytest.mark.parametrize(
    "packed", [b"", b"\x01", b"\x02" + bytes(40), GrantBook(1).pack() + b"\0", GrantBook(1).pack()[:-1]]
)
def test_what_is_no_book_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="a book of a quota has"):
        GrantBook.unpack(packed)


def test_the_format_stays_as_it_is() -> None:
    """Hosts of two versions share one book."""
    book = GrantBook(5)
    book.ask(9, Ask(300, 0, 7), LIMIT, START_MS)
    book.ask(9, Ask(30, 0, 8, was_away=True), LIMIT, START_MS + 250)
    assert book.pack().hex() == (
        "0105000000fa68e5cf8b0100006a80e5cf8b0100000100108fe5cf8b01000000002c01000009000000000008000000"
    )


def test_tokens_that_have_left_the_book_are_not_given_back_to_it() -> None:
    """A host that stood still for hours brings some, and its row has room for the dates of a minute alone."""
    book = GrantBook(1)
    date_ms = book.ask(1, Ask(wanted_count=10), LIMIT, START_MS).date_ms
    later_ms = START_MS + 2 * 60 * QUOTA_WINDOW_MS
    book.ask(1, Ask(wanted_count=5, era=1, returned=[(date_ms, 6)]), LIMIT, later_ms)
    assert GrantBook.unpack(book.pack()).count == 5
