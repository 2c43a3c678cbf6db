"""A shard's state calls nobody above it: demand comes in as a value, and what has happened goes out as one."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import foqs
from foqs.model import limits
from foqs.model.errors import FoqsError
from foqs.model.item import ShardItem
from foqs.shard.port import ItemRow
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion, Events, LookUp
from tests.support.shards import NAMESPACE, Shards
from tests.support.sources import parsed

ROOT = Path(foqs.__file__).parent.parent
STATE = ROOT / "foqs" / "shard" / "state"
BELOW = (str(STATE), str(ROOT / "foqs" / "model"), str(ROOT / "foqs" / "shard" / "port.py"))
OF_THE_PROJECT = (str(ROOT / "foqs"), str(ROOT / "tests"))
ENTRIES = ("tick", "take", "committed", "failed", "evict", "abandon")


class Watch:
    """What is called of this project, beyond the state and what it is made of, while one of its entries runs."""

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()
        self.calls_up: list[str] = []
        self._inside = 0

    @contextmanager
    def on(self) -> Iterator[None]:
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        is_entry = code.co_name in ENTRIES and code.co_filename == str(STATE / "engine.py")
        if event == "return":
            self._inside -= is_entry
        elif event == "call":
            if self._inside and code.co_filename.startswith(OF_THE_PROJECT) and not code.co_filename.startswith(BELOW):
                self.calls_up.append(f"{code.co_qualname} of {code.co_filename}")
            if is_entry:
                self._inside += 1
                self.entered[code.co_name] += 1


class Everything:
    """Every kind of work on one shard; all that callers are told comes back here."""

    def __init__(self) -> None:
        self.shards = Shards(1)
        self.told: Counter[str] = Counter()

    @property
    def shard(self) -> ShardState:
        return self.shards.states[0]

    def completion(self, what: str) -> Completion:
        def on_done(completion: Completion) -> None:
            self.told[f"{what} failed" if completion.errors or completion.failure else what] += 1

        return Completion(on_done)

    def enqueue(self, topic: str, count: int, **how: Any) -> None:
        items = self.shards.enqueue(0, topic, count=count, **how)
        (batch,) = [batch for batch in self.shard.inserts.batches() if batch.items is items]
        batch.completion.on_done = self.completion("enqueue").on_done

    def leased(self, topic: str, count: int) -> list[ShardItem]:
        call = self.shards.dequeue({topic: count}, 10_000)
        self.shards.run(0)
        return call.items or []

    def settle(self, items: list[ShardItem], *, is_nack: bool = False) -> None:
        now_ms = self.shards.clock_ms
        rewrites = [self.shard.failed_attempt(item, now_ms, dead=True) for item in items] if is_nack else None
        for item in items:
            self.shard.end_leases([item])
        completion = self.completion("nack" if is_nack else "ack")
        self.shard.settle(items, rewrites, completion, list(range(len(items))))

    def delete(self, keys: list[int]) -> None:
        def on_rows(rows: dict[int, ItemRow]) -> None:
            self.told["rows"] += len(rows)
            for row in rows.values():
                self.shard.delete(row, self.completion("delete"), 0)
            self.shards.dispatcher.on_events(self.shard.take_events())

        def on_failed(error: FoqsError) -> None:
            self.told["rows failed"] += 1

        self.shard.look_up(LookUp(keys, on_rows, on_failed))

    def once(self, *, well: bool = True) -> None:
        assert self.shards.begin(0) is not None
        self.shards.end(0, well=well)


def live(everything: Everything) -> None:
    """One of each, and a transaction that fails; in the end the shard is lost."""
    shards = everything.shards
    waiting = shards.dequeue({"a": 5}, 10_000)
    everything.enqueue("a", 20)
    everything.enqueue("b", 3, delay_ms=50)
    everything.once(well=False)
    everything.enqueue("a", 20)
    shards.run(0)
    assert len(waiting.items or []) == 5
    everything.settle((waiting.items or [])[:2])
    everything.settle((waiting.items or [])[2:3], is_nack=True)
    everything.shard.extend((waiting.items or [])[3], 20_000, everything.completion("extend"), 0)
    everything.shard.ask_fence(NAMESPACE, everything.completion("fence"))
    everything.once(well=False)
    shards.clock_ms += 100
    more = everything.leased("a", 3)
    everything.settle(more)
    everything.shard.ask_fence(NAMESPACE, everything.completion("fence"))
    everything.delete([item.key for item in waiting.items or []] + list(everything.shard.index.resident)[:3])
    shards.run(0)
    shards.clock_ms += 60_000
    shards.run(0)
    expiring = shards.dequeue({"c": 1})
    for item in shards.enqueue(0, "c", count=2):
        item.expires_at = shards.clock_ms + 1
    shards.begin(0)
    shards.clock_ms += 10
    shards.end(0)
    shards.run(0)
    shards.dispatcher.end(expiring)
    shards.clock_ms += 20 * limits.DAY_MS
    shards.run(0)
    shards.clock_ms += limits.TOPIC_IDLE_MS + 1
    shards.run(0)
    everything.enqueue("a", 1)
    shards.dispatcher.on_events(everything.shard.evict("its breaker opened"))
    everything.enqueue("a", 1)
    everything.delete([1])
    shards.begin(0)
    everything.enqueue("a", 1)
    shards.dispatcher.on_events(everything.shard.abandon("its session ended"))


@pytest.mark.interpreted
def test_while_a_transaction_is_planned_or_applied_the_shard_calls_nobody() -> None:
    everything, watch = Everything(), Watch()
    with watch.on():
        live(everything)
    assert watch.calls_up == []
    assert all(watch.entered[entry] for entry in ENTRIES)
    told = everything.told
    for what in ("enqueue", "ack", "nack", "extend", "fence", "rows", "delete"):
        assert told[what] + told[f"{what} failed"], f"nobody was told of {what}"
    for what in ("enqueue", "ack", "nack", "extend", "fence", "rows"):
        assert told[f"{what} failed"], f"no {what} failed"


@pytest.mark.interpreted
def test_who_tells_a_producer_in_the_middle_of_its_commit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def done(events: Events, completion: Completion, count: int = 1) -> None:
        completion.on_done(completion)

    monkeypatch.setattr(Events, "done", done)
    shards, watch = Shards(1), Watch()
    shards.enqueue(0, "a")
    with watch.on():
        shards.run(0)
    assert len(watch.calls_up) == 2, "what stands in for it, and the producer"


def test_demand_is_asked_of_what_the_next_transaction_inserts_ready_and_of_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_INSERTS_MAX", 3)
    shards = Shards(1)
    shards.enqueue(0, "delayed", delay_ms=1_000)
    for topic in "abaabc":
        shards.enqueue(0, topic)
    inserted: list[set[str]] = []
    while shards.states[0].index.waiting_calls_count:
        asked = {topic.name for topic in shards.states[0].topics_arriving()}
        transaction = shards.begin(0)
        assert transaction is not None
        inserts = [*transaction.inserts, *transaction.inserts_short_lived]
        inserted.append({item.topic.name for item in inserts})
        assert asked == inserted[-1] - {"delayed"}
        shards.end(0)
    assert inserted == [{"delayed", "a", "b"}, {"a", "b"}, {"c"}]


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(STATE.rglob("*.py")):
        yield path.relative_to(STATE).as_posix(), parsed(path)


def test_the_state_imports_nothing_above_it_not_even_for_its_types() -> None:
    allowed = ("foqs.model", "foqs.shard.port", "foqs.shard.state")
    for name, module in modules():
        for node in ast.walk(module):
            imported = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for target in imported:
                assert not target.startswith("foqs") or target.startswith(allowed), f"{name} imports {target}"


def test_the_state_never_calls_the_addresses_that_callers_left_with_it() -> None:
    for name, module in modules():
        called = [node.func for node in ast.walk(module) if isinstance(node, ast.Call)]
        assert not [func.attr for func in called if isinstance(func, ast.Attribute) and func.attr.startswith("on_")], (
            name
        )
