"""The page of the consumers of a namespace."""

from __future__ import annotations

from typing import Any, Final

from foqs.console.asked import Asked, ConsolePage, checked_namespace
from foqs.console.asking import first_rows
from foqs.console.command_lines import command, option

CONSUMERS_MAX: Final = 500


async def consumers_page(asked: Asked) -> ConsolePage:
    """Make the page, by name of consumer."""
    namespace = checked_namespace(asked)
    topic, prefix = asked.query.get("topic", ""), asked.query.get("filter", "")
    missing: dict[str, None] = {}
    rows = asked.session.viewer.admin.list_consumers(
        namespace, topic, name_prefix=prefix, on_missing=lambda parts: missing.update(dict.fromkeys(parts))
    )
    found, is_cut = await first_rows(rows, CONSUMERS_MAX, 2.0)
    values: dict[str, Any] = {
        "consumers": found,
        "is_cut": is_cut,
        "missing": list(missing),
        "topic": topic,
        "filter_text": prefix,
        "held": sum(one.held for one in found),
        "acts": asked.acts,
        "cli": command(
            "foqs", "consumer", "list", namespace, *option("--topic", topic), *option("--name-prefix", prefix)
        ),
    }
    document = {"consumers": found, "is_cut": is_cut, "missing": list(missing)}
    return ConsolePage("consumers.html", f"Consumers of {namespace}", "consumers", values, document)
