"""The page of the topics of a namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from foqs.console.asked import Asked, ConsolePage, checked_namespace, namespace_url
from foqs.console.command_lines import command, option
from foqs.console.sparks import spark_of
from foqs.console.topic_filter import QUICK_FILTERS, TopicFilter, parsed_filter
from foqs.console.topic_index import DEFAULT_ORDER, ORDERS, ROWS_PER_PAGE, TopicIndex, TopicPageFound
from foqs.console.topic_row import TONES, TopicRow
from foqs.model.errors import FoqsError
from foqs.model.topic_rates import TopicRates

RATES_MS_MAX: Final = 1_000
"""The longest wait for the rates of the rows, in milliseconds. Without them the rows are those of the last round."""
FIRST_MAX: Final = 1_000_000
_EMPTY: Final = TopicIndex()
COLUMNS: Final = (
    ("name", "Topic", ""),
    ("why", "Is it moving?", ""),
    ("ready", "Ready", "num"),
    ("delayed", "Delayed", "num c-mid"),
    ("leased", "Leased", "num c-mid"),
    ("dead", "Dead", "num"),
    ("oldest", "Oldest", "num c-mid"),
    ("in", "In/s", "num c-low"),
    ("out", "Out/s", "num"),
    ("failed", "Failed/s", "num c-low"),
)
_ASCENDING_FIRST: Final = ("name",)


async def topics_page(asked: Asked) -> ConsolePage:
    """Make the page. Its order is that of the last round of the poller, and its rates are asked for now."""
    namespace = checked_namespace(asked)
    index = asked.poller.indexes.get(namespace, _EMPTY)
    chosen = parsed_filter(asked.query.get("filter", ""), asked.query.get("show", "").split(","))
    order = asked.query.get("sort", "")
    if order.removeprefix("-") not in ORDERS:
        order = DEFAULT_ORDER
    first = _first_of(asked.query.get("after", ""))
    found = index.page(chosen, order, first, asked.now_ms)
    rates = await _rates_of(asked, namespace, found.rows)
    rows = [_cells(row, rates.get((row.name, row.group)), asked.now_ms) for row in found.rows]
    values: dict[str, Any] = {
        "found": found,
        "rows": rows,
        "columns": [_column(asked, *column, order) for column in COLUMNS],
        "quick": [_quick(asked, key, chosen, index) for key in QUICK_FILTERS],
        "filter_text": chosen.text,
        "show": ",".join(chosen.quick),
        "acts": asked.acts,
        "act_url": namespace_url(namespace, "act/redrive", filter=chosen.text, show=",".join(chosen.quick)),
        "has_rates": bool(rates) or not rows,
        "is_by_attention": order == DEFAULT_ORDER,
        "index": index,
        "previous": asked.with_query(after=max(0, first - ROWS_PER_PAGE) or None) if first else "",
        "next": asked.with_query(after=first + ROWS_PER_PAGE) if first + ROWS_PER_PAGE < found.topics_count else "",
        "last": min(first + ROWS_PER_PAGE, found.topics_count),
        "cli": command("foqs", "topics", namespace, *option("--prefix", chosen.prefix)),
    }
    return ConsolePage("topics.html", f"Topics of {namespace}", "topics", values, _document(found, rows, index))


def _first_of(text: str) -> int:
    return min(int(text), FIRST_MAX) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


async def _rates_of(asked: Asked, namespace: str, rows: Sequence[TopicRow]) -> dict[tuple[str, str], TopicRates]:
    """Return the rates with series of the rows, as far as the hosts give them in time."""
    names = list({row.name for row in rows if not row.group})
    if not names:
        return {}
    call = asked.session.viewer.admin.get_rates(
        namespace, names, limit=len(names), with_series=True, partial=True, deadline_ms=RATES_MS_MAX
    )
    try:
        page = await asyncio.wait_for(call, RATES_MS_MAX / 1_000)
    except (FoqsError, TimeoutError):
        return {}
    return {(row.topic, row.group or ""): row for row in page.topics}


def _cells(row: TopicRow, rates: TopicRates | None, now_ms: int) -> dict[str, Any]:
    """Return the cells of a row."""
    return {
        "name": row.name,
        "group": row.group,
        "label": row.label,
        "look": TONES[row.movement],
        "why": row.why(now_ms),
        "ready": row.ready,
        "delayed": row.delayed,
        "leased": row.leased,
        "dead": row.dead,
        "oldest_ms": max(0, now_ms - row.oldest_at_ms) if row.oldest_at_ms else 0,
        "enqueued": rates.enqueued_1min if rates else row.enqueued,
        "ended": rates.ended_1min if rates else row.ended,
        "failed": rates.failed_1min if rates else row.failed,
        "spark": spark_of(rates.ready_series) if rates else None,
    }


def _column(asked: Asked, key: str, label: str, classes: str, order: str) -> dict[str, str]:
    """Return a head of the table, with the URL that sorts by it; a third press ends the sorting."""
    down, up = f"-{key}", key
    first, second = (up, down) if key in _ASCENDING_FIRST else (down, up)
    following = second if order == first else "" if order == second else first
    is_sorted = {down: "descending", up: "ascending"}.get(order, "")
    url = asked.with_query(sort=following, after=None)
    return {"key": key, "label": label, "classes": classes, "sorted": is_sorted, "url": url}


def _quick(asked: Asked, key: str, chosen: TopicFilter, index: TopicIndex) -> dict[str, Any]:
    is_on = key in chosen.quick
    others = [one for one in chosen.quick if one != key] + ([] if is_on else [key])
    url = asked.with_query(show=",".join(others), after=None)
    return {"label": QUICK_FILTERS[key].label, "count": index.quick_counts()[key], "is_on": is_on, "url": url}


def _document(found: TopicPageFound, rows: list[dict[str, Any]], index: TopicIndex) -> dict[str, Any]:
    kept = [{key: value for key, value in row.items() if key not in ("spark", "label")} for row in rows]
    return {
        "topics": kept, "topics_count": found.topics_count, "items_count": found.items_count,
        "dead_count": found.dead_count, "first": found.first, "as_of_ms": index.as_of_ms, "missing": index.missing,
    }  # fmt: skip
