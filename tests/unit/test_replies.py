"""What a reply of a peer must have."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.host.verbs.rate_verbs import MORE_TOPICS_MAX
from foqs.model import limits
from foqs.model.calls import TopicPage, TopicStats
from foqs.model.event_history import HISTORY_ROWS_MAX, OUTCOME_NAMES, History, HistoryRow
from foqs.model.event_log import BOUNDS_MS
from foqs.model.topic_rates import SERIES_TOPICS_MAX, SLOTS_COUNT, RatesPage, TopicRates
from foqs.transport import verb_table  # noqa: F401  # It says how results are encoded.
from foqs.wire.codec import METHODS, Codec, structs
from foqs.wire.frames import LENGTH_BYTES
from foqs.wire.replies import missing_field

ITEM = structs.Item("1-1", "1-1:1", "t", 0, b"", b"")


@pytest.mark.parametrize(
    ("method", "response", "missing"),
    [
        ("dequeue", structs.DequeueResponse([ITEM]), None),
        ("dequeue", structs.DequeueResponse(), "DequeueResponse.items"),
        ("dequeue", structs.DequeueResponse([ITEM, structs.Item("1-2")]), "Item.receipt"),
        ("ack", structs.BatchResponse({}), None),
        ("ack", structs.BatchResponse(), "BatchResponse.errors"),
        ("ack", structs.BatchResponse({3: structs.ItemError(message="no")}), "ItemError.code"),
        ("getItem", structs.StoredItem("1-1"), "StoredItem.topic"),
        ("hint", structs.HintResponse(), None),
        ("enqueue", structs.EnqueueResponse([], {}), None),
    ],
)
def test_what_is_needed_of_a_reply_is_looked_for_in_all_of_it(method: str, response: Any, missing: str | None) -> None:
    assert missing_field(METHODS[method], response) == missing


def test_the_largest_answers_with_rates_and_history_have_room_in_a_message() -> None:
    """A host reads those of its peers by the bounds of all messages; a peer gives some more topics than are wanted."""
    name, numbers = "x" * 200, [1 << 40] * (len(BOUNDS_MS) + 1)
    row = HistoryRow(name, 1, *[1 << 40] * len(OUTCOME_NAMES), numbers, 1, numbers, 1)
    rates = TopicRates(name, *[1.5] * 8, group="g", ready=5)
    series = TopicRates(name, *[1.5] * 8, *[[1] * SLOTS_COUNT] * 5, group="g", ready=5)
    stats = TopicStats(name, 1, 1, 1, 1, 1, 1, "g", True, 5, 5, 5, rates)
    for method, answer in (
        ("getHistory", History([row] * HISTORY_ROWS_MAX, 1, 0)),
        ("getRates", RatesPage([rates] * (limits.PAGE_ITEMS_MAX + MORE_TOPICS_MAX))),
        ("getRates", RatesPage([series] * SERIES_TOPICS_MAX)),
        ("getActiveTopics", TopicPage([stats] * limits.PAGE_ITEMS_MAX, "")),
    ):
        frame = Codec().encode_reply(METHODS[method], answer, 1)
        reply = Codec().decode_reply(frame[LENGTH_BYTES:])
        assert reply.error is None, method
        assert missing_field(METHODS[method], reply.response) is None
