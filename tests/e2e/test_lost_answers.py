"""Connections that break under load, before the host and behind it, when what was asked is done or half done."""

from __future__ import annotations

import random
import signal
import socket
from collections.abc import Mapping

import pytest
from sqlalchemy.engine import make_url

from tests.e2e.conftest import StartHost
from tests.e2e.test_kill import CLOCK_TOLERANCE_MS
from tests.histories.checker import check
from tests.histories.history import Outcome
from tests.support.databases import Databases
from tests.support.faults.load import Load
from tests.support.faults.programs import free_port
from tests.support.faults.proxy import Cut, CuttingProxy

pytestmark = [pytest.mark.database, pytest.mark.slow]

CUTS = 24
ALWAYS = (0, 1 << 62)


def through(proxy: CuttingProxy, urls: Mapping[int, str]) -> dict[int, str]:
    """The URLs of the shards by way of the proxy."""
    via = {}
    for shard_id, url in urls.items():
        direct = make_url(url)
        via[shard_id] = direct.set(host="127.0.0.1", port=proxy.port, query={}).render_as_string(hide_password=False)
    return via


def cut_under(load: Load, proxy: CuttingProxy, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(CUTS):
        load.wait_for(enqueued=rng.randrange(150), settled=rng.randrange(100))
        proxy.cut(rng.choice(list(Cut)))
    load.wait_for(enqueued=500, settled=500)


def test_a_commit_whose_answer_is_lost_happened_or_did_not_and_the_host_finds_out(
    own_databases: Databases, start_host: StartHost
) -> None:
    def connect() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(own_databases.server.socket_path))
        return sock

    with CuttingProxy(connect) as proxy:
        host = start_host("host-1", free_port(), through(proxy, own_databases.shard_urls))
        with Load(host.address) as load:
            cut_under(load, proxy, seed=1)
            stored = load.drain(own_databases.shard_urls)
        host.signal(signal.SIGTERM)
        assert host.wait() == 0, host.output
    assert host.output.count("session_lost") >= CUTS / 2, host.output
    report = check(load.history.calls, stored, tolerance_ms=CLOCK_TOLERANCE_MS, disturbed=[ALWAYS])
    assert not report.violations, f"{report}\n{host.output}"
    unknown = sum(call.outcome is Outcome.INFO for call in load.history.calls)
    assert unknown == 0, f"the host can find out what became of each: {report}\n{host.output}"
    assert report.counts["at-most-once lost"] == 0, str(report)


def test_a_client_whose_answer_is_lost_loses_nothing_and_gets_nothing_twice(
    own_databases: Databases, start_host: StartHost
) -> None:
    host = start_host("host-1", free_port())
    with CuttingProxy(lambda: socket.create_connection(("127.0.0.1", host.port))) as proxy:
        with Load(f"127.0.0.1:{proxy.port}") as load:
            cut_under(load, proxy, seed=2)
            stored = load.drain(own_databases.shard_urls)
        host.signal(signal.SIGTERM)
        assert host.wait() == 0, host.output
    report = check(load.history.calls, stored, tolerance_ms=CLOCK_TOLERANCE_MS)
    assert not report.violations, f"{report}\n{host.output}"
    unknown = sum(call.outcome is Outcome.INFO for call in load.history.calls)
    assert CUTS / 3 <= unknown <= CUTS, str(report)
