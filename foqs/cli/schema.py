"""`foqs schema ...`: the tables of the meta database, and of every shard that it or the configuration names."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import asdict
from typing import NamedTuple

import click
from sqlalchemy.exc import SQLAlchemyError

from foqs.cli.host_options import host_command
from foqs.cli.login_audit import record_change
from foqs.cli.output import Exit, Output, leave, note, time_of
from foqs.cli.schema_grants import grants
from foqs.cli.times import PastTime
from foqs.config import HostConfig, LoadedConfig
from foqs.model.audit import PRUNE_AUDIT
from foqs.model.cluster import ShardIdentity, ShardRow, ShardUse, lost_database_problem
from foqs.model.errors import FoqsError, UnavailableError
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema import migrations
from foqs.storage.schema.migrations import Migration, MigrationError, SchemaKind, SchemaStatus
from foqs.storage.sessions.places import place_of
from foqs.storage.sessions.url_options import check_tls
from foqs.storage.shard.identity import keep_identity_at

_PRUNED_AT_ONCE = 1_000
_META_DATABASE = "meta database"


class _Database(NamedTuple):
    name: str
    origin: str
    """The origin of its name: a flag, a variable, the file or the meta database."""
    kind: SchemaKind
    url: str
    """Empty if its place is unknown."""
    shard_id: int = -1
    epoch: int = 0
    """The last epoch that the meta database has given. If it is not 0 and the database is missing, data was lost."""

    def __str__(self) -> str:
        return f"{self.name} ({self.origin})"


@click.group()
def schema() -> None:
    """Create and bring up to date the databases of the cluster.

    These are the meta database, the shards of the configuration, and the shards that the meta database names. The
    latter are opened as the user of the setting `shard_login`, or else of `meta_url`, as hosts do.
    """


schema.add_command(grants)


@schema.command()
@click.option(
    "--new-shard",
    "new_shards",
    type=int,
    multiple=True,
    metavar="SHARD_ID",
    help="Make the database of this shard anew though hosts have served it: all items that it had are given up. May be "
    "given several times.",
)
@host_command
def apply(loaded: LoadedConfig, new_shards: tuple[int, ...]) -> None:
    """Create what is missing and apply what is pending, database after database. Safe to repeat.

    If hosts have served a shard and its database is gone or empty, the shard is refused. Restore its database, or give
    its items up with --new-shard.
    """
    work = _Work(new_shards)
    for database in work.databases(loaded):
        try:
            applied = _apply(database)
            if database.shard_id in new_shards:
                _make_known(loaded.config, database)
        except (MigrationError, FoqsError) as error:
            work.failed(database, error)
        else:
            note(f"{database}: applied {', '.join(map(str, applied))}" if applied else f"{database}: up to date")
    work.leave()


@schema.command("prune-audit")
@click.option("--before", type=PastTime(), required=True, help="So long ago (90d), or a time in UTC.")
@host_command
def prune_audit(loaded: LoadedConfig, before: int) -> None:
    """Delete the records of the audit from before a time. Hosts cannot: it needs the login that makes the tables."""
    deleted_count, url = 0, loaded.config.meta_url
    with closing(MetaStore(url)) as meta:
        while some := meta.audit.prune(before, _PRUNED_AT_ONCE):
            deleted_count += some
        record_change(meta, url, PRUNE_AUDIT, f"before={time_of(before)} records_count={deleted_count}")
    note(f"{deleted_count} records deleted")


@schema.command()
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@host_command
def status(loaded: LoadedConfig, output: str) -> None:
    """Show the applied and the pending migrations. The exit code is 1 if a database is not up to date."""
    work = _Work()
    found: dict[_Database, SchemaStatus] = {}
    for database in work.databases(loaded):
        try:
            check_tls(database.url)
            found[database] = migrations.status(database.url, database.kind)
        except (MigrationError, FoqsError) as error:
            work.failed(database, error)
        else:
            if not found[database].is_current:
                work.codes.add(Exit.FAILURE)
            work.is_meta_pending |= database.kind is SchemaKind.META and bool(found[database].pending)
    printer = Output(as_json=output == "json")
    printer.document({one.name: {"origin": one.origin, **asdict(state)} for one, state in found.items()})
    printer.table(
        ["DATABASE", "NAMED BY", "APPLIED", "PENDING", "PROBLEMS"],
        (
            (
                one.name, one.origin, ", ".join(state.applied) or None, ", ".join(state.pending) or None,
                "; ".join(state.problems) or None,
            )
            for one, state in found.items()
        ),
    )  # fmt: skip
    for one, state in found.items():
        for warning in state.warnings:
            click.echo(f"warning: {one.name}: {warning}", err=True)
    work.leave()


class _Work:
    """The databases in turn, and their failures. A failure does not stop the work on the other databases."""

    def __init__(self, new_shards: Collection[int] = ()) -> None:
        """The databases of the `new_shards` are created again, even if hosts have served these shards."""
        self._new_shards = new_shards
        self.codes: set[Exit] = set()
        self.is_meta_pending = False
        """True if the meta database lacks some of its tables. Then it is expected that it cannot list its shards."""
        self._is_meta_away = False

    def databases(self, loaded: LoadedConfig) -> Iterator[_Database]:
        """Yield the meta database first, because it lists shards only once it has its tables; then each shard once,
        by id.
        """
        config = loaded.config
        yield _Database("meta", loaded.origins["meta_url"], SchemaKind.META, config.meta_url)
        rows = {row.shard_id: row for row in self._rows(config)}
        known = config.shards.keys() | rows.keys()
        for shard_id in sorted(set(self._new_shards) - known):
            self._report(_shard(loaded, shard_id, None), "there is no such shard: name it with --shard", Exit.FAILURE)
        for shard_id in sorted(known):
            is_new = shard_id in self._new_shards
            database = _shard(loaded, shard_id, rows.get(shard_id), is_new=is_new)
            if (row := rows.get(shard_id)) is not None and row.use is ShardUse.REMOVED and not is_new:
                if shard_id in config.shards:
                    note(f"{database}: left alone, it was removed from the cluster: take it out of the configuration")
            elif database.url:
                _compare_places(database, row)
                yield database
            else:
                self._report(
                    database,
                    "its place is not known: name it with --shard, or use the configuration of a host that names it",
                    Exit.FAILURE,
                )

    def failed(self, database: _Database, error: MigrationError | FoqsError) -> None:
        """Report the failure of one database."""
        self._is_meta_away |= isinstance(error, FoqsError) and database.kind is SchemaKind.META
        self._report(database, str(error), Exit.UNAVAILABLE if isinstance(error, UnavailableError) else Exit.FAILURE)

    def leave(self) -> None:
        """Exit with the gravest failure, if any. FAILURE is graver than UNAVAILABLE, because it does not end by
        itself.
        """
        if self.codes:
            leave(Exit.FAILURE if Exit.FAILURE in self.codes else max(self.codes))

    def _rows(self, config: HostConfig) -> list[ShardRow]:
        """The shards that the meta database lists. While it lacks the tables, print a message and return an empty
        list.
        """
        problem = "it cannot be reached"
        if not self._is_meta_away:
            try:
                with closing(MetaStore(config.meta_url)) as meta:
                    return meta.shards.read_all()
            except (UnavailableError, SQLAlchemyError) as error:
                problem = str(error)
                self._is_meta_away = isinstance(error, UnavailableError)
        if self.is_meta_pending:
            # The status shows the tables as pending, and that is no error by itself.
            note("shards that only the meta database knows are not shown until foqs schema apply has made its tables")
            return []
        note(f"error: shards that only the meta database knows are missing here: {problem}")
        # The error of the meta database was reported with its code. This problem follows from it and ends with it.
        self.codes.add(Exit.UNAVAILABLE if self._is_meta_away else Exit.FAILURE)
        return []

    def _report(self, database: _Database, problem: str, code: Exit) -> None:
        note(f"error: {database}: {problem}")
        self.codes.add(code)


def _shard(loaded: LoadedConfig, shard_id: int, row: ShardRow | None, *, is_new: bool = False) -> _Database:
    """A shard's database. `is_new`: the epoch is 0, because the earlier contents are given up."""
    config = loaded.config
    is_named, place = shard_id in config.shards, row.place if row is not None else ""
    return _Database(
        f"shard {shard_id}",
        loaded.origins["shards"] if is_named else _META_DATABASE,
        SchemaKind.SHARD,
        config.url_of_shard(shard_id, place) if is_named or place else "",
        shard_id,
        0 if is_new or row is None else row.epoch,
    )


def _compare_places(database: _Database, row: ShardRow | None) -> None:
    if row is not None and row.place and row.place != place_of(database.url):
        note(
            f"warning: {database}: the meta database has it at {row.place}, and the configuration at "
            f"{place_of(database.url)}: see that both lead to the same database"
        )


def _apply(database: _Database) -> list[Migration]:
    check_tls(database.url)
    if database.epoch and not migrations.status(database.url, database.kind).applied:
        problem = lost_database_problem(database.shard_id, database.epoch)
        raise MigrationError(f"{problem} (it is looked for at {place_of(database.url)})")
    return migrations.apply(database.url, database.kind)


def _make_known(config: HostConfig, database: _Database) -> None:
    """Store the identity of a shard in its newly made database, so that hosts accept the database."""
    with closing(MetaStore(config.meta_url)) as meta:
        cluster_id = meta.cluster.make_id()
    keep_identity_at(database.url, ShardIdentity(cluster_id, database.shard_id))
