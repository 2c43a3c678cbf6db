"""The contract of groups that begin with waiting items finds the defects that are planted into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from foqs.host.dispatch.tenant import Tenant
from foqs.host.verbs.exports import Exports
from foqs.host.verbs.group_copier import GroupCopier
from foqs.model.copy_steps import CopyKey
from foqs.model.groups import NamespaceGroups
from foqs.shard.state.ops.group_copy import GroupCopies
from tests.contract import test_group_copies as copies
from tests.contract import test_groups as groups
from tests.contract.queue_world import World

_BEGIN, _ROWS, _MADE, _RINGS = GroupCopies.begin, Exports.rows_to_copy, GroupCopier._copies, Tenant.rings_of


def begins_behind_later_items(self: GroupCopies, copy: CopyKey) -> None:
    is_new = copy not in self.known
    _BEGIN(self, copy)
    if is_new:
        self.waiting[-1] = (copy, self._index.last_key + 1_000)


async def leaves_out_delayed_items(self: Exports, *arguments: Any) -> Any:
    rows, up_to = await _ROWS(self, *arguments)
    return [row for row in rows if row.lane > 0], up_to


def copies_the_first_item_of_a_step(self: GroupCopier, shard: Any, number: int, group: Any, rows: Any) -> Any:
    return _MADE(self, shard, number, group, rows[:1])


def copies_each_item_twice(self: GroupCopier, shard: Any, number: int, group: Any, rows: Any) -> Any:
    return _MADE(self, shard, number, group, [*rows, *rows])


def makes_copies_ready_at_once(self: GroupCopier, shard: Any, number: int, group: Any, rows: Any) -> Any:
    return _MADE(self, shard, number, group, [row._replace(due_at=row.enqueued_at) for row in rows])


def gives_groups_to_all(self: Tenant, name: str, group: str) -> Any:
    return _RINGS(self, name, "")


def reads_deleted_groups(self: NamespaceGroups, name: str) -> bool:
    return True


CASES = [
    (GroupCopies, "begin", begins_behind_later_items,
     copies.test_the_items_that_are_unfinished_are_copied_once_and_later_ones_come_once),
    (Exports, "rows_to_copy", leaves_out_delayed_items,
     copies.test_copies_keep_the_times_at_which_their_items_are_due_and_expire_and_begin_with_no_attempt),
    (GroupCopier, "_copies", copies_the_first_item_of_a_step,
     copies.test_the_items_that_are_unfinished_are_copied_once_and_later_ones_come_once),
    (GroupCopier, "_copies", copies_each_item_twice,
     copies.test_the_items_that_are_unfinished_are_copied_once_and_later_ones_come_once),
    (GroupCopier, "_copies", makes_copies_ready_at_once,
     copies.test_copies_keep_the_times_at_which_their_items_are_due_and_expire_and_begin_with_no_attempt),
    (Tenant, "rings_of", gives_groups_to_all,
     groups.test_a_call_for_any_topic_gets_the_items_of_no_group_or_of_the_named_one),
    (NamespaceGroups, "is_read", reads_deleted_groups,
     groups.test_a_call_for_a_group_of_any_topic_keeps_to_pauses_and_gets_nothing_of_a_deleted_group),
]  # fmt: skip


@pytest.mark.interpreted
@pytest.mark.parametrize(("place", "name", "defect", "check"), CASES, ids=[case[2].__name__ for case in CASES])
def test_a_defect_is_found(
    memory: World, place: type, name: str, defect: Callable[..., Any], check: Callable[[World], None]
) -> None:
    with patch.object(place, name, defect), pytest.raises((AssertionError, ValueError)):
        check(memory)
