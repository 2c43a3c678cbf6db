"""Defects of what operators are shown of failures."""

from __future__ import annotations

from typing import Any

from foqs.model import failures
from foqs.model.item import ShardItem
from foqs.shard.port import Rewrite
from foqs.shard.state.ops import settle
from foqs.shard.state.ops.settle import Settlements
from foqs.storage.shard.packs import pack
from foqs.testing import fake_rows
from tests.sim.planting import in_place_of

_failed_attempt = Settlements.failed_attempt
_entry = failures.entry


@in_place_of(Settlements, "failed_attempt")
def loses_the_reason_of_an_item_that_dies(self: Settlements, item: ShardItem, now_ms: int, **how: Any) -> Any:
    rewrite = _failed_attempt(self, item, now_ms, **how)
    if rewrite is not None and rewrite.lane < 0:
        rewrite.error = None
    return rewrite


@in_place_of(pack, "with_entry")
def loses_the_reason_of_an_item_that_leaves_its_pack(new: bytes, stored: bytes, bytes_max: int) -> bytes:
    return stored


_last_error: dict[tuple[int, int], bytes] = {}


@in_place_of(Settlements, "failed_attempt")
def gives_items_with_the_same_counts_the_same_reason(
    self: Settlements, item: ShardItem, now_ms: int, **how: Any
) -> Any:
    rewrite: Rewrite | None = _failed_attempt(self, item, now_ms, **how)
    if rewrite is not None and rewrite.error is not None:
        rewrite.error = _last_error.setdefault((rewrite.deliveries, rewrite.failed_attempts), rewrite.error)
    return rewrite


@in_place_of(settle, "entry")
def counts_the_attempt_before_it_is_over(at_ms: int, attempt: int, reason: str, bytes_max: int) -> bytes:
    return _entry(at_ms, attempt + 1, reason, bytes_max)


@in_place_of(fake_rows, "with_entry")
def puts_a_failure_behind_the_earlier_ones(new: bytes, stored: bytes, bytes_max: int) -> bytes:
    return stored + new
