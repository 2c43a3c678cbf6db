"""What must hold of the dedup ids of a shard: those that are known are those that are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from foqs.model import limits
from foqs.model.seen import BLOCK_IDS, SeenTable, SeenWindow, hashes_of
from foqs.model.seen_image import BadImageError, ImageKey, ImageReader, read_head
from foqs.shard.state.engine import ShardState
from foqs.shard.state.ops.check import NO_ITEM
from foqs.testing.fake_tables import Tables

_LOOKED_FOR_MAX = 100
"""How many ids of a window are looked for at a time."""
_FOUND_MAX = 1_000
_found: dict[int, tuple[SeenWindow, tuple[int, int, tuple[int, ...]]]] = {}
"""By window: what was there when its ids were looked for last."""


def dedup_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    """S1 and S2: the log has no digest twice in its window, and what is in the window is found where it stands."""
    dedup = shard.dedup
    pending = [digest for batch in shard.inserts.batches() for digest in getattr(batch.firsts, "digests", ())]
    pending += [check.digest for check in dedup.checks.held()]
    if sorted(dedup.pending) != sorted(pending) or not dedup.repeats.keys() <= dedup.pending.keys():
        yield f"{len(dedup.pending)} dedup ids are pending, and those of {len(pending)} items are on their way"
    extents = {extent.namespace: extent for extent in tables.seen_extents()}
    for namespace, window in dedup.windows.items():
        extent = extents.get(namespace)
        if namespace in dedup.loading:
            continue
        end = extent.end if extent is not None else window.dropped_to
        if (window.end, window.is_doomed or window.edge >= window.dropped_to) != (end, True):
            yield f"namespace {namespace} has dedup ids up to {end}, and {window.edge} to {window.end} are known"
            continue
        found = list(window_ids(tables, namespace, window.edge, window.end))
        if [number for number, *_ in found] != list(range(window.edge, window.end)):
            yield f"rows of the dedup ids of namespace {namespace} are missing between {window.edge} and {window.end}"
        settings = shard.index.settings
        # The bounds may have been narrower once: a namespace that was recovered has those that it is given.
        ids_max = min(settings.dedup_ids(namespace), limits.DEDUP_IDS_KEPT, 40)
        ms_max = min(settings.dedup_ms(namespace), 1_500)
        # What came with a slot is as its first shard had it, with ids that were forgotten there and taken again.
        yield from _twice([one for one in found if one.number >= window.moved_end], namespace, ids_max, ms_max)
        yield from _not_found(window, namespace, found)
    for namespace in extents:
        if namespace not in dedup.windows:
            yield f"nobody knows the dedup ids of namespace {namespace}"
        if namespace not in tables.namespaces:
            yield f"dedup ids are of namespace {namespace}, which has no name"


def _not_found(window: SeenWindow, namespace: int, found: list[WindowId]) -> Iterator[str]:
    """Ids that the window's tables do not lead to: some of many, others each time, once there are new ones."""
    now_there = (window.edge, window.end, tuple(map(id, window.tables)))
    last = _found.get(id(window))
    if last is not None and last[0] is window and last[1] == now_there:
        return
    if len(_found) >= _FOUND_MAX:
        _found.clear()
    _found[id(window)] = (window, now_there)
    some = _some(found, window)
    places = window.probe([digest for _, digest, *_ in some])
    for at, (number, *_) in enumerate(some):
        if number // BLOCK_IDS not in places.get(at, ()):
            yield f"dedup id {number} of namespace {namespace} is not found in its block"


def _some(found: list[WindowId], window: SeenWindow) -> list[WindowId]:
    """Others of them each time that the window has grown."""
    step = len(found) // _LOOKED_FOR_MAX + 1
    return found[window.end % step :: step]


def image_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    """Images are known to the shard, and those of its tables have all their ids that the log has."""
    images, windows = shard.images, shard.dedup.windows
    stored = {image.key: image for some in images.stored.values() for image in some.values()}
    unused = {image.key: image for some in images.unused.values() for image in some}
    known = {**stored, **unused, **images.gone}
    found = {image.key: image for image in tables.seen_images()}
    making = images.making
    if found != known and (making is None or {**found, making.key: None} != {**known, making.key: None}):
        yield f"images {found} of dedup ids are there, and {known} are known"
    for key in stored.keys() & found.keys():
        try:
            table = _read_image(key, tables)
        except BadImageError as error:
            yield f"{key} is not to be used: {error}"
            continue
        first = max(key.first, windows[key.namespace].edge)
        for number, digest, *_ in _some(
            list(window_ids(tables, key.namespace, first, key.end)), windows[key.namespace]
        ):
            if number // BLOCK_IDS not in table.blocks_of(hashes_of([digest])[0]):
                yield f"{key} has not dedup id {number}"


def _read_image(key: ImageKey, tables: Tables) -> SeenTable:
    head, *parts = tables.parts_of(key)
    reader = ImageReader(read_head(key, head.body))
    for part in parts:
        reader.take(part.number, part.body)
    return reader.table()


class WindowId(NamedTuple):
    """A dedup id in the log."""

    number: int
    digest: bytes
    at_ms: int
    item: tuple[int, int]


def window_ids(tables: Tables, namespace: int, first: int, end: int) -> Iterator[WindowId]:
    """The ids in the log from `first` on and before `end`."""
    for row in tables.seen_rows(namespace, first // BLOCK_IDS * BLOCK_IDS, end):
        for at, (digest, item) in enumerate(zip(row.digests, row.items, strict=True), row.first):
            if first <= at < end:
                yield WindowId(at, digest, row.at_ms, item)


def _twice(found: list[WindowId], namespace: int, ids_max: int, ms_max: int) -> Iterator[str]:
    """A new owner may know ids again that the last one had forgotten by their number or age, and taken again.

    What has gone with its slot and come back stands there once more, with the item that it had.
    """
    last: dict[bytes, WindowId] = {}
    for one in found:
        before = last.get(one.digest)
        is_near = before is not None and one.number - before.number <= ids_max and one.at_ms - before.at_ms < ms_max
        is_made_free = before is not None and NO_ITEM in (before.item[1], one.item[1])
        if before is not None and is_near and one.item != before.item and not is_made_free:
            yield (
                f"dedup ids {before.number} and {one.number} of namespace {namespace} are the same, "
                f"of {before.at_ms} and {one.at_ms} ms"
            )
        last[one.digest] = one
