"""The pages of reports load nothing, are well-formed, and say what their tables have."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from foqs.spark.events.capacity import rounded_up, suggest, suggestions
from foqs.spark.reports.capacity_page import capacity_page
from foqs.spark.reports.delivery_page import delivery_page
from foqs.spark.reports.page import html_of

VOID = {"meta", "br", "link", "img", "input", "hr"}
LOADS = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background", "style"}
START = datetime(2026, 11, 20, tzinfo=UTC).replace(tzinfo=None)


class Strict(HTMLParser):
    """Reads a page as text; complains of tags that are not closed in order, and of what would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.problems += [f"<{tag} {name}={value}>" for name, value in attrs if name in LOADS or name.startswith("on")]
        if tag in ("script", "link", "iframe", "img", "object", "base"):
            self.problems.append(f"<{tag}>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes something else")

    def handle_data(self, data: str) -> None:
        if data.strip() and "style" not in self.open:
            self.texts.append(data.strip())


def read(html: str) -> Strict:
    parser = Strict()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    assert parser.problems == []
    assert not re.search(r"https?:|url\(|@import|//[a-z]", html), "nothing is loaded"
    return parser


def row(namespace: str = "jobs", *, days: float = 4.0, slope: float | None = 0.0, **values: Any) -> dict[str, Any]:
    found = {
        "namespace": namespace, "enqueued": 1_000, "refused": 0, "enqueued_max": 100, "demand_max": 120,
        "enqueued_p50": 50.0, "enqueued_p99": 99.0, "minutes_refused": 0, "minutes": 20, "first": START,
        "last": START + timedelta(days=days), "slope": slope, "demand_mean": 60.0,
    }  # fmt: skip
    return found | values


def test_the_page_of_the_capacity_report_is_one_file_that_says_what_the_table_has() -> None:
    found = suggestions([row("<b>&jobs"), row("calm")], {"<b>&jobs": 110}, horizon_days=30, headroom=1.25)
    hours = [{"hour": START + timedelta(hours=n), "enqueued_max": n, "refused_max": n % 2} for n in range(5)]
    page = capacity_page(found, {"<b>&jobs": hours}, horizon_days=30, headroom=1.25, lost_count=7, source="<in>")
    texts = read(html_of(page)).texts
    assert {"Capacity report", "<b>&jobs", "calm", "<in>", "110", "150", "7"} <= set(texts)


def test_the_page_of_the_delivery_report_is_one_file_that_says_what_the_table_has() -> None:
    counts = ("acked", "nacked", "released", "lease_ended", "dead", "expired", "at_most_once", "lives", "failures",
              "redeliveries", "attempts", "wait_count", "processing_count")  # fmt: skip
    one: dict[str, Any] = dict.fromkeys(counts, 3) | {"sampled_share": 0.5, "processing_mean_ms": 1_500.0}
    one |= {f"sampled_wait_{rank}_ms": 90_000.0 for rank in ("p50", "p95", "p99")}
    one |= {f"processing_{rank}_ms_max": 7_200_000 for rank in ("p50", "p95")} | {"processing_p99_ms_max": None}
    hours = [one | {"hour": START + timedelta(hours=n)} for n in range(4)]
    topics = [one | {"namespace": "a&b", "topic": "<script>"}, one | {"namespace": None, "topic": None}]
    texts = read(html_of(delivery_page(one, hours, topics, lost_count=12, source='"in"'))).texts
    assert {"Delivery report", "a&b", "<script>", "(others)", "12", "1.5 min", "≤ 2 h", "> 1 d", "50 %"} <= set(texts)
    nothing = dict.fromkeys(one, None)
    assert "no data" in " ".join(read(html_of(delivery_page(nothing, [], [], lost_count=0, source="in"))).texts)


# ---- growth, and the quota to suggest, of hand-made figures ----


def test_what_neither_grows_nor_shrinks_gets_its_highest_demand_with_headroom() -> None:
    said = suggest(row(), 200, horizon_days=30, headroom=1.25)
    assert (said.used_share, said.growth_share, said.suggested) == (0.5, 0.0, 150)


def test_growth_is_that_of_the_line_over_the_horizon_by_the_mean() -> None:
    a_day = 6 / 86_400  # A tenth of the mean each day.
    said = suggest(row(slope=a_day), None, horizon_days=30, headroom=1.0)
    assert said.growth_share == pytest.approx(3.0)
    assert said.suggested == 480
    assert said.used_share is None


def test_what_shrinks_is_taken_for_what_stays() -> None:
    said = suggest(row(slope=-1 / 86_400), 100, horizon_days=30, headroom=1.0)
    assert said.growth_share == pytest.approx(-0.5)
    assert said.suggested == 120


@pytest.mark.parametrize(("days", "slope"), [(1.99, 1.0), (4.0, None)])
def test_without_two_days_or_a_line_there_is_no_growth(days: float, slope: float | None) -> None:
    said = suggest(row(days=days, slope=slope), 100, horizon_days=30, headroom=1.0)
    assert (said.growth_share, said.suggested) == (None, 120)


def test_those_nearest_to_their_quota_come_first() -> None:
    rows = [row("c"), row("far"), row("near"), row("b")]
    found = suggestions(rows, {"far": 1_000, "near": 101}, horizon_days=30, headroom=1.0)
    assert [one["namespace"] for one, _ in found] == ["near", "far", "b", "c"]


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.0, 1), (0.3, 1), (9.2, 10), (10.0, 10), (10.1, 11), (99.1, 100), (101, 110), (1_201, 1_300)],
)
def test_quotas_are_rounded_up_to_two_digits(value: float, rounded: int) -> None:
    assert rounded_up(value) == rounded
