"""What processes cost, from /proc: each with all its descendants, the ended ones included."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """CPU seconds and bytes sent to the disk since the process began."""

    cpu_s: float
    written_bytes: int

    def since(self, before: Usage) -> Usage:
        return Usage(self.cpu_s - before.cpu_s, self.written_bytes - before.written_bytes)


def usage(pid: int) -> Usage:
    """Of the process and all below it. A child that ends meanwhile counts for its parent, which waited for it."""
    cpu_s, written_bytes = 0.0, 0
    for member in _family(pid):
        fields = _stat(member)
        if fields is None:
            continue
        cpu_s += sum(map(int, fields[11:15])) / _TICKS_PER_S
        written_bytes += _written_bytes(member)
    return Usage(cpu_s, written_bytes)


def usages(pids: Mapping[str, int]) -> dict[str, Usage]:
    return {name: usage(pid) for name, pid in pids.items()}


def memory_mib(pid: int) -> float:
    """Resident now, of the process and all below it; memory that they share counts once."""
    return sum(_kib(member) for member in _family(pid)) / 1024


def _family(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    family, front = [pid], [pid]
    while front:
        front = [child for parent in front for child in children.get(parent, [])]
        family += front
    return family


def _stat(pid: int) -> list[str] | None:
    """The fields after the name: state, parent, ... None when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _written_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(next(line for line in lines if line.startswith("write_bytes:")).split()[1])


def _kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1])
