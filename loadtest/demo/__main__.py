"""The main job on real records: every flight that left New York in 2013 becomes an item, and all are worked off.

Two hosts share four shards on two MySQL servers. Producers and consumers are processes of their own, each of which
speaks Thrift to one of the hosts. First all records but the last come at full speed, and one consumer is killed with
kill -9 while it holds items; then the rest comes at a steady pace, to see what a delivery takes without a backlog. Ends
with a report, and with 0 when everything held.
"""

from __future__ import annotations

import signal
import sys

from rich.console import Console

from foqs import AdminClient
from loadtest.demo.clients import NAMESPACE
from loadtest.demo.cluster import DemoCluster
from loadtest.demo.report import report
from loadtest.demo.run import Demo, DemoError
from loadtest.flights import flights

_PURGE_ITEMS = 1_000


def main() -> int:
    console = Console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with console.status("reading the records"):
            records = flights()
        with DemoCluster() as cluster:
            owners = cluster.owners()
            demo = Demo(cluster.addresses, owners, records, console)
            demo.run()
            if cluster.owners() != owners:
                raise DemoError("a shard has moved, so nobody can tell which host delivered what")
            with console.status("checking"):
                purged_count = purge(cluster.addresses[0], sorted({record.topic for record in records}))
                rows_left = cluster.rows_left()
            held = report(console, demo.history, demo.course, rows_left, purged_count)
    except DemoError as error:
        console.print(f"the demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        console.print("stopped; nothing is left behind")
        return 130
    return 0 if held else 1


def purge(address: str, topics: list[str]) -> int:
    """Delete the dead letters of all topics; how many there were."""
    count = 0
    with AdminClient(address) as admin:
        for topic in topics:
            while purged := admin.purge_dead_letters(NAMESPACE, topic, limit=_PURGE_ITEMS).count:
                count += purged
    return count


if __name__ == "__main__":
    sys.exit(main())
