"""Whether hosts can have lost items that they had claimed for calls which were answered without them.

The promise of at-most-once items has this exception (docs/concepts.md): a call can end without an item that is being
claimed for it, and the host returns the item to the queue. If the host dies, loses the shard, or reaches the bound of
its drain before that, the next owner takes the item for delivered. No client's record shows such a claim, so the
checker learns from here whether there can be some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from loadtest.chaos import cluster_faults, host_faults
from loadtest.chaos.fault import Fault

LOSING_EVENTS = frozenset({"pull_not_given_back", "shard_lost", "sick_shard_given_up", "drain_bound_reached"})
"""What a host logs when it can no longer return a claim. A SIGSTOP or a lost session shows by these alone."""
_ENDS_OF_HOSTS = (
    host_faults.HostKilled,
    host_faults.HostRestarted,
    cluster_faults.HostKilled,
    cluster_faults.HostRestarted,
    cluster_faults.GuestComes,
)
"""A host that is killed logs nothing; one that leaves in order is killed if it takes too long."""


def can_be_lost(faults: Iterable[Fault[Any]], logged_before: Counter[str], logged_after: Counter[str]) -> bool:
    """Return True if the faults or the events of a round leave this open. `logged_*` count all hosts' events."""
    is_ended = any(isinstance(fault, _ENDS_OF_HOSTS) for fault in faults)
    return is_ended or any(logged_after[event] > logged_before[event] for event in LOSING_EVENTS)
