"""Dead letters by their last errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from foqs.console.item_rows import last_error
from foqs.model.calls import StoredItem

GROUPS_MAX: Final = 8


def error_groups(sample: Sequence[StoredItem], is_cut: bool, group: str) -> dict[str, Any]:
    """Return the most frequent errors of a sample, each with its count and its share of the first one in percent.

    `is_cut`: the sample does not have all dead letters. group: only those of this consumer group.
    """
    counts = Counter(last_error(one) for one in sample if (one.group or "") == group)
    rows = [(text, count) for text, count in counts.most_common(GROUPS_MAX) if text]
    most = rows[0][1] if rows else 1
    return {
        "rows": [{"text": text, "count": count, "share": round(100 * count / most)} for text, count in rows],
        "is_cut": is_cut,
        "sampled": sum(counts.values()),
        "others": len(counts) - len(rows),
    }
