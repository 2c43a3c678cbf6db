"""Who is dead, as one host sees it."""

from __future__ import annotations

import random

import pytest

from foqs.cluster.members import host_watch
from foqs.cluster.members.host_watch import HostSign, HostWatch
from foqs.model import limits

DEAD_S = limits.HOST_DEAD_MS / 1000
BEAT_S = limits.HEARTBEAT_MS / 1000
GAP_S = host_watch.HOST_WATCH_GAP_MS_MAX / 1000
RETURN_S = host_watch.RETURN_MS_MAX / 1000


class Rounds:
    """A watch, and a clock that goes on with its rounds."""

    def __init__(self) -> None:
        self.watch = HostWatch()
        self.now_s = 100.0
        self.answer_s = 0.0
        """How long each round takes."""

    def round(self, **beats: int) -> None:
        """The hosts that have a row, with the time of their last heartbeat."""
        asked_s = self.now_s
        self.now_s += self.answer_s
        self.watch.saw(asked_s, self.now_s, {name: HostSign(1, beat) for name, beat in beats.items()})

    def rounds(self, seconds: float, **beats: int) -> None:
        """So long, the rows being the same all the time."""
        until_s = self.now_s + seconds
        self.round(**beats)
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + BEAT_S)
            self.round(**beats)

    def is_dead(self, name: str, owner_since_s: float = 0.0) -> bool:
        return self.watch.is_dead(name, owner_since_s, self.now_s)


def test_a_host_is_dead_when_its_row_was_seen_not_to_change_for_long_enough() -> None:
    seen = Rounds()
    seen.rounds(DEAD_S - 0.1, other=5)
    assert not seen.is_dead("other")
    seen.rounds(0.1, other=5)
    assert seen.is_dead("other")


def test_a_host_that_came_since_the_last_round_is_not_dead() -> None:
    seen = Rounds()
    seen.rounds(DEAD_S, other=5)
    owner_since_s = seen.now_s
    seen.now_s += BEAT_S / 2
    assert not seen.is_dead("new", owner_since_s), "it had no row all the time, but then it had no shard either"
    assert not seen.is_dead("other", owner_since_s), "it may have come back"
    seen.round(other=5, new=1)
    assert not seen.is_dead("new", owner_since_s)
    assert seen.is_dead("other", owner_since_s)


def test_a_process_that_has_just_started_calls_nobody_dead() -> None:
    seen = Rounds()
    assert not seen.is_dead("other")
    seen.round(other=5)
    assert not seen.is_dead("other")
    assert not seen.is_dead("nobody")


def test_a_heartbeat_of_any_time_is_a_life_whatever_the_clock_of_the_server_says() -> None:
    seen = Rounds()
    for beat in (50, 49, 48_000, 1, 2):
        seen.rounds(DEAD_S - 0.1, other=beat)
        assert not seen.is_dead("other")


def test_a_restarted_host_is_another_life() -> None:
    seen = Rounds()
    seen.rounds(DEAD_S, other=5)
    seen.watch.saw(seen.now_s, seen.now_s, {"other": HostSign(2, 5)})
    assert not seen.is_dead("other")


def test_a_host_without_a_row_is_dead_when_it_was_seen_to_have_none_for_as_long() -> None:
    seen = Rounds()
    seen.round(other=5)
    seen.rounds(DEAD_S - 0.1, third=1)
    assert not seen.is_dead("other")
    assert not seen.is_dead("nobody")
    seen.rounds(0.1, third=1)
    assert seen.is_dead("other")
    assert seen.is_dead("nobody")
    seen.rounds(5 * DEAD_S, third=1)
    assert seen.is_dead("other")


def test_a_dead_host_stays_dead_when_its_row_goes() -> None:
    """The session of a host that hangs ends at last, or somebody tidies up: that is no sign of life."""
    seen = Rounds()
    seen.rounds(DEAD_S, other=5)
    for _ in range(20):
        assert seen.is_dead("other")
        seen.rounds(BEAT_S)


def test_a_host_whose_row_comes_back_lives() -> None:
    seen = Rounds()
    seen.rounds(2 * DEAD_S)
    assert seen.is_dead("other")
    seen.round(other=5)
    assert not seen.is_dead("other")


