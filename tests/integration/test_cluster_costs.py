"""The program that measures what a large cluster costs, in small."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from foqs.dev.local_server import BINARY_VARIABLE
from loadtest.cluster_costs import main
from tests.support.databases import server_binary


@pytest.mark.slow
@pytest.mark.database
def test_the_costs_of_a_cluster_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINARY_VARIABLE, str(server_binary().path))
    done = CliRunner().invoke(main, ["--hosts", "3", "--shards", "6"], catch_exceptions=False)
    assert done.exit_code == 0
    for what in ("reads all shards", "after a host has gone", "bytes of a topic"):
        assert what in done.output
