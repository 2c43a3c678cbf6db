"""Makes the objects of a host for one shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from zlib import crc32

import structlog
from sqlalchemy import make_url

from foqs.cluster.members.membership import Membership
from foqs.config import HostConfig
from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.metrics.meters import TransactionMeters
from foqs.host.registry.namespaces import Namespaces
from foqs.host.registry.slot_moves import Source
from foqs.host.shards.shards import OwnedShard
from foqs.host.verbs.place_check import NotOpenedError
from foqs.model import limits
from foqs.model.cluster import ShardIdentity, ShardRow, identity_problem, lost_database_problem
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.model.shard_place import EpochAsk, EpochGiven, Tenure, lost_by_row
from foqs.parts import Parts
from foqs.shard.mysql_server import CommitScheduler, MysqlServer, TurningTime
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_writer import ShardWriter
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema.migrations import MigrationError, SchemaKind
from foqs.storage.sessions.server_tls import is_unverified
from foqs.storage.sessions.session import server_of
from foqs.storage.shard.identity import ClusterId
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_store import ShardAccess

_log = structlog.get_logger(__name__)


class ShardFactory:
    """Makes the shards of a host. Shards on one MySQL server share its MysqlServer object.

    It knows the URLs of shards, and the user for shards that the configuration does not name.
    """

    def __init__(
        self,
        config: HostConfig,
        parts: Parts,
        meta: MetaStore,
        namespaces: Namespaces,
        dispatcher: Dispatcher,
        membership: Membership,
        transactions: TransactionMeters,
        opened: Callable[[ShardState], None],
        host_id: str,
    ) -> None:
        """`opened` is called for each opened shard, before the shard's first call."""
        self._config = config
        self._parts = parts
        self._meta = meta
        self._namespaces = namespaces
        self._dispatcher = dispatcher
        self._membership = membership
        self._transactions = transactions
        self._opened = opened
        self._host_id = host_id
        self._loop = asyncio.get_running_loop()
        self.turning = TurningTime()
        """The time for which the event loop turned. The host ticks it."""
        self._servers: dict[str, MysqlServer] = {}
        """Servers by the address in the URLs of their shards."""
        self._unverified: set[str] = set()
        """Addresses of servers that were reported as unverified."""
        self.cluster = ClusterId(meta.cluster.id, meta.cluster.make_id, self._read_in_shards, self._epoch_of)
        """The id of the cluster, which each shard's database must also have."""
        self._pack_budget = PackBudget(limits.PACKS_OF_HOST_BYTES_MAX)
        self.relocated: Collection[int] = ()
        """The shards whose places count, and not the URLs of this configuration."""

    def use_urls(self, config: HostConfig) -> None:
        """Use the URLs of this configuration for new shards."""
        self._config = config

    def url_of(self, shard_id: int, place: str) -> str:
        """The URL of a shard: the configured one, or else its place with the user of all shards."""
        return self._config.url_of_shard(shard_id, place, is_relocated=shard_id in self.relocated)

    def source(self, shard_id: int, place: str, served_on: str) -> Source:
        """The source of the dedup ids of a shard that another host, or none, serves."""
        return self._parts.slot_source(shard_id, self.url_of(shard_id, place), served_on)

    def make(self, shard_id: int, place: str, tenure: Tenure | None = None) -> OwnedShard:
        """Make the objects of one shard. `tenure` is this process's memory of an earlier ownership of the shard, if
        any.
        """
        config, parts, url = self._config, self._parts, self.url_of(shard_id, place)
        access = ShardAccess(
            shard_id=shard_id,
            url=url,
            lock_name=_lock_name(config.cluster, shard_id, url),
            owner=self._host_id,
            cluster=self.cluster,
            allow_undurable=config.allow_undurable_servers,
        )
        packs = PackIndex(self._pack_budget)
        store = parts.store(access, partial(self.take_epoch, shard_id, place=place), self._membership.is_dead, packs)
        writer = ShardWriter(
            shard_id,
            store,
            self._server_of(url),
            self._dispatcher,
            self._transactions,
            self._opened,
            tenure,
        )
        reader, exporter = [parts.reader(shard_id, url, packs, lambda: writer.served_on) for _ in range(2)]
        if shard_id not in config.shards and is_unverified(url):
            self._warn_of(server_of(url))
        return OwnedShard(writer, store, reader, exporter, packs, self._dispatcher.on_events, place)

    def _warn_of(self, server: str) -> None:
        """Log once that sessions go to a server that only the meta database names, and do not verify it."""
        if server not in self._unverified:
            self._unverified.add(server)
            _log.warning("database_not_verified", servers=[server])

    def check_server(self, place: str, places_before: Collection[str]) -> None:
        """Raises InvalidArgumentError if this host must not log in to the place's server. It does no I/O."""
        if not self._config.servers.may_add(place, places_before):
            raise InvalidArgumentError(
                f"no shard can be added at {place}: neither the configuration of host {self._config.host_name} nor a "
                "shard of the cluster names its server; list it in shard_places of the hosts"
            )

    def check_database(self, shard_id: int, place: str) -> None:
        """Raises InvalidArgumentError if this host cannot serve the shard from this database.

        Raises NotOpenedError, whose text is not for callers, if the database cannot even be opened. It blocks.
        """
        self._check_at(self._config.url_at(place), shard_id, place)

    def check_copy(self, shard_id: int, place: str, before: ShardRow | None) -> None:
        """Raises InvalidArgumentError if this host cannot serve the existing shard from this database, or if it lacks
        transactions that the owners of this row have reported. Raises NotOpenedError. It blocks.
        """
        url = self._config.url_of_shard(shard_id, place, is_relocated=True)
        self._check_at(url, shard_id, place)
        try:
            found = self._parts.found(shard_id, url)
        except UnavailableError as error:
            raise NotOpenedError(str(error)) from error
        if lost := lost_by_row(before, found):
            raise InvalidArgumentError(
                f"the database at {place} lacks {lost} transactions of shard {shard_id}: items enqueued in them would "
                "be missing, and ended ones there again; restore a newer backup, or give allow_older (foqs shard "
                "relocate --lose)"
            )

    def _check_at(self, url: str, shard_id: int, place: str) -> None:
        cluster = self.cluster.read()
        try:
            self._parts.check_schema(url, SchemaKind.SHARD)
            found = self._parts.identity(shard_id, url)
            problem = identity_problem(found, ShardIdentity(cluster, shard_id))
            if found is None and (epoch := self._epoch_of(shard_id)):
                problem = lost_database_problem(shard_id, epoch)
        except UnavailableError as error:
            raise NotOpenedError(str(error)) from error
        except MigrationError as error:
            if error.__cause__ is not None:  # The error is that of the server.
                raise NotOpenedError(str(error)) from error
            raise InvalidArgumentError(f"no shard can be served at {place}: {error}") from error
        if problem:
            raise InvalidArgumentError(f"shard {shard_id} cannot be served at {place}: {problem}")

    def place_problem(self, shard_id: int, place: str) -> str:
        """The reason that the shard is not at this place, by the identity in the database; empty without an
        identity. It blocks.
        """
        try:
            found = self._parts.identity(shard_id, self.url_of(shard_id, place))
        except UnavailableError:
            return ""  # The host that takes the shard over checks again.
        return identity_problem(found, ShardIdentity(self.cluster.known, shard_id))

    def _read_in_shards(self) -> bytes:
        """The id of the cluster in the first readable shard that has one, or empty."""
        rows = self._meta.shards.read_all()
        self.relocated = {row.shard_id for row in rows if row.is_relocated}
        places = {row.shard_id: row.place for row in rows if row.place}
        silent: set[str] = set()
        for shard_id in sorted(self._config.shards.keys() | places.keys()):
            url = self.url_of(shard_id, places.get(shard_id, ""))
            if server_of(url) in silent:
                continue
            try:
                found = self._parts.identity(shard_id, url)
            except UnavailableError:
                silent.add(server_of(url))  # One wait for each unreachable server is enough.
            else:
                if found is not None and found.shard_id == shard_id:
                    return found.cluster
        return b""

    def _epoch_of(self, shard_id: int) -> int:
        """The last epoch that the meta database has given for the shard, or 0. It blocks; raises UnavailableError."""
        return next((row.epoch for row in self._meta.shards.read_all() if row.shard_id == shard_id), 0)

    def is_dead(self, owner: str, epoch: int) -> bool:
        """True if the process that owned a shard under this epoch has surely ended."""
        return self._membership.is_dead(owner, epoch)

    def take_epoch(self, shard_id: int, ask: EpochAsk, *, place: str = "") -> EpochGiven:
        """A new epoch of the shard at this place for this host. It blocks. Raises ElsewhereError."""
        self._namespaces.require_durable()
        given = self._meta.shards.take_epoch(
            shard_id, self._host_id, self._parts.wall_ms(), ask.at_least, ask.found, is_renewal=ask.is_renewal,
            place=place, is_dead=self._membership.is_dead,
        )  # fmt: skip
        # Read after the epoch is taken, so that its owner sees each namespace that was closed or deleted before.
        self._namespaces.read(self._meta)
        return given

    def _server_of(self, url: str) -> MysqlServer:
        """The MysqlServer of all shards at an address."""
        address = server_of(url)
        if address not in self._servers:
            scheduler = CommitScheduler(self._loop, self._config.transactions_per_server_max)
            self._servers[address] = MysqlServer(address, scheduler, self.turning)
        return self._servers[address]


def _lock_name(cluster: str, shard_id: int, url: str) -> str:
    """The name of a shard's lock. It includes the database, because two clusters of one name can be on one server."""
    database = (make_url(url).database or "").encode()
    return f"{cluster}.shard.{shard_id}.{crc32(database):08x}"
