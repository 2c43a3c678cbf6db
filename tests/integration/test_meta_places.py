"""The servers of shards in the meta database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from foqs.model.cluster import ShardRow
from foqs.model.shard_place import FoundShard
from foqs.shard.port import ElsewhereError
from foqs.storage.meta.meta_store import MetaStore

pytestmark = pytest.mark.database

HERE = FoundShard("here", 0, "", 7)
THERE = FoundShard("there", 1, "h1", 5)


@pytest.fixture
def store(meta_url: str) -> Iterator[MetaStore]:
    with closing(MetaStore(meta_url)) as store:
        yield store


def row(store: MetaStore) -> ShardRow:
    (found,) = store.shards.read_all()
    return found


def test_an_epoch_is_refused_on_another_server_and_changes_nothing(store: MetaStore) -> None:
    store.shards.take_epoch(3, "h1", 1, 0, HERE)
    before = row(store)
    with pytest.raises(ElsewhereError, match="'h1' on another server, here") as refused:
        store.shards.take_epoch(3, "h2", 2, 1, THERE)
    assert (row(store), refused.value.row) == (before, before)
    assert (before.server, before.first_number, before.last_number) == ("here", 7, 7)
    store.shards.ask_for({3: "h1"}, "h2")
    with pytest.raises(ElsewhereError):
        store.shards.take_epoch(3, "h2", 2, 1, THERE)


def test_a_dead_owner_and_one_that_has_left_its_server_are_followed_anywhere(store: MetaStore) -> None:
    store.shards.take_epoch(3, "h1", 1, 0, HERE)
    given = store.shards.take_epoch(3, "h2", 2, 1, THERE, is_dead=lambda owner, epoch: (owner, epoch) == ("h1", 1))
    assert (given.epoch, row(store).server) == (2, "there")
    assert store.shards.leave_servers("h2", {3: (2, 9)}) == [3]
    assert (row(store).server, row(store).owner, row(store).last_number) == ("", "h2", 9)
    assert store.shards.take_epoch(3, "h1", 3, 2, HERE).epoch == 3


def test_a_word_of_an_earlier_epoch_that_comes_late_changes_nothing(store: MetaStore) -> None:
    """The owner has gone on under another one since, and relies on that."""
    store.shards.take_epoch(3, "h1", 1, 0, HERE)
    store.shards.take_epoch(3, "h1", 2, 1, HERE, is_renewal=True)
    before = row(store)
    assert store.shards.leave_servers("h1", {3: (1, 99)}) == []
    assert store.shards.note_numbers("h1", {3: (1, 99), 4: (1, 1)}) == []
    assert store.shards.note_numbers("h2", {3: (2, 99)}) == []
    assert row(store) == before
    assert store.shards.note_numbers("h1", {3: (2, 12)}) == [3]
    assert store.shards.note_numbers("h1", {3: (2, 12)}) == [3], "it is known there, changed or not"
    assert row(store).last_number == 12


def test_a_renewal_is_refused_once_the_shard_was_taken_elsewhere(store: MetaStore) -> None:
    store.shards.take_epoch(3, "h1", 1, 0, HERE)
    store.shards.leave_servers("h1", {3: (1, 7)})
    store.shards.take_epoch(3, "h2", 2, 1, THERE)
    with pytest.raises(ElsewhereError):
        store.shards.take_epoch(3, "h1", 3, 1, HERE, is_renewal=True, is_dead=lambda owner, epoch: True)
    assert row(store).owner == "h2"


def test_a_meta_database_that_went_back_learns_the_server_with_the_epoch(store: MetaStore) -> None:
    store.shards.take_epoch(3, "h1", 1, 0, HERE)
    store.shards.raise_epochs("h2", {3: 5}, 1, {3: "there"})
    assert (row(store).epoch, row(store).owner, row(store).server) == (5, "h2", "there")
    store.shards.raise_epochs("h1", {3: 4}, 1, {3: "here"})
    assert row(store).server == "there"
