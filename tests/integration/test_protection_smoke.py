"""The programs that measure what access and TLS do under load and what they cost, in small, so that they cannot rot."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import uvloop
from click.testing import CliRunner

from loadtest.bench.__main__ import main as bench
from loadtest.fuzz import connections
from loadtest.fuzz.floods import handshake_floods, measure
from loadtest.fuzz.good_client import good_client
from loadtest.fuzz.tls_door import tls_door
from loadtest.fuzz.watched import watched_host
from loadtest.stress import reloads, revocation

pytestmark = [pytest.mark.database, pytest.mark.slow]


def test_a_revoked_token_is_refused_by_every_host_in_every_way_and_no_other_call_fails() -> None:
    verdict = revocation.run(revocation.Course(hosts=2, times=2))
    *ways, all_of_them = verdict.rows
    assert [row["refused"] for row in ways] == list(revocation.WAYS)
    assert all(row["revocations"] == 2 and row["longest ms"] > 0 for row in ways)
    assert all_of_them["longest ms"] == max(row["longest ms"] for row in ways)
    assert verdict.facts["items delivered"] > 0
    # How soon they refuse is measured by `make revocation`, where nothing else runs.
    assert [bound for bound in verdict.broken if not bound.what.startswith("longest")] == [], verdict.facts


def test_certificates_are_replaced_under_load_and_no_call_fails() -> None:
    verdict = reloads.run(reloads.Course(hosts=2, times=2))
    assert verdict.facts["connections made meanwhile"] > 0
    assert verdict.facts["items delivered"] > 0
    assert verdict.broken == [], verdict.facts


def test_idle_connections_are_held_and_their_memory_is_told() -> None:
    with tls_door() as door:
        found = connections.measure(40, door)
    assert (found.kind, found.connections) == ("TLS 1.3", 40)
    assert found.before_mib > 0
    assert found.after_mib > 0
    of_ten = connections.Held("plain", 10, before_mib=50.0, after_mib=51.0)
    assert of_ten.bytes_each == (1 << 20) / 10
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connections.fitting(10) == 10
    assert connections.fitting(10 * hard) < hard


def test_a_good_client_is_served_by_tls_beside_a_flood_of_handshakes() -> None:
    with tls_door() as door, watched_host(door=door) as host, good_client(host.port, door.client_options) as client:
        (flood,) = [one for one in handshake_floods(door) if one.name == "handshakes that are none"]
        row = uvloop.run(measure(flood, host, client, 1.0, 0.5, tls=door.context()))
    assert row.connections > 0
    assert (row.calls > 0, row.failures) == (True, 0)


def test_a_pair_of_lone_clients_tells_what_a_call_takes_longer(tmp_path: Path) -> None:
    path = tmp_path / "lone.json"
    done = CliRunner().invoke(
        bench, ["pairs", "lone", "--with", "foqs-protected", "--pairs", "1", "--smoke", "--json", str(path)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(path.read_text())["phases"]["lone lone"]
    assert found["enqueue_p50_ms_base"] > 0
    assert found["enqueue_p50_ms_more"] == found["enqueue_p50_ms_other"] - found["enqueue_p50_ms_base"]
    assert found["enqueue_p50_ms_mores"] == [found["enqueue_p50_ms_more"]]
