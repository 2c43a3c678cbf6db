"""What callers leave with a shard, so that the host can tell them what became of their calls."""

from __future__ import annotations

from collections.abc import Callable

from foqs.model.errors import FoqsError
from foqs.shard.port import ItemRow


class Completion:
    """A caller's part of transactions, over as soon as all of it is durable or has failed.

    `on_done` is the caller's own address, for the host to tell it: the shard never calls it.
    """

    __slots__ = ("errors", "failure", "on_done", "open_count")

    def __init__(self, on_done: Callable[[Completion], None]) -> None:
        self.on_done = on_done
        self.errors: dict[int, FoqsError] = {}
        """What failed alone, by position in the call."""
        self.failure: FoqsError | None = None
        """Why the whole call failed."""
        self.open_count = 0
        """How many of its items and other parts have not ended: whoever takes one on counts it here."""


class LookUp:
    """Rows to read, for `on_rows` to be told as soon as the state knows the same; or `on_failed` is told why not.

    Both are the caller's own addresses, for the host to tell it: the shard calls neither.
    `with_payload`: with metadata and payload, which a thousand rows may have a gigabyte of; without they are empty.
    """

    __slots__ = ("keys", "on_failed", "on_rows", "with_payload")

    def __init__(
        self,
        keys: list[int],
        on_rows: Callable[[dict[int, ItemRow]], None],
        on_failed: Callable[[FoqsError], None],
        *,
        with_payload: bool = False,
    ) -> None:
        self.keys = keys
        self.with_payload = with_payload
        self.on_rows = on_rows
        self.on_failed = on_failed
