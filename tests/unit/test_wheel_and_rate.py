"""Leases by their end, and enqueues by the minute, each against a plain list."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from foqs.host.admission.account import MinuteWindow
from foqs.model.grants import BUCKET_MS
from foqs.model.limits import MINUTE_MS
from foqs.shard.state.lease_table import SLOT_MS, Wheel


@pytest.mark.parametrize("seed", range(30))
def test_an_entry_comes_out_once_and_never_before_its_time(seed: int) -> None:
    chance = random.Random(seed)
    wheel: Wheel[int] = Wheel()
    due: dict[int, int] = {}
    now_ms = 1_000
    for key in range(300):
        due[key] = now_ms + chance.randrange(-200, 5_000)
        wheel.add(key, due[key], key)
        if chance.random() < 0.3:
            gone = chance.choice(list(due))
            wheel.remove(gone, due.pop(gone))
        now_ms += chance.randrange(60)
        count_max = chance.choice([0, 1, 3, 1_000_000])
        popped = wheel.pop_due(now_ms, count_max)
        assert len(popped) <= count_max
        for entry in popped:
            assert due.pop(entry) <= now_ms
        assert len(popped) == count_max or all(end + SLOT_MS > now_ms for end in due.values())


def test_entries_that_were_removed_take_no_memory_until_their_time_and_the_others_come_out() -> None:
    wheel: Wheel[int] = Wheel()
    tracemalloc.start()
    try:
        for key in range(20_000):
            wheel.add(key, 1_000 + key * SLOT_MS, key)
            if key % 1_000:
                wheel.remove(key, 1_000 + key * SLOT_MS)
        prefetched_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert prefetched_bytes < 200_000
    assert wheel.pop_due(1_000 + 20_000 * SLOT_MS, 1_000_000) == list(range(0, 20_000, 1_000))


@pytest.mark.parametrize("seed", range(30))
def test_no_minute_admits_more_than_the_limit_and_the_wait_is_true(seed: int) -> None:
    """Oracle: recount every minute from the log of admissions."""
    chance = random.Random(seed)
    window = MinuteWindow()
    admitted: list[tuple[int, int]] = []
    now_ms = 0
    for _ in range(400):
        now_ms += chance.randrange(2_000)
        count = chance.randrange(1, 20)
        wait_ms = window.admit(count, 100, now_ms)
        assert 0 <= wait_ms <= MINUTE_MS + BUCKET_MS
        if wait_ms and chance.random() < 0.2:
            now_ms += wait_ms
            wait_ms = window.admit(count, 100, now_ms)
            assert not wait_ms
        if not wait_ms:
            refused_count = chance.choice([0, 0, 0, chance.randrange(count)])
            window.take_back(window.buckets[-1], refused_count)
            admitted.append((now_ms, count - refused_count))
    for start, _ in admitted:
        assert sum(count for at, count in admitted if start <= at < start + MINUTE_MS) <= 100


def test_a_batch_over_the_limit_never_fits() -> None:
    assert MinuteWindow().admit(101, 100, 0) == MINUTE_MS


@pytest.mark.parametrize("seed", range(30))
def test_what_fits_into_the_minute_is_admitted(seed: int) -> None:
    """Oracle: what left the window of a minute, rounded up to a bucket, or was given back, leaves room."""
    chance = random.Random(seed)
    window = MinuteWindow()
    admitted: list[tuple[int, int]] = []
    now_ms = 0
    for _ in range(400):
        now_ms += chance.randrange(2_000)
        count = chance.randrange(1, 20)
        counted = sum(some for at_ms, some in admitted if now_ms < at_ms - at_ms % BUCKET_MS + MINUTE_MS + BUCKET_MS)
        fits = counted + count <= 100
        assert (window.admit(count, 100, now_ms) == 0) == fits
        if fits:
            refused_count = chance.randrange(count + 1)
            window.take_back(window.buckets[-1], refused_count)
            admitted.append((now_ms, count - refused_count))
