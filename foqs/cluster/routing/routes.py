"""Which host does which part of a call: by the shard in each id, or all together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from foqs.cluster.ownership.owner_map import OwnerMap, ShardOwner
from foqs.cluster.peers.peer_table import Peer, PeerSource
from foqs.model import limits
from foqs.model.calls import CallContext, PositionErrors
from foqs.model.cluster import shards_named
from foqs.model.errors import FoqsError, HostUnreachableError, UnavailableError

RETRY_MS = 100
"""The first pause of a call that waits for a shard on its way, unless its owner changes before."""
RETRY_MS_MAX = 500
"""The longest such pause: each retry repeats all that is left of the call, possibly at a dead host."""
_HOSTS_NAMED_MAX = 3

assert limits.ROUTE_RETRY_MS <= RETRY_MS_MAX < limits.SICK_RETRY_MS, "a shard is waited for if it may come soon"

T = TypeVar("T")
Here = Callable[[Sequence[int] | None], Awaitable[PositionErrors]]
"""Does the positions of a call by this host, all positions for None."""
There = Callable[[Peer, Sequence[int]], Awaitable[PositionErrors]]
"""Does the positions of a call by another host."""


class LocalServing(Protocol):
    """The shards that this host serves, and the namespaces that it knows."""

    def serves(self, shard_id: int) -> bool: ...

    def serves_any(self) -> bool: ...

    def served(self) -> Collection[int]:
        """All shards that this host serves now."""

    def number_of(self, namespace_name: str) -> int | None:
        """The number of a namespace; None for an unknown name."""

    def can_take(self, namespace_name: str, shard_id: int) -> bool:
        """True if new items of the namespace are stored on the shard: it is of the namespace's tier and does not
        drain.
        """

    async def know(self, namespace_name: str | None) -> None:
        """Read the namespaces again if the name is unknown."""


class _Group(NamedTuple):
    """Positions of a call that one host does."""

    remote: Peer | None
    """None: this one."""
    positions: Sequence[int]


class _Part(NamedTuple):
    """Shards that one host serves."""

    remote: Peer | None
    shards: frozenset[int]
    is_here: bool
    """False, without a `remote`: nobody serves them."""


class Routes:
    """Finds the hosts of a call. It owns nothing: the owner map knows the owner of each shard.

    A call that a peer has forwarded is done here or refused, so that no call circles.
    """

    def __init__(self, me: str, owners: OwnerMap, peers: PeerSource, local: LocalServing) -> None:
        """`me` is the id of this host, `local` has the shards that it serves now."""
        self._me = me
        self._owners = owners
        self._peers = peers
        self._serves = local.serves
        self._served = local.served
        self._know = local.know
        self.number_of = local.number_of
        """The number of a namespace; None for an unknown name."""
        self._can_take = local.can_take

    def is_unknown(self, namespace_name: str | None) -> bool:
        """True if another host possibly knows the namespace sooner than this one, because it has just made it."""
        return namespace_name is not None and self.number_of(namespace_name) is None

    async def know(self, namespace_name: str | None) -> None:
        """Read this namespace from the meta database, if that was not done a moment ago."""
        await self._know(namespace_name)

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return when the believed owner of a shard changes, or after this time."""
        await self._owners.wait_for_change(timeout_s)

    def remote_of(self, shard_id: int) -> Peer | None:
        """The host that has the shard, if it is another one and can be reached as far as this one knows."""
        if self._serves(shard_id):
            return None
        owner = self._owners.get(shard_id)
        return None if owner is None else self._remote(owner)

    def takers(self, namespace_name: str) -> list[Peer]:
        """The other hosts that have shards for items of the namespace, as far as this one knows where they are."""
        found: dict[str, Peer] = {}
        for shard_id, owner in self._owners.owners.items():
            if owner.host_id in found or not self._can_take(namespace_name, shard_id):
                continue
            if (remote := self._remote(owner)) is not None:
                found[owner.host_id] = remote
        return list(found.values())

    async def by_all(
        self,
        context: CallContext,
        here: Callable[[CallContext], Awaitable[T]],
        there: Callable[[Peer, CallContext], Awaitable[T]],
        missing: list[str] | None = None,
        *,
        also_without_shards: bool = False,
    ) -> list[T]:
        """Return the results of all hosts, each for its own shards; only one host is asked for a shard.

        With `also_without_shards` hosts that serve no shard are asked, too, such as standbys.

        A shard that is on its way is waited for, for up to limits.ROUTE_WAIT_MS_MAX. Raises the error of a host, and
        names the host. `missing`, if given, gets the hosts and shards that do not respond instead.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limits.ROUTE_WAIT_MS_MAX / 1000
        while True:
            version = self._owners.version
            parts = self._parts() + (self._idle_parts() if also_without_shards else [])
            asked = [self._ask(part, context, here, there) for part in parts]
            results = await asyncio.gather(*asked, return_exceptions=True)
            failed = [result for result in results if isinstance(result, BaseException)]
            if not failed:
                break
            for error in failed:
                if not isinstance(error, UnavailableError):
                    raise error
            if version == self._owners.version:
                await self._owners.wait_for_change(RETRY_MS / 1000)
            if version == self._owners.version or loop.time() >= until_s:
                if missing is None:
                    raise failed[0]
                missing += [str(error) for error in failed]
                break
        return [result for result in results if not isinstance(result, BaseException)]

    @property
    def hosts_count(self) -> int:
        """The hosts that a call for all shards is asked of, this one included."""
        return len({owner.host_id for owner in self._owners.owners.values()} | {self._me})

    def _parts(self) -> list[_Part]:
        """All shards by the hosts that serve them, as far as this host knows.

        Shards that it has opened itself can be a second ahead of the knowledge of all hosts.
        """
        by_host: dict[str, tuple[Peer | None, set[int]]] = {}
        if served := set(self._served()):
            by_host[""] = (None, served)
        for owner in self._owners.owners.values():
            is_here = self._serves(owner.shard_id)
            remote = None if is_here else self._remote(owner)
            name = "" if is_here else owner.host_id if remote is not None else "?"
            by_host.setdefault(name, (remote, set()))[1].add(owner.shard_id)
        return [_Part(remote, frozenset(some), name == "") for name, (remote, some) in by_host.items()]

    def _idle_parts(self) -> list[_Part]:
        """The living hosts that serve no shard, as far as this host knows. One that is starting has no callers yet."""
        serving = {owner.host_id for owner in self._owners.owners.values()}
        idle = [] if self._served() or self._me in serving else [_Part(None, frozenset(), True)]
        for host_id, host in self._owners.living.items():
            if host_id != self._me and host_id not in serving and host.address and not host.is_starting:
                idle.append(_Part(self._peers.get(host_id, host.address), frozenset(), False))
        return idle

    async def _ask(
        self,
        part: _Part,
        context: CallContext,
        here: Callable[[CallContext], Awaitable[T]],
        there: Callable[[Peer, CallContext], Awaitable[T]],
    ) -> T:
        remote, shards = part.remote, part.shards
        if remote is None and not part.is_here:
            raise UnavailableError(
                f"{self._why_unasked(shards)}: nothing was done, try again",
                retry_after_ms=limits.ROUTE_RETRY_MS,
                nothing_done=True,
            )
        asking = replace(context, shards=shards)
        if remote is None:
            return await here(asking)
        try:
            return await there(remote, asking)
        except UnavailableError as error:
            self.disowned(shards, remote, error)
            part_of_it = f"as the owner of {shards_named(shards)}" if shards else "because consumers can call it"
            raise UnavailableError(
                f"host {remote.host_id} is needed for a whole answer, {part_of_it}: {error.message}",
                retry_after_ms=error.retry_after_ms or limits.ROUTE_RETRY_MS,
                nothing_done=error.nothing_done,
            ) from error

    def _why_unasked(self, shards: Collection[int]) -> str:
        """Why nobody can be asked for these shards."""
        lost: list[int] = []
        hidden: dict[str, list[int]] = {}
        for shard_id in sorted(shards):
            owner = self._owners.get(shard_id)
            host = self._owners.living.get(owner.host_id) if owner is not None and owner.host_id != self._me else None
            if host is not None and not host.address:
                hidden.setdefault(host.id, []).append(shard_id)
            else:
                lost.append(shard_id)
        said = [f"{shards_named(lost)} {_is(lost)} served by no host now"] if lost else []
        said += [
            f"{shards_named(some)} {_is(some)} served by host {host_id}, which {self._why_hidden(host_id)}"
            for host_id, some in list(hidden.items())[:_HOSTS_NAMED_MAX]
        ]
        return "; ".join(said)

    def _why_hidden(self, host_id: str) -> str:
        host = self._owners.living.get(host_id)
        if host is not None and host.is_starting:
            return "is starting, and has not opened its port yet"
        return "reports no address: set its advertise_address"

    def _note_of(self, groups: Sequence[_Group], shards: Sequence[int | None], errors: PositionErrors) -> None:
        for remote, positions in groups:
            for position in positions if remote is not None and errors else ():
                error, shard_id = errors.get(position), shards[position]
                if remote is not None and error is not None and shard_id is not None:
                    self.disowned([shard_id], remote, error)

    def disowned(self, shard_ids: Iterable[int], remote: Peer, error: FoqsError) -> None:
        """A host was asked for shards, and has said this: if it does not have them, nobody believes that it does."""
        if is_elsewhere(error) and not isinstance(error, HostUnreachableError):
            for shard_id in shard_ids:
                self._owners.disowned(shard_id, remote.host_id)

    def _remote(self, owner: ShardOwner) -> Peer | None:
        if owner.host_id == self._me or not owner.address:
            return None
        return self._peers.get(owner.host_id, owner.address)

    async def by_shard(self, ids: Sequence[str], here: Here, there: There) -> PositionErrors:
        """Have each position done by the host that has the shard of its id, and return the errors.

        A position that was not done, because its shard is on its way to another host, is tried again there, until
        limits.ROUTE_WAIT_MS_MAX have passed. Ids of parked shards wait for nothing, and nor do those of shards that the
        cluster does not have. Raises an error that all positions have in common.
        """
        if len(ids) > limits.BATCH_ITEMS_MAX:
            return await here(None)  # It is refused as a whole.
        shards = _shards_of(ids)
        raised: list[FoqsError] = []
        errors: PositionErrors = {}
        pending: Sequence[int] = range(len(ids))
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limits.ROUTE_WAIT_MS_MAX / 1000
        for pause_s in retry_pauses_s():
            groups = self._groups(shards, pending)
            found = await _in_groups(groups, len(ids), here, there, raised)
            self._note_of(groups, shards, found)
            for position in pending:
                errors.pop(position, None)
            errors.update(found)
            pending = sorted(
                position
                for position, error in found.items()
                if is_elsewhere(error) and self._is_awaited(shards[position])
            )
            if not pending or not await self._until_found({shards[position] for position in pending}, pause_s, until_s):
                break
        if len(errors) == len(ids) and len(distinct := set(errors.values())) == 1 and raised and raised[-1] in distinct:
            raise raised[-1]
        return errors

    def _is_awaited(self, shard_id: int | None) -> bool:
        """True if a host has the shard, or will soon."""
        return shard_id is not None and self._owners.get(shard_id) is not None and shard_id not in self._owners.parked

    async def _until_found(self, shards: Collection[int | None], pause_s: float, until_s: float) -> bool:
        """Return after a pause or a report, once a host is known that can be asked for one of the shards.

        False when the time is over. A batch is not repeated without such a host, because each repetition costs as much.
        """
        loop = asyncio.get_running_loop()
        while (left_s := until_s - loop.time()) > 0:
            await self._owners.wait_for_change(min(left_s, pause_s))
            if any(
                shard_id is not None and (self._serves(shard_id) or self.remote_of(shard_id)) for shard_id in shards
            ):
                return True
        return False

    def _groups(self, shards: Sequence[int | None], positions: Sequence[int]) -> list[_Group]:
        """The positions by the hosts that are to do them."""
        remotes: dict[int | None, Peer | None] = {
            shard_id: None if shard_id is None else self.remote_of(shard_id) for shard_id in set(shards)
        }
        if not any(remotes.values()):
            return [_Group(None, positions)]
        groups: dict[str, tuple[Peer | None, list[int]]] = {}
        for position in positions:
            remote = remotes[shards[position]]
            _, some = groups.setdefault("" if remote is None else remote.host_id, (remote, []))
            some.append(position)
        return [_Group(remote, some) for remote, some in groups.values()]


def _is(shards: Collection[int]) -> str:
    return "is" if len(shards) == 1 else "are"


def retry_pauses_s() -> Iterator[float]:
    """The pauses of a call that waits for a shard on its way, in seconds: RETRY_MS, then twice as long each time."""
    pause_ms = RETRY_MS
    while True:
        yield pause_ms / 1000
        pause_ms = min(2 * pause_ms, RETRY_MS_MAX)


def _shards_of(ids: Sequence[str]) -> list[int | None]:
    """The shard of each id or receipt; None for an invalid one, which this host refuses itself."""
    known: dict[str, int | None] = {}
    for text in {item_id.partition("-")[0] for item_id in ids}:
        try:
            known[text] = int(text, 16)
        except ValueError:
            known[text] = None
    return [known[item_id.partition("-")[0]] for item_id in ids]


def is_elsewhere(error: FoqsError) -> bool:
    """True if another host can soon do the work that failed with this error: nobody else has a shard that is sick."""
    return isinstance(error, UnavailableError) and error.nothing_done and (error.retry_after_ms or 0) <= RETRY_MS_MAX


async def _in_groups(
    groups: list[_Group], count: int, here: Here, there: There, raised: list[FoqsError]
) -> PositionErrors:
    """The errors by position of the call. An error that a group's work raises is the error of each of its positions."""

    async def do(group: _Group) -> PositionErrors:
        remote, positions = group
        try:
            if remote is not None:
                found = await there(remote, positions)
            else:
                found = await here(None if len(positions) == count else positions)
        except FoqsError as error:
            raised.append(error.with_traceback(None))
            return dict.fromkeys(positions, error)
        return {positions[index]: error for index, error in found.items() if 0 <= index < len(positions)}

    results = [await do(groups[0])] if len(groups) == 1 else await asyncio.gather(*map(do, groups))
    return {position: error for errors in results for position, error in errors.items()}
