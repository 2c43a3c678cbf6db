"""Shards and their dispatcher against a model: random calls, commits, failures and takeovers, every step checked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foqs.model import limits
from tests.sim.tuned import tuned
from tests.support.deep import deep_but
from tests.support.driver import SMALL, Driver

QUICK = range(6)


@pytest.fixture(autouse=True)
def _small_limits() -> Iterator[None]:
    with tuned(SMALL):
        yield


@pytest.mark.parametrize("sick", [False, True])
@pytest.mark.parametrize("seed", deep_but(QUICK, range(60), range(30, 60)))
def test_every_promise_holds_after_every_step(seed: int, *, sick: bool) -> None:
    driver = Driver(seed, 1 + seed % 3, sick=sick)
    for _ in range(400):
        driver.step()
        driver.check()
    if not sick:
        driver.work_off()


@pytest.mark.parametrize("sick", [False, True])
@pytest.mark.parametrize("seed", deep_but(QUICK, range(60), range(30, 60)))
def test_every_promise_holds_while_caps_pauses_and_weights_come_and_go(seed: int, *, sick: bool) -> None:
    driver = Driver(seed, 1 + seed % 3, sick=sick, capped=True)
    for _ in range(400):
        driver.step()
        driver.check()
    if not sick:
        driver.work_off()


@pytest.mark.parametrize("sick", [False, True])
@pytest.mark.parametrize("seed", deep_but(QUICK, range(40), range(20, 40)))
def test_once_all_is_calm_nobody_waits_for_what_a_well_shard_has(
    seed: int, *, sick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPEN_LEASES_MAX", 1_000)  # A topic without room is looked at by the sweep alone.
    driver = Driver(seed, 1 + seed % 3, sick=sick, calm=True)
    for _ in range(250):
        driver.step()
