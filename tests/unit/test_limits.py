"""The limits as a whole, and the numbers that stand in the modules of single mechanisms."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from foqs.model import limits

PACKAGE = Path(limits.__file__).parents[1]
_NUMBER = re.compile(r"^(?P<name>[A-Z][A-Z0-9_]*)(?:: [^=\n]+)? = [0-9-]", re.MULTILINE)


def word_counts() -> Counter[str]:
    return Counter(word for path in PACKAGE.rglob("*.py") for word in re.findall(r"\w+", path.read_text()))


def test_every_limit_is_used() -> None:
    words = word_counts()
    unused = [name for name in vars(limits) if name.isupper() and words[name] == 1]
    assert unused == []


def test_every_number_of_a_mechanism_is_used() -> None:
    words = word_counts()
    names = {found["name"] for path in PACKAGE.rglob("*.py") for found in _NUMBER.finditer(path.read_text())}
    assert names > {"SLOT_MS_MAX", "BREAKER_STALL_MS"}, "the pattern finds them"
    assert [name for name in names if words[name] == 1] == []
