"""Defects of reads that come back short, and of items that failed and whose TTL ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from foqs.model import limits
from foqs.model.item import Phase, ShardItem
from foqs.shard.port import ClaimedRow, Rewrite, SeenRow, TransactionResult
from foqs.shard.state.ops.claim import Claiming
from foqs.shard.state.ops.settle import Settlements
from foqs.storage.sessions import whole_reads
from foqs.testing.short_reads import ReadCut
from tests.sim.chance import Profile
from tests.sim.planting import plant

_read, _whole = Claiming._read, ReadCut.whole


def _has_short_reads(profile: Profile) -> bool:
    return profile.has_short_reads


def _has_take_overs(profile: Profile) -> bool:
    return profile.has_short_reads and bool(profile.host_fault_rate or profile.server_fault_rate or profile.drain_rate)


def _takes_for_all(
    name: str, is_of_kind: Callable[[Any], bool], can_show: Callable[[Profile], bool] = _has_take_overs
) -> None:
    """A short read of such rows is taken for a whole one."""

    def whole(self: ReadCut, rows: Sequence[Any]) -> list[Any]:
        return self.some([*rows]) if rows and is_of_kind(rows[0]) else _whole(self, rows)

    plant(__name__, name, lambda: patch.object(ReadCut, "whole", whole), can_show)


def _delete_what_did_not_come(self: Claiming, items: list[ShardItem], result: TransactionResult) -> list[ShardItem]:
    """As if an item whose row did not come had no time to live."""
    absent = [
        item
        for item in items
        if item.content is None and item.phase is Phase.CLAIMING and item.key not in result.fetched
    ]
    return absent + _read(self, [item for item in items if item not in absent], result)


@contextmanager
def _deleting() -> Iterator[None]:
    with (
        patch.object(whole_reads, "check_found", lambda *_: None),
        patch.object(Claiming, "_read", _delete_what_did_not_come),
    ):
        yield


plant(__name__, "deletes_what_a_read_did_not_bring", _deleting, _has_short_reads)
_takes_for_all("takes_a_short_list_of_claimed_rows_for_all", lambda row: isinstance(row, ClaimedRow))
_takes_for_all("takes_a_block_of_ids_that_did_not_come_for_one_that_is_not_there", lambda row: isinstance(row, SeenRow))
_takes_for_all(
    "takes_a_short_list_of_ready_rows_for_the_end_of_its_lane", lambda row: type(row) is tuple and len(row) == 5
)


_failed_attempt = Settlements.failed_attempt


def _failed_attempt_without_ttl(self: Settlements, item: ShardItem, now_ms: int, **how: Any) -> Rewrite | None:
    expires_at, item.expires_at = item.expires_at, limits.NEVER_MS
    try:
        return _failed_attempt(self, item, now_ms, **how)
    finally:
        item.expires_at = expires_at


@contextmanager
def _dropping() -> Iterator[None]:
    with (
        patch.object(Settlements, "expiry", lambda *_, **__: None),
        patch.object(Settlements, "failed_attempt", _failed_attempt_without_ttl),
    ):
        yield


plant(__name__, "drops_failed_items_at_their_ttl", _dropping, lambda _: True)