def test_after_an_outage_the_watch_starts_anew() -> None:
    """While nobody could beat, everybody's row stood still."""
    seen = Rounds()
    seen.rounds(DEAD_S - 0.1, other=5)
    seen.watch.missed(seen.now_s, seen.now_s)
    seen.now_s += 60
    seen.round(other=5)
    assert not seen.is_dead("other")
    seen.rounds(RETURN_S + DEAD_S - 0.1, other=5)
    assert not seen.is_dead("other")
    assert not seen.is_dead("nobody")
    seen.rounds(0.1, other=5)
    assert seen.is_dead("other")
    assert seen.is_dead("nobody")


def test_after_one_round_that_failed_death_is_hardly_later() -> None:
    seen = Rounds()
    seen.rounds(DEAD_S - 0.1, other=5)
    seen.watch.missed(seen.now_s, seen.now_s)
    seen.now_s += GAP_S
    seen.rounds(DEAD_S - 0.1, other=5)
    assert not seen.is_dead("other")
    seen.rounds(0.1, other=5)
    assert seen.is_dead("other")


def test_who_is_back_seconds_later_than_the_watcher_after_each_of_20_outages_is_not_dead() -> None:
    """It has to make new sessions, and the server has to answer all hosts at once."""
    chance = random.Random(1)
    seen, beat = Rounds(), 0
    seen.round(other=beat)
    for _ in range(20):
        seen.watch.missed(seen.now_s, seen.now_s)
        seen.now_s += 30 + chance.random()
        back_s = seen.now_s + chance.uniform(0, RETURN_S + DEAD_S - BEAT_S)
        until_s = back_s + 2 * DEAD_S
        while seen.now_s < until_s:
            beat += seen.now_s >= back_s
            seen.round(other=beat)
            assert not seen.is_dead("other")
            seen.now_s += chance.uniform(0.8, 1) * BEAT_S


@pytest.mark.parametrize("stall_s", [1.0, 1.5, 1.9])
def test_a_host_whose_loop_or_disk_stands_still_for_seconds_is_not_dead(stall_s: float) -> None:
    """Its heartbeat was just due, and the watcher looks at any time."""
    for phase in range(50):
        seen, last_s = Rounds(), 100.0
        seen.now_s = last_s - phase / 50 * BEAT_S
        while seen.now_s < last_s + BEAT_S + stall_s:
            seen.round(other=int(seen.now_s >= last_s))
            assert not seen.is_dead("other")
            seen.now_s += BEAT_S
            if (death_s := seen.watch.next_death_s()) is not None:
                seen.now_s = min(seen.now_s, death_s)
        seen.round(other=2)
        assert not seen.is_dead("other")


def test_the_watcher_looks_again_at_the_moment_at_which_a_silent_host_is_dead() -> None:
    seen = Rounds()
    seen.round(other=5)
    assert seen.watch.next_death_s() is None, "all are well"
    seen.rounds(DEAD_S - 0.1, other=5)
    death_s = seen.watch.next_death_s()
    assert death_s == pytest.approx(100 + DEAD_S)
    seen.now_s = death_s
    assert seen.watch.saw(seen.now_s, seen.now_s, {"other": HostSign(1, 5)}), "it is told once"
    assert not seen.watch.saw(seen.now_s, seen.now_s, {"other": HostSign(1, 5)})
    assert seen.watch.next_death_s() is None


def test_a_gap_between_rounds_is_an_outage_too() -> None:
    """The watcher itself was stopped, and all others with it, maybe."""
    seen = Rounds()
    seen.rounds(DEAD_S - 0.1, other=5)
    seen.now_s += GAP_S + 0.1
    assert not seen.is_dead("other")
    seen.round(other=5)
    assert not seen.is_dead("other")


def test_who_was_dead_before_a_gap_may_live_after_it() -> None:
    seen = Rounds()
    seen.rounds(2 * DEAD_S, other=5)
    seen.now_s += GAP_S + 0.1
    assert not seen.is_dead("other"), "it may have had its session back, and cannot say so"


def test_the_time_of_a_slow_answer_is_not_held_against_others() -> None:
    """Two answers may have been read at the same time, the first at its end and the second at its beginning."""
    seen = Rounds()
    seen.answer_s = GAP_S - 2 * BEAT_S
    while seen.now_s < 100 + DEAD_S + 2 * seen.answer_s:
        assert not seen.is_dead("other")
        seen.round(other=5)
        seen.now_s += BEAT_S
    seen.round(other=5)
    assert seen.is_dead("other")


def test_a_round_that_takes_longer_than_usual_is_a_gap() -> None:
    """What holds it up holds up the heartbeats of others, and none of them fails."""
    seen = Rounds()
    seen.rounds(2.0, other=4)
    for _ in range(20):
        for answer_s in (2 * GAP_S, 0.0, 0.0):
            seen.answer_s = answer_s
            seen.round(other=5)
            seen.now_s += BEAT_S
            assert not seen.is_dead("other")


