"""Four hosts that share the shards are restarted one after the other under load: no call of a client fails."""

from __future__ import annotations

import pytest

from loadtest.stress import rolling

pytestmark = [pytest.mark.database, pytest.mark.slow]


def test_every_host_is_restarted_in_turn_and_no_call_fails() -> None:
    verdict = rolling.run(rolling.Course(hosts=4, shards=4, servers=1, leases=500))
    assert [row["restarted"] for row in verdict.rows] == ["none", "host-1", "host-2", "host-3", "host-4"]
    assert verdict.facts["items delivered"] > 0
    # How long a call was held is measured by `make rolling`, where nothing else runs.
    assert [bound for bound in verdict.broken if not bound.what.startswith("longest")] == [], verdict.facts
