"""The purge of deleted consumer groups deletes nothing of a group that was created again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.host.verbs.group_purge import FORGETS_AT_ONCE, GroupPurge
from foqs.model.errors import PausedError, UnavailableError
from foqs.model.groups import TopicGroup
from foqs.model.namespace import SettingsTable

DELETED = TopicGroup("t", "audit", is_deleted=True, created_at_ms=1)
NAME = DELETED.hidden_name


class World:
    """A host with two shards, and a namespace with one group."""

    def __init__(self) -> None:
        self.settings = SettingsTable()
        self.declare(DELETED)
        self.items = {0: [7, 8], 1: [9]}
        self.deleted: list[tuple[int, int]] = []
        self.forgotten: list[str] = []
        self.sick: set[int] = set()
        self.at_read: Any = lambda: None
        self.now_s = 0.0
        self.refusal: Exception | None = None
        namespaces: Any = SimpleNamespace(
            settings=self.settings, view=SimpleNamespace(by_number={1: SimpleNamespace(number=1, name="ns")})
        )
        shards: Any = SimpleNamespace(owned=self.owned, uses={0: None, 1: None}, serves=lambda shard_id: True)
        self.purge = GroupPurge(namespaces, shards, self, self, self, lambda: self.now_s)  # type: ignore[arg-type]

    def declare(self, group: TopicGroup) -> None:
        self.settings.replace_groups({1: {NAME: group}})

    def owned(self) -> list[Any]:
        return [
            (
                None,
                SimpleNamespace(
                    shard_id=shard_id,
                    index=SimpleNamespace(topics={(1, NAME): SimpleNamespace(holds_any=bool(keys))}, counted=True),
                ),
            )
            for shard_id, keys in self.items.items()
        ]

    async def keys_of_topic(self, shard_id: int, namespace: Any, name: str, after_key: int) -> tuple[list[int], int]:
        if shard_id in self.sick:
            raise UnavailableError(f"shard {shard_id} is sick")
        self.at_read()
        return list(self.items[shard_id]), 0

    async def delete_keys(self, namespace: Any, shard_id: int, keys: list[int]) -> dict[int, Any]:
        self.deleted += [(shard_id, key) for key in keys]
        self.items[shard_id] = [key for key in self.items[shard_id] if key not in keys]
        return {}

    async def forget(self, namespace_name: str, topic: str, group: str) -> bool:
        self.forgotten.append(group)
        if self.refusal is not None:
            raise self.refusal
        return True


async def test_the_items_of_a_deleted_group_are_deleted_and_then_it_is_forgotten() -> None:
    w = World()
    await w.purge._forget()
    await w.purge._purge()
    assert (w.deleted, w.forgotten) == ([(0, 7), (0, 8), (1, 9)], [])
    await w.purge._purge()
    assert w.forgotten == []
    await w.purge._forget()
    assert w.forgotten == ["audit"]


@pytest.mark.parametrize(
    "again", [replace(DELETED, is_deleted=False, created_at_ms=2), replace(DELETED, created_at_ms=2)]
)
async def test_what_was_read_after_a_group_was_created_again_is_not_deleted(again: TopicGroup) -> None:
    """Also if that one was deleted in turn: its own purge begins anew, with the items that it has then."""
    w = World()
    w.at_read = lambda: w.declare(again)
    await w.purge._purge()
    assert w.deleted == []


async def test_a_group_without_a_row_loses_nothing() -> None:
    w = World()
    w.at_read = lambda: w.settings.replace_groups({})
    await w.purge._purge()
    assert w.deleted == []


async def test_a_sick_shard_keeps_no_other_one_waiting_and_is_told() -> None:
    w = World()
    w.sick = {0}
    with pytest.raises(UnavailableError, match="shard 0 is sick"):
        await w.purge._purge()
    assert w.deleted == [(1, 9)]


async def test_a_group_of_which_others_hold_items_is_asked_for_again_after_a_pause() -> None:
    w = World()
    w.items, w.refusal = {}, PausedError("others hold some")
    await w.purge._forget()
    await w.purge._forget()
    assert w.forgotten == ["audit"]
    w.now_s += 31
    await w.purge._forget()
    assert w.forgotten == ["audit"] * 2


async def test_groups_are_forgotten_some_at_a_time_and_a_silent_shard_is_asked_for_no_more() -> None:
    w = World()
    gone = [TopicGroup(f"t{number}", "audit", is_deleted=True) for number in range(3 * FORGETS_AT_ONCE)]
    w.settings.replace_groups({1: {one.hidden_name: one for one in gone}})
    await w.purge._forget()
    assert len(w.forgotten) == FORGETS_AT_ONCE
    w.refusal = UnavailableError("the owner of shard 9 has not answered")
    with pytest.raises(UnavailableError, match="shard 9"):
        await w.purge._forget()
    await w.purge._forget()
    assert len(w.forgotten) == 2 * FORGETS_AT_ONCE, "it would not answer for the others, either"
    w.now_s, w.refusal = w.now_s + 31, None
    for _ in range(3):
        await w.purge._forget()
    assert len(w.forgotten) == 5 * FORGETS_AT_ONCE, "those that still are there are asked for again"


async def test_the_purge_of_a_group_waits_for_no_answer_of_other_hosts() -> None:
    w = World()
    w.items = {0: [], 1: [9]}
    never = asyncio.get_running_loop().create_future()

    async def forget(*_: object) -> bool:
        return bool(await never)

    w.forget = forget  # type: ignore[method-assign]
    other = TopicGroup("t", "other", is_deleted=True)
    w.settings.replace_groups({1: {NAME: DELETED, other.hidden_name: other}})
    asking = asyncio.ensure_future(w.purge._forget())
    await asyncio.sleep(0)
    await w.purge._purge()
    assert (w.deleted, asking.done()) == ([(1, 9)], False)
    asking.cancel()