def test_the_watch_keeps_nothing_of_hosts_that_went_long_ago() -> None:
    seen = Rounds()
    for number in range(50):
        seen.round(**{f"host-{number}": 1})
    seen.rounds(2 * DEAD_S, third=1)
    assert seen.watch._view is not None
    assert set(seen.watch._view.sights) == {"third"}
    assert all(seen.is_dead(f"host-{number}") for number in range(50))


def test_hosts_that_live_are_counted_beside_this_one_and_the_dead_are_not() -> None:
    seen = Rounds()
    assert seen.watch.others_count("me") == 0
    seen.round(me=1, a=5, b=7)
    assert seen.watch.others_count("me") == 2
    beat = 1
    while seen.now_s < 100.0 + DEAD_S + BEAT_S:
        seen.now_s += BEAT_S
        beat += 1
        seen.round(me=beat, a=5, b=beat)
    assert seen.watch.others_count("me") == 1, "the row of a has not changed for long enough"
    seen.round(me=beat)
    assert seen.watch.others_count("me") == 0


ROUND_TRIPS_S = [0.0, 0.05, 0.12, 0.2, 0.35, 0.5, 0.8]
CALM_S = 20.0


def silence_s(round_trip_s: float) -> float:
    """The bound that docs/decisions/0045-slow-meta-database.md states."""
    return DEAD_S + 8 * min(round_trip_s, 1.0)


class FarHost:
    """It beats with a pause between two round trips, and its row changes in the middle of each."""

    def __init__(self, round_trip_s: float, chance: random.Random) -> None:
        self._round_trip_s = round_trip_s
        self._chance = chance
        self._written_s = chance.random()
        self.beat = 0
        self.ended_s = float("inf")

    def at(self, now_s: float) -> int:
        """The number in the row at that time."""
        while self._written_s <= min(now_s, self.ended_s):
            self.beat += 1
            self._written_s += self._chance.uniform(0.8, 1.0) * BEAT_S + self._round_trip_s * self.jitter()
        return self.beat

    def jitter(self) -> float:
        return self._chance.uniform(0.9, 1.3)


def watched(watch: HostWatch, now_s: float, round_trip_s: float, host: FarHost, chance: random.Random) -> float:
    """One round of the watcher, which reads in the middle of its round trip. Returns when the next one begins."""
    took_s = round_trip_s * chance.uniform(0.9, 1.3)
    watch.saw(now_s, now_s + took_s, {"other": HostSign(1, host.at(now_s + took_s / 2))})
    pause_s = chance.uniform(0.8, 1.0) * BEAT_S
    if (death_s := watch.next_death_s()) is not None:
        pause_s = min(pause_s, max(0.0, death_s - now_s - took_s) + 0.001)
    return now_s + took_s + pause_s


@pytest.mark.parametrize("other_s", ROUND_TRIPS_S)
@pytest.mark.parametrize("own_s", ROUND_TRIPS_S)
def test_whatever_a_round_trip_takes_nobody_is_dead_who_beats_and_who_ends_is_dead_in_time(
    own_s: float, other_s: float
) -> None:
    """The two hosts may be at different distances from the meta database."""
    chance = random.Random(f"{own_s} {other_s}")
    watch, host, now_s = HostWatch(), FarHost(other_s, chance), 0.0
    while now_s < CALM_S:
        now_s = watched(watch, now_s, own_s, host, chance)
        assert not watch.is_dead("other", -1.0, now_s)
        assert watch.blind_s(now_s) == 0 or now_s < silence_s(1.4 * own_s) + 2 * BEAT_S + 3 * own_s, "it sees deaths"
    host.ended_s = now_s
    while not watch.is_dead("other", -1.0, now_s):
        now_s = watched(watch, now_s, own_s, host, chance)
        # It may have beaten just before, and its last heartbeat is seen a round later.
        assert now_s - host.ended_s < silence_s(1.4 * max(own_s, other_s)) + 2 * BEAT_S + 3 * own_s
    assert now_s - host.ended_s >= DEAD_S - BEAT_S - other_s


@pytest.mark.parametrize("round_trip_s", ROUND_TRIPS_S)
def test_a_far_host_that_opens_its_session_anew_is_not_dead(round_trip_s: float) -> None:
    """It notices after a round trip, and then it takes five, four of them before the first statement."""
    chance = random.Random(f"anew {round_trip_s}")
    watch, host, now_s = HostWatch(), FarHost(round_trip_s, chance), 0.0
    for turn in range(1, 200):
        if turn % 20 == 0:
            host._written_s += 6 * round_trip_s
        now_s = watched(watch, now_s, round_trip_s, host, chance)
        assert not watch.is_dead("other", -1.0, now_s)


