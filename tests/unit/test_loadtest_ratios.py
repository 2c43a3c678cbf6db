"""The bench's ratios against plain SQL."""

from __future__ import annotations

import pytest

from loadtest.bench.__main__ import with_ratios

_RAW = {"raw_per_s": 20_000.0, "raw_mysql_us": 40.0, "raw_clients_us": 10.0}


def test_the_rate_is_compared_with_that_of_plain_sql() -> None:
    assert with_ratios(_RAW | {"items_per_s": 15_000.0})["of_raw"] == pytest.approx(0.75)


def test_the_cpu_of_all_processes_is_compared_with_that_of_plain_sql() -> None:
    figures = with_ratios(_RAW | {"mysql_us": 30.0, "host_us": 50.0, "clients_us": 20.0})
    assert figures["of_raw_by_cpu"] == pytest.approx(0.5)


def test_what_plain_sql_has_no_like_of_gets_no_ratio() -> None:
    figures = _RAW | {"p99_ms": 3.0, "calls_per_s": 1.0}
    assert with_ratios(figures) == figures
