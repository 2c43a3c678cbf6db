"""The history of a topic with consumer groups, as each group sees it: a copy of an item is an item by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tests.histories.history import Call, Verb
from tests.histories.lives import Stored

_MARK = "@"
_COPIES = "+"


def consumer_of(name: str, group: str) -> str:
    """The name in a history of a client that takes items of the group alone."""
    return f"{name}{_MARK}{group}"


def view_of(group: str, calls: Iterable[Call], stored: Sequence[Stored]) -> list[Call]:
    """The calls that are about copies of this group, of which `stored` has the rows.

    The id of an enqueued item names the first of its copies. Here it is that of the group's own copy, as far as it was
    seen.
    """
    mine = [call for call in calls if call.verb is Verb.ENQUEUE or call.client.endswith(f"{_MARK}{group}")]
    seen = {row.uid: row.id for row in stored}
    for call in mine:
        seen |= {taken.uid: taken.receipt.partition(":")[0] for taken in call.taken}
    return [_with_ids(call, seen) if call.verb is Verb.ENQUEUE else call for call in mine]


def _with_ids(call: Call, seen: dict[str, str]) -> Call:
    named = zip(call.asked, call.ids, strict=False)
    return replace(call, ids=[seen.get(put.uid, item_id.partition(_COPIES)[0]) for put, item_id in named])
