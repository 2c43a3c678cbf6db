"""Dedup ids of rows, from a key column or from the content of the rows. Pure: no clock, chance or I/O.

An id must be the same each time Spark repeats the row's task. The row's position is not the same: after a shuffle the
rows of a partition arrive in another order each time (Spark's DeterministicLevel.UNORDERED). A repeated task that takes
ids from positions gives row B the id of row A, and B is dropped as a repeat. Only the set of a partition's rows
repeats.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from foqs.client.encoded import EncodedItems
from foqs.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

ID_BYTES_MAX = 255
"""Longest dedup id that the service accepts, in bytes."""
KEY_COLUMN = "dedup_id"
"""The default key column."""
KEY_TYPES = ("string", "binary", "tinyint", "smallint", "int", "bigint")
"""The types that a key column can have in Spark."""
CONTENT_ROWS_MAX = 2_000_000
"""Most different rows of one task with ids from their content. Each costs the task about 100 bytes of memory."""
_DIGEST_BYTES = 16
_KEY_BYTES = 32


def key_texts(column: pa.Array) -> pa.Array:
    """The ids of a key column as UTF-8: text unchanged, whole numbers in decimal, bytes in hexadecimal, null for null.

    Bytes are in hexadecimal, not base64, because tools and logs show such keys in hexadecimal. The digits are always in
    lower case, so one key makes one id.
    """
    import pyarrow as pa

    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    elif pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        column = pa.array([None if key is None else key.hex() for key in column.to_pylist()], pa.string())
    return column.cast(pa.binary())


def key_faults(texts: pa.Array, name: str) -> dict[int, str]:
    """The rows without a valid id, each with the reason; `name` is the name of the key column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    faults: dict[int, str] = {}
    if texts.null_count:
        nulls = pc.indices_nonzero(texts.is_null()).to_pylist()
        faults.update(dict.fromkeys(nulls, f"{name} is null, and dedup=key needs it"))
    lengths = pc.binary_length(texts)
    bounds = pc.min_max(lengths).as_py()
    if bounds["min"] is not None and not 1 <= bounds["min"] <= bounds["max"] <= ID_BYTES_MAX:
        for row, length in enumerate(lengths.to_pylist()):
            if length is not None and not 1 <= length <= ID_BYTES_MAX:
                faults[row] = f"{name} makes an id of {length} bytes; it has 1 to {ID_BYTES_MAX}"
    try:
        texts.cast(pa.string())  # The cast checks that all texts are UTF-8.
    except pa.ArrowInvalid:
        for row, text in enumerate(texts.to_pylist()):
            if text is not None and not is_utf8(text):
                faults[row] = f"{name} {text[:50]!r} is not UTF-8"
    return faults


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class ContentIds:
    """Ids for the rows of one task, from the content of each row and the number of equal rows before it in the task.

    The n-th of several equal rows has the same id in any order of the rows, and equal rows are all kept. The partition
    is part of the id, so equal rows of two partitions are both kept too. This holds for all attempts of a task, and for
    a stage that is run again. It does not hold for another run of the job, which can split the rows into other
    partitions.
    """

    def __init__(self, job_id: str, partition: int, rows_max: int = CONTENT_ROWS_MAX) -> None:
        """`job_id` separates the rows of different jobs. Each micro-batch has its own."""
        self._key = blake2b(f"{partition}/{job_id}".encode(), digest_size=_KEY_BYTES).digest()
        self._rows_max = rows_max
        self._seen: set[bytes] = set()
        self._counts: dict[bytes, int] = {}
        """The number of equal rows so far, for rows that came more than once."""

    def take(self, rows: EncodedItems) -> list[str]:
        """Give ids to the next rows. Raises InvalidArgumentError if the task has more than `rows_max` different
        rows.
        """
        key, seen = self._key, self._seen
        ids = []
        for row in rows:
            digest = blake2b(row, digest_size=_DIGEST_BYTES, key=key)
            hashed = digest.digest()
            if hashed in seen:
                self._counts[hashed] = number = self._counts.get(hashed, 1) + 1
                ids.append(f"{digest.hexdigest()}-{number}")
            else:
                seen.add(hashed)
                ids.append(digest.hexdigest())
        if len(seen) > self._rows_max:
            raise InvalidArgumentError(
                f"dedup=content: a task has more than {self._rows_max:,} different rows, which it must remember; "
                "repartition into more tasks, or use dedup=key"
            )
        return ids


def texts_of(ids: list[str]) -> Any:
    """The ids as an Arrow array of bytes."""
    import pyarrow as pa

    return pa.array(ids, pa.string()).cast(pa.binary())
