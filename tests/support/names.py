"""Names that the service takes, and that a program may take for something else."""

from __future__ import annotations

from hypothesis import strategies

from foqs.model import limits

ODD_NAMES = [
    " a", "a ", "a,b", '"a"', 'a"b', "\\", 'a\\"', "['a']", '["a"]', "-a", "--limit", "\u00a0", "é\u202e", "#", "a*",
    "%s", "a/b", "a=b", "null", "NULL", "-", "\u2028", "\U0001f600", "x" * limits.TOPIC_BYTES_MAX,
]  # fmt: skip


def _is_name(text: str) -> bool:
    return 1 <= len(text.encode()) <= limits.TOPIC_BYTES_MAX


names = strategies.text(strategies.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40).filter(
    _is_name
)
"""Names of topics of all characters that one may have."""
