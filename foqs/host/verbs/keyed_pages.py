"""Pages of a topic and its keyed topics: its own items come first, and then those of one key after the other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import islice
from typing import NamedTuple

from foqs.model import order
from foqs.model.errors import InvalidArgumentError, UnavailableError, shown
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import ordered, sequence_of

LANES_PER_PAGE_MAX = 200
"""Keys whose items one page of a shard has. Each is a read of its own."""
KEYS_PER_SLICE = 500
"""Keys that one turn of the event loop checks for items."""
_PAGE_TOKEN = re.compile(r"([0-9a-f]{1,40})(?:-((?:[0-9a-f]{2}){1,255}))?")
"""An order.sort_key in hex, and the sequence in hex of UTF-8."""


class Place(NamedTuple):
    """The place of an item among those of a topic and its keyed topics."""

    sequence: str
    """The key, or the bucket of keys; empty for an item without a key."""
    sort_key: int

    @property
    def token(self) -> str:
        """The page token for the items behind it."""
        of_key = f"-{self.sequence.encode().hex()}" if self.sequence else ""
        return f"{self.sort_key:x}{of_key}"


def place_of(page_token: str) -> Place:
    """Return the place behind which a page begins. Raises InvalidArgumentError."""
    if not page_token:
        return Place("", order.FIRST)
    if found := _PAGE_TOKEN.fullmatch(page_token):
        try:
            place = Place(bytes.fromhex(found[2] or "").decode(), int(found[1], 16))
        except UnicodeDecodeError:
            pass
        else:
            if place.sort_key < order.LAST:
                return place
    raise InvalidArgumentError(f"page_token {shown(page_token)} did not come from this service")


async def lanes(topic: ShardTopic, place: Place, *, dead: bool) -> AsyncIterator[tuple[ShardTopic, int]]:
    """Yield the topic and its keyed topics with items of the wanted kind, each with the edge behind which these begin.

    `place` is that of the last item before. Raises UnavailableError while the items of keys are being counted.
    """
    before = place.sequence
    if not before or topic.base is not None:
        yield topic, place.sort_key
    name, is_first = ordered(topic.name, before), True
    while topic.keyed is not None:
        if topic.of_namespace is not None and not topic.of_namespace.is_counted():
            raise UnavailableError("the items of this host are still being counted: try again", nothing_done=True)
        some = list(islice(topic.keyed.by_name.irange(name, inclusive=(is_first, True)), KEYS_PER_SLICE))
        for name in some:
            one = topic.keyed.by_name.get(name) if topic.keyed is not None else None
            if one is not None and (one.dead if dead else one.rows):
                yield one, place.sort_key if sequence_of(one.name) == before else order.FIRST
        if len(some) < KEYS_PER_SLICE:
            return
        is_first = False
        await asyncio.sleep(0)
