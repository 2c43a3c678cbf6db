"""The demo in small: it runs, kills its consumer, finds every promise kept, and leaves nothing behind."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.demo.__main__ import purge
from loadtest.demo.cluster import DemoCluster
from loadtest.demo.report import report
from loadtest.demo.run import Demo
from loadtest.flights import flights
from tests.support.databases import server_binary


@pytest.mark.database
@pytest.mark.deep
def test_the_demo_runs_and_all_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FOQS_MYSQLD", str(server_binary().path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    records = flights()[:8_000]
    printed = io.StringIO()
    with DemoCluster() as cluster:
        owners = cluster.owners()
        demo = Demo(cluster.addresses, owners, records, Console(file=printed), steady_count=500)
        demo.run()
        assert cluster.owners() == owners
        purged_count = purge(cluster.addresses[1], sorted({record.topic for record in records}))
        held = report(Console(file=printed), demo.history, demo.course, cluster.rows_left(), purged_count)
    assert held, printed.getvalue()
    assert len(demo.history.enqueued) == 8_000
    assert set(owners.values()) == {0, 1}
    delivering = {owners[handout.shard_id] for _, handout in demo.history.deliveries()}
    assert delivering == {0, 1}, "both hosts delivered items"
    assert demo.course.held, "a consumer was killed with items in its hands"
    assert demo.history.check_order().compared_count > 1_000, "the order check must have something to look at"
    assert not list(tmp_path.iterdir())
