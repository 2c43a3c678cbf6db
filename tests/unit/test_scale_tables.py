"""What is computed of large clusters follows the constants that it names."""

from __future__ import annotations

import re

import pytest

from foqs.cluster.homes import directory, interests, probes, topic_homes, topic_reports
from foqs.cluster.members.backends import zookeeper_backend
from foqs.host.admission import quotas
from foqs.model import limits
from scripts.scale_tables import ROWS, Size, report_bytes


def value_of(what: str, size: Size) -> float:
    (row,) = [row for row in ROWS if row.what == what]
    return row.value(size)


def test_heartbeats_grow_with_hosts_and_what_they_read_with_their_square() -> None:
    one, two = Size(10, 50, 100, 1), Size(20, 50, 100, 1)
    assert value_of("heartbeats a second, all hosts", two) == 20 * 1_000 / limits.HEARTBEAT_MS
    what = "rows of hosts read a second, all hosts"
    assert value_of(what, two) == 4 * value_of(what, one)


def test_news_of_a_host_grow_with_its_topics_up_to_a_bound() -> None:
    what = "topics that a host reports a second, nothing changing"
    assert value_of(what, Size(10, 50, 1_000, 2)) == 200 * 1_000 / topic_reports.REPEAT_MS
    assert value_of(what, Size(10, 50, 10_000_000, 2)) == topic_reports.REPORTS_PER_SECOND_MAX
    assert 50 < report_bytes() < 100


@pytest.mark.parametrize("formula", [row.formula for row in ROWS])
def test_every_constant_in_a_formula_is_one_of_the_code(formula: str) -> None:
    places = (limits, quotas, directory, probes, topic_homes, topic_reports, interests, zookeeper_backend)
    for name in re.findall(r"`([A-Z_]+)`", formula):
        assert any(hasattr(place, name) for place in places), name
