"""What consumers of serial topics and ordering keys saw, and whether it can have happened in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class Taken:
    """One delivery, by the clock of the world."""

    uid: str
    invoked_ms: float
    returned_ms: float
    lease_ends_ms: float
    call: int = 0
    """The number of its dequeue."""
    ended_ms: float = float("inf")
    """The call that can have ended it was made then."""
    acked: bool = False
    came_back: bool = False
    """True if it was certainly given back to the queue."""


@dataclass
class Put:
    """An item in one group: its enqueue, and the times at which calls were made that can have ended it."""

    uid: str
    topic: str
    priority: int
    position: int
    invoked_ms: float
    returned_ms: float = float("inf")
    has_ttl: bool = False
    has_id: bool = False
    """True if it was enqueued with a dedup id, in a call whose other items do not wait for the look-up."""
    ends_ms: list[float] = field(default_factory=list)
    redrives_ms: list[tuple[float, float]] = field(default_factory=list)
    """The calls that made it alive again, after it was dead: the time of each, and the time of its answer."""
    holds_ms: list[float] = field(default_factory=list)
    """The times from which it certainly was a dead letter."""
    frees_ms: list[float] = field(default_factory=list)
    """The times at which calls were made that can have taken it out of the dead letters."""
    acked: bool = False


def overlaps(taken: list[Taken]) -> Iterator[str]:
    """No two deliveries of a topic, to different calls, are live at one time for certain."""
    live = [(one.returned_ms, min(one.lease_ends_ms, one.ended_ms), one) for one in taken]
    last = {one[2].call: one for one in sorted(live, key=lambda one: one[1])}
    some = sorted([one for one in last.values() if one[0] < one[1]], key=lambda one: one[:2])
    latest = None
    for earlier, later in pairwise(some):
        latest = earlier if latest is None or earlier[1] > latest[1] else latest
        if later[0] < latest[1]:
            until = f"{latest[2].uid} is live from {latest[0]} to {latest[1]}"
            yield f"O1: two live deliveries: {until}, {later[2].uid} from {later[0]} to {later[1]}"


def order_problems(puts: list[Put], taken: list[Taken]) -> Iterator[str]:
    """No item is delivered before a call that can have ended an item that is before it for certain."""
    by_uid = {put.uid: put for put in puts}
    calls: dict[str, set[int]] = {}
    for one in taken:
        calls.setdefault(one.uid, set()).add(one.call)
    for a in puts:
        if a.has_ttl or a.returned_ms == float("inf"):
            continue
        together = calls.get(a.uid, set())
        for since_ms, until_ms in _alive(a):
            passed = [
                one for one in taken
                if until_ms > one.returned_ms and one.invoked_ms > since_ms and _is_before(a, by_uid[one.uid])
                and one.call not in together
            ]  # fmt: skip
            # The one that is out when an item is redriven may be delivered again.
            allowed = 1 if since_ms > 0 else 0
            if len({one.uid for one in passed}) > allowed:
                one = passed[-1]
                yield f"O1: {one.uid} was delivered at {one.returned_ms}, and {a.uid} before it ended at {until_ms}"


def _alive(a: Put) -> Iterator[tuple[float, float]]:
    """Yield the times between which the item is certainly not ended: since its enqueue, and since each redrive."""
    yield 0, min(a.ends_ms, default=float("inf"))
    for began_ms, since_ms in a.redrives_ms:
        later = [at for at in (*a.ends_ms, *a.frees_ms) if at > began_ms]  # It can have ended before the answer came.
        yield since_ms, min(later, default=float("inf"))


def _is_before(a: Put, b: Put) -> bool:
    """Return True if the first item is before the second one for certain."""
    if a is b or a.priority > b.priority:
        return False
    if a.returned_ms < b.invoked_ms:
        return True
    of_one_call = a.invoked_ms == b.invoked_ms and a.returned_ms == b.returned_ms < float("inf")
    return of_one_call and not (a.has_id or b.has_id) and a.position < b.position
