"""Lines of lives, whose columns are shortened where all their values are one, say the same as each life by itself."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from foqs.host.event_log.lives import Lives
from foqs.model.item import Outcome, Phase, ShardItem
from foqs.shard.state.events import Ends
from tests.support.event_log import MadeLog, lives_of

BASE_MS = 1_764_000_000_000


@pytest.mark.parametrize("seed", range(20))
def test_a_line_has_every_time_of_each_life_or_null_where_it_is_not_known(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    topic = MadeLog(tmp_path).topic("t")
    maker = Lives("host", lambda _: "ns", lambda _: 1_000)
    outcome, spread_ms = chance.choice([Outcome.ACKED, Outcome.EXPIRED, Outcome.DELETED]), chance.choice([1, 3, 1_000])
    # Either what is always so, or what is so for some.
    is_delivered, is_repeated = (
        chance.choice([lambda: True, lambda: False, lambda: chance.random() < 0.5]) for _ in "ab"
    )
    expected = []
    for first_key in range(1, chance.choice([2, 300]), 10):
        items, at_ms = [], BASE_MS + chance.randrange(spread_ms)
        for key in range(first_key, first_key + 10):
            due_at = BASE_MS - chance.randrange(spread_ms)
            item = ShardItem(key, topic, chance.randrange(2), due_at, 0, Phase.GONE)
            item.enqueued_at = due_at - chance.choice([0, 0, 5])
            item.delivered_at = at_ms - 7 if is_delivered() else 0
            item.lease_due_at = 5 if item.delivered_at else 0
            item.deliveries = 2 if is_repeated() else 0
            items.append(item)
            is_first = not item.deliveries
            expected.append(
                {
                    "key": key, "priority": item.priority, "enqueued_at_ms": item.enqueued_at,
                    "ready_at_ms": due_at if is_first else None,
                    "first_delivered_at_ms": (item.delivered_at or None) if is_first else None,
                    "last_delivered_at_ms": item.delivered_at or None,
                    "ended_at_ms": at_ms,
                    "attempts": item.deliveries + (item.lease_due_at != 0 and outcome is not Outcome.EXPIRED),
                }
            )  # fmt: skip
        maker.add_ends(Ends(outcome, at_ms, {topic: items}))
    (line,) = maker.take()
    told = json.loads(line.text)
    assert (line.records_count, line.items_count, told["count"]) == (len(expected),) * 3
    found = [{name: life[name] for name in expected[0] if name != "key"} for life in lives_of(told)]
    assert found == [{name: value for name, value in life.items() if name != "key"} for life in expected]
    for name in expected[0]:
        is_one = len({life[name] for life in expected}) == 1
        assert len(told[name]) == (1 if is_one else len(expected)), name
    assert told["key"] == [life["key"] for life in expected]
    assert b" " not in line.text
