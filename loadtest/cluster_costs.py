"""What a large cluster costs its meta database and each host: the measured figures of docs/scale.md.

    python -m loadtest.cluster_costs [--hosts N] [--shards M]

No host runs: the meta database has the rows that so many hosts and shards would have.
"""

from __future__ import annotations

import resource
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from foqs.cluster.homes.directory import Directory
from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership.decision import Planner
from foqs.dev.local_server import LocalServer
from foqs.model.cluster import HostRow, ShardRow
from foqs.model.stocks import Stock
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema.migrations import SchemaKind, apply

_SERVERS = 20
_ROUNDS = 200
_TOPICS = 10_000
_TICK_MS = 10


@click.command()
@click.option("--hosts", type=click.IntRange(2, 1_000), default=200, show_default=True)
@click.option("--shards", type=click.IntRange(1, 10_000), default=1_000, show_default=True)
def main(hosts: int, shards: int) -> None:
    """Print what a round of the membership, a plan, and a topic in a directory cost."""
    console = Console()
    rows = [
        HostRow(f"queue-{number:03}#mwvvtyuo", f"queue-{number:03}.example.internal:7600", 1_764_042_000_000, 1)
        for number in range(hosts)
    ]
    with made_cluster(rows, shards) as (server, meta):
        console.print(rounds_table(server, meta, rows[0]))
        known = meta.shards.read_all()
    console.print(plans_table(rows, known), directory_table())


@contextmanager
def made_cluster(rows: list[HostRow], shards: int) -> Iterator[tuple[LocalServer, MetaStore]]:
    """A meta database with these hosts, which share so many shards."""
    places = {
        shard: f"mysql://db-{shard % _SERVERS:02}.example.internal:3306/foqs_shard_{shard}" for shard in range(shards)
    }
    with tempfile.TemporaryDirectory(prefix="foqs-costs-") as home, LocalServer(Path(home) / "meta") as server:
        url = server.create_database("meta")
        apply(url, SchemaKind.META)
        with closing(MetaStore(url)) as meta:
            for row in rows:
                meta.hosts.beat(row)
            meta.shards.adopt(places, "")
            for shard in places:
                meta.shards.take_epoch(shard, rows[shard % len(rows)].id, 0, 0)
            yield server, meta


def rounds_table(server: LocalServer, meta: MetaStore, me: HostRow) -> Table:
    """What each host does once per heartbeat."""
    table = Table("a host, once a heartbeat", "CPU of the host, ms", "CPU of the server, ms", "bytes it sends")
    works: dict[str, Callable[[], object]] = {
        "writes its row, reads all hosts": lambda: meta.hosts.beat(me),
        "reads all shards": meta.shards.read_all,
        "reads namespaces, epochs, slots, policies": meta.namespaces.read,
    }
    for what, work in works.items():
        work()
        sent_before, server_before, host_before = _bytes_sent(server), _server_cpu_ms(server), _own_cpu_ms()
        for _ in range(_ROUNDS):
            work()
        table.add_row(
            what,
            f"{(_own_cpu_ms() - host_before) / _ROUNDS:.1f}",
            f"{(_server_cpu_ms(server) - server_before) / _ROUNDS:.1f}",
            f"{(_bytes_sent(server) - sent_before) / _ROUNDS:,.0f}",
        )
    return table


def plans_table(rows: list[HostRow], shards: list[ShardRow]) -> Table:
    """What each host computes, on a thread, when a host has come or gone or a shard has another owner."""
    table = Table("a plan, CPU of one host", "ms")
    planner = Planner()
    hosts = {row.id: row for row in rows}
    for what, left in (("the first", hosts), ("after a host has gone", dict(list(hosts.items())[:-1]))):
        view = ClusterView(rows[0].id, left, {shard.shard_id: shard for shard in shards}, True)
        began_ms = _own_cpu_ms()
        planner.plan(view)
        table.add_row(what, f"{_own_cpu_ms() - began_ms:,.0f}")
    return table


def directory_table() -> Table:
    """Memory of the home of topics."""
    table = Table("hosts that have items of a topic", "bytes of a topic at its home")
    for holders in (1, 4, 20):
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        directory = Directory(lambda count: 0)
        for number in range(_TOPICS):
            topic = (7, f"orders-{number:06}-eu-west")
            for holder in range(holders):
                directory.report(f"queue-{holder:03}#mwvvtyuo", topic, Stock(10, 0, 1_764_042_000_000 + number), 0.0)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        table.add_row(str(holders), f"{(after - before) / len(directory):,.0f}")
    return table


def _bytes_sent(server: LocalServer) -> int:
    with closing(server.connect()) as session, session.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Bytes_sent'")
        return int(cursor.fetchone()[1])


def _server_cpu_ms(server: LocalServer) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_MS


def _own_cpu_ms() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_utime + usage.ru_stime) * 1_000


if __name__ == "__main__":
    main()
