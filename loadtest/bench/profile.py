"""Where the host's time goes: py-spy samples it while a scenario runs.

py-spy reads the host's memory from outside, so that the host runs as it would without; a tracing profiler costs
each call more than the call itself takes here. It is not a dependency: `pip install py-spy` into the environment.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.table import Table

SAMPLES_PER_S = 250
_START_S_MAX = 20
_STOP_S_MAX = 60
_FILES_MAX, _FUNCTIONS_MAX = 20, 40
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>[^()]+?)(?::\d+)?\)")
_PLACE = re.compile(
    rf"^({re.escape(str(Path(__file__).resolve().parents[2]))}/|.*/site-packages/|.*/lib/python[0-9.]+/)"
)


class Profiler:
    """A context manager around the work; afterwards one count for each call stack has been added to `samples`.

    Raises SystemExit with what to do when py-spy is missing or may not read the process.
    """

    def __init__(self, pid: int, samples: Counter[str]) -> None:
        self.samples = samples
        self._pid = pid
        self._directory = tempfile.TemporaryDirectory(prefix="foqs-profile-")
        self._path = Path(self._directory.name, "stacks")
        self._log_path = Path(self._directory.name, "log")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        beside = Path(sys.executable).with_name("py-spy")
        program = str(beside) if beside.exists() else shutil.which("py-spy")
        if program is None:
            raise SystemExit(f"--profile needs py-spy: {sys.executable} -m pip install py-spy")
        options = ["--rate", str(SAMPLES_PER_S), "--format", "raw", "--full-filenames", "--nolineno", "--nonblocking"]
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [program, "record", "--pid", str(self._pid), "--output", str(self._path), *options],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline_s = time.monotonic() + _START_S_MAX
        while b"Sampling process" not in self._log_path.read_bytes():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self._process.kill()
                self._process.wait()
                raise SystemExit(f"py-spy cannot read the host (root may):\n{self._log_path.read_text()}")
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(_STOP_S_MAX)
        if self._path.exists():
            self.samples.update(parse(self._path.read_text()))
        self._directory.cleanup()


def parse(text: str) -> Counter[str]:
    """Stacks as py-spy writes them, `outermost;...;innermost count` in a line."""
    samples: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        samples[stack] += int(count)
    return samples


def by_function(samples: Counter[str]) -> Counter[str]:
    """Samples by the function that ran itself: what it called is not counted in. C code counts for its caller."""
    found: Counter[str] = Counter()
    for stack, count in samples.items():
        frame = _FRAME.fullmatch(stack.rpartition(";")[2])
        found[f"{_short(frame['file'])} {frame['function']}" if frame else stack.rpartition(";")[2]] += count
    return found


def by_file(functions: Counter[str]) -> Counter[str]:
    """The sums of by_function's counts."""
    found: Counter[str] = Counter()
    for name, count in functions.items():
        found[name.partition(" ")[0]] += count
    return found


def report(samples: Counter[str], host_us: float) -> list[Table]:
    """The host's CPU per item, `host_us`, shared out by samples: among the costliest files, then functions."""
    functions = by_function(samples)
    return [
        _table("file", by_file(functions), host_us, _FILES_MAX),
        _table("function", functions, host_us, _FUNCTIONS_MAX),
    ]


def _table(heading: str, counts: Counter[str], host_us: float, rows_max: int) -> Table:
    table = Table(heading, "µs an item", "%", title=f"{counts.total()} samples of the host, {host_us:.1f} µs an item")
    for name, count in counts.most_common(rows_max):
        share = count / counts.total()
        table.add_row(name, f"{share * host_us:.2f}", f"{share * 100:.1f}")
    return table


def _short(file: str) -> str:
    return _PLACE.sub("", file)
