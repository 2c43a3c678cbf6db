"""The table of shares in docs/architecture.md says what one transaction takes of each kind of work."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from foqs.model import limits, seen_image
from foqs.shard.state import engine, ops
from foqs.shard.state.ops import check, forget, image, wake
from tests.support.sources import parsed

OPERATIONS = Path(ops.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
_ROW = re.compile(r"\| `(\w+)` \| `(\w+\.py)` \| .+? \| (.+?) \|")

BOUNDS = {
    "Checking": [limits.TRANSACTION_DEDUP_BLOCKS_MAX, check.CHECKS_MAX],
    "Remembering": [],
    "SlotMoving": [],
    "Freeing": [limits.BATCH_ITEMS_MAX],
    "Forgetting": [forget.FORGET_IDS],
    "Refilling": [limits.TRANSACTION_REFILLS_MAX],
    "Waking": [wake.SWEEP_CHUNK_ITEMS],
    "GroupCopying": [],
    "Inserting": [limits.TRANSACTION_INSERTS_MAX, limits.TRANSACTION_INSERT_BYTES_MAX // limits.MIB],
    "Imaging": [seen_image.IMAGE_PART_BUCKETS, image.IMAGE_PARTS_GONE],
    "Claiming": [limits.TRANSACTION_CLAIMS_MAX],
    "Extending": [limits.TRANSACTION_EXTENSIONS_MAX],
    "Settling": [
        limits.TRANSACTION_CHANGES_MAX,
        limits.TRANSACTION_CHANGES_MAX,
        limits.TRANSACTION_LEASE_ENDS_MAX,
    ],
    "Changing": [limits.TRANSACTION_CHANGES_MAX],
    "LookingUp": [limits.TRANSACTION_LOOK_UPS_MAX, limits.TRANSACTION_PAYLOAD_LOOK_UPS_MAX],
    "Fencing": [],
    "Journaling": [],
}


def rows() -> list[tuple[str, str, str]]:
    return [(match[1], match[2], match[3]) for match in _ROW.finditer(PAGE.read_text())]


@pytest.mark.interpreted
def test_the_table_has_every_operation_in_the_order_of_a_plan() -> None:
    defined = {
        node.name: path.name
        for path in [*OPERATIONS.glob("*.py"), OPERATIONS.parent / "journal.py"]
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Operation" for base in node.bases)
    }
    assert {name: file for name, file, _ in rows()} == defined
    planned = re.findall(r"batch(?:\.append\(| \+= )self\.(\w+)\.begin", inspect.getsource(engine.ShardState._plan))
    files = {
        "settlements": "settle.py", "timers": "wake.py", "extensions": "extend.py", "forgetfulness": "forget.py",
        "group_copies": "group_copy.py", "dedup": "remember.py",
    }  # fmt: skip
    assert [files.get(kind, kind.removesuffix("s") + ".py") for kind in planned] == [
        file for _, file, _ in rows() if file != "journal.py"
    ]


@pytest.mark.parametrize(("name", "bound"), [(name, bound) for name, _, bound in rows()])
def test_the_table_has_the_bounds_that_the_code_has(name: str, bound: str) -> None:
    assert [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", bound)] == BOUNDS[name]
