"""A host that is told to drain ends, whatever its servers do."""

from __future__ import annotations

import signal
import time

import pytest

from foqs.core import limits
from loadtest.faults.cluster import make_namespace
from loadtest.faults.load import Load
from loadtest.faults.programs import HostProgram, free_port
from tests.support.databases import Databases

pytestmark = [pytest.mark.database, pytest.mark.slow]

DRAIN_MS_MAX = 1_000


def test_a_host_whose_server_hangs_ends_when_the_bound_of_its_drain_is_over(own_databases: Databases) -> None:
    variables = {"FOQS_DRAIN_MS_MAX": str(DRAIN_MS_MAX)}
    host = HostProgram("host-1", free_port(), own_databases.meta_url, own_databases.shard_urls, variables)
    try:
        make_namespace(host.address)
        with Load(host.address) as load:
            load.wait_for(enqueued=500, settled=500)
        own_databases.server.pause()
        began_s = time.monotonic()
        host.signal(signal.SIGTERM)
        host.wait()
        elapsed_ms = (time.monotonic() - began_s) * 1_000
    finally:
        host.close()
        own_databases.server.resume()
    assert elapsed_ms < DRAIN_MS_MAX + 2 * limits.CONNECT_MS_MAX, host.output
