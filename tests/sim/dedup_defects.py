"""Defects of dedup: of what is written with an item, of what is known of it, and of who is told what and when."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.item import ShardItem
from foqs.model.seen import DIGEST_BYTES, FINGERPRINT_BYTES, SeenTable, SeenWindow
from foqs.model.seen_image import Mark
from foqs.model.seen_shrink import TableShrink
from foqs.shard.port import SeenDigests, StoredImage, Transaction, TransactionResult
from foqs.shard.state.events import Completion, OnceOutcome
from foqs.shard.state.ops import check, forget
from foqs.shard.state.ops.dedup import Dedup
from foqs.shard.state.ops.image import Images, Imaging
from foqs.shard.state.ops.remember import Remembering
from tests.sim.chance import Profile
from tests.sim.planting import in_place_of

_write, _committed, _load, _age = Remembering.write, Remembering.committed, Dedup.load, SeenWindow.age
_write_part, _load_image = Imaging.write, Dedup.load_image


@in_place_of(Remembering, "write")
def writes_the_ids_apart_from_their_items(self: Remembering, transaction: Transaction, now: Now) -> None:
    _write(self, transaction, now)
    transaction.seen_new = []


@in_place_of(Remembering, "committed")
def knows_nothing_of_what_it_has_written(self: Remembering, result: TransactionResult, now: Now) -> None:
    for row in self._rows:
        row.digests[:] = [bytes(16) for _ in row.digests]
    _committed(self, result, now)


@in_place_of(Remembering, "rolled_back")
def takes_ids_for_known_whose_transaction_failed(self: Remembering, error: FoqsError) -> None:
    for row in self._rows:
        self._source.windows[row.namespace].add(row.digests, row.at_ms, 1_000)


@in_place_of(SeenWindow, "age")
def moves_the_edge_past_living_ids(self: SeenWindow, now_ms: int, ids_max: int, ms_max: int) -> None:
    _age(self, now_ms, min(ids_max, 40) // 4, ms_max)


def _is_short_of_memory(profile: Profile) -> bool:
    return bool(profile.limits["DEDUP_FILTERS_OF_SHARD_BYTES_MAX"] <= 6_000 and profile.limits["DEDUP_IDS_KEPT"] > 5)


@in_place_of(forget, "least_loss", _is_short_of_memory)
def gives_up_the_last_ids_where_memory_is_short(window: SeenWindow, ids_kept: int) -> int | None:
    return window.end if window.tables else None


@in_place_of(TableShrink, "_younger", _is_short_of_memory)
def keeps_half_of_the_ids_of_a_bucket(
    self: TableShrink, fingerprints: bytes, places: array[int]
) -> tuple[bytes, array[int]]:
    return fingerprints[: len(places) // 2 * FINGERPRINT_BYTES], places[: len(places) // 2]


@in_place_of(Dedup, "_hang_repeats")
def makes_repeats_that_come_beside_their_first(
    self: Dedup, items: list[ShardItem], digests: list[bytes], completion: Completion, outcome: OnceOutcome
) -> Any:
    for digest in digests:
        self.pending.pop(digest, None)
    return items, digests


@in_place_of(Dedup, "_hang_repeats")
def answers_a_repeat_before_the_commit_of_its_first(
    self: Dedup, items: list[ShardItem], digests: list[bytes], completion: Completion, outcome: OnceOutcome
) -> Any:
    firsts: dict[bytes, ShardItem] = {}
    for item, digest in zip(items, digests, strict=True):
        key = firsts[digest].key if digest in firsts else self.pending.get(digest)
        if key is None:
            firsts[digest] = item
            continue
        completion.open_count += 1
        outcome.firsts[item.key] = (self._index.shard_id, key)
        self.end(item, completion, outcome)
    return list(firsts.values()), list(firsts)


@in_place_of(check, "find_seen")
def does_not_find_an_id_in_its_block(*_: object) -> None:
    return None


@in_place_of(Dedup, "load")
def leaves_out_the_last_row_at_a_take_over(
    self: Dedup, namespace: int, rows: Sequence[SeenDigests], until: int | None = None
) -> bool:
    window = self.windows[namespace]
    if until is None and rows and rows[-1].first + len(rows[-1].digests) // DIGEST_BYTES == window.expected_end:
        _load(self, namespace, rows[:-1])
        window.begin_at(window.expected_end)
        rows = []
    return namespace not in self.loading or _load(self, namespace, rows, until)


@in_place_of(Dedup, "insert_once")
def lets_items_in_before_the_ids_are_read(
    self: Dedup,
    items: list[ShardItem],
    digests: list[bytes],
    size_bytes: int,
    completion: Completion,
    outcome: OnceOutcome,
) -> None:
    self._inserts.hold(len(items), size_bytes)
    self._admit(items, digests, completion, outcome)


def _has_images(profile: Profile) -> bool:
    return bool(profile.limits["IMAGE_IDS_MIN"] <= 20)


def _reads_images(profile: Profile) -> bool:
    return _has_images(profile) and bool(profile.host_fault_rate or profile.server_fault_rate or profile.drain_rate)


@in_place_of(Remembering, "write", _has_images)
def takes_ids_into_tables_and_images_before_their_commit(self: Remembering, transaction: Transaction, now: Now) -> None:
    _write(self, transaction, now)
    for row in self._rows:
        window = self._source.windows[row.namespace]
        window.add(row.digests, row.at_ms, 1_000)
        window.last_first = row.first
        self._source.images.check(window)
    self._rows = []


@in_place_of(Imaging, "write", _has_images)
def takes_a_part_of_an_image_for_written_before_it_is_committed(
    self: Imaging, transaction: Transaction, now: Now
) -> None:
    _write_part(self, transaction, now)
    if self._maker is not None:
        self._source.written(self._maker)
        self._maker = None


@in_place_of(Dedup, "load_image", _reads_images)
def leaves_out_the_log_after_an_image(self: Dedup, image: StoredImage, table: SeenTable, marks: Sequence[Mark]) -> None:
    _load_image(self, image, table, marks)
    window = self.windows[image.key.namespace]
    window.end = window.expected_end


@in_place_of(Images, "_drop", _has_images)
def keeps_images_of_what_is_forgotten(self: Images, image: StoredImage) -> None:
    return None
