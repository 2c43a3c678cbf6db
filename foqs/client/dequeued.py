"""Result of a dequeue that also asks for the reasons of an empty result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any

from foqs.client.queue_items import Item
from foqs.model.reasons import NOT_ASKED, NOT_READY, Reason

_field_values = attrgetter(*[field.name for field in fields(Reason)])


class Dequeued(list[Item]):
    """Items of a dequeue with `want_why`, as a list.

    why_empty: the reasons for an empty list, the decisive one first; empty if there are items and for hosts of an older
    version. A code of a newer host is an int without a member of ReasonCode.
    """

    def __init__(self, items: Iterable[Item], decoded: Iterable[Any]) -> None:
        super().__init__(items)
        self.why_empty = reasons_of(decoded)

    @property
    def is_partial(self) -> bool:
        """True if ready items can exist on shards or hosts that were not asked."""
        return any(reason.code in NOT_ASKED for reason in self.why_empty)

    @property
    def is_none_ready(self) -> bool:
        """True if certainly no item was deliverable at once, by the reported reasons."""
        return not self and all(reason.code in NOT_READY for reason in self.why_empty)


def reasons_of(decoded: Iterable[Any]) -> list[Reason]:
    """Return decoded reasons."""
    return [Reason(*_field_values(one)) for one in decoded]
