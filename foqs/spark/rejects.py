"""The side output: rejected rows with the reason, in Parquet files that Spark can read again.

A task writes to a file named after its attempt. The name begins with `_`, so readers skip it. The commit of the job
renames the files of the successful attempts. Files of other attempts are deleted, or keep their names.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foqs.model.errors import InvalidArgumentError
from foqs.spark.redact import redacted, redacted_text

if TYPE_CHECKING:
    import pyarrow as pa

REASON_COLUMN = "foqs_reason"
"""The column of the reason, beside the columns of the rows."""
PENDING_ROWS_MAX = 1_000
PENDING_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one task. `run_id` names one run of a job, or the micro-batch; `number` is the attempt's number
    in the application.
    """

    run_id: str
    partition: int
    number: int

    @property
    def hidden_name(self) -> str:
        return f"_{self.run_id}-{self.partition:05d}-{self.number}.parquet"

    @property
    def name(self) -> str:
        return f"{self.run_id}-{self.partition:05d}.parquet"


class Rejects:
    """The rejected rows of one attempt; its sender owns it. It keeps rows until `flush`, which can take long."""

    def __init__(self, directory: str | None, attempt: Attempt) -> None:
        """The rows are dropped if `directory` is None."""
        self._directory = directory
        self._attempt = attempt
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._stream: Any = None
        self._writer: Any = None

    @property
    def is_full(self) -> bool:
        """True if enough rows are kept to be written."""
        return self._pending_rows >= PENDING_ROWS_MAX or self._pending_bytes >= PENDING_BYTES_MAX

    def add(self, batch: pa.RecordBatch, refused: Sequence[tuple[int, str]]) -> None:
        """Keep these rows of the batch; each is a number and a reason."""
        if self._directory is None or not refused:
            return
        import pyarrow as pa

        rows = batch.take(pa.array([number for number, _ in refused], pa.int64()))
        reasons = pa.array([reason for _, reason in refused], pa.string())
        names = [name for name in rows.schema.names if name != REASON_COLUMN]
        kept = pa.record_batch(
            {**{name: rows.column(rows.schema.names.index(name)) for name in names}, REASON_COLUMN: reasons}
        )
        self._pending.append(kept)
        self._pending_rows += kept.num_rows
        self._pending_bytes += kept.nbytes

    def flush(self) -> None:
        """Write the kept rows. Raises OSError on failure."""
        pending, self._pending = self._pending, []
        self._pending_rows = self._pending_bytes = 0
        if not pending:
            return
        import pyarrow as pa
        from pyarrow import parquet

        if self._writer is None:
            assert self._directory is not None
            system, path = _open(self._directory)
            self._stream = system.open_output_stream(f"{path}/{self._attempt.hidden_name}")
            self._writer = parquet.ParquetWriter(self._stream, pending[0].schema)
        self._writer.write_table(pa.Table.from_batches(pending))

    def close(self) -> Attempt | None:
        """Write the kept rows and end the file. Returns the attempt if it has a file."""
        self.flush()
        if self._writer is None:
            return None
        self._writer.close()
        self._stream.close()
        return self._attempt

    def abandon(self) -> None:
        """End the file without the kept rows, because the attempt has failed."""
        if self._stream is not None:
            self._stream.close()


def check_directory(directory: str) -> None:
    """Make the directory if it is missing. Raises InvalidArgumentError if no file can be written into it."""
    import pyarrow as pa

    try:
        system, path = _open(directory)
        system.create_dir(path, recursive=True)
        probe = f"{path}/_probe-{uuid.uuid4()}"
        system.open_output_stream(probe).close()
        system.delete_file(probe)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise InvalidArgumentError(_unusable(directory, error)) from None  # The error's text can contain a password.


def commit(directory: str, run_id: str, attempts: Iterable[Attempt]) -> list[str]:
    """Give the files of these attempts their final names, and delete those of other attempts. Returns the failures."""
    import pyarrow as pa
    from pyarrow.fs import FileSelector

    try:
        system, path = _open(directory)
        for attempt in attempts:
            system.move(f"{path}/{attempt.hidden_name}", f"{path}/{attempt.name}")
        # Match the whole name, because the name of another job can begin with this one.
        is_mine = re.compile(rf"_{re.escape(run_id)}-\d{{5,}}-\d+\.parquet")
        for info in system.get_file_info(FileSelector(path)):
            if is_mine.fullmatch(info.base_name):
                system.delete_file(info.path)
    except (OSError, pa.ArrowException, InvalidArgumentError) as error:
        place = redacted(directory)
        return [
            f"rejected rows stay in files _{run_id}-*.parquet in {place}, of all attempts: "
            f"{redacted_text(str(error), directory)}"
        ]
    return []


def _unusable(directory: str, error: Exception) -> str:
    return f"rejectedRowsPath {redacted(directory)!r} cannot be used: {redacted_text(str(error), directory)}"


def _open(directory: str) -> tuple[Any, str]:
    """The file system and the path in it. Raises InvalidArgumentError without the password of the directory in its
    text.
    """
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        system, path = FileSystem.from_uri(directory)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise InvalidArgumentError(_unusable(directory, error)) from None
    return system, path.rstrip("/")
