"""The result of a dequeue that also wants to know why there is nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any

from foqs.client.items import Item
from foqs.model.reasons import NOT_ASKED, NOT_READY, Reason

_field_values = attrgetter(*[field.name for field in fields(Reason)])


class Dequeued(list[Item]):
    """The items of a dequeue with `want_why`: a list as that of any other.

    why_empty: the reasons why it is empty, the one that decides first; none where there are items, and none from a host
        of an older build. Codes of a newer one are whole numbers that ReasonCode does not have.
    """

    def __init__(self, items: Iterable[Item], told: Iterable[Any]) -> None:
        super().__init__(items)
        self.why_empty = [Reason(*_field_values(one)) for one in told]

    @property
    def is_partial(self) -> bool:
        """Whether there may be ready items all the same, on shards or hosts that were not asked."""
        return any(reason.code in NOT_ASKED for reason in self.why_empty)

    @property
    def is_none_ready(self) -> bool:
        """Whether there was certainly no item that could be delivered at once, as far as this was told."""
        return not self and all(reason.code in NOT_READY for reason in self.why_empty)
