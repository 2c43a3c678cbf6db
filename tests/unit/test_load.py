"""How the load of the tests and of loadtest/ knows that the consumers do not keep up."""

from __future__ import annotations

from random import Random
from unittest.mock import Mock

import pytest

from foqs.testing.history import Outcome
from loadtest.faults.load import Load, Pressure


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
