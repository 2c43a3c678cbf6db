"""Does all steps of a merge of the pages of several hosts."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.model.event_history import History, HistoryMerge
from foqs.model.topic_rates import RatesMerge, RatesPage


def merged_rates(pages: Sequence[RatesPage], order: int, limit: int, named: Sequence[str]) -> RatesPage:
    merge = RatesMerge(pages, order, limit, named)
    for _ in merge.steps():
        pass
    return merge.page()


def merged_history(parts: Sequence[History]) -> History:
    merge = HistoryMerge(parts)
    for _ in merge.steps():
        pass
    return merge.page()
