"""`python -m loadtest.fuzz.frames --frames N --seed S`: mutated messages through the scan and the decoder.

A child process takes the messages, so that a crash or a hang of native code is seen, named by its seed and
survived; its resident memory must be flat from batch to batch.
"""

from __future__ import annotations

import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from ctypes import c_longlong
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from loadtest.fuzz.corpus import dictionary, seed_answers, seed_messages
from loadtest.fuzz.judge import DefectError, Judge
from loadtest.fuzz.mutations import Mutator

BATCH_FRAMES = 20_000
HANG_S_MAX = 10.0
"""So long one message may keep the child, on a machine with other work."""
START_S_MAX = 120.0
"""So long the child may take before its first message, because it imports foqs."""
GROWTH_MIB_MAX = 32.0
"""Of resident memory, from the second batch to the last."""
_ADDRESS_SPACE_SPARE_BYTES = 1 << 30
_THOROUGH_EVERY = 16


@dataclass
class Findings:
    frames: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_ms: float = 0.0
    rss_mib_first: float = 0.0
    rss_mib_last: float = 0.0
    elapsed_s: float = 0.0
    defects: list[str] = field(default_factory=list)

    @property
    def growth_mib(self) -> float:
        return self.rss_mib_last - self.rss_mib_first


def message_of(seed: int, batch: int, number: int) -> bytes:
    """The message that a defect is told by."""
    mutator = Mutator((seed, batch), seed_messages() + seed_answers())
    for _ in range(number):
        mutator.message()
    return mutator.message()


def fuzz(frames: int, seed: int, *, batch_frames: int = BATCH_FRAMES, scans: bool = True) -> Findings:
    """Take so many messages; stops at the first crash or hang, and goes on after other defects.

    Not `scans`: the decoder gets them as they are, to see what the scan is good for.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    progress = RawValue(c_longlong, -1)
    child = context.Process(target=_serve, args=(there, progress, scans), name="fuzz-frames", daemon=True)
    child.start()
    there.close()
    findings = Findings()
    started_s = time.monotonic()
    try:
        for batch in range(-(-frames // batch_frames)):
            count = min(batch_frames, frames - findings.frames)
            here.send((seed, batch, count))
            if not _answers(here, progress):
                findings.defects.append(f"hang: seed {seed} batch {batch} frame {progress.value}")
                break
            try:
                outcomes, slowest_s, rss_mib, defects = here.recv()
            except EOFError:
                child.join()
                where = f"seed {seed} batch {batch} frame {progress.value}"
                findings.defects.append(f"crash with exit code {child.exitcode}: {where}")
                break
            findings.frames += count
            findings.outcomes += outcomes
            findings.slowest_ms = max(findings.slowest_ms, slowest_s * 1000)
            findings.rss_mib_last = rss_mib
            if batch < 2:
                findings.rss_mib_first = rss_mib
            findings.defects += defects
    finally:
        findings.elapsed_s = time.monotonic() - started_s
        child.kill()
        child.join()
        child.close()
        here.close()
    if findings.growth_mib > GROWTH_MIB_MAX:
        findings.defects.append(f"leak: resident memory grew by {findings.growth_mib:.0f} MiB")
    return findings


def _answers(pipe: Connection, progress: Any) -> bool:
    """Whether the batch ends, or the child with it, before one message takes too long."""
    seen = -2
    while progress.value != seen:
        seen = progress.value
        if pipe.poll(HANG_S_MAX if seen >= 0 else START_S_MAX):
            return True
    return False


def _serve(pipe: Connection, progress: Any, scans: bool) -> None:
    """In the child: one batch after the other, until it is killed."""
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    bound_bytes = used_bytes + _ADDRESS_SPACE_SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (bound_bytes, bound_bytes))
    seeds = seed_messages() + seed_answers()
    judge = Judge(scans=scans)
    while True:
        try:
            seed, batch, count = pipe.recv()
        except EOFError:
            return
        mutator = Mutator((seed, batch), seeds)
        outcomes: Counter[str] = Counter()
        defects = []
        judge.slowest_s = 0.0
        for number in range(count):
            progress.value = number
            try:
                outcomes[judge.judge(mutator.message(), thoroughly=number % _THOROUGH_EVERY == 0)] += 1
            except DefectError as error:
                outcomes["defect"] += 1
                defects.append(f"seed {seed} batch {batch} frame {number}: {error}")
        pipe.send((outcomes, judge.slowest_s, _rss_mib(), defects))


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def run_guided(frames: int, seed: int) -> int:
    """The coverage-guided fuzzer in a process of its own; its exit code."""
    with tempfile.TemporaryDirectory(prefix="foqs-fuzz-") as directory:
        corpus = Path(directory) / "corpus"
        corpus.mkdir()
        for number, message in enumerate(seed_messages() + seed_answers()):
            (corpus / f"seed-{number}").write_bytes(message)
        words = Path(directory) / "dictionary"
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in dictionary()))
        options = [f"-runs={frames}", f"-seed={seed}", f"-dict={words}", f"-artifact_prefix={directory}/"]
        found = subprocess.run([sys.executable, "-m", "loadtest.fuzz.guided", *options, str(corpus)], check=False)
        for artifact in Path(directory).glob("*-*"):
            if artifact.is_file():
                Console().print(f"{artifact.name}: {artifact.read_bytes().hex()}")
        return found.returncode


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def table(findings: Findings) -> Table:
    found = Table("outcome", "frames", title=f"{findings.frames:,} frames")
    for outcome, count in sorted(findings.outcomes.items()):
        found.add_row(outcome, f"{count:,}")
    found.add_section()
    found.add_row("frames per second", f"{findings.frames / max(findings.elapsed_s, 0.001):,.0f}")
    found.add_row("slowest frame, ms", f"{findings.slowest_ms:.2f}")
    found.add_row("resident memory, MiB", f"{findings.rss_mib_first:.1f} to {findings.rss_mib_last:.1f}")
    found.add_row("defects", str(len(findings.defects)))
    return found


@click.command()
@click.option("--frames", default=1_000_000, show_default=True, help="How many messages.")
@click.option("--seed", default=1, show_default=True, help="The same seed gives the same messages.")
@click.option("--guided", is_flag=True, help="Let coverage of the scan lead the way (atheris, extra `fuzz`).")
@click.option("--unscanned", is_flag=True, help="The control: the decoder gets every message, and fails.")
def main(frames: int, seed: int, guided: bool, unscanned: bool) -> None:
    """Fuzz the frame path in one process; exits with 1 on a crash, a hang, a leak or any other defect."""
    if guided:
        sys.exit(run_guided(frames, seed))
    findings = fuzz(frames, seed, scans=not unscanned)
    console = Console()
    console.print(table(findings))
    for defect in findings.defects[:20]:
        console.print(defect)
    sys.exit(bool(findings.defects))


if __name__ == "__main__":
    main()
