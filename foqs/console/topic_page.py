"""The page of a topic: why it moves or not, its counts, rates, items and consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from foqs.console.asked import Asked, ConsolePage, checked_namespace, topic_url
from foqs.console.asking import first_rows, part
from foqs.console.charts import rate_charts, wait_chart
from foqs.console.command_lines import command, option
from foqs.console.error_groups import error_groups
from foqs.console.item_rows import item_row
from foqs.console.verdicts import shown_verdict
from foqs.model.calls import ItemState, StoredItem, TopicStats
from foqs.model.errors import InvalidArgumentError
from foqs.model.policy import TopicPolicy
from foqs.model.topic_name import hidden
from foqs.model.topic_rates import RatesPage, TopicRates

ITEMS_PER_PAGE: Final = 25
CONSUMERS_MAX: Final = 50
_SAMPLED_MAX: Final = 2_000
"""The most dead letters that are grouped by their errors."""
_SAMPLE_MS_MAX: Final = 30_000
"""The age at which they are read again, in milliseconds."""
TABS: Final = {
    "ready": ItemState.READY,
    "leased": ItemState.LEASED,
    "delayed": ItemState.DELAYED,
    "dead": ItemState.DEAD,
}


async def topic_page(asked: Asked) -> ConsolePage:
    """Make the page. Its parts are asked for side by side, by the client of the viewer."""
    namespace = checked_namespace(asked)
    topic, group = asked.query.get("name", ""), asked.query.get("group", "")
    if not topic:
        raise InvalidArgumentError("no topic is named: follow a link of the list of topics")
    tab = asked.query.get("tab", "ready")
    tab = tab if tab in TABS else "ready"
    admin = asked.session.viewer.admin
    of_group = group or None
    holders = admin.list_consumers(namespace, topic, group=of_group, on_missing=_ignore)
    (explanation, rates, history, consumers), (policy, stats, items) = await asyncio.gather(
        asyncio.gather(
            part(admin.explain(namespace, topic, group=of_group)),
            part(admin.get_rates(namespace, [topic], group=of_group, with_series=True, partial=True)),
            part(admin.get_history(namespace, [topic], group=of_group, partial=True)),
            part(first_rows(holders, CONSUMERS_MAX)),
        ),
        asyncio.gather(
            part(admin.get_topic_policy(namespace, topic, group=of_group)),
            part(_stats_of(asked, namespace, topic, group)),
            part(_items_of(asked, namespace, topic, group, tab)),
        ),
    )
    row = _row_of(rates)
    charts = [] if isinstance(rates, str) else rate_charts(rates, row)
    waits = None if isinstance(history, str) else wait_chart(history)
    found = TopicStats(topic, 0, 0, 0, 0, 0, 0) if isinstance(stats, str) else stats
    values: dict[str, Any] = {
        "topic": topic,
        "group": group,
        "tab": tab,
        "tabs": [(key, topic_url(namespace, topic, group, tab=key)) for key in TABS],
        "stats": found,
        "stats_problem": stats if isinstance(stats, str) else "",
        "oldest_ms": max(0, asked.now_ms - found.oldest_ready_at_ms) if found.oldest_ready_at_ms else 0,
        "rates": row,
        "charts": [*charts, *([waits] if waits else [])],
        "verdict": shown_verdict(explanation, asked.now_ms),
        "policy": TopicPolicy() if isinstance(policy, str) else policy,
        "consumers": [] if isinstance(consumers, str) else consumers[0],
        "consumers_problem": consumers if isinstance(consumers, str) else "",
        "items": None if isinstance(items, str) else items,
        "items_problem": items if isinstance(items, str) else "",
        "cli": command("foqs", "explain", namespace, *option("--topic", topic), *option("--group", group)),
        "acts": asked.acts,
    }
    return ConsolePage("topic.html", topic, "topics", values, _document(values, explanation))


def _ignore(_: Sequence[str]) -> None:
    """Take a part of the cluster for missing. The verdict names it."""


def _row_of(rates: RatesPage | str) -> TopicRates | None:
    return None if isinstance(rates, str) or not rates.topics else rates.topics[0]


async def _stats_of(asked: Asked, namespace: str, topic: str, group: str) -> TopicStats:
    """Return the counts of now; all 0 for a topic without items."""
    async for one in asked.session.viewer.queue.topics(namespace, topic, on_missing=_ignore):
        if one.topic == topic and (one.group or "") == group:
            return one
        if one.topic != topic:
            break
    return TopicStats(topic, 0, 0, 0, 0, 0, 0)


async def _items_of(asked: Asked, namespace: str, topic: str, group: str, tab: str) -> dict[str, Any]:
    """Return the rows of the items of a tab, with the token of the next page."""
    if not asked.rights.reads(namespace):
        return {"is_barred": True, "rows": [], "next": "", "groups": [], "is_cut": False}
    admin, token = asked.session.viewer.admin, asked.query.get("after", "")
    is_cut, following, groups = False, "", None
    found: Sequence[StoredItem]
    if tab == "dead":
        page = await admin.list_dead_letters(namespace, topic, ITEMS_PER_PAGE, token, group=group or None)
        found, following = page.items, page.next_page_token
        key = f"errors of {namespace}/{hidden(topic, group)}"
        groups = await asked.session.recent(
            key, asked.now_ms, _SAMPLE_MS_MAX, lambda: _groups_of(asked, namespace, topic, group)
        )
    elif tab == "ready":
        page = await admin.peek_items(namespace, topic, ITEMS_PER_PAGE, token, group=group or None)
        found = [one for one in page.items if one.state is ItemState.READY]
        following = page.next_page_token
    else:
        rows = admin.iterate_items(namespace, topics=topic, states=[TABS[tab]], on_missing=_ignore, page_size=200)
        found, is_cut = await first_rows(rows, ITEMS_PER_PAGE)
        found = [one for one in found if (one.group or "") == group]
    return {
        "is_barred": False,
        "rows": [item_row(one, asked.now_ms, hides_payloads=asked.hides_payloads) for one in found],
        "next": topic_url(namespace, topic, group, tab=tab, after=following) if following else "",
        "is_first": not token,
        "groups": groups,
        "is_cut": is_cut,
    }


async def _groups_of(asked: Asked, namespace: str, topic: str, group: str) -> dict[str, Any]:
    """Return the dead letters of a topic by their errors, of as many as can be read in time."""
    rows = asked.session.viewer.admin.iterate_items(
        namespace, topics=topic, states=[ItemState.DEAD], with_payload=False, with_metadata=False, on_missing=_ignore
    )
    return error_groups(*await first_rows(rows, _SAMPLED_MAX), group)


def _document(values: dict[str, Any], explanation: object) -> dict[str, Any]:
    kept = ("topic", "group", "stats", "rates", "policy", "consumers", "items")
    return {**{key: values[key] for key in kept}, "explanation": explanation, "tab": values["tab"]}
