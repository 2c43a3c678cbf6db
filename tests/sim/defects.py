"""Defects to put into the engine, each the opposite of a promise. A simulation that misses one proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from foqs.host.dispatch.prefetch import Prefetch
from foqs.host.dispatch.topic_queue import TopicQueue
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.ttl_scan import TtlScan
from foqs.host.shards.waiting import Answer, Waiting
from foqs.host.verbs import enqueues, settlements
from foqs.host.verbs.settlements import Leases
from foqs.model import order
from foqs.model.clock import Now
from foqs.model.errors import NotFoundError, StaleLeaseError, UnavailableError
from foqs.model.item import Phase, ShardItem
from foqs.model.namespace import Namespace
from foqs.model.topic import ItemCounts, ReadyWindow
from foqs.model.topic_table import TopicTable
from foqs.shard.port import Rewrite, Transaction, TransactionResult
from foqs.shard.state import index
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion, Events, LookUp
from foqs.shard.state.journal import Journal
from foqs.shard.state.lease_table import LeaseTable
from foqs.shard.state.ops import claim as claim_operations
from foqs.shard.state.ops.change import Changes, RowChange
from foqs.shard.state.ops.claim import Claims
from foqs.shard.state.ops.settle import Settlements
from foqs.shard.state.ops.wake import Timers
from foqs.shard.writer import leased_runs
from foqs.storage.shard.packs.pack_index import add_looked_up, add_packed
from foqs.testing import fake_censuses, fake_server
from foqs.testing.fake_server import make_script
from foqs.testing.fake_store import FakeStore
from tests.sim.planting import in_place_of


@in_place_of(enqueues, "Answer")
def acknowledges_before_the_commit(waiting: Waiting) -> Answer:
    answer = Answer(waiting)
    answer.done.set_result(None)
    return answer


@in_place_of(settlements, "Answer")
def answers_an_ack_before_the_commit(waiting: Waiting) -> Answer:
    answer = Answer(waiting)
    answer.done.set_result(None)
    return answer


@in_place_of(TtlScan, "_expire")
def expires_items_under_lease(self: TtlScan, shard: ShardState, keys: list[int]) -> None:
    completion = Completion(lambda _: None)
    completion.open_count += 1

    def on_rows(rows: dict[int, Any]) -> None:
        for row in rows.values():
            item = shard.index.leases.get(row.key)
            if row.lane > 0 and (item is None or item.phase is Phase.LEASED):
                try:
                    shard.delete(row, completion, 0)
                except NotFoundError:
                    continue
        self._writer.wake()
        self._on_events(shard.take_events())

    # Its guard is against what happens between the scan and the look-up: here the scan is of long ago.
    shard.look_up(LookUp([*keys, *list(shard.index.leases)[:1]], on_rows, lambda _: None))


_take = ShardState.take


@in_place_of(ShardState, "take")
def sets_the_delay_checkpoint_to_now(self: ShardState, now: Now, demand: Any, *, probe: bool = False) -> Any:
    transaction = _take(self, now, demand, probe=probe)
    if transaction is not None:
        transaction.delay_checkpoint = now.server_ms
    return transaction


@in_place_of(Journal, "checkpoint")
def sets_the_claim_checkpoint_to_the_last_key(self: Journal) -> int:
    return self._index.last_key


@in_place_of(LeaseTable, "find")
def does_not_compare_the_receipt(self: LeaseTable, key: int, delivery: int) -> ShardItem:
    item = self._index.leases.get(key)
    if item is None or item.phase is not Phase.LEASED:
        raise StaleLeaseError("the lease of this receipt has ended")
    return item


@in_place_of(ShardState, "_adopt_claims")
def honours_no_lease_after_a_take_over(self: ShardState, image: Any) -> None:
    for claim in image.claims:
        self.journal.adopt(claim, [])


_adopt = Journal.adopt


@in_place_of(Journal, "adopt")
def forgets_which_claims_were_made_ahead(self: Journal, stored: Any, items: list[ShardItem]) -> None:
    _adopt(self, stored._replace(is_ahead=False), items)


@in_place_of(Settlements, "_ended_lease")
def counts_what_was_claimed_ahead_as_an_attempt(self: Settlements, item: ShardItem, now_ms: int) -> Any:
    return self.failed_attempt(item, now_ms, cause="lease ended")


@in_place_of(ShardItem, "is_claimed_for")
def hands_out_at_most_once_from_what_was_claimed_ahead(self: ShardItem, lease_due_at: int) -> bool:
    return self.claim is not None and self.claim.due_at >= lease_due_at


@in_place_of(ShardItem, "is_claimed_for")
def hands_out_for_longer_than_was_claimed(self: ShardItem, lease_due_at: int) -> bool:
    return self.claim is not None and not (self.claim.is_ahead and self.at_most_once)


_add = Journal.add


@in_place_of(Journal, "add")
def claims_ahead_for_a_long_time(
    self: Journal, transaction: Transaction, lease_due_at: int, items: list[ShardItem], *, is_ahead: bool
) -> Any:
    return _add(self, transaction, lease_due_at + 5_000 * is_ahead, items, is_ahead=is_ahead)


@in_place_of(Settlements, "unclaim")
def gives_back_without_a_word_what_was_claimed_for_a_call(self: Settlements, item: ShardItem) -> bool:
    if item.lease_due_at:
        self._leases.end([item])
    del self._index.leases[item.key]
    self._journal.leave([item])
    self._index.make_ready(item.topic, [item], item.phase)
    return False


@in_place_of(Prefetch, "release_for_calls")
def keeps_what_was_claimed_for_a_call_that_is_over(self: Prefetch, queue: TopicQueue) -> None:
    if not queue.calls:
        queue.has_prefetched_for_calls = False


_leave = Journal.leave


@in_place_of(Journal, "leave")
def forgets_a_claim_with_open_items(self: Journal, items: Sequence[ShardItem]) -> None:
    for claim in {item.claim for item in items if item.claim is not None}:
        for other in self._index.leases.values():
            if other.claim is claim and other not in items:
                other.claim = None
                claim.open_count -= 1
    _leave(self, items)


_failed_attempt = Settlements.failed_attempt


@in_place_of(Settlements, "failed_attempt")
def redelivers_at_most_once(self: Settlements, item: ShardItem, now_ms: int, **how: Any) -> Any:
    item.at_most_once = False
    return _failed_attempt(self, item, now_ms, **how)


@in_place_of(Settlements, "failed_attempt")
def loses_the_metadata_of_a_nack(self: Settlements, item: ShardItem, now_ms: int, **how: Any) -> Any:
    return _failed_attempt(self, item, now_ms, **{**how, "metadata": None})


@in_place_of(Settlements, "failed_attempt")
def ignores_the_delay_of_a_nack(self: Settlements, item: ShardItem, now_ms: int, **how: Any) -> Any:
    return _failed_attempt(self, item, now_ms, **{**how, "delay_ms": 0})


@in_place_of(FakeStore, "run")
def writes_after_losing_the_lock(self: FakeStore, transaction: Transaction) -> TransactionResult:
    server = self._server
    plan = self.packs.plan(transaction)
    result = server.read(transaction, plan)
    add_packed(self.packs, transaction, result)
    script = make_script(transaction, plan, result, self.epoch)
    server._write(script)
    result.looked_up = {key: server.tables.items[key] for key in script.look_ups if key in server.tables.items}
    server.on_commit(script)
    self.packs.commit(plan)
    add_looked_up(self.packs, transaction, result)
    return result


@in_place_of(Prefetch, "drain")
def forgets_the_prefetched_on_drain(self: Prefetch) -> Iterator[None]:
    self._draining = True
    return iter(())


_extend = ReadyWindow.extend


@in_place_of(leased_runs, "_end_of_run")
def skips_what_stands_between_leases(lane: int, leased: Sequence[int], sort_key_after: Callable[..., object]) -> int:
    return leased[-1]


@in_place_of(ReadyWindow, "extend")
def skips_an_item_of_a_refill(self: ReadyWindow, sort_keys: Any, edge: int) -> None:
    _extend(self, list(sort_keys)[1:], edge)


@in_place_of(ReadyWindow, "extend")
def repeats_an_item_of_a_refill(self: ReadyWindow, sort_keys: Any, edge: int) -> None:
    found = list(sort_keys)
    _extend(self, [*found, *found[-1:]], edge)


_fill = index.fill


@in_place_of(claim_operations, "fill")
def ignores_the_ttl_on_redelivery(item: ShardItem, row: Any) -> None:
    _fill(item, row)
    item.expires_at = 1 << 62


@in_place_of(TopicQueue, "servable_count")
def hands_out_past_more_urgent_items(self: TopicQueue, bound: int) -> int:
    return min(bound, len(self.buffer))


@in_place_of(Settlements, "tick")
def never_ends_a_lease(self: Settlements, now: Now) -> int:
    return 0


@in_place_of(Timers, "put_back")
def forgets_the_wakes_of_a_failed_transaction(self: Timers, timers: Any) -> None:
    self._window.refilling = False


_end = Claims.end


@in_place_of(Claims, "end")
def does_not_remember_what_is_still_claimed(self: Claims, topic: Any, items: list[ShardItem], held: Any) -> None:
    _end(self, topic, items, held)
    for item in self.waiting.values():
        item.topic.claim_head = order.LAST


@in_place_of(ItemCounts, "count")
def counts_an_item_in_its_topic_alone(
    self: ItemCounts, rows: int = 0, leased: int = 0, delayed: int = 0, dead: int = 0
) -> None:
    self.rows += rows
    self.leased += leased
    self.delayed += delayed
    self.dead += dead


@in_place_of(TopicTable, "note_empty")
def never_forgets_a_topic(self: TopicTable, topic: Any) -> None:
    return None


@in_place_of(fake_server, "leave_unread")
def tells_nobody_what_was_not_read(transaction: Transaction, result: TransactionResult, items: Any) -> None:
    _leave_unread(transaction, result, items)
    result.unread.clear()


_leave_unread = fake_server.leave_unread


_abandon = ShardState.abandon


@in_place_of(ShardState, "abandon")
def says_that_nothing_was_done_of_a_commit_whose_outcome_is_unknown(self: ShardState, reason: str) -> Events:
    undone = UnavailableError(f"lost: {reason}", nothing_done=True)
    for operation in self._batch:
        operation.lost(undone, undone)
    self._batch = []
    return _abandon(self, reason)


@in_place_of(Leases, "_forgive_gone")
async def calls_the_repeat_of_an_ack_that_was_done_stale(self: Leases, *_: Any) -> None:
    return None


@in_place_of(Changes, "redrive")
def redrives_without_a_new_ttl(
    self: Changes, row: Any, now_ms: int, ttl_ms_max: int, completion: Completion, position: int
) -> None:
    if row.lane >= 0 or row.key in self._timers.changing or row.at_most_once:
        raise NotFoundError("the item is not a dead letter")
    rewrite = Rewrite(row.key, row.topic, row.priority, now_ms, row.deliveries, 0, None, b"")
    self._change(RowChange(row, rewrite, completion, position))


@in_place_of(fake_censuses, "unanswered")
def deletes_a_namespace_before_all_shards_have_answered(epochs: Any, answers: Any) -> list[int]:
    return []


@in_place_of(ShardState, "items_of")
def deletes_a_namespace_whose_items_are_not_counted_yet(self: ShardState, namespace: int) -> int:
    return 0


@in_place_of(Namespaces, "check_open")
def lets_items_into_a_namespace_that_is_closing(self: Namespaces, number: int) -> None:
    return None


class _EveryNumber(int):
    """Of all namespaces."""

    def __ne__(self, other: object) -> bool:
        return False


_end_leases, _find_lease = Leases._end_leases, Leases._find_lease


@in_place_of(Leases, "_end_leases")
def settles_receipts_of_other_namespaces_on_the_fast_path(
    self: Leases, namespace: Namespace, receipts: Any, *others: Any
) -> Any:
    def exact(self: Leases, namespace: Namespace, *others: Any) -> Any:
        return _find_lease(self, replace(namespace, number=int(namespace.number)), *others)

    with patch.object(Leases, "_find_lease", exact):
        return _end_leases(self, replace(namespace, number=_EveryNumber(namespace.number)), receipts, *others)
