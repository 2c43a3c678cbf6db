"""Ids that items hold, in a shard's state on tables in memory: what is read and written, and who is told what."""

from __future__ import annotations

import pytest

from foqs.model.errors import NotFoundError, UnavailableError
from foqs.model.held import HeldId, Holder, NamespaceDigest
from foqs.model.seen import BLOCK_IDS, digest_of
from foqs.shard.port import Rewrite
from foqs.shard.state.events import Completion
from foqs.shard.state.ops import check
from tests.support.dedup_shard import NUMBER, OneShard

pytestmark = pytest.mark.interpreted


@pytest.fixture
def shard() -> OneShard:
    return OneShard()


def digest(text: str, number: int = NUMBER) -> bytes:
    return digest_of(number, b"", 0, text)


def held_by(shard: OneShard) -> dict[int, bytes]:
    return {key: one.digest for (key, _), one in shard.stored.tables.held.items()}


def test_a_repeat_reads_the_holder_and_is_told_its_key(shard):
    first = shard.call("a", holds=True)
    shard.rest()
    assert held_by(shard) == {first.made[0]: digest("a")}
    assert shard.stored.tables.seen == {}, "the log of the window has nothing of it"
    for holds in (True, False):
        repeat = shard.call("a", "b", holds=holds)
        shard.rest()
        assert next(iter(repeat.firsts.values())) == (0, first.made[0])
        assert not repeat.elsewhere


def test_a_shard_and_a_namespace_without_held_ids_read_and_write_as_before(shard):
    shard.call("a")
    transaction = shard.state.take(shard.now, {})
    assert transaction.held is None
    shard.state.committed(shard.stored.apply(transaction), shard.now)
    shard.call("b", holds=True, number=NUMBER + 1)
    shard.rest()
    shard.call("c")
    transaction = shard.state.take(shard.now, {})
    assert (bool(transaction.seen_new), transaction.held) == (True, None), "it is inserted at once"


def test_an_item_that_is_not_made_holds_nothing(shard):
    outcome = shard.call("a", "a", holds=True)
    shard.state.take(shard.now, {})
    shard.state.failed("full")
    assert len(outcome.errors) == 2
    assert shard.stored.tables.held == {}
    again = shard.call("a", holds=True)
    shard.rest()
    assert len(again.made) == 1


def test_a_new_owner_finds_the_holder(shard):
    first = shard.call("a", holds=True)
    shard.rest()
    shard.open()
    assert shard.state.held.namespaces == {NUMBER}
    repeat = shard.call("a", holds=True)
    shard.rest()
    assert [*repeat.firsts.values()] == [(0, first.made[0])]


def test_many_ids_are_checked_by_several_transactions(shard, monkeypatch):
    monkeypatch.setattr(check, "CHECKS_MAX", 3)
    names = [f"id-{at}" for at in range(10)]
    shard.call(*names, holds=True)
    shard.rest()
    repeat = shard.call(*names, holds=True)
    transaction = shard.state.take(shard.now, {})
    assert len(transaction.held.reads) == 3
    shard.state.committed(shard.stored.apply(transaction), shard.now)
    shard.rest()
    assert len(repeat.firsts) == 10


def test_the_keys_of_all_ends_are_noted_and_of_no_other_change(shard):
    shard.call("a", holds=True)
    shard.rest()
    transaction = shard.state.take(shard.now, {}, probe=True)
    transaction.deletes += [5, 6]
    transaction.rewrites += [Rewrite(7, -1, 0, 0, 0, 0), Rewrite(8, 0, 0, 0, 0, 0), Rewrite(9, 1, 0, 0, 0, 0)]
    shard.state.held.note_ends(transaction)
    assert transaction.held.ended == [5, 6, 7]


# ---- items of other shards ----


def test_a_holder_elsewhere_is_told_as_such_to_all_repeats(shard):
    shard.call("b", holds=True)
    shard.rest()
    shard.stored.tables.held[9, 4] = HeldId(9, 4, NUMBER, digest("a"), 9)
    first, hanging = shard.call("a", holds=True), shard.call("a", holds=True)
    shard.rest()
    for outcome in (first, hanging):
        assert [*outcome.firsts.values()] == [(4, 9)]
        assert [*outcome.elsewhere.values()] == [digest("a")]
    answer = Completion(lambda _: None)
    shard.state.release_dedup_ids(NUMBER, [digest("a")], [Holder(4, 9)], answer)
    shard.rest()
    assert (answer.open_count, answer.errors, answer.failure) == (0, {}, None)
    again = shard.call("a", holds=True)
    shard.rest()
    assert len(again.made) == 1


