"""The verb that lists the audit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from foqs.contract import requests as of
from foqs.host import arguments
from foqs.model import limits
from foqs.model.audit import START, AuditFilter, AuditPage, AuditPlace, AuditRecord
from foqs.model.errors import InvalidArgumentError, shown
from foqs.storage.meta.meta_store import MetaStore

RECORDS_READ_MAX = 1_000
"""Records that a page reads at most, of which a filter can leave out all."""

T = TypeVar("T")
RunOnMeta = Callable[[Callable[[MetaStore], Any]], Awaitable[Any]]
"""Runs work on the meta database, within the bounds of admin calls."""


class AuditList:
    """Reads pages of the audit from the meta database."""

    def __init__(self, run: RunOnMeta) -> None:
        self._run = run

    async def list_audit(self, request: of.ListAuditRequest) -> AuditPage:
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        since_ms = 0 if request.since_ms is None else request.since_ms
        until_ms = limits.NEVER_MS if request.until_ms is None else request.until_ms
        after = _place_of(request.page_token) if request.page_token else START._replace(at_ms=since_ms)
        wanted = AuditFilter(request.principal, request.namespace_name, request.verb)
        read_max = limit + 1 if wanted == AuditFilter() else RECORDS_READ_MAX
        read = await self._run(lambda meta: meta.audit.page(after, until_ms, read_max))
        found: list[AuditRecord] = []
        place = after
        for record in read:
            if len(found) == limit:
                break
            place = record.place
            if wanted.wants(record):
                found.append(record)
        is_all = len(read) < read_max and (not read or place == read[-1].place)
        return AuditPage(found, "" if is_all else _token_of(place))


def _token_of(place: AuditPlace) -> str:
    return f"{place.at_ms}:{place.number}:{place.host}"


def _place_of(page_token: str) -> AuditPlace:
    at_ms, _, rest = page_token.partition(":")
    number, _, host = rest.partition(":")
    numbers = [text for text in (at_ms, number) if text.isascii() and text.isdigit() and len(text) <= 19]
    if len(numbers) < 2 or len(page_token) > limits.KIB:
        raise InvalidArgumentError(f"page_token {shown(page_token)} is none of this host: begin with the first page")
    return AuditPlace(int(at_ms), host, int(number))
