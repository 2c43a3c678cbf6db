"""`foqs dev` as a process of its own, in a directory that goes when it ends: a queue of one host for Spark."""

from __future__ import annotations

import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from foqs import AdminClient, FoqsError
from foqs.storage.sessions.login import GuardedConnection

_START_S_MAX = 60
_STOP_S_MAX = 60
_READY = re.compile(rb"foqs is ready on (\S+:\d+)")


class DevCluster:
    """A host with its shards; `address` once it runs. Everything it made is gone on exit."""

    def __init__(self) -> None:
        self.address = ""
        self._home = tempfile.TemporaryDirectory(prefix="foqs-demo-")
        self._data_dir = Path(self._home.name, "data")
        self._log_path = Path(self._home.name, "log")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def rows_left(self) -> dict[str, int]:
        """Item rows by shard database, asked of MySQL itself."""
        socket_path = str(self._data_dir / "mysql.sock")
        session = GuardedConnection(unix_socket=socket_path, user="root", autocommit=True, ssl_disabled=True)
        with session, session.cursor() as cursor:
            cursor.execute("SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE 'foqs\\_shard%'")
            found = {}
            for (database,) in cursor.fetchall():
                cursor.execute(f"SELECT COUNT(*) FROM {database}.item")
                row = cursor.fetchone()
                assert row is not None
                found[str(database)] = int(row[0])
            return found

    def _start(self) -> None:
        command = [str(Path(sys.executable).with_name("foqs")), "dev", "--port", "0", "--data-dir", str(self._data_dir)]
        with self._log_path.open("wb") as log:
            # Its own session: Ctrl-C is for the demo alone, which stops it in order.
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        deadline_s = time.monotonic() + _START_S_MAX
        ready = _READY.search(self._first_line(deadline_s))
        if ready is None:
            raise SystemExit(f"`foqs dev` did not start:\n{self._log_tail()}")
        self.address = ready[1].decode()
        self._wait_for_shards(deadline_s)

    def _first_line(self, deadline_s: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline_s - time.monotonic()))
        return self._process.stdout.readline() if readable else b""

    def _wait_for_shards(self, deadline_s: float) -> None:
        with AdminClient(self.address) as admin:
            while time.monotonic() < deadline_s:
                try:
                    if all(shard.state == "owned" for shard in admin.host_status().shards):
                        return
                except FoqsError as error:
                    raise SystemExit(f"the host does not answer: {error}\n{self._log_tail()}") from error
                time.sleep(0.1)
        raise SystemExit(f"the host does not own its shards after {_START_S_MAX} s\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-2_000:]

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()  # Its MySQL server ends with it.
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._home.cleanup()
