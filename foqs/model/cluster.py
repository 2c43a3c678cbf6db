"""Values of the meta database's rows on the hosts and shards of a cluster."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import IntEnum
from typing import NamedTuple

from foqs.model import limits
from foqs.model.errors import AlreadyExistsError, shown

PROCESS_MARK = "#"
"""Separates the name of a host from the start time of its process. No name of a host contains it."""
_TIER = re.compile(rf"[A-Za-z0-9._-]{{0,{limits.TIER_CHARS_MAX}}}")
_SHARDS_NAMED_MAX = 10
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class ShardUse(IntEnum):
    """The state of a shard with regard to new items."""

    SERVING = 0
    DRAINING = 1
    """It takes no new items without dedup ids; the items that it holds are served."""
    REMOVED = 2
    """No host serves it."""
    PARKED = 3
    """No host serves it until it is unparked, and its items wait. Its database can be replaced and relocated."""

    @property
    def is_served(self) -> bool:
        return self in (ShardUse.SERVING, ShardUse.DRAINING)

    @property
    def is_known(self) -> bool:
        """True if the shard and its items exist, served or not."""
        return self is not ShardUse.REMOVED


class ShardHealth(IntEnum):
    """How a shard of the cluster is served, by the reports of its hosts."""

    UNKNOWN = 0
    """The host that took it last lives, and has not reported in time that it serves the shard."""
    SERVED = 1
    SICK = 2
    """A host has it, and the circuit breaker for it is open."""
    UNSERVED = 3
    """No living host serves it."""


class HostRow(NamedTuple):
    """A process that serves shards, by its own report."""

    id: str
    address: str
    """The address for clients, and for peers without a `peer_address`."""
    started_at_ms: int
    beat_number: int
    is_leaving: bool = False
    """True if it hands over its shards and takes none."""
    tier: str = ""
    proof: int = 1
    """The newest version of the proof between hosts that it knows: foqs/model/peer_proof.py."""
    is_starting: bool = False
    """True if it has not opened its port yet, and so has no address."""
    secret_ids: tuple[str, ...] = ()
    """The ids of the secrets of the cluster that it knows: foqs/model/cluster_secret.py."""
    peer_address: str | None = None
    """The address for peers alone; empty without one. None for a host of an older build, which knows no such address of
    others either.
    """


class ShardRow(NamedTuple):
    """A shard of the cluster. Its owner is the process that took its last epoch, living or not."""

    shard_id: int
    epoch: int
    owner: str
    """The id of the process; empty if the shard never had an owner."""
    owned_since_ms: int
    place: str
    """The URL of its database without user and password; empty if only configurations of hosts have it."""
    use: ShardUse
    tier: str
    pinned_to: str
    """The name of the host that must serve it while that host lives; empty for any host."""
    moving_to: str
    """The id of the process that is ready to take it over from its living owner; empty for none."""
    changed_at_ms: int
    server: str = ""
    """The server on which the owner serves it; empty if unknown, or once the owner has lost it."""
    first_number: int = 0
    """The number of its last transaction when the epoch was taken."""
    last_number: int = 0
    """The number of its last transaction in the owner's last report."""
    is_relocated: bool = False
    """True once its place was changed, so that URLs in configurations of hosts can lead to its former database."""


class ShardIdentity(NamedTuple):
    """The identity on record in the database of a shard."""

    cluster: bytes
    """The id of the cluster."""
    shard_id: int


class OpenedShard(NamedTuple):
    """A shard that a host has opened, and the epoch in which the host owns it."""

    shard_id: int
    epoch: int


def process_id(host_name: str, started_at_ms: int) -> str:
    """Return an id that no other process has, neither a host with the same name nor an earlier process of this one."""
    digits, rest = "", max(0, started_at_ms)
    while rest or not digits:
        rest, digit = divmod(rest, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return f"{host_name}{PROCESS_MARK}{digits}"


def host_name_of(host_id: str) -> str:
    """Return the name of the host of this process."""
    return host_id.partition(PROCESS_MARK)[0]


def identity_problem(found: ShardIdentity | None, wanted: ShardIdentity) -> str:
    """Return the reason why a shard cannot be served from a database with the identity `found`, or an empty text.

    The cluster of `wanted` is empty while it is unknown.
    """
    remedy = "drop the database and make another one for this shard (foqs schema apply)"
    if found is None:
        return ""
    if wanted.cluster not in (b"", found.cluster):
        return (
            f"its database is that of shard {found.shard_id} of another cluster, {found.cluster.hex()}; this one is "
            f"{wanted.cluster.hex()}: correct its URL or meta_url; if it is not needed there any more, {remedy}"
        )
    if found.shard_id != wanted.shard_id:
        return (
            f"its database is that of shard {found.shard_id}, and two shards need two databases: correct its URL; if "
            f"shard {found.shard_id} was removed, add that one again, or {remedy}"
        )
    return ""


def lost_database_problem(shard_id: int, epoch: int) -> str:
    """Return the reason why a shard is not served from a new database, if the meta database has recorded this epoch of
    it.
    """
    return (
        f"hosts have served it, in epoch {epoch} last, and its database is not there, empty or new: restore the "
        f"database, or correct its URL; foqs schema apply --new-shard {shard_id} makes it anew, and gives up all items "
        "that it had"
    )


def check_id_is_free(found: ShardRow | None, place: str) -> None:
    """Raise AlreadyExistsError if no shard can be added at the place under the id of this row."""
    if found is not None and (found.use is not ShardUse.REMOVED or found.place not in ("", place)):
        raise AlreadyExistsError(
            f"shard {found.shard_id} exists already, or was elsewhere ({found.place or 'in configurations alone'}): "
            "use an id that was never used"
        )


def shards_named(shard_ids: Collection[int]) -> str:
    """Return the shards for a message: `shard 3`, or `shards 0, 2`, or the first ones and the total."""
    some = [str(shard_id) for shard_id in sorted(shard_ids)]
    if len(some) == 1:
        return f"shard {some[0]}"
    if len(some) <= _SHARDS_NAMED_MAX:
        return f"shards {', '.join(some)}"
    return f"shards {', '.join(some[:_SHARDS_NAMED_MAX])}, ... ({len(some)} in all)"


def tier_problem(value: object) -> str:
    """Return the fault in the name of a tier, or an empty text."""
    if not isinstance(value, str):
        return f"tier {value!r} is not a text"
    return "" if _TIER.fullmatch(value) else f"tier {shown(value)} is not valid: it does not match {_TIER.pattern}"
