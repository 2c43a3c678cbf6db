"""The page of the audit: the calls that changed something or read payloads, with their callers."""

from __future__ import annotations

from typing import Any, Final

from foqs.client.aio import AsyncAdminClient
from foqs.console.asked import Asked, ConsolePage
from foqs.console.command_lines import command, option
from foqs.model import limits
from foqs.model.audit import AuditRecord
from foqs.model.errors import PermissionDeniedError

RECORDS_MAX: Final = 200
SPANS_MS: Final = {"1h": limits.HOUR_MS, "1d": limits.DAY_MS, "7d": 7 * limits.DAY_MS, "30d": 30 * limits.DAY_MS}
_PAGES_MAX: Final = 20
"""The most pages that are read; the page says if records are left."""
_RECORDS_PER_PAGE: Final = 500


async def audit_page(asked: Asked) -> ConsolePage:
    """Make the page, the newest records first. Raises PermissionDeniedError for a viewer without ACCESS."""
    if not asked.rights.audits:
        raise PermissionDeniedError("to see the audit you need the role admin")
    span = asked.query.get("since", "1d")
    span = span if span in SPANS_MS else "1d"
    wanted = {key: asked.query.get(key, "").strip() or None for key in ("principal", "namespace_name", "verb")}
    records, is_cut = await _last_records(asked.session.viewer.admin, asked.now_ms - SPANS_MS[span], wanted)
    values: dict[str, Any] = {
        "records": records,
        "is_cut": is_cut,
        "span": span,
        "spans": list(SPANS_MS),
        "wanted": wanted,
        "cli": command(
            "foqs", "audit", "list", "--since", span, *option("--principal", wanted["principal"]),
            *option("--namespace", wanted["namespace_name"]), *option("--verb", wanted["verb"]),
        ),
    }  # fmt: skip
    return ConsolePage("audit.html", "Audit", "audit", values, {"records": records, "is_cut": is_cut})


async def _last_records(
    admin: AsyncAdminClient, since_ms: int, wanted: dict[str, str | None]
) -> tuple[list[AuditRecord], bool]:
    """Return the last records since a time, the newest first, and True if not all pages were read."""
    found: list[AuditRecord] = []
    token = ""
    for _ in range(_PAGES_MAX):
        page = await admin.list_audit(
            since_ms=since_ms,
            principal=wanted["principal"],
            namespace=wanted["namespace_name"],
            verb=wanted["verb"],
            limit=_RECORDS_PER_PAGE,
            page_token=token,
        )
        found = [*found, *page.records][-RECORDS_MAX:]
        token = page.next_page_token
        if not token:
            break
    return found[::-1], bool(token)