def test_a_release_is_refused_with_its_transaction_and_unknown_with_the_shard(shard):
    for is_lost in (False, True):
        answer = Completion(lambda _: None)
        shard.state.release_dedup_ids(NUMBER, [digest("a")], [Holder(4, 9)], answer)
        shard.state.take(shard.now, {})
        if is_lost:
            shard.state.abandon("gone")
        else:
            shard.state.failed("full")
        assert [error.nothing_done for error in answer.errors.values()] == [not is_lost]


# ---- ids that are made free ----


def test_ids_of_the_window_are_free_after_an_order_and_for_new_owners(shard):
    names = [f"id-{at}" for at in range(BLOCK_IDS + 70)]
    shard.new_ids(0, len(names))
    ordered = shard.free(*names[:100], "nobody")
    shard.call(*[f"new-{at}" for at in range(50)])  # Their ids come into the log with the same transaction.
    shard.rest()
    assert {at: type(error) for at, error in ordered.errors.items()} == {100: NotFoundError}
    assert ordered.open_count == 0
    shard.open()
    assert not shard.knows(0)
    assert not shard.knows(99)
    assert shard.knows(100)
    assert shard.knows(0), "it was taken again"
    repeat = shard.call(*[f"new-{at}" for at in range(50)])
    shard.rest()
    assert len(repeat.firsts) == 50


def test_an_id_that_is_just_being_written_is_not_made_free(shard):
    shard.call("a", holds=True)
    ordered = shard.free("a", "b")
    shard.rest()
    assert {at: type(error) for at, error in ordered.errors.items()} == {0: UnavailableError, 1: NotFoundError}
    assert ordered.errors[0].nothing_done
    assert len(held_by(shard)) == 1
    again = shard.free("a")
    shard.rest()
    assert (again.errors, held_by(shard)) == ({}, {})


@pytest.mark.parametrize("how", ["failed", "abandoned", "waiting", "hung"])
def test_an_order_that_is_not_done_says_so(shard, how):
    shard.call("a", holds=True)
    shard.rest()
    ordered = shard.free("a")
    if how in ("failed", "abandoned"):
        assert shard.state.take(shard.now, {}) is not None
    if how == "failed":
        shard.state.failed("full")
    elif how == "hung":
        shard.state.refuse_undone("hangs")
    else:
        shard.state.abandon("gone")
    assert [error.nothing_done for error in ordered.errors.values()] == [how != "abandoned"]
    assert len(held_by(shard)) == 1


def test_an_order_waits_for_no_log_and_for_no_slot_that_moves(shard):
    shard.new_ids(0, 3)
    shard.open_unread()
    ordered = shard.free("id-0")
    shard.rest()
    assert isinstance(ordered.errors[0], UnavailableError)
    shard.open()
    shard.state.slot_moves.close(frozenset([0]))
    ordered = shard.free("id-0")
    shard.rest()
    assert isinstance(ordered.errors[0], UnavailableError)
    shard.open()
    ordered = shard.free("id-0")
    shard.rest()
    assert (ordered.errors, ordered.open_count) == ({}, 0)


def test_slots_bring_the_ids_that_items_hold_and_say_which_are_free(shard):
    own = shard.call("mine", holds=True)
    shard.rest()
    answer = Completion(lambda _: None)
    shard.state.slot_moves.hold(
        [HeldId(9, 4, NUMBER + 1, digest("a", NUMBER + 1), 9, 3)],
        [(NamespaceDigest(NUMBER, digest("mine")), Holder(0, own.made[0]))],
        answer,
    )
    shard.rest()
    assert (answer.open_count, answer.failure) == (0, None)
    assert shard.state.held.namespaces == {NUMBER, NUMBER + 1}
    assert held_by(shard) == {9: digest("a", NUMBER + 1)}
    repeat = shard.call("a", number=NUMBER + 1)
    shard.rest()
    assert [*repeat.firsts.values()] == [(4, 9)]
    assert [*repeat.first_copies.values()] == [3], "with the copies behind it"
