"""Taking all items of a topic from a queue that may need its time before it gives the first one."""

from __future__ import annotations

from collections.abc import Iterator

from foqs import Client
from foqs.client.queue_items import Item
from foqs.model import limits

_NO_MORE_MS = 500


def deliveries(client: Client, namespace: str, topics: str | list[str], count: int) -> Iterator[list[Item]]:
    """Yield what each dequeue gives, until so many items were there and no other one is ready.

    The waits are long as long as some are missing: a host that has just begun serves a shard when it has counted it.
    """
    got = 0
    while items := client.dequeue(
        namespace, topics, limits.DEQUEUE_ITEMS_MAX, wait_ms=limits.WAIT_MS_MAX if got < count else _NO_MORE_MS
    ):
        got += len(items)
        yield items
