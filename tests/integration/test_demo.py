"""The demo in small: it runs, kills its consumer, finds every promise kept, and leaves nothing behind."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.demo.__main__ import purge
from loadtest.demo.cluster import DevCluster
from loadtest.demo.report import report
from loadtest.demo.run import Demo
from loadtest.flights import flights
from tests.support.databases import server_binary


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """The demo looks for the server's socket in the data directory, where its path has to fit."""
    with tempfile.TemporaryDirectory(prefix="foqs-test-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.mark.database
@pytest.mark.slow
def test_the_demo_runs_and_all_holds(monkeypatch: pytest.MonkeyPatch, short_dir: Path) -> None:
    monkeypatch.setenv("FOQS_MYSQLD", str(server_binary().path))
    monkeypatch.setattr(tempfile, "tempdir", str(short_dir))
    records = flights()[:8_000]
    printed = io.StringIO()
    with DevCluster() as cluster:
        demo = Demo(cluster.address, records, Console(file=printed), steady_count=500)
        demo.run()
        purged_count = purge(cluster.address, sorted({record.topic for record in records}))
        held = report(Console(file=printed), demo.history, demo.course, cluster.rows_left(), purged_count)
    assert held, printed.getvalue()
    assert len(demo.history.enqueued) == 8_000
    assert demo.course.held, "a consumer was killed with items in its hands"
    assert demo.history.check_order().compared_count > 1_000, "the order check must have something to look at"
    assert not list(short_dir.iterdir())
