"""The first page: the topics that need somebody, and the namespaces with their sums."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from heapq import nlargest
from typing import Any, Final

from foqs.console.asked import Asked, ConsolePage
from foqs.console.asking import part
from foqs.console.charts import Chart, rate_charts
from foqs.console.cluster_page import ill_shards
from foqs.console.command_lines import command
from foqs.console.sparks import spark_of
from foqs.console.topic_index import TopicIndex
from foqs.console.topic_row import TONES, TopicRow
from foqs.console.verdicts import shown_verdict
from foqs.model.namespace import Namespace
from foqs.model.topic_rates import RatesPage

NEEDS_MAX: Final = 6
NAMESPACES_MAX: Final = 50
"""Rows of namespaces; for further ones the selection of the frame leads to their topics."""
RATED_MAX: Final = 20
"""Namespaces whose rates are asked for."""
_EMPTY: Final = TopicIndex()


async def overview_page(asked: Asked) -> ConsolePage:
    """Make the page of all namespaces that the viewer can observe."""
    names = asked.namespaces
    sums = {name: _sums(asked.poller.indexes.get(name, _EMPTY)) for name in names}
    shown = sorted(names, key=lambda name: (-sums[name]["ready"], name))[:NAMESPACES_MAX]
    needs, rates = await asyncio.gather(_needs(asked, names), _rates(asked, shown[:RATED_MAX]))
    rows = [_row(asked, name, sums[name], rates.get(name), asked.poller.namespaces[name]) for name in shown]
    sick = ill_shards(asked.poller.shards)
    values: dict[str, Any] = {
        "needs": needs,
        "sick": sick if asked.rights.watches else [],
        "rows": rows,
        "namespaces_count": len(names),
        "total": {key: sum(one[key] for one in sums.values()) for key in ("ready", "delayed", "leased", "dead")},
        "charts": _charts(shown, rates),
        "as_of_ms": min((sums[name]["as_of_ms"] for name in shown), default=0),
        "cli": command("foqs", "namespace", "list"),
        "error": asked.poller.error,
    }
    document = {"namespaces": [{**row, "spark": None} for row in rows], "needs": needs, "total": values["total"]}
    return ConsolePage("overview.html", "Overview", "overview", values, document)


def _sums(index: TopicIndex) -> dict[str, int]:
    return {**index.sums(), "as_of_ms": index.as_of_ms}


async def _needs(asked: Asked, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the topics whose movement is bad, the largest first, each with the first words of its explanation."""
    worst: list[tuple[float, str, TopicRow]] = []
    for name in names:
        index = asked.poller.indexes.get(name)
        if index is not None:
            worst += [(row.attention, name, row) for row in index.worst(NEEDS_MAX)]
    chosen = [entry for entry in nlargest(NEEDS_MAX, worst, key=lambda entry: entry[0]) if entry[0] > 0]
    admin = asked.session.viewer.admin
    explained = await asyncio.gather(
        *[part(admin.explain(name, row.name, group=row.group or None)) for _, name, row in chosen]
    )
    found = []
    for (_, name, row), explanation in zip(chosen, explained, strict=True):
        verdict = shown_verdict(explanation, asked.now_ms)
        reasons = verdict["reasons"]
        text = reasons[0]["text"] if reasons else row.why(asked.now_ms)
        found.append(
            {"namespace": name, "topic": row.name, "group": row.group, "label": row.label, "text": text,
             "look": TONES[row.movement], "dead": row.dead, "why": row.why(asked.now_ms)}
        )  # fmt: skip
    return found


async def _rates(asked: Asked, names: Sequence[str]) -> dict[str, RatesPage]:
    admin = asked.session.viewer.admin
    pages = await asyncio.gather(*[part(admin.namespace_rates(name, with_series=True, partial=True)) for name in names])
    return {name: page for name, page in zip(names, pages, strict=True) if not isinstance(page, str) and page.topics}


def _row(
    asked: Asked, name: str, sums: dict[str, int], rates: RatesPage | None, namespace: Namespace
) -> dict[str, Any]:
    row = rates.topics[0] if rates else None
    settings = namespace.settings
    quota = settings.enqueues_per_minute_max
    return {
        "name": name,
        **sums,
        "oldest_ms": max(0, asked.now_ms - sums["oldest_at_ms"]) if sums["oldest_at_ms"] else 0,
        "enqueued": row.enqueued_1min if row else 0.0,
        "ended": row.ended_1min if row else 0.0,
        "failed": row.failed_1min if row else 0.0,
        "has_rates": row is not None,
        "quota_used": min(100, round(100 * row.enqueued_1min * 60 / quota)) if row and quota else 0,
        "paused": ", ".join(
            [
                word
                for word, is_on in (("enqueues", settings.enqueue_paused), ("deliveries", settings.dequeue_paused))
                if is_on
            ]
        ),
        "reason": settings.pause_reason,
        "spark": spark_of(row.ready_series) if row else None,
        "acts": asked.allows_actions and asked.rights.manages(name),
    }


def _charts(names: Sequence[str], rates: dict[str, RatesPage]) -> list[Chart]:
    """Return the charts of the namespace with most ready items."""
    first = next((name for name in names if name in rates), None)
    return [] if first is None else rate_charts(rates[first], rates[first].topics[0])
