"""Calls with dedup ids to one shard on tables in memory, whose transactions come one by one."""

from __future__ import annotations

import asyncio

from foqs.model import limits, order
from foqs.model.calls import ItemContent
from foqs.model.clock import Now
from foqs.model.item import Phase, ShardItem
from foqs.model.namespace import Namespace, NamespaceSettings, SettingsTable
from foqs.model.seen import digest_of
from foqs.shard.port import SeenLog, ShardImage
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion, OnceOutcome
from foqs.shard.writer.seen_loading import SeenLoading
from tests.support.invariants import state_problems
from tests.support.stored_shard import StoredShard

NUMBER = 7


class OneShard:
    """Calls of one shard, and its transactions one by one, on a clock that stands still."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.stored = StoredShard(0, lambda: self.now_ms, self.now_ms)
        self.settings = SettingsTable()
        self.set_window()
        self.open()

    def set_window(self, ids: int = 1_000, ms: int = limits.DAY_MS) -> None:
        settings = NamespaceSettings(dedup_ids=ids, dedup_ms=ms)
        others = [Namespace(number, f"n{number}", settings, 0) for number in (NUMBER, NUMBER + 1)]
        self.settings.replace({namespace.number: namespace for namespace in others})

    def open(self) -> None:
        image = self.stored.open()
        self.state = ShardState(0, image, self.settings)
        self.state.index.counted = False
        self.state.tick(self.now)
        if image.seen_log is not None:
            asyncio.run(self.load(image, image.seen_log))

    def open_unread(self) -> None:
        """As a new owner does, before it has read the log."""
        self.state = ShardState(0, self.stored.open(), self.settings)
        self.state.tick(self.now)

    async def load(self, image: ShardImage, log: SeenLog) -> None:
        """Let the state read what the log has."""
        await SeenLoading(0, self.state, log, lambda: None).run(image.seen)

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.now_ms)

    def call(self, *dedup_ids: str, number: int = NUMBER, slot: int = 0, holds: bool = False) -> OnceOutcome:
        """Enqueue an item with each id, which it holds until it ends if `holds`."""
        index, outcome = self.state.index, OnceOutcome()
        index.name_namespace(self.settings.by_number[number])
        topic, items = index.topic(number, "t"), []
        for _ in dedup_ids:
            key = index.next_key()
            sort_key, content = order.sort_key(0, self.now_ms, key, 0), ItemContent(b"p", b"")
            item = ShardItem(key, topic, 0, self.now_ms, sort_key, Phase.INSERTING, self.now_ms, content=content)
            item.expires_at = self.now_ms + 10**9
            items.append(item)
        if holds:
            outcome.holding = [item.key for item in items]
        digests = [digest_of(number, b"", slot, text) for text in dedup_ids]
        self.state.insert_once(items, digests, len(items), Completion(lambda _: None), outcome)
        return outcome

    def free(self, *dedup_ids: str, number: int = NUMBER) -> Completion:
        """Make ids free. The completion has the errors by position once it is over."""
        completion = Completion(lambda _: None)
        digests = [digest_of(number, b"", 0, text) for text in dedup_ids]
        self.state.free_dedup_ids(number, digests, range(len(digests)), completion)
        return completion

    def commit(self) -> bool:
        transaction = self.state.take(self.now, {})
        if transaction is None:
            return False
        self.state.committed(self.stored.apply(transaction), self.now)
        self.check()
        return True

    def check(self) -> None:
        assert list(state_problems(self.state, self.stored.packs, self.stored.tables)) == []

    def rest(self, pass_ms: int = 0) -> None:
        self.now_ms += pass_ms
        for _ in range(200):
            is_due = self.state.tick(self.now)
            if not self.commit() and not is_due:
                return

    def new_ids(self, first: int, count: int, number: int = NUMBER) -> None:
        self.call(*[f"id-{at}" for at in range(first, first + count)], number=number)
        self.rest()

    def knows(self, at: int, number: int = NUMBER) -> bool:
        outcome = self.call(f"id-{at}", number=number)
        self.rest()
        assert bool(outcome.firsts) != bool(outcome.made)
        return bool(outcome.firsts)
