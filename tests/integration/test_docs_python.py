"""The examples of docs/python.md run one by one against a host, and print what they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.doc_programs import printed, programs
from tests.support.running_host import running_host

_PAGE = Path(__file__).parents[2] / "docs/python.md"
_OUTPUTS = {
    "A client": [
        ["to: ann@example.org 1", "to: bob@example.org 1", "to: cy@example.org 1", "emails 0 1"],
        ["100 enqueued, 100 acked"],
        ["2 enqueued, then: invalid literal for int() with base 10: 'three'"],
    ],
    "Large loads": [["SUCCEEDED 3000 items, 0 rejected"]],
    "All items that match": [["SUCCEEDED 0 matched, 0 redriven, 0 skipped"]],
    "Several hosts": [["done: march"]],
    "A share for each customer": [["['ada', 'ada', 'ada', 'bob', 'bob', 'bob']"]],
    "Low priorities that do not starve": [
        ["[0, 10] now; after 10 minutes, the nightly one would come before new items"],
    ],
    "Durations and times": [
        [
            "deliver_after 2030-01-01T09:00:00 has no time zone, so it is no point in time: "
            "use datetime.now(UTC) + timedelta(...), or .astimezone() for local time"
        ]
    ],
    "Exactly once into the queue": [
        ["the same item: True", "3 orders; stored before: [1]", "3 reminders, no duplicates: True"]
    ],
    "Unique while queued": [
        ["queued once: True", "also while it runs: True", "again after the ack: True", "and once forgotten: True"]
    ],
    "Settings for ids": [
        ["stored before: 100", "spread over 4 of 1024 slots", "ids forgotten so far: False"],
    ],
    "Workers": [
        ["sending to: ann@example.org"],
        ["1 ValueError: card *** was refused"],
        ["resized cat.png", "1 acked"],
    ],
    "Consuming in a loop": [
        ["3 3"],
        ["0 1 item of topic 'alarms' is not due yet"],
        [
            "topic 'alarms' has nothing to deliver: 0 ready, 0 under lease, 1 delayed, 0 dead letters",
            "1 item of topic 'alarms' is not due yet",
        ],
    ],
    "Several consumers of each item": [["None payment 17", "audit payment 17", "search payment 17"]],
    "One at a time, in order": [["2 open", "1 deposit", "1 close"]],
    "The items of each customer in order": [["['open', 'pay', 'close'] ['open', 'pay', 'close']"]],
    "At most so many at a time": [["2 of ann in work", "1 more after an ack", "1 of bob in work beside them"]],
    "Errors": [["1 InvalidArgumentError", "2 stored, [True, False, True]", "{0: 'StaleLeaseError'}"]],
    "Retries": [["nothing was done: True"]],
    "Deadlines": [["stored"]],
    "Testing": [["both hold"]],
}
"""By heading, the lines that each of its examples prints."""


@pytest.mark.deep
async def test_the_examples_print_what_they_should(meta_url: str, shard_urls: dict[int, str]) -> None:
    examples = programs(_PAGE)
    assert {heading: len(found) for heading, found in examples.items()} == {
        heading: len(outputs) for heading, outputs in _OUTPUTS.items()
    }
    async with running_host(meta_url, shard_urls) as running:
        await running.admin.create_namespace("default")
        for heading, outputs in _OUTPUTS.items():
            for example, expected in zip(examples[heading], outputs, strict=True):
                assert await printed(example, running.address, len(expected)) == expected, heading
