"""The programs of docs/recipes.md run one by one against a host, and print what their recipes promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.doc_programs import printed, programs
from tests.support.running_host import running_host

_PAGE = Path(__file__).parents[2] / "docs/recipes.md"
_PRINTED = {
    "Periodic jobs": [
        "one run an hour: True",
        "the run of 2030-01-01T09:00:00+00:00",
        "the run of 2030-01-01T10:00:00+00:00",
    ],
    "An outbox beside a database": [
        "stored: 3",
        "stored when it runs again: 0",
        "rows left: 0",
        "['order 1', 'order 2', 'order 3']",
    ],
    "Several consumers of each event": [
        "['mail: ann@example.org', 'search: ann@example.org']",
        "the topic itself has one as well: ann@example.org",
    ],
    "In order for each customer": ["one attempt failed: ['ann']", "all in order: True"],
    "A web handler": ["202 and the same item: True", "400 without a key", "stored: ['cat.png']"],
    "A batch with progress": [
        "known before all parts are enqueued: None",
        "at the beginning: (0, 0, 200) - finished: False",
        "at the end: (199, 1, 200) - finished: True",
        "FAILED",
        "ends: 1",
    ],
}
"""By heading, the lines that its program prints."""


@pytest.mark.deep
async def test_the_recipes_keep_their_promises(meta_url: str, shard_urls: dict[int, str]) -> None:
    recipes = programs(_PAGE)
    assert {heading: len(found) for heading, found in recipes.items()} == dict.fromkeys(_PRINTED, 1)
    async with running_host(meta_url, shard_urls) as running:
        await running.admin.create_namespace("default")
        for heading, expected in _PRINTED.items():
            assert await printed(recipes[heading][0], running.address, len(expected)) == expected, heading
