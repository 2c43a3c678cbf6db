"""The list of all namespaces, of which repeated reads fetch the changed ones only.

A host has to notice every change within a second, and reading 20,000 rows would take it most of that second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from sqlalchemy import Connection, RowMapping, cast, func, or_, select
from sqlalchemy.dialects.mysql import BIGINT

from foqs.model.namespace import Namespace
from foqs.storage.meta.meta_tables import NAMESPACE

_BLOCK_BITS = 8
_BLOCK = NAMESPACE.c.number.op(">>")(_BLOCK_BITS)
_HEX_DIGITS = 16
# MySQL 9.7 no longer has MD5 and SHA1.
_ROW_DIGEST = cast(
    func.conv(func.left(func.sha2(func.concat_ws(",", *NAMESPACE.c), 256), _HEX_DIGITS), 16, 10), BIGINT(unsigned=True)
)
_DIGESTS = select(_BLOCK, func.count(), func.bit_xor(_ROW_DIGEST)).group_by(_BLOCK)


class NamespaceBlocks:
    """The namespaces of the last read, in blocks of 256 numbers with a digest of each. For any thread."""

    def __init__(self, namespace_of: Callable[[RowMapping], Namespace]) -> None:
        self._namespace_of = namespace_of
        self._lock = threading.Lock()
        self._digests: dict[int, tuple[int, int]] = {}
        self._blocks: dict[int, list[Namespace]] = {}
        self._by_name: list[Namespace] = []

    def read(self, connection: Connection) -> list[Namespace]:
        """Return all namespaces by name, as the same list object if no namespace has changed since the last call.

        A change during this read is found by the next one, because the digests are read before the rows.
        """
        with self._lock:
            digests = {block: (count, digest) for block, count, digest in connection.execute(_DIGESTS)}
            if digests == self._digests:
                return self._by_name
            changed = [block for block, digest in digests.items() if self._digests.get(block) != digest]
            blocks = {block: found for block, found in self._blocks.items() if block in digests}
            blocks |= self._read_blocks(connection, changed)
            self._digests, self._blocks = digests, blocks
            self._by_name = sorted([one for found in blocks.values() for one in found], key=lambda one: one.name)
            return self._by_name

    def _read_blocks(self, connection: Connection, blocks: list[int]) -> dict[int, list[Namespace]]:
        found: dict[int, list[Namespace]] = {block: [] for block in blocks}
        if not blocks:
            return found
        number = NAMESPACE.c.number
        mine = [number.between(block << _BLOCK_BITS, ((block + 1) << _BLOCK_BITS) - 1) for block in blocks]
        for row in connection.execute(select(NAMESPACE).where(or_(*mine))).mappings():
            found[row["number"] >> _BLOCK_BITS].append(self._namespace_of(row))
        return found
