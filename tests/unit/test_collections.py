"""The garbage collector of a host holds up the event loop for a few milliseconds at a time, and frees cycles."""

from __future__ import annotations

import subprocess
import sys

CONTAINERS_MAX = 4_500
"""A collection of these takes a few milliseconds, because it looks at half a million a second on a slow machine."""

SCRIPT = """
import gc
import weakref

from foqs.cli.running import tune_interpreter

tune_interpreter()
assert gc.get_freeze_count() > 50_000, "the code of a host is walked by no collection"
most = full = 0


def look(phase, info):
    global most, full
    if phase == "start":
        generations = range(info["generation"] + 1)
        most = max(most, sum(len(gc.get_objects(generation)) for generation in generations))
        full += info["generation"] == 2


class Cycle:
    def __init__(self):
        self.itself = self


gc.callbacks.append(look)
cycles = [weakref.ref(Cycle()) for _ in range(100)]
kept = [[] for _ in range(300_000)]
assert not any(cycle() for cycle in cycles)
print(most, full)
"""


def test_a_collection_looks_at_few_containers_and_a_full_one_comes_seldom() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    most, full = map(int, done.stdout.split())
    assert 1_000 < most <= CONTAINERS_MAX
    assert not full, "it walks everything in memory"
