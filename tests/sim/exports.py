"""What an export must show, page after page while everything goes on: what stays, once, and nothing that came later."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from foqs.model import ids
from foqs.model.calls import ExportPlan, StoredItem
from tests.histories.history import uid_of
from tests.sim.host import FakeDoor
from tests.sim.pages import items_unless_unknown

if TYPE_CHECKING:
    from tests.sim.world import World

TRIES_MAX = 40
"""Calls that one export may make. Hosts may be away for longer than it has patience: then nothing is said of it."""

Quietly = Callable[[Callable[[FakeDoor, str], Awaitable[Any]]], Awaitable[Any]]


async def export(world: World, namespace: str, label: str, chance: random.Random, quietly: Quietly) -> None:
    """Plan an export and read all of it, whatever happens meanwhile, and complain of what it should not show."""
    before = items_unless_unknown(world, namespace)
    splits_per_shard = chance.choice([1, 1, 3])
    plan: ExportPlan | None = await quietly(lambda door, name: door.admin.plan_export(name, splits_per_shard))
    if plan is None:
        return
    found: list[StoredItem] = []
    tries_left = TRIES_MAX
    for split in plan.splits:
        after_key = 0
        while True:
            limit = chance.choice([1, 4, 30])
            page = None
            while page is None and tries_left:
                tries_left -= 1
                page = await quietly(_page_of(split, after_key, limit))
                await asyncio.sleep(chance.choice([0.0, 0.01, 0.1]))
            if page is None:
                return
            for problem in _of_page(page.items, split, after_key, label):
                world.complain(problem)
            found += page.items
            after_key = page.next_after_key
            if not after_key:
                break
    if not world.restored:
        for problem in _of_all(found, before, items_unless_unknown(world, namespace)):
            world.complain(problem)


def _page_of(split: Any, after_key: int, limit: int) -> Callable[[FakeDoor, str], Awaitable[Any]]:
    return lambda door, name: door.admin.export_items(name, split, after_key, limit)


def _of_page(items: list[StoredItem], split: Any, after_key: int, label: str) -> Iterator[str]:
    places = [ids.parse(item.id) for item in items]
    keys = [key for _, key, _ in places]
    if keys != sorted(set(keys)) or any(not max(split.from_key, after_key) < key <= split.to_key for key in keys):
        yield f"a page of an export after {after_key:x} within {split} has the keys {keys}"
    if any(shard_id != split.shard_id for shard_id, _, _ in places):
        yield f"a page of an export of shard {split.shard_id} has {[item.id for item in items]}"
    for item in items:
        if not uid_of(item.payload).startswith(f"{label}:"):
            yield f"P10: {uid_of(item.payload)} is exported with a namespace that is not its own"


def _of_all(found: list[StoredItem], before: set[str], after: set[str]) -> Iterator[str]:
    """`before` and `after`: what was there before the plan, and after the last page. What has gone stays away."""
    shown = [item.id for item in found]
    if len(set(shown)) < len(shown):
        yield f"an export shows an item twice: {sorted(one for one in set(shown) if shown.count(one) > 1)}"
    missing = (before & after) - set(shown)
    if missing:
        yield f"{sorted(missing)} are there all the time, and an export does not show them"