def test_a_meta_database_that_becomes_far_at_once_makes_nobody_dead() -> None:
    chance = random.Random(3)
    watch, now_s = HostWatch(), 0.0
    host = FarHost(0.0, chance)
    for turn in range(400):
        round_trip_s = 0.0 if turn % 100 < 50 else 0.5
        host._round_trip_s = round_trip_s
        now_s = watched(watch, now_s, round_trip_s, host, chance)
        assert not watch.is_dead("other", -1.0, now_s)


@pytest.mark.parametrize("is_failed", [False, True])
def test_a_gap_of_the_watch_is_no_time_that_heartbeats_of_others_take(is_failed: bool) -> None:
    """So a host that ends after an outage of the meta database is dead as soon as before it."""
    seen = Rounds()
    for beat in range(3):
        seen.rounds(BEAT_S, other=beat)
    if is_failed:
        seen.watch.missed(seen.now_s, seen.now_s)
    seen.now_s += 8.0
    for beat in range(3, 6):
        seen.rounds(BEAT_S, other=beat)
    seen.rounds(DEAD_S, other=5)
    assert seen.is_dead("other")


@pytest.mark.parametrize("beats_before", [2, 3, 20])
def test_a_host_that_hung_once_is_not_taken_for_one_far_away(beats_before: int) -> None:
    """So its end is seen as soon as that of any other."""
    seen = Rounds()
    for beat in range(beats_before):
        seen.rounds(BEAT_S, other=beat)
    seen.rounds(DEAD_S - 2 * BEAT_S, other=beats_before - 1)
    assert not seen.is_dead("other")
    seen.rounds(DEAD_S, other=beats_before)
    assert seen.is_dead("other")


def test_a_host_far_from_the_meta_database_is_not_dead_after_a_gap_of_the_watch() -> None:
    chance = random.Random(7)
    watch, host, now_s = HostWatch(), FarHost(0.8, chance), 0.0
    for turn in range(400):
        if turn % 40 == 0:
            watch.missed(now_s, now_s)
            now_s += 4.0
        now_s = watched(watch, now_s, 0.0, host, chance)
        assert not watch.is_dead("other", -1.0, now_s)


@pytest.mark.parametrize("gap_s", [1.5, 3.6, 5.0])
@pytest.mark.parametrize("phase_s", [0.1, 0.5, 0.9, 1.2])
def test_a_far_host_that_misses_two_heartbeats_soon_after_a_gap_is_not_dead(gap_s: float, phase_s: float) -> None:
    """The rest of a heartbeat that the watch sees after the gap is no measure of the next ones."""
    watch, now_s, interval_s = HostWatch(), 0.0, 1.3

    def round_of(beat: int) -> None:
        watch.saw(now_s, now_s, {"other": HostSign(1, beat)})
        assert not watch.is_dead("other", -1.0, now_s)

    while now_s < 20.0:
        round_of(int((now_s + phase_s) / interval_s))
        now_s += 0.01
    now_s += gap_s
    back_s = now_s
    while now_s < back_s + 2.5 * interval_s:
        beat = int((now_s + phase_s) / interval_s)
        round_of(beat)
        now_s += 0.01
    silent_s = now_s
    while now_s < silent_s + 2.2 * interval_s:
        round_of(beat)
        now_s += 0.01


def test_a_watch_says_for_how_long_it_could_have_seen_no_death() -> None:
    seen = Rounds()
    seen.rounds(DEAD_S, other=1)
    assert seen.watch.blind_s(seen.now_s) == 0
    for _ in range(20):
        seen.watch.missed(seen.now_s, seen.now_s)
        seen.now_s += BEAT_S
        seen.round(other=1)
    assert seen.watch.blind_s(seen.now_s) == pytest.approx(20 * BEAT_S)
    seen.rounds(DEAD_S, other=1)
    assert seen.watch.blind_s(seen.now_s) == 0


def test_it_says_which_hosts_have_died_since_the_last_round() -> None:
    seen = Rounds()
    seen.round(other=5, third=1)
    died = []
    for beat in range(12):
        seen.now_s += BEAT_S
        seen.round(other=5, third=beat)
        died.append(sorted(seen.watch.new_dead))
    assert [names for names in died if names] == [["other"]]
