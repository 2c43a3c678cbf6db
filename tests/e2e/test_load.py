"""The load of the other tests and of loadtest/: what it does in hours."""

from __future__ import annotations

import pytest

from loadtest.faults.load import Load, Pressure
from loadtest.faults.programs import free_port
from tests.e2e.conftest import StartHost

pytestmark = [pytest.mark.database, pytest.mark.slow]


def test_it_goes_on_when_more_items_have_died_than_its_backlog_may_have(start_host: StartHost) -> None:
    host = start_host("host-1", free_port())
    with Load(host.address, pressure=Pressure(backlog_items_max=40)) as load:
        load.wait_for(enqueued=3_000, patience_s=120)
        assert load.gone_count > 40
