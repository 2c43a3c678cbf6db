"""The choice of dead letters for a redrive or a purge whose caller names none: the oldest, page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from foqs.contract import requests as of
from foqs.model.calls import DeliveryPolicy, StoredItemPage

PAGES_MAX = 16
"""Pages that one call reads before it answers that it has found none yet."""


def page_asked(request: of.RedriveDeadLettersRequest | of.PurgeDeadLettersRequest) -> of.ListDeadLettersRequest:
    """Return the request for the first page of the dead letters that a request without ids means."""
    return of.ListDeadLettersRequest(
        request.namespace_name,
        request.topic,
        request.limit,
        group=request.group,
        ordering_key=request.ordering_key,
        fairness_key=request.fairness_key,
    )


async def choose(
    page_of: Callable[[str], Awaitable[StoredItemPage]], page_token: str | None, *, for_redrive: bool
) -> tuple[list[str], str]:
    """Return the ids of the first page behind the token that has some, and the token of the next page.

    A redrive skips items that are delivered at most once, because it can do nothing with them, and a page of such
    items at the old end would hide all others. Both results are empty at the end of the topic.
    """
    token = page_token or ""
    for _ in range(PAGES_MAX):
        page = await page_of(token)
        token = page.next_page_token
        found = [one.id for one in page.items if not (for_redrive and one.delivery is DeliveryPolicy.AT_MOST_ONCE)]
        if found or not token:
            break
    return found, token
