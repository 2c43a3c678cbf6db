"""Rows of namespaces that every host keeps in memory, read by blocks: only the blocks that have changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Generic, TypeVar
from zlib import crc32

from sqlalchemy import Connection, RowMapping, Table, and_, cast, func, or_, select
from sqlalchemy.dialects.mysql import BIGINT

from foqs.model.namespace import Namespace

_HEX_DIGITS = 16
_NAMESPACES_AT_ONCE = 100
"""Namespaces with changed rows that one statement reads."""

T = TypeVar("T")


class Kind(Generic[T]):
    """The rows of one table, each of one namespace and with a name that is unique in it."""

    def __init__(self, table: Table, name_column: str, value_of: Callable[[RowMapping], T]) -> None:
        """`value_of` makes the value of a row."""
        self.table = table
        self.namespace = table.c.namespace
        self.name_column = name_column
        self.name = table.c[name_column]
        self._value_of = value_of
        self.block = func.crc32(self.name).op(">>")(24)
        """The names in a namespace are split into 256 blocks by hash."""
        # MySQL 9.7 no longer has MD5 and SHA1.
        digest = func.conv(func.left(func.sha2(func.concat_ws(",", *table.c), 256), _HEX_DIGITS), 16, 10)
        row_digest = cast(digest, BIGINT(unsigned=True))
        self.digests = select(table.c.namespace, self.block, func.count(), func.bit_xor(row_digest))

    def named(self, row: RowMapping) -> tuple[str, T]:
        return row[self.name_column].decode(), self._value_of(row)


class Blocks(Generic[T]):
    """The rows of one kind as of the last read, by namespace, with a digest of each block. For any thread.

    The `policies_version` of a namespace changes with each of its rows, of any kind.
    """

    def __init__(self, kind: Kind[T]) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._versions: dict[int, int] = {}
        self._digests: dict[int, dict[int, tuple[int, int]]] = {}
        self._values: dict[int, dict[str, T]] = {}

    def read(self, connection: Connection, namespaces: Sequence[Namespace]) -> Mapping[int, Mapping[str, T]]:
        """Return the values of all rows, as the same object as the last time if none has changed.

        Only namespaces whose version has changed are examined, and only their changed blocks are read. A change during
        this read is found by the next one, because versions are read before rows.
        """
        with self._lock:
            versions = {one.number: one.policies_version for one in namespaces if one.policies_version}
            if versions == self._versions:
                return self._values
            changed = iter([number for number, version in versions.items() if self._versions.get(number) != version])
            values = {number: some for number, some in self._values.items() if number in versions}
            digests = {number: some for number, some in self._digests.items() if number in versions}
            while numbers := list(islice(changed, _NAMESPACES_AT_ONCE)):
                found = self._digests_of(connection, numbers)
                values |= self._read_blocks(connection, found)
                digests |= found
            self._versions, self._digests = versions, digests
            self._values = {number: some for number, some in values.items() if some}
            return self._values

    def _read_blocks(
        self, connection: Connection, digests: Mapping[int, Mapping[int, tuple[int, int]]]
    ) -> dict[int, dict[str, T]]:
        """Return the values of these namespaces, reading only blocks with an unknown digest."""
        wanted, gone = {}, {}
        for number, blocks in digests.items():
            known = self._digests.get(number, {})
            wanted[number] = [block for block, digest in blocks.items() if known.get(block) != digest]
            gone[number] = {*wanted[number], *(known.keys() - blocks.keys())}
        read: dict[int, dict[str, T]] = {number: {} for number in digests}
        for row in self._rows_of(connection, wanted):
            name, value = self._kind.named(row)
            before = self._values.get(row["namespace"], {}).get(name)
            read[row["namespace"]][name] = before if before == value and before is not None else value
        for number, some in read.items():
            if gone[number]:
                for name, value in self._values.get(number, {}).items():
                    if _block_of(name) not in gone[number]:
                        some[name] = value
            else:
                read[number] = self._values.get(number, {})
        return read

    def _digests_of(self, connection: Connection, numbers: Sequence[int]) -> dict[int, dict[int, tuple[int, int]]]:
        found: dict[int, dict[int, tuple[int, int]]] = {number: {} for number in numbers}
        kind = self._kind
        statement = kind.digests.where(kind.namespace.in_(numbers)).group_by(kind.namespace, kind.block)
        for number, block, count, digest in connection.execute(statement):
            found[number][block] = (count, digest)
        return found

    def _rows_of(self, connection: Connection, blocks: Mapping[int, Sequence[int]]) -> Iterator[RowMapping]:
        kind = self._kind
        mine = [and_(kind.namespace == number, kind.block.in_(some)) for number, some in blocks.items() if some]
        if mine:
            yield from connection.execute(select(kind.table).where(or_(*mine))).mappings()


def _block_of(name: str) -> int:
    return crc32(name.encode()) >> 24
