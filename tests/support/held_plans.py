"""The plans of the statements on held dedup ids, for tests/integration/test_query_plans.py."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from foqs.storage.schema import statements
from foqs.storage.shard.script import key_conditions
from tests.support.plan_case import PAGE, SLACK, Case

HELD_COUNT = 8_000
"""Rows of held dedup ids, of eight namespaces; a fourth are of items on another shard."""


def digest(number: int) -> bytes:
    """The digest of a dedup id."""
    return blake2b(b"%d" % number, digest_size=16).digest()


def digests(numbers: Iterable[int]) -> str:
    """The digests as SQL."""
    return ",".join([f"x'{digest(number).hex()}'" for number in numbers])


HELD_CASES: dict[str, list[Case]] = {
    "READ_HELD": [
        Case("by_digest", 2 * 900 + SLACK, fill=lambda text: text.format(2, digests(range(2, 7_202, 8)))),
        Case("by_digest", SLACK, fill=lambda text: text.format(2, digests([10]))),
        Case("by_digest", 2 * 900 + SLACK, fill=lambda text: text.format(2, digests(range(10**6, 10**6 + 900)))),
    ],
    # The distinct ones of an index can be found by leaps, and a server that does not leap reads all of it.
    "READ_HOLDING": [Case("by_digest", HELD_COUNT + SLACK, notes=True, with_payload=True)],
    "SCAN_HELD": [Case("PRIMARY", 2 * PAGE + SLACK, (key, key, 0, PAGE)) for key in (0, HELD_COUNT // 2)],
    "DELETE_HELD": [
        Case(
            "PRIMARY", 3 * len(ids) + SLACK, fill=lambda text, ids=ids: text.format(0, *next(key_conditions("id", ids)))
        )
        for ids in (list(range(5, 905)), list(range(5, 5 + 8 * 900, 8)), [5], [10**12])
    ],
    "FREE_HELD": [
        Case("by_digest", 5 * 900 + SLACK, fill=lambda text: text.format(2, digests(range(2, 7_202, 8)), 0)),
        Case("by_digest", SLACK, fill=lambda text: text.format(2, digests([10]), 0)),
    ],
    "FREE_DISTANT": [
        Case(
            "by_digest",
            5 * 900 + SLACK,
            fill=lambda text: text.format(2, digests(range(2, 7_202, 8)), 0),
            notes=True,
        ),
        Case("by_digest", SLACK, fill=lambda text: text.format(2, digests([10]), 0), notes=True),
    ],
    "RELEASE_HELD": [Case("by_digest", SLACK, (2, digest(10), 0, 10))],
}
INSERT_HELD = Case("", 2, fill=lambda text: text.format(f"({10**9},0,2,x'{digest(10**9).hex()}',{10**9},0)"))


def fill_held(cursor: Any, share: int) -> None:
    """Insert every `share`-th row of the whole."""
    held = [f"({n},{n % 4 // 3},{n % 8},x'{digest(n).hex()}',{n},0)" for n in range(1, HELD_COUNT // share + 1)]
    cursor.execute(statements.INSERT_HELD.format(",".join(held)))
