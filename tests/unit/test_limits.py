"""The limits as a whole."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from foqs.model import limits


def test_every_limit_is_used() -> None:
    package = Path(limits.__file__).parents[1]
    words = Counter(word for path in package.rglob("*.py") for word in re.findall(r"\w+", path.read_text()))
    unused = [name for name in vars(limits) if name.isupper() and words[name] == 1]
    assert unused == []
