"""Counts the bundles of a run, and their divisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from foqs.host.dispatch import prefetch_buffer
from foqs.host.verbs import made
from foqs.model import item as items
from foqs.model.calls import ItemContent
from foqs.model.item import ShardItem
from foqs.shard.state import index


@contextmanager
def counted_bundles(counts: Counter[str]) -> Iterator[None]:
    bundle_of, divide = items.bundle_of, items.divide

    def made_bundle(first: ShardItem, payloads: Sequence[bytes], content: ItemContent) -> ShardItem:
        counts["items in bundles"] += len(payloads)
        return bundle_of(first, payloads, content)

    def divided(item: ShardItem, at: int | None = None) -> list[ShardItem]:
        counts["bundles that were divided"] += 1
        return divide(item, at)

    with ExitStack() as patches:
        patches.enter_context(patch.object(made, "bundle_of", made_bundle))
        for module in (index, prefetch_buffer):
            patches.enter_context(patch.object(module, "divide", divided))
        yield
