"""The bench in small, so that it cannot rot: every scenario runs and gives figures that can be."""

from __future__ import annotations

import pytest

from loadtest.bench.backlog import backlog
from loadtest.bench.cluster import Cluster, running_cluster
from loadtest.bench.latency import single_enqueues, to_waiting_consumer
from loadtest.bench.raw import raw
from loadtest.bench.whole_life import whole_life

pytestmark = pytest.mark.database


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as running:
        yield running


def test_plain_sql_has_a_rate() -> None:
    assert raw(0.3)["raw_per_s"] > 0


def test_every_item_of_the_whole_life_is_acked(cluster: Cluster) -> None:
    figures = whole_life(cluster, 4_000)
    assert figures["items_per_s"] > 0
    assert figures["host_us"] > 0


def test_single_enqueues_are_timed(cluster: Cluster) -> None:
    figures = single_enqueues(cluster, 0.5, connection_count=8)
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]


def test_every_item_reaches_the_waiting_consumer(cluster: Cluster) -> None:
    assert to_waiting_consumer(cluster, 0.5)["items"] == 250


def test_a_backlog_is_served_after_a_restart(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.bench.backlog.DRAINED", 2_000)
    items_count = 40_001
    figures, later = backlog(cluster, items_count, 2)
    assert figures["backlog"] == items_count, "and as many are counted, or it would have failed"
    assert later["backlog"] == items_count - 2_001, "what was drained before, and the first item"
    assert figures["restart_to_first_item_s"] > 0
    assert figures["dequeues_per_s_deep"] > 0
