"""The page of one item: why it is not delivered, its payload and its life."""

from __future__ import annotations

import asyncio
from typing import Any

from foqs.console.asked import Asked, ConsolePage, checked_namespace
from foqs.console.asking import part
from foqs.console.command_lines import command
from foqs.console.item_rows import contents, last_error
from foqs.console.verdicts import shown_verdict
from foqs.model.calls import ItemState, StoredItem
from foqs.model.errors import NotFoundError, PermissionDeniedError


async def item_page(asked: Asked) -> ConsolePage:
    """Make the page. Raises NotFoundError for an item that is not stored."""
    namespace, item_id = checked_namespace(asked), asked.query.get("item_id", "")
    if not asked.rights.reads(namespace):
        raise PermissionDeniedError(f"to see items you need the role reader or owner in {namespace}")
    admin = asked.session.viewer.admin
    item, explanation = await asyncio.gather(
        _found(asked, namespace, item_id), part(admin.explain(namespace, item_id=item_id))
    )
    hides = asked.hides_payloads
    values: dict[str, Any] = {
        "item": item,
        "state": item.state.name.lower(),
        "look": {"dead": "bad", "leased": "info", "delayed": "warn"}.get(item.state.name.lower(), "ok"),
        "verdict": shown_verdict(explanation, asked.now_ms),
        "contents": [] if hides else [("Payload", item.payload, contents(item.payload))]
        + ([("Metadata", item.metadata, contents(item.metadata))] if item.metadata else []),
        "hides_payloads": hides,
        "events": _life_of(item),
        "error": last_error(item),
        "acts": asked.acts,
        "cli": command("foqs", "item", "get", namespace, item.id),
    }  # fmt: skip
    shown = {name: getattr(item, name) for name in item.__slots__ if not (hides and name in ("payload", "metadata"))}
    return ConsolePage("item.html", f"Item {item.id}", "topics", values, {"item": shown, "explanation": explanation})


async def _found(asked: Asked, namespace: str, item_id: str) -> StoredItem:
    try:
        return await asked.session.viewer.admin.get_item(namespace, item_id)
    except NotFoundError as error:
        raise NotFoundError(f"{error.message}: it was acked, was deleted or expired, or was never stored") from None


def _life_of(item: StoredItem) -> list[dict[str, Any]]:
    """Return the events of an item that are known, the oldest first. Attempts without a reason leave none."""
    found = [{"at_ms": item.enqueued_at_ms, "what": "enqueued", "text": "", "look": "idle"}]
    found += [
        {"at_ms": one.at_ms, "what": f"attempt {one.attempt} failed", "text": one.reason, "look": "bad"}
        for one in reversed(item.errors)
    ]
    match item.state:
        case ItemState.DELAYED:
            found.append({"at_ms": item.deliver_after_ms, "what": "is due", "text": "", "look": "warn"})
        case ItemState.LEASED:
            if item.leased_since_ms:
                found.append(
                    {"at_ms": item.leased_since_ms, "what": "leased", "text": item.leased_by or "", "look": "ok"}
                )
            found.append({"at_ms": item.lease_expires_at_ms or 0, "what": "lease ends", "text": "", "look": "idle"})
        case ItemState.DEAD:
            found.append(
                {"at_ms": item.died_at_ms or 0, "what": "dead", "text": item.death_reason or "", "look": "bad"}
            )
    return found
