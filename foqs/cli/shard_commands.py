"""`foqs shard ...`: the shards of the cluster, and the host that serves each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import click

from foqs.cli.numbers import WholeNumber
from foqs.cli.output import note, time_of
from foqs.cli.remote import Remote, confirmed, remote_command
from foqs.client.sync import AdminClient
from foqs.model import limits
from foqs.model.calls import ClusterShard
from foqs.model.cluster import ShardHealth, ShardUse
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.slots import SLOTS_COUNT

_PROBLEMS = {
    ShardHealth.UNKNOWN: "it is not known who serves it",
    ShardHealth.SICK: "it is sick",
    ShardHealth.UNSERVED: "no host serves it",
}
_pause = time.sleep
_WAIT_S_MAX = 60
_PAUSE_S = 0.3
_SHARD_ID = WholeNumber(0, limits.SHARD_ID_MAX)


@click.group()
def shard() -> None:
    """List, add, drain, move, park, relocate and remove shards."""


@shard.command("list")
@remote_command
def list_(remote: Remote) -> None:
    """List all shards that the cluster has or had: where they are, and who serves them.

    OWNER is the live host that reports serving the shard. HEALTH is the state of the service, and a message gives the
    reason if a shard is not well.
    """
    with remote.admin() as admin:
        found = admin.list_shards()
    remote.output.document(found)
    _table(remote, found)
    for problem in shard_problems(found):
        note(problem)


def shard_problems(shards: Iterable[ClusterShard]) -> list[str]:
    """The problems of all shards that are not served, each a sentence; a removed or parked shard has none."""
    return [
        f"shard {one.shard_id}: {_PROBLEMS[one.health]}: {one.detail}"
        for one in shards
        if one.state.is_served and one.health is not ShardHealth.SERVED
    ]


@shard.command()
@click.argument("shard_id", type=_SHARD_ID)
@click.argument("place")
@click.option("--tier", default="", help="Tier of the hosts that are to serve it.")
@remote_command
def add(remote: Remote, shard_id: int, place: str, tier: str) -> None:
    """Let the hosts serve a new shard SHARD_ID at PLACE, such as mysql://HOST:3306/DATABASE.

    The shard gets its part of the slots of dedup ids, a few at a time. Its database must exist, with tables of this
    version: see `foqs schema apply`. The hosts open it as the user of their setting `shard_login`, or else of
    `meta_url`, if its server is one that their configuration, their setting `shard_places` or an earlier shard names.
    """
    with remote.admin() as admin:
        _show(remote, admin.add_shard(shard_id, place, tier=tier))
        _note_who_is_missing(admin, shard_id, tier=tier)


@shard.command()
@click.argument("shard_id", type=_SHARD_ID)
@click.option("--last", is_flag=True, help="Also drain the last shard of its tier; enqueues are then refused.")
@remote_command
def drain(remote: Remote, shard_id: int, last: bool) -> None:
    """Let the shard SHARD_ID take no new items; its stored items are served until it is empty.

    Its slots of dedup ids move to the other shards, a few at a time. `foqs shard list` shows why it cannot be removed
    yet.
    """
    with remote.admin() as admin:
        _show(remote, admin.update_shard(shard_id, state=ShardUse.DRAINING, last=last))


@shard.command()
@click.argument("shard_id", type=_SHARD_ID)
@remote_command
def serve(remote: Remote, shard_id: int) -> None:
    """Let the shard SHARD_ID take items again after `foqs shard drain`."""
    with remote.admin() as admin:
        if any(one.shard_id == shard_id and one.state is ShardUse.PARKED for one in admin.list_shards()):
            raise InvalidArgumentError(f"shard {shard_id} is parked: see foqs shard unpark {shard_id}")
        _show(remote, admin.update_shard(shard_id, state=ShardUse.SERVING))


@shard.command()
@click.argument("shard_id", type=_SHARD_ID)
@click.option("--last", is_flag=True, help="Also park the last shard of its tier; enqueues are then refused.")
@remote_command
def park(remote: Remote, shard_id: int, last: bool) -> None:
    """Let nobody serve the shard SHARD_ID until it is unparked, so that its database can be restored.

    Its owner writes all accepted work and leaves the database, for which this command waits for up to a minute. Its
    items wait; calls that need the shard get UNAVAILABLE, and the other shards are served as before. No namespace can
    be created or deleted meanwhile.
    """
    with remote.admin() as admin:
        admin.update_shard(shard_id, state=ShardUse.PARKED, last=last)
        _show(remote, _left(admin, shard_id))
    note(f"nobody serves shard {shard_id} now; see foqs shard unpark {shard_id}, and foqs shard relocate")


@shard.command()
@click.argument("shard_id", type=_SHARD_ID)
@remote_command
def unpark(remote: Remote, shard_id: int) -> None:
    """Let the hosts serve the parked shard SHARD_ID again, from its database as it is now, and wait until one does.

    It takes new items, also if it was drained before it was parked. After a minute without a host that serves it, this
    command fails, and the shard stays unparked.
    """
    with remote.admin() as admin:
        admin.update_shard(shard_id, state=ShardUse.SERVING)
        _show(remote, _served(admin, shard_id))


@shard.command()
@click.argument("shard_id", type=_SHARD_ID)
@click.argument("place")
@click.option("--lose", is_flag=True, help="Also take a database that lacks transactions, such as an older backup.")
@remote_command
def relocate(remote: Remote, shard_id: int, place: str, lose: bool) -> None:
    """Set the database of the parked shard SHARD_ID to PLACE, such as mysql://HOST:3306/DATABASE.

    The database must hold the shard's data: a copy or a restored backup of it. Hosts open it as their configured user
    for that place, or as the user of their setting `shard_login`, or else of `meta_url`, and ignore another URL of the
    shard in their configuration, which you should correct. With --lose, items that were enqueued after the backup are
    lost, and items that ended after it are delivered again.
    """
    with remote.admin() as admin:
        _show(remote, admin.update_shard(shard_id, place=place, allow_older=lose))
    note(f"shard {shard_id} is served from there after foqs shard unpark {shard_id}")


def _left(admin: AdminClient, shard_id: int) -> ClusterShard:
    """Return the parked shard once its owner has left it. Raises UnavailableError if that takes too long."""
    found = _awaited(admin, shard_id, lambda shard: not shard.kept_by)
    if found.kept_by:
        raise UnavailableError(
            f"shard {shard_id} is parked, and after {_WAIT_S_MAX} s it still has {found.kept_by}: do not touch its "
            "database before foqs shard list shows nothing in KEPT BY"
        )
    return found


def _served(admin: AdminClient, shard_id: int) -> ClusterShard:
    """Return the shard once a host serves it. Raises UnavailableError if that takes too long."""
    found = _awaited(admin, shard_id, lambda shard: shard.health is ShardHealth.SERVED)
    if found.health is not ShardHealth.SERVED:
        raise UnavailableError(
            f"shard {shard_id} is unparked, and after {_WAIT_S_MAX} s {_PROBLEMS[found.health]}: {found.detail}"
        )
    return found


def _awaited(admin: AdminClient, shard_id: int, is_done: Callable[[ClusterShard], bool]) -> ClusterShard:
    """Return the shard once that is done, or as it is after a minute."""
    until_s = time.monotonic() + _WAIT_S_MAX
    while True:
        found = next((one for one in admin.list_shards() if one.shard_id == shard_id), None)
        if found is None:
            raise NotFoundError(f"there is no shard {shard_id}: see foqs shard list")
        if is_done(found) or time.monotonic() > until_s:
            return found
        _pause(_PAUSE_S)


@shard.command()
@click.argument("shard_id", type=_SHARD_ID)
@click.argument("host_name", default="")
@click.option("--tier", help="Give it to the hosts of another tier.")
@remote_command
def move(remote: Remote, shard_id: int, host_name: str, tier: str | None) -> None:
    """Pin the shard SHARD_ID to the host HOST_NAME, which serves it while it lives; without a name to none.

    The host and the tier need not exist yet: a message says if they do not.
    """
    with remote.admin() as admin:
        _show(remote, admin.update_shard(shard_id, pinned_to=host_name, tier=tier))
        _note_who_is_missing(admin, shard_id, host_name=host_name, tier=tier)


def _removed(remote: Remote, arguments: dict[str, Any]) -> str:
    """Describe the shard by its id and its database."""
    shard_id = arguments["shard_id"]
    with remote.admin() as admin:
        found = next((one for one in admin.list_shards() if one.shard_id == shard_id), None)
    if found is None:
        raise NotFoundError(f"there is no shard {shard_id}: see foqs shard list")
    return f"{shard_id} (database {found.place or 'as the hosts are configured'})"


@shard.command()
@click.argument("shard_id", type=_SHARD_ID)
@remote_command
@confirmed(_removed)
def remove(remote: Remote, shard_id: int) -> None:
    """Let nobody serve the shard SHARD_ID any more, once it is drained and empty. Its database stays.

    Only its owner can confirm that the shard is empty, and any host asks the owner, so a shard that nobody serves
    cannot be removed. Its id cannot be used again for another place.
    """
    with remote.admin() as admin:
        admin.remove_shard(shard_id)
    remote.output.document({"removed": shard_id})
    note(f"shard {shard_id} was removed; drop its database when it is not needed any more")


@shard.command()
@click.argument("slot", type=click.IntRange(0, SLOTS_COUNT - 1))
@click.option("--force", is_flag=True, help="Do it, although older items can be delivered after later ones.")
@remote_command
def ungate(remote: Remote, slot: int, force: bool) -> None:
    """Let serial topics of the slot SLOT continue without the items that an earlier shard still has.

    A slot moves with a gate: its next shard delivers no item of its serial topics while the earlier shard has some. Use
    this if the database of the earlier shard is lost. If it comes back, its items are delivered out of order. Without
    --force an error names the gates of the slot.
    """
    with remote.admin() as admin:
        admin.ungate_slot(slot, force=force)
    remote.output.document({"ungated": slot})


def _note_who_is_missing(admin: AdminClient, shard_id: int, *, host_name: str = "", tier: str | None = None) -> None:
    """Print a note if no live host has this name or tier, because it can be a typing error."""
    try:
        hosts = admin.list_hosts()
    except FoqsError as error:
        note(f"the hosts could not be listed, so it was not checked that one has this name or tier: {error.message}")
        return
    if host_name and not any(host.name == host_name for host in hosts):
        note(f"no host {host_name!r} lives now: others serve shard {shard_id} until it comes; see foqs hosts")
    if tier is not None and not any(host.tier == tier for host in hosts):
        note(f"no host of tier {tier!r} lives now: nobody serves shard {shard_id} until one comes; see foqs hosts")


def _show(remote: Remote, found: ClusterShard) -> None:
    remote.output.document(found)
    _table(remote, [found])


def _health_of(shard: ClusterShard) -> str:
    return "" if shard.state is ShardUse.REMOVED else shard.health.name.lower()


def _table(remote: Remote, shards: Iterable[ClusterShard]) -> None:
    remote.output.table(
        [
            "SHARD", "STATE", "HEALTH", "SLOTS", "KEPT BY", "OWNER", "ADDRESS", "MOVING TO", "PINNED TO", "TIER",
            "EPOCH", "PLACE", "CHANGED",
        ],
        (
            (
                one.shard_id, one.state.name.lower(), _health_of(one), one.slots_count, one.kept_by, one.owner,
                one.owner_address, one.moving_to, one.pinned_to, one.tier, one.epoch, one.place,
                time_of(one.changed_at_ms) if one.changed_at_ms else "",
            )
            for one in shards
        ),
    )  # fmt: skip
