"""Items with dedup ids of a namespace that would rather have one twice than not at all, while their shard is away."""

from __future__ import annotations

import pytest

from foqs import NewItem
from foqs.model import ids
from foqs.model.errors import NoShardError, UnavailableError
from foqs.model.namespace import DedupScope, DedupWhenAway, Namespace, NamespaceSettings
from foqs.model.slots import first_table, slot_of
from tests.support.enqueuer import Enqueuer, enqueue_at_once, with_ids
from tests.support.shards import NAMESPACE, Shards

HOME = first_table([0, 1]).shards[slot_of("n", "", 1)]


def accepting(scope: DedupScope = DedupScope.NAMESPACE) -> Namespace:
    settings = NamespaceSettings(dedup_when_away=DedupWhenAway.ACCEPT, dedup_scope=scope)
    return Namespace(NAMESPACE, "n", settings, 0)


def without_home(namespace: Namespace) -> tuple[Shards, Enqueuer]:
    shards = Shards(2)
    enqueues = Enqueuer(shards, namespace)
    del shards.states[HOME]
    return shards, enqueues


async def test_equal_ids_of_one_call_make_one_item_without_their_shard_as_well() -> None:
    shards, enqueues = without_home(namespace := accepting())
    items = [*with_ids("abcab", "1", "2", "1", "3", "1"), NewItem("p", b""), NewItem("p", b"")]
    told = await enqueue_at_once(shards, namespace, items, enqueues)
    assert (told.errors, told.duplicates) == ({}, [2, 4])
    assert told.ids[2] == told.ids[4] == told.ids[0]
    assert len(set(told.ids)) == 5
    assert {ids.parse(item_id)[0] for item_id in told.ids} == {1 - HOME}
    assert len(shards.tables[1 - HOME].items) == 5
    assert sorted(name for _, name in shards.states[1 - HOME].index.topics) == ["a", "b", "p"]


async def test_each_call_makes_an_item_of_an_id_while_its_shard_is_away() -> None:
    shards, enqueues = without_home(namespace := accepting())
    told = [await enqueue_at_once(shards, namespace, with_ids("t", "1"), enqueues) for _ in range(2)]
    assert told[0].ids != told[1].ids
    assert [one.duplicates for one in told] == [[], []]


async def test_ids_of_two_topics_are_two_where_they_count_by_topic() -> None:
    shards, enqueues = without_home(namespace := accepting(DedupScope.TOPIC))
    told = await enqueue_at_once(shards, namespace, with_ids("aba", "1", "1", "1"), enqueues)
    assert told.duplicates == [2]
    assert len(set(told.ids)) == 2


async def test_what_is_not_valid_is_nobodys_first() -> None:
    shards, enqueues = without_home(namespace := accepting())
    bad = NewItem("bad\x01", b"", dedup_id="1")
    told = await enqueue_at_once(
        shards, namespace, [bad, bad, *with_ids("aa", "1", "1"), NewItem("bad\x01", b"", dedup_id="2")], enqueues
    )
    assert sorted(told.errors) == [0, 1, 4]
    assert (told.duplicates, told.ids[3]) == ([3], told.ids[2])
    assert len(shards.tables[1 - HOME].items) == 1


async def test_repeats_fail_as_their_first_does() -> None:
    shards, enqueues = without_home(namespace := accepting())
    shards.states.clear()
    with pytest.raises(NoShardError) as refused:
        await enqueue_at_once(shards, namespace, with_ids("aab", "1", "1", "2"), enqueues)
    assert refused.value.nothing_done


async def test_a_shard_that_is_here_is_not_away_before_its_copy_of_the_slot_table_is_known() -> None:
    shards, namespace = Shards(2), accepting()
    enqueues = Enqueuer(shards, namespace)
    table, shard = enqueues.slots.table, shards.states[HOME]
    del enqueues.slots._kept[HOME]
    with pytest.raises(UnavailableError) as refused:
        await enqueue_at_once(shards, namespace, with_ids("t", "1"), enqueues)
    assert refused.value.nothing_done
    enqueues.slots.has_kept(shard, table)
    told = await enqueue_at_once(shards, namespace, with_ids("t", "1"), enqueues)
    assert ids.parse(told.ids[0])[0] == HOME
