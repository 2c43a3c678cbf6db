"""The statements of a transaction on the dedup ids that items hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from foqs.model.held import FREED, HeldChanges, HeldId, Holder, NamespaceDigest
from foqs.storage.schema import statements as sql

_IDS_MAX: Final = 900
"""Ids in one list of SQL. From 1,000 on (in_predicate_conversion_threshold), MariaDB joins with a derived table."""
_ROWS_MAX: Final = 1_000
"""Rows of one insert: about 90 KiB."""


def held_reads(held: HeldChanges) -> list[str]:
    """Return the reads of the holders of ids."""
    return [sql.READ_HELD.format(namespace, digests) for namespace, digests in _listed(held.reads)]


def take_held(rows: Iterable[Sequence[Any]], holders: dict[NamespaceDigest, Holder], own_shard_id: int) -> None:
    """Take the rows of a read; an item with copies has several.

    One living item holds an id. A row of another shard can be of an item that has ended, so one of this shard counts
    before it.
    """
    for namespace, digest, shard_id, first, copies_count in rows:
        one = NamespaceDigest(namespace, bytes(digest))
        if first == FREED:
            continue
        if one not in holders or shard_id == own_shard_id:
            holders[one] = Holder(shard_id, first, copies_count)


def held_writes(held: HeldChanges, shard_id: int) -> list[str]:
    """Return the changes of held ids. The ones that end are not counted, because most items hold no id."""
    script = [sql.DELETE_HELD.format(shard_id, f"id IN ({keys})", count) for keys, count in _keys(held.ended)]
    for namespace, digests in _listed(held.freed):
        script += [one.format(namespace, digests, shard_id) for one in (sql.FREE_HELD, sql.FREE_DISTANT)]
    for (namespace, digest), holder in held.released:
        script.append(sql.RELEASE_HELD % (namespace, _literal(digest), holder.shard_id, holder.first))
    for start in range(0, len(held.new), _ROWS_MAX):
        rows = ",".join(map(_row, held.new[start : start + _ROWS_MAX]))
        script.append(sql.INSERT_HELD.format(rows))
    return script


def _keys(keys: Iterable[int]) -> Iterator[tuple[str, int]]:
    """Yield lists of keys with their lengths, in order, so that locks are always taken in one order."""
    ordered = sorted(set(keys))
    for start in range(0, len(ordered), _IDS_MAX):
        part = ordered[start : start + _IDS_MAX]
        yield ",".join(["%d"] * len(part)) % tuple(part), len(part)


def _listed(ids: Iterable[NamespaceDigest]) -> Iterator[tuple[int, str]]:
    """Yield lists of digests as SQL, with their namespace."""
    by_namespace: dict[int, dict[bytes, None]] = {}
    for namespace, digest in ids:
        by_namespace.setdefault(namespace, {})[digest] = None
    for namespace, some in by_namespace.items():
        digests = sorted(some)
        for start in range(0, len(digests), _IDS_MAX):
            yield namespace, ",".join(map(_literal, digests[start : start + _IDS_MAX]))


def _literal(digest: bytes) -> str:
    return f"x'{digest.hex()}'"


def _row(held: HeldId) -> str:
    ends = f"{held.first:d},{held.copies_count:d}"
    return f"({held.key:d},{held.shard_id:d},{held.namespace:d},{_literal(held.digest)},{ends})"
