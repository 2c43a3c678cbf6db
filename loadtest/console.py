"""The console in front of many topics: the times of its pages, its memory, and a host's cost of its polling.

    python -m loadtest.console [--topics N] [--json FILE]

Exit code 0 only if every bound held.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.table import Table

from foqs import AdminClient, Client, NewItem
from foqs.model.errors import AlreadyExistsError
from loadtest.bench.usage import memory_mib
from loadtest.stress.stand import NO_QUOTA, Stand
from tests.support.faults.programs import free_port

PAGE_MS_MAX: Final = 300
FRAGMENT_MS_MAX: Final = 150
MEMORY_MIB_MAX: Final = 150
HOST_CORE_MAX: Final = 0.05
_NAMESPACE: Final = "default"
_ROUNDS: Final = 20
_WATCHED_S: Final = 45
"""The time in which the cost of a host is taken, in seconds."""
_FIRST_ROUND_S_MAX: Final = 600
_BATCH: Final = 1_000
_PAUSE_S: Final = 3
_TICKS_PER_S: Final = 100
_PAGES: Final = {
    "overview": "/",
    "topics, what needs attention first": f"/ns/{_NAMESPACE}/topics",
    "topics, page 1,001 by name": f"/ns/{_NAMESPACE}/topics?sort=name&after=50000",
    "topics, a glob and conditions": f"/ns/{_NAMESPACE}/topics?filter=area-*.c*7+ready%3E0&sort=-ready",
    "topics, quick filters": f"/ns/{_NAMESPACE}/topics?show=items,dead",
    "topic": f"/ns/{_NAMESPACE}/topic/area-3.c00003",
    "consumers": f"/ns/{_NAMESPACE}/consumers",
    "cluster": "/cluster",
}


@click.command()
@click.option("--topics", "topics_count", type=click.IntRange(1_000, 1_000_000), default=100_000, show_default=True)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path))
def main(topics_count: int, json_file: Path | None) -> None:
    """Measure a console beside one host with four shards."""
    report = Console()
    with Stand() as stand:
        address = f"127.0.0.1:{stand.port}"
        fill(address, topics_count)
        idle_core = core_share(stand.host.pid, _WATCHED_S / 3)
        with console_of(address) as (process, visit):
            waited_s = wait_for_topics(visit, topics_count)
            polled_core = core_share(stand.host.pid, _WATCHED_S) - idle_core
            pages = {name: times_ms(visit, path, is_part=False) for name, path in _PAGES.items()}
            parts = {name: times_ms(visit, path, is_part=True) for name, path in _PAGES.items()}
            memory = memory_mib(process.pid)
    table = Table(f"{topics_count:,} topics", "page, ms", "fragment, ms", title="the 18th of 20")
    for name, found in pages.items():
        table.add_row(name, f"{late(found):.0f}", f"{late(parts[name]):.0f}")
    report.print(table)
    report.print(
        f"memory {memory:.0f} MiB; first round after {waited_s:.0f} s; {polled_core:.1%} of a core of the host"
    )
    result = {
        "topics": topics_count,
        "page_ms": {name: round(late(found)) for name, found in pages.items()},
        "fragment_ms": {name: round(late(found)) for name, found in parts.items()},
        "memory_mib": round(memory),
        "first_round_s": round(waited_s),
        "host_core_share": round(polled_core, 4),
    }
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    if problems := beyond(result):
        report.print("\n".join(problems))
        sys.exit(1)


def beyond(result: dict[str, object]) -> list[str]:
    """Return the bounds that were not held, in words."""
    found = []
    for key, most, unit in (("page_ms", PAGE_MS_MAX, "ms"), ("fragment_ms", FRAGMENT_MS_MAX, "ms")):
        times = result[key]
        assert isinstance(times, dict)
        found += [f"{key} of {name}: {took} {unit}, at most {most}" for name, took in times.items() if took > most]
    for key, bound in (("memory_mib", MEMORY_MIB_MAX), ("host_core_share", HOST_CORE_MAX)):
        value = result[key]
        assert isinstance(value, int | float)
        if value > bound:
            found.append(f"{key}: {value}, at most {bound}")
    return found


def fill(address: str, topics_count: int) -> None:
    """Store an item in each topic."""
    with AdminClient(address) as admin:
        with suppress(AlreadyExistsError):
            admin.create_namespace(_NAMESPACE)
        admin.update_namespace(_NAMESPACE, enqueues_per_minute_max=NO_QUOTA)
    with Client(address) as client:
        for first in range(0, topics_count, _BATCH):
            numbers = range(first, min(first + _BATCH, topics_count))
            client.enqueue_many(_NAMESPACE, [NewItem(f"area-{at % 12}.c{at:05}", b"{}") for at in numbers])


class Visit:
    """A browser of the console, with a connection for each request."""

    def __init__(self, url: str) -> None:
        found = urlsplit(url)
        self._netloc = found.netloc
        self._cookie = ""
        _, cookie = self._asked(f"{found.path}?{found.query}", 303, {})
        self._cookie = cookie.partition(";")[0]

    def get(self, path: str, *, is_part: bool = False) -> str:
        """Return the text of a page, or of its live part."""
        headers = {"cookie": self._cookie, **({"hx-request": "true"} if is_part else {})}
        return self._asked(path, 200, headers)[0]

    def _asked(self, path: str, status: int, headers: dict[str, str]) -> tuple[str, str]:
        """Return the text of an answer, and the cookie that comes with it."""
        with closing(http.client.HTTPConnection(self._netloc, timeout=30)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == status, f"{answer.status} of {path}: {text[:500]}"
            return text, answer.getheader("set-cookie") or ""


@contextmanager
def console_of(address: str) -> Iterator[tuple[subprocess.Popen[str], Visit]]:
    """Run a console, and sign in."""
    words = ["console", "--address", address, "--listen", f"127.0.0.1:{free_port()}"]
    process = subprocess.Popen([sys.executable, "-m", "foqs", *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        url = re.search(r"http://\S+", line)
        assert url, line
        yield process, Visit(url[0])
    finally:
        process.terminate()
        process.communicate(timeout=30)


def wait_for_topics(visit: Visit, topics_count: int) -> float:
    """Return the seconds until the console knows all topics."""
    began_s = time.monotonic()
    while f"{topics_count:,} topics" not in visit.get(f"/ns/{_NAMESPACE}/topics"):
        assert time.monotonic() - began_s < _FIRST_ROUND_S_MAX, "the first round is not over"
        time.sleep(_PAUSE_S)
    return time.monotonic() - began_s


def times_ms(visit: Visit, path: str, *, is_part: bool) -> list[float]:
    """Return the times of some requests, in order of length."""
    found = []
    for _ in range(_ROUNDS):
        began_s = time.perf_counter()
        visit.get(path, is_part=is_part)
        found.append((time.perf_counter() - began_s) * 1_000)
    return sorted(found)


def late(times: list[float]) -> float:
    """Return the third longest of 20 times."""
    return times[len(times) * 9 // 10 - 1]


def core_share(pid: int, watched_s: float) -> float:
    """Return the share of a core that a process uses during some seconds."""
    before, began_s = _ticks(pid), time.monotonic()
    time.sleep(watched_s)
    return (_ticks(pid) - before) / _TICKS_PER_S / (time.monotonic() - began_s)


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


if __name__ == "__main__":
    main()
