"""The insert of many items as a prepared statement, to which the rows are sent as binary values.

The server parses it once; a row in SQL text costs it a third more (`python -m loadtest.bench shapes`), and hexadecimal
literals have twice the bytes. The protocol describes an execution
(https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_stmt_execute.html).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

from pymysql.constants import COMMAND, ER, FIELD_TYPE
from pymysql.err import OperationalError

from foqs.model import limits
from foqs.model.item import ShardItem
from foqs.storage.schema import statements as sql
from foqs.storage.schema.item_columns import GIVEN_COLUMNS, INSERTED_COLUMNS, KEY_COLUMNS, UNSIGNED, inserted_integers
from foqs.storage.sessions.exchange import command_packet

PREPARED_INSERT_ROWS: Final = 32
"""Rows in one prepared insert. The remaining rows of a transaction are sent as SQL text, which costs a third more."""

_integers = Struct("<" + "".join([column.code for column in (*KEY_COLUMNS, *GIVEN_COLUMNS)])).pack
_COUNT: Final = len(INSERTED_COLUMNS)
_TYPES: Final = Struct(f"<{_COUNT}H").pack(*[column.wire_type for column in INSERTED_COLUMNS]) * PREPARED_INSERT_ROWS
_NO_NULLS: Final = bytes((_COUNT * PREPARED_INSERT_ROWS + 7) // 8)
_PACK_TYPES: Final = Struct("<2H").pack(FIELD_TYPE.LONGLONG | UNSIGNED, FIELD_TYPE.BLOB)
_SEEN_TYPES: Final = Struct("<4H").pack(
    FIELD_TYPE.LONG | UNSIGNED, FIELD_TYPE.LONGLONG | UNSIGNED, FIELD_TYPE.LONGLONG, FIELD_TYPE.BLOB
)
_SIZES: Final = [bytes([size]) for size in range(251)]
"""The length prefix of a value of less than 251 bytes, by its length."""
_pack_id = Struct("<Q").pack
_seen_head = Struct("<IQq").pack
_execution = Struct("<IBI").pack
_prepared = Struct("<IHH").unpack_from


_COUNT_STEP: Final = 1 << 16
assert limits.TRANSACTION_INSERTS_MAX + limits.BATCH_ITEMS_MAX < _COUNT_STEP, "packs are fewer than their items"


@dataclass(frozen=True, slots=True)
class Ahead:
    """The commands to send before a script, and the items left for its SQL text.

    The script must commit only if `guard` holds, which proves that all rows of the commands were inserted.
    """

    packets: list[bytes]
    rest: Sequence[ShardItem]
    guard: str = sql.NONE_AHEAD


class PreparedInserts:
    """The prepared inserts of one session. Every execution repeats the types, because the first one can fail.

    Every script counts its rows from a different number, so that a count left by an earlier script never matches.
    """

    def __init__(self, items_id: int, pack_id: int, seen_id: int) -> None:
        self._count_from = 0
        self._items_head = _execution(items_id, 0, 1) + _NO_NULLS + b"\x01" + _TYPES
        self._pack_head = _execution(pack_id, 0, 1) + b"\x00\x01" + _PACK_TYPES
        self._seen_head = _execution(seen_id, 0, 1) + b"\x00\x01" + _SEEN_TYPES

    def ahead(
        self,
        items: Sequence[ShardItem],
        packs: Sequence[tuple[int, bytes]] = (),
        seen: Sequence[tuple[int, int, int, bytes]] = (),
    ) -> Ahead:
        """Build executions for the packs, the rows of seen ids, and the items that fill whole executions.

        A count of the inserted rows follows each execution. A pack is given as its id and contents, a row of seen ids
        as the values of statements.INSERT_SEEN.
        """
        self._count_from += _COUNT_STEP
        executions = [
            self._pack_head + _pack_id(pack_id) + _blob_size(len(contents)) + contents for pack_id, contents in packs
        ]
        executions += [
            self._seen_head + _seen_head(namespace, first, at_ms) + _blob_size(len(entries)) + entries
            for namespace, first, at_ms, entries in seen
        ]
        row_count = len(executions)
        rest: list[ShardItem] = []
        for start in range(0, len(items), PREPARED_INSERT_ROWS):
            part = items[start : start + PREPARED_INSERT_ROWS]
            rows = _rows(part) if len(part) == PREPARED_INSERT_ROWS else b""
            if rows and len(rows) <= limits.STATEMENT_BYTES_MAX:
                executions.append(self._items_head + rows)
                row_count += PREPARED_INSERT_ROWS
            else:
                rest += part
        if not executions:
            return Ahead([], rest)
        packets: list[bytes] = []
        count = sql.COUNT_FIRST_INSERTED.format(self._count_from)
        for execution in executions:
            packets.append(command_packet(COMMAND.COM_STMT_EXECUTE, execution))
            packets.append(command_packet(COMMAND.COM_QUERY, count.encode()))
            count = sql.COUNT_INSERTED
        return Ahead(packets, rest, sql.ALL_INSERTED.format(self._count_from + row_count))


def prepare_inserts(session: Any) -> PreparedInserts | None:
    """Prepare the inserts, or return None if the server has no room for them. Blocks; raises pymysql's errors."""
    row = f"({','.join('?' * _COUNT)})"
    try:
        rows = ",".join([row] * PREPARED_INSERT_ROWS)
        items_id = _prepare(session, sql.INSERT_ITEMS.format(rows), _COUNT * PREPARED_INSERT_ROWS)
        pack_id = _prepare(session, sql.INSERT_PACK.format("?", "?"), 2)
        return PreparedInserts(items_id, pack_id, _prepare(session, sql.INSERT_SEEN.format("?", "?", "?", "?"), 4))
    except OperationalError as error:
        if error.args[0] == ER.MAX_PREPARED_STMT_COUNT_REACHED:
            return None
        raise


def _prepare(session: Any, statement: str, expected_count: int) -> int:
    """Prepare a statement and return its id."""
    session._execute_command(COMMAND.COM_STMT_PREPARE, statement)
    statement_id, column_count, parameter_count = _prepared(session._read_packet().get_all_data(), 1)
    assert (column_count, parameter_count) == (0, expected_count)
    for _ in range(parameter_count + 1):
        session._read_packet()
    return int(statement_id)


def _rows(items: Sequence[ShardItem]) -> bytes:
    """Encode the items; empty if a number does not fit its column. SQL text then gets the server's error."""
    parts: list[bytes] = []
    try:
        for item in items:
            parts.append(_integers(*inserted_integers(item)))
            assert item.content is not None
            for value in item.content:
                size = len(value)
                parts.append(_SIZES[size] if size < len(_SIZES) else _blob_size(size))
                parts.append(value)
    except struct_error:
        return b""
    return b"".join(parts)


def _blob_size(size: int) -> bytes:
    """Return the length prefix of a value of `size` bytes."""
    if size < len(_SIZES):
        return _SIZES[size]
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little")
    return b"\xfd" + size.to_bytes(3, "little")
