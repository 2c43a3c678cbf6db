"""The consumers of items by their names: who has a lease, as operators see it, and the rows of their list."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from foqs.model.errors import InvalidArgumentError, shown

if TYPE_CHECKING:
    from foqs.model.item import ShardItem

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
CONSUMER_BYTES_MAX = 128
"""The longest name of a consumer."""
UNKNOWN_BEGINNING = "unknown (before the take-over of "
"""The beginning of the name of a consumer that only a past owner of the shard knew."""
OTHERS_NAME = "(others)"
"""The name of all consumers beyond those that a host distinguishes."""
HOSTS_SHOWN_MAX = 16
"""The most hosts that a row names."""


class LeaseHolder:
    """A consumer of one namespace, as it names itself, or the address of a caller without a name.

    Items under lease refer to it. Only `foqs.host.dispatch.consumers` writes its fields.
    """

    __slots__ = ("caller", "dequeued_s", "is_connected", "last_s", "name")

    def __init__(self, name: str, last_s: float) -> None:
        self.name = name
        self.caller = ""
        """The address of its last call of this host; empty if it has called other hosts alone."""
        self.is_connected = False
        """True if it has called this host, and not only others that have asked this one."""
        self.last_s = last_s
        """The time of its last call, in seconds of a monotonic clock."""
        self.dequeued_s: float | None = None
        """The time of its last dequeue."""

    def calls_from(self, caller: str) -> None:
        """Note a call of this host from this address."""
        self.caller, self.is_connected = caller, True


def consumer_fault(name: object, field: str = "consumer") -> InvalidArgumentError | None:
    """Return the error of an invalid name of a consumer, or None."""
    if not isinstance(name, str) or not name or _CONTROL.search(name):
        return InvalidArgumentError(
            f"{field} {shown(name)} must be text of 1 to {CONSUMER_BYTES_MAX} bytes without control characters"
        )
    if len(name) > CONSUMER_BYTES_MAX // 4 and len(name.encode(errors="replace")) > CONSUMER_BYTES_MAX:
        return InvalidArgumentError(
            f"{field} of {len(name.encode(errors='replace'))} bytes is over the limit of {CONSUMER_BYTES_MAX} bytes"
        )
    return None


def reserved_fault(name: str) -> InvalidArgumentError | None:
    """Return the error of a name that hosts give to consumers that they do not know, or None."""
    if name != OTHERS_NAME and not name.startswith(UNKNOWN_BEGINNING):
        return None
    return InvalidArgumentError(f"consumer {shown(name)} is a name of hosts for consumers that they do not know")


def holder_name(item: ShardItem, taken_over_at_ms: int) -> str:
    """Return who has a leased item, for operators, or empty text. Names are lost with the owner of a shard."""
    if item.holder is not None:
        return item.holder.name
    if item.delivered_at:
        return ""
    seconds = taken_over_at_ms // 1000 % (24 * 3_600)
    return f"{UNKNOWN_BEGINNING}{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02} UTC)"


class RowKey(NamedTuple):
    """The key of a row of the list; rows are in the order of their keys."""

    name: str
    topic: str
    group: str
    is_prefix: bool = False
    prefix: str = ""


@dataclass(slots=True)
class ConsumerRow:
    """The waiting calls and leases of a consumer for one topic.

    name: as the consumer says, or the address of a caller that says none.  caller: the address of its last call.
    waiting_calls: its dequeues that wait for the topic, or for any topics that begin with `prefix`.
    held: its items under lease, the oldest since held_since_ms; 0 if that is unknown.
    last_dequeue_at_ms: of any topic; 0 if unknown.  hosts: those that it calls.
    topic: "" with a prefix, and of a consumer that neither waits nor has items.  group: None for the topic's own.
    Times are milliseconds since the epoch.
    """

    name: str
    caller: str
    topic: str
    waiting_calls: int
    held: int
    held_since_ms: int
    last_dequeue_at_ms: int
    hosts: list[str]
    prefix: str | None = None
    group: str | None = None


@dataclass(slots=True)
class ConsumerPage:
    """A page of consumers. missing: the shards and hosts whose consumers it lacks, in words, if that was allowed."""

    consumers: list[ConsumerRow]
    next_page_token: str
    missing: list[str] = field(default_factory=list)


def without_hosts(page: ConsumerPage) -> ConsumerPage:
    """Take the names of hosts out of a page that was made for one call, whose caller does not operate the cluster.

    Rows of other hosts are as they were decoded.
    """
    for row in page.consumers:
        row.hosts = []
    return page


@dataclass(slots=True)
class ReleaseResult:
    """How many leases were ended, and how many were left because their items are delivered at most once."""

    released: int
    left_at_most_once: int
