"""The items of one answer to a dequeue, of which those that share all but their payloads are one part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, overload

from foqs.model import ids
from foqs.model.calls import Delivery


class DeliveredBundle(NamedTuple):
    """Items of one shard with consecutive keys that share everything but their payloads."""

    first: Delivery
    """The first one, in full."""
    shard_id: int
    first_key: int
    delivery_number: int
    payloads: Sequence[bytes]

    def items(self) -> list[Delivery]:
        keys = range(self.first_key, self.first_key + len(self.payloads))
        receipts = ids.receipts(self.shard_id, keys, [self.delivery_number] * len(keys))
        return [
            replace(self.first, id=item_id, receipt=receipt, payload=payload)
            for item_id, receipt, payload in zip(
                ids.item_ids(self.shard_id, keys), receipts, self.payloads, strict=True
            )
        ]


class Delivered(Sequence[Delivery]):
    """The items of one answer, which are made once somebody asks for a single one."""

    def __init__(self, parts: Sequence[Delivery | DeliveredBundle]) -> None:
        self.parts = parts
        self._count = sum([len(part.payloads) if isinstance(part, DeliveredBundle) else 1 for part in parts])
        self._items: list[Delivery] = []

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, position: int) -> Delivery: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Delivery]: ...
    def __getitem__(self, position: int | slice) -> Delivery | Sequence[Delivery]:
        return self._made()[position]

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._made())

    __hash__ = None  # type: ignore[assignment]  # It equals lists.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._made() == list(other)

    def _made(self) -> list[Delivery]:
        if len(self._items) < self._count:
            self._items = []
            for part in self.parts:
                self._items += part.items() if isinstance(part, DeliveredBundle) else [part]
        return self._items
