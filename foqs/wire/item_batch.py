"""The items of an enqueue call by kind: those of one kind have the same bytes on the wire, but for their payloads.

Most calls have items of a few kinds. A host that decodes one item of each kind, and only takes the payloads of the
others, has far less to do. `cut_batch` accepts messages of which each byte was compared, or taken as part of a payload;
all others are scanned and decoded as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, NamedTuple, overload

from foqs.model import limits
from foqs.wire.frames import WIDTHS

KINDS_MAX: Final = 16
"""Kinds of items in one call beyond which it is decoded as a whole: to tell many apart costs more than it saves."""
KIND_ITEMS_MIN: Final = 2
"""The fewest items of a kind, on average, for which kinds pay."""

_HEAD: Final = bytes([0x80, 1, 0, 1, 0, 0, 0, 7]) + b"enqueue"
_REQUEST_AT: Final = len(_HEAD) + 4
_NAMESPACE: Final = bytes([12, 0, 1, 11, 0, 1])
_ITEMS: Final = bytes([15, 0, 2, 12])
_TOPIC: Final = bytes([11, 0, 1])
_PAYLOAD: Final = bytes([11, 0, 2])
_TOPIC_FIELD_BYTES_MAX: Final = 1_024
_STRING: Final = 11
_u32 = Struct("!I").unpack_from
_u16 = Struct("!H").unpack_from
_count = Struct("!I").pack


class ItemKind(NamedTuple):
    """The items of one kind in the order of the call: their positions and payloads, and one as a decoded struct."""

    item: Any
    positions: Sequence[int]
    payloads: Sequence[bytes]


class ItemBatch(Sequence[Any]):
    """The items of a call as `NewItem` structs, which are made once somebody asks for a single one."""

    def __init__(self, kinds: Sequence[ItemKind], count: int) -> None:
        self.kinds = kinds
        self._count = count
        self._items: list[Any] = []

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, position: int) -> Any: ...
    @overload
    def __getitem__(self, position: slice) -> list[Any]: ...
    def __getitem__(self, position: int | slice) -> Any:
        return self._made()[position]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._made())

    __hash__ = None  # type: ignore[assignment]  # It equals lists.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._made() == list(other)

    def _made(self) -> list[Any]:
        if not self._items:
            items = self._items = [None] * self._count
            for item, positions, payloads in self.kinds:
                for position, payload in zip(positions, payloads, strict=True):
                    items[position] = _like(item, payload)
        return self._items


def _like(item: Any, payload: bytes) -> Any:
    other = object.__new__(type(item))
    other.__dict__.update(item.__dict__, payload=payload)
    return other


def samples(items: Sequence[Any]) -> Sequence[Any]:
    """Return an item of each kind, or all items of a call whose kinds are unknown."""
    return [kind.item for kind in items.kinds] if isinstance(items, ItemBatch) else items


class Cut(NamedTuple):
    """An enqueue call with one item of each kind, and the positions and payloads of the items by kind."""

    message: bytes
    items_count: int
    """All items of the call."""
    positions: Sequence[Sequence[int]]
    payloads: Sequence[Sequence[bytes]]

    def batch(self, items: Sequence[Any]) -> ItemBatch:
        """Return all items, of which `items` are the decoded ones of the message."""
        return ItemBatch(list(map(ItemKind, items, self.positions, self.payloads)), self.items_count)


def cut_batch(message: bytes) -> Cut | None:
    """Cut the payloads out of an enqueue call that is as Thrift libraries write it; None for any other message.

    The items must be several of few kinds, and at most BATCH_ITEMS_MAX, which keeps their elements within the bound of
    a frame. Each begins with its topic and its payload, and has no nested field.
    """
    if not message.startswith(_HEAD) or not message.startswith(_NAMESPACE, _REQUEST_AT):
        return None
    try:
        list_at = _REQUEST_AT + 10 + _u32(message, _REQUEST_AT + 6)[0]
        count = _u32(message, list_at + 4)[0]
        if not message.startswith(_ITEMS, list_at) or not 1 < count <= limits.BATCH_ITEMS_MAX:
            return None
        return _cut(message, list_at + 4, count)
    except (IndexError, struct_error):
        return None  # The message is cut off somewhere, and its scan reports that.


def _cut(message: bytes, count_at: int, count: int) -> Cut | None:
    at, tail_bytes = count_at + 4, 0
    kinds: dict[bytes, tuple[list[int], list[bytes]]] = {}
    firsts: list[bytes] = []
    for position in range(count):
        length_at = at + 10 + _u32(message, at + 3)[0]
        if length_at - at > _TOPIC_FIELD_BYTES_MAX:
            return None
        begin = length_at + 4
        end = begin + _u32(message, length_at)[0]
        kind = kinds.get(message[at:length_at] + message[end : end + tail_bytes])
        if kind is None:
            tail_end = _end_of_kind(message, at, length_at, end)
            if not tail_end or len(kinds) == KINDS_MAX:
                return None
            tail_bytes = tail_end - end
            kind = kinds.setdefault(message[at:length_at] + message[end:tail_end], ([], []))
            if not kind[0]:
                firsts.append(message[at:tail_end])
        kind[0].append(position)
        kind[1].append(message[begin:end])
        at = end + tail_bytes
    if len(kinds) * KIND_ITEMS_MIN > count:
        return None
    # The rest of the request and of the arguments, which must not have another list of items.
    if _end_of_fields(message, at) + 1 != len(message) or message[-1]:
        return None
    small = b"".join((message[:count_at], _count(len(kinds)), *firsts, message[at:]))
    positions, payloads = zip(*kinds.values(), strict=True)
    return Cut(small, count, positions, payloads)


def _end_of_kind(message: bytes, at: int, length_at: int, tail_at: int) -> int:
    """Return the end of an item that begins at `at`; 0 if it is not as Thrift libraries write it.

    The length of its payload is at `length_at`, and its further fields begin at `tail_at`.
    """
    is_known = message.startswith(_TOPIC, at) and message.startswith(_PAYLOAD, length_at - 3)
    return _end_of_fields(message, tail_at) if is_known else 0


def _end_of_fields(message: bytes, at: int) -> int:
    """Return the end of a struct whose first two fields end at `at`.

    It is 0 unless all further fields are numbers or strings, and their own numbers grow, so that no field comes twice.
    """
    last_number = 2
    while kind := message[at]:
        number = _u16(message, at + 1)[0]
        width = WIDTHS[kind] if kind != _STRING else 4 + _u32(message, at + 3)[0]
        if number <= last_number or not width:
            return 0
        last_number = number
        at += 3 + width
    return at + 1
