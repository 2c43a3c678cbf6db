"""How the load of the tests and of loadtest/ knows that the consumers do not keep up."""

from __future__ import annotations

from random import Random
from threading import Event
from unittest.mock import MagicMock, Mock

import pytest

from tests.histories.history import Outcome
from tests.support.faults.load import Load, Pressure
from tests.support.waiting import PATIENCE_S


@pytest.mark.parametrize(("stored_count", "goes_on"), [(0, True), (10, True), (11, False), (None, False)])
def test_its_producers_wait_for_a_backlog_and_not_for_items_that_have_died(
    stored_count: int | None, goes_on: bool
) -> None:
    load = Load("nowhere", pressure=Pressure(backlog_items_max=10, pause_after_failure_s=0))
    load._ok.update(enqueued=5_000, settled=4_900)
    call = Mock(asked=[object()], outcome=Outcome.OK, outcome_at=lambda position: Outcome.OK)
    client = Mock(stored_count=Mock(return_value=stored_count), enqueue=Mock(return_value=call))
    client.name = "producer"
    for _ in range(2):
        load._produce(client, Random(1))
    assert client.enqueue.called is goes_on


def test_a_producer_whose_turn_comes_after_the_begin_of_a_drain_enqueues_nothing() -> None:
    load = Load("nowhere", pressure=Pressure(items_per_s=1))
    client = Mock(enqueue=Mock())
    client.name = "producer"
    load._draining.set()
    load._produce(client, Random(1))
    assert not client.enqueue.called


def test_a_drain_reads_the_rows_when_the_last_enqueue_has_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    enqueueing, read_too_early = Event(), Event()

    def enqueue(puts: object) -> Mock:
        enqueueing.set()
        assert load._draining.wait(PATIENCE_S)
        read_too_early.wait(0.1)
        steps.append("enqueued")
        return Mock(asked=[], outcome=Outcome.OK)

    def read(urls: object) -> list[object]:
        read_too_early.set()
        steps.append("read")
        return []

    client = MagicMock(enqueue=enqueue)
    client.name = "producer"
    monkeypatch.setattr("tests.support.faults.load.Client", MagicMock())
    monkeypatch.setattr("tests.support.faults.load.RecordedClient", Mock(return_value=client))
    monkeypatch.setattr("tests.support.faults.load.stored_rows", read)
    load = Load("nowhere", pressure=Pressure(producers=1, consumers=0))
    with load:
        assert enqueueing.wait(PATIENCE_S)
        load.drain({})
    assert steps == ["enqueued", "read"]
