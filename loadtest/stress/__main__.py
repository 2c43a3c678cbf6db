"""`python -m loadtest.stress`: overload, isolation, bulk, caps, export, reading, loop-holds, take-over and others.

The exit code is 1 when a bound does not hold.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click
from rich.console import Console

from foqs.model import limits
from loadtest.stress import any_host as any_host_run
from loadtest.stress import bulk as bulk_run
from loadtest.stress import caps as caps_run
from loadtest.stress import caps_of_hosts as caps_of_hosts_run
from loadtest.stress import dedup as dedup_run
from loadtest.stress import dedup_window as dedup_window_run
from loadtest.stress import export as export_run
from loadtest.stress import fairness as fairness_run
from loadtest.stress import groups as groups_run
from loadtest.stress import in_flight as in_flight_run
from loadtest.stress import isolation as isolation_run
from loadtest.stress import keys as keys_run
from loadtest.stress import lease_ends as lease_ends_run
from loadtest.stress import long_life as long_life_run
from loadtest.stress import loop_holds as loop_holds_run
from loadtest.stress import old_backlog as old_backlog_run
from loadtest.stress import overload as overload_run
from loadtest.stress import reading as reading_run
from loadtest.stress import redrives as redrives_run
from loadtest.stress import reloads as reloads_run
from loadtest.stress import revocation as revocation_run
from loadtest.stress import rolling as rolling_run
from loadtest.stress import rotation as rotation_run
from loadtest.stress import shares as shares_run
from loadtest.stress import sick_shard as sick_shard_run
from loadtest.stress import starvation as starvation_run
from loadtest.stress import take_over as take_over_run
from loadtest.stress.verdict import Verdict
from tests.support.faults import FaultError

_json = click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures there.")
_console = Console()


@click.group()
def main() -> None:
    """A host beyond what it can do."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@main.command()
@click.option("--minutes", default=5.0, show_default=True, help="Of the overload.")
@click.option("--peak-seconds", default=15.0, show_default=True, help="For each of the two looks at the peak.")
@_json
def overload(minutes: float, peak_seconds: float, json_path: Path | None) -> None:
    """Three times the peak, open loop."""
    course = overload_run.Course(peak_s=peak_seconds, overload_s=minutes * 60)
    _publish(overload_run.run(course), json_path)


@main.command()
@click.option("--minutes", default=5.0, show_default=True, help="Of the overload of each of the two topics.")
@click.option("--rate", default=900.0, show_default=True, help="Urgent items a second, and what consumers take.")
@click.option("--aging-ms", default=1_000, show_default=True, help="For each of the ten priorities between the items.")
@_json
def starvation(minutes: float, rate: float, aging_ms: int, json_path: Path | None) -> None:
    """Nine urgent items for each other one, in a topic that ages and in a strict one."""
    course = starvation_run.Course(overload_s=minutes * 60, urgent_items_per_s=rate, aging_ms=aging_ms)
    _publish(starvation_run.run(course), json_path)


@main.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=30.0, show_default=True, help="Of each of the three stretches of a round.")
@click.option("--rate", default=400.0, show_default=True, help="Items a second of the calm tenant.")
@click.option("--quota", default=200.0, show_default=True, help="Items a second of the greedy one.")
@_json
def isolation(rounds: int, seconds: float, rate: float, quota: float, json_path: Path | None) -> None:
    """One tenant next to another that sends five times its quota."""
    course = isolation_run.Course(rounds=rounds, stretch_s=seconds, calm_items_per_s=rate, quota_items_per_s=quota)
    _publish(isolation_run.run(course), json_path)


@main.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=15.0, show_default=True, help="Of each of the six stretches of a round.")
@click.option("--rate", default=100.0, show_default=True, help="Interactive calls of each verb a second.")
@_json
def bulk(rounds: int, seconds: float, rate: float, json_path: Path | None) -> None:
    """Interactive calls beside a bulk load of the same namespace from the same address."""
    _publish(bulk_run.run(bulk_run.Course(rounds=rounds, stretch_s=seconds, calls_per_s=rate)), json_path)


@main.command()
@click.option("--items", default=1_000_000, show_default=True, help="Stored all along, and exported.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Of each of the two stretches of a round.")
@click.option("--rate", default=200.0, show_default=True, help="Enqueues a second.")
@_json
def export(items: int, rounds: int, seconds: float, rate: float, json_path: Path | None) -> None:
    """Deliveries at rest, and beside an export of the same namespace, by turns."""
    _publish(export_run.run(export_run.Course(items, rounds, seconds, rate)), json_path)


@main.command()
@click.option("--items", default=1_000_000, show_default=True, help="Dead letters, half of which are redriven.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Of each of the two stretches of a round.")
@click.option("--rate", default=500, show_default=True, help="Redrives a second beside others.")
@_json
def redrives(items: int, rounds: int, seconds: float, rate: int, json_path: Path | None) -> None:
    """A redrive by the text of errors: exact over two kills, and deliveries at rest and beside it, by turns."""
    _publish(redrives_run.run(redrives_run.Course(items, rounds, seconds, rate)), json_path)


@main.command()
@click.option("--seconds", default=10.0, show_default=True, help="Of each verb, and at rest.")
@click.option("--topics", default=100_000, show_default=True, help="Of the tenant that reads, one item each.")
@click.option("--namespaces", default=limits.NAMESPACES_MAX - 2, show_default=True)
@_json
def reading(seconds: float, topics: int, namespaces: int, json_path: Path | None) -> None:
    """One tenant next to another that calls each verb that reads or administers, eight callers at a time."""
    course = reading_run.Course(stretch_s=seconds, topics_count=topics, namespaces_count=namespaces)
    _publish(reading_run.run(course), json_path)


@main.command()
@click.option("--topics", default=100_000, show_default=True, help="One item each.")
@click.option("--namespaces", default=limits.NAMESPACES_MAX - 100, show_default=True)
@click.option("--leases", default=200_000, show_default=True)
@_json
def loop_holds(topics: int, namespaces: int, leases: int, json_path: Path | None) -> None:
    """How long each verb, with the largest batch or page that it allows, holds the event loop of a full host."""
    course = loop_holds_run.Course(topics_count=topics, namespaces_count=namespaces, leases_count=leases)
    _publish(loop_holds_run.run(course), json_path)


@main.command()
@click.option("--seconds", default=15.0, show_default=True, help="Of each sickness, and before it.")
@click.option("--rate", default=500.0, show_default=True, help="Items a second.")
@click.option("--kind", "kinds", multiple=True, help="frozen, killed, slow, full; all by default.")
@_json
def sick_shard(seconds: float, rate: float, kinds: tuple[str, ...], json_path: Path | None) -> None:
    """One of four servers frozen, killed, slow, full (the last as root, for the mount)."""
    course = sick_shard_run.Course(before_s=seconds, sick_s=seconds, items_per_s=rate)
    _publish(sick_shard_run.run(course, kinds), json_path)


@main.command()
@click.option("--rounds", default=5, show_default=True, help="Of each kind, each on servers of its own.")
@click.option("--items", default=100_000, show_default=True)
@click.option("--leased", default=90_000, show_default=True, help="Of them.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(take_over_run.KINDS)), help="Both by default.")
@_json
def take_over(rounds: int, items: int, leased: int, kinds: tuple[str, ...], json_path: Path | None) -> None:
    """A host with many leases killed or stopped, and a standby that has another shard."""
    course = take_over_run.Course(rounds, items, leased, kinds or tuple(take_over_run.KINDS))
    _publish(take_over_run.run(course), json_path)


@main.command()
@click.option("--hosts", default=4, show_default=True)
@click.option("--shards", default=8, show_default=True, help="A multiple of the hosts.")
@click.option("--leases", default=10_000, show_default=True, help="On each shard, all the time.")
@click.option("--rounds", default=1, show_default=True, help="How often each host is restarted.")
@_json
def rolling(hosts: int, shards: int, leases: int, rounds: int, json_path: Path | None) -> None:
    """Each host of a cluster restarted in turn, under load."""
    _publish(rolling_run.run(rolling_run.Course(hosts, shards, leases=leases, rounds=rounds)), json_path)


@main.command()
@click.option("--hosts", default=3, show_default=True)
@click.option("--times", default=100, show_default=True, help="Tokens that are revoked, one after the other.")
@_json
def revocation(hosts: int, times: int, json_path: Path | None) -> None:
    """Tokens revoked under load: how soon every host refuses them."""
    _publish(revocation_run.run(revocation_run.Course(hosts, times)), json_path)


@main.command()
@click.option("--hosts", default=2, show_default=True)
@click.option("--times", default=100, show_default=True, help="Certificates that each host is given.")
@_json
def reload(hosts: int, times: int, json_path: Path | None) -> None:
    """Certificates of hosts replaced under load: no call fails."""
    _publish(reloads_run.run(reloads_run.Course(hosts, times)), json_path)


@main.command()
@click.option("--hosts", default=2, show_default=True)
@click.option("--shards", default=4, show_default=True, help="A multiple of the hosts.")
@click.option("--rotations", default=10, show_default=True, help="How often the secret is replaced.")
@_json
def rotation(hosts: int, shards: int, rotations: int, json_path: Path | None) -> None:
    """The secret of a running cluster replaced again and again, under load of clients that repeat nothing."""
    _publish(rotation_run.run(rotation_run.Course(hosts, shards, rotations)), json_path)


@main.command()
@click.option("--ids", default=1_000_000, show_default=True, help="Items, each with a dedup id.")
@click.option("--kills", default=4, show_default=True, help="Of the host.")
@click.option("--seed", default=1, show_default=True)
@_json
def dedup(ids: int, kills: int, seed: int, json_path: Path | None) -> None:
    """Enqueues with dedup ids by clients that lose responses and repeat, through kill -9 of the host."""
    _publish(dedup_run.run(dedup_run.Course(ids, kills, seed)), json_path)


@main.command()
@click.option("--ids", default=1_000_000, show_default=True, help="That the window holds.")
@click.option("--new-ids", default=100_000, show_default=True, help="Enqueued in the end: for false positives.")
@_json
def dedup_window(ids: int, new_ids: int, json_path: Path | None) -> None:
    """A window full of dedup ids: its cost in MySQL and in memory, and kill -9 of the host that has it."""
    _publish(dedup_window_run.run(dedup_window_run.Course(ids, new_ids)), json_path)


@main.command()
@click.option("--topics", default=3_000, show_default=True, help="Each with a cap of its own.")
@click.option("--items-per-s", default=1_000, show_default=True, help="All of them together.")
@click.option("--seconds", default=60, show_default=True, help="The time of the run, which is virtual.")
@click.option("--parked", default=100_000, show_default=True, help="Topics that wait for their caps.")
@click.option("--rounds", default=3, show_default=True, help="On one host.")
@click.option("--hosts", default=1, show_default=True, help="Real ones in real time if there are several.")
@_json
def caps(
    topics: int, items_per_s: int, seconds: int, parked: int, rounds: int, hosts: int, json_path: Path | None
) -> None:
    """What caps cost the dispatcher, and what topics cost that wait."""
    if hosts > 1:
        shared = caps_of_hosts_run.Course(hosts, topics, items_per_s, seconds, parked)
        _publish(caps_of_hosts_run.run(shared), json_path)
    else:
        _publish(caps_run.run(caps_run.Course(topics, items_per_s, seconds, parked, rounds)), json_path)


@main.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--items", default=60_000, show_default=True, help="Consumed in each stretch: copies, or plain items.")
@click.option("--backlog", default=1_000_000, show_default=True, help="Of the group that nobody reads.")
@click.option("--seconds", default=20.0, show_default=True, help="Of each stretch beside it, and without it.")
@_json
def groups(rounds: int, items: int, backlog: int, seconds: float, json_path: Path | None) -> None:
    """Copies for three consumer groups next to plain items, and a group that nobody reads."""
    course = groups_run.Course(rounds=rounds, items=items, backlog=backlog, stretch_s=seconds)
    _publish(groups_run.run(course), json_path)


@main.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--items", default=40_000, show_default=True)
@click.option("--seconds", default=12.0, show_default=True, help="How long the items lie before they are consumed.")
@_json
def old_backlog(rounds: int, items: int, seconds: float, json_path: Path | None) -> None:
    """CPU of the servers for the whole life of items that lay in a backlog, next to items that did not."""
    _publish(old_backlog_run.run(old_backlog_run.Course(rounds, items, seconds)), json_path)


@main.command()
@click.option("--keys", default=200_000, show_default=True, help="Each with an item that waits for its delay.")
@click.option("--seconds", default=20.0, show_default=True, help="Of each stretch.")
@click.option("--hot", default=5_000, show_default=True, help="Items of one key.")
@_json
def keys(keys: int, seconds: float, hot: int, json_path: Path | None) -> None:
    """Latencies beside very many ordering keys and beside a blocked one, and the rate of one key."""
    _publish(keys_run.run(keys_run.Course(keys=keys, stretch_s=seconds, hot=hot)), json_path)


@main.command()
@click.option("--topics", default=3_000, show_default=True)
@click.option("--items", default=20, show_default=True, help="Of each topic, in each round.")
@click.option("--rounds", default=3, show_default=True)
@_json
def in_flight(topics: int, items: int, rounds: int, json_path: Path | None) -> None:
    """Topics with at most four items in flight over two hosts, next to topics without a limit."""
    _publish(in_flight_run.run(in_flight_run.Course(topics=topics, items=items, rounds=rounds)), json_path)


@main.command()
@click.option("--hosts", default=2, show_default=True)
@click.option("--crowd", default=1_000_000, show_default=True, help="Items of one topic.")
@click.option("--topics", default=7, show_default=True, help="Beside it.")
@click.option("--seconds", default=60, show_default=True)
@_json
def shares(hosts: int, crowd: int, topics: int, seconds: int, json_path: Path | None) -> None:
    """What consumers of any topic get of a topic with very many items, and of others by their weights."""
    _publish(shares_run.run(shares_run.Course(hosts, crowd, topics, seconds)), json_path)


@main.command()
@click.option("--rounds", default=3, show_default=True, help="Each on a server of its own.")
@click.option("--leases", default=150_000, show_default=True)
@click.option(
    "--lease-seconds", default=30.0, show_default=True, help="For the calls that lease, until all leases end."
)
@_json
def lease_ends(rounds: int, leases: int, lease_seconds: float, json_path: Path | None) -> None:
    """Many leases of one shard that end in one tick, and how soon all their items are ready again."""
    course = lease_ends_run.Course(rounds=rounds, leases=leases, lease_s=lease_seconds)
    _publish(lease_ends_run.run(course), json_path)


@main.command()
@click.option("--minutes", default=120.0, show_default=True)
@click.option("--rate", default=300, show_default=True, help="Items a second.")
@_json
def long_life(minutes: float, rate: int, json_path: Path | None) -> None:
    """Mixed load, with a blocked purge in the middle third."""
    seconds = minutes * 60
    course = long_life_run.Course(seconds=seconds, part_s=min(60.0, seconds / 9), items_per_s=rate)
    _publish(long_life_run.run(course, _console.print), json_path)


@main.command()
@click.option("--hosts", default=4, show_default=True)
@click.option("--trials", default=1_000, show_default=True, help="Single items to a consumer that waits elsewhere.")
@click.option("--calls", default=2_000, show_default=True, help="Acks at the owner and at another host, by turns.")
@_json
def any_host(hosts: int, trials: int, calls: int, json_path: Path | None) -> None:
    """Hosts that share the shards of a cluster: a waiting consumer anywhere, and the cost of a hop."""
    _publish(any_host_run.run(any_host_run.Course(hosts=hosts, trials=trials, calls=calls)), json_path)


@main.command()
@click.option("--items", default=1_000_000, show_default=True, help="Of the large customer.")
@click.option("--customers", default=100, show_default=True)
@click.option("--each", default=100, show_default=True, help="Items of each other customer.")
@_json
def fairness(items: int, customers: int, each: int, json_path: Path | None) -> None:
    """A customer with very many items beside others with few, in one topic with fairness keys."""
    course = fairness_run.Course(large_items=items, customers=customers, items_each=each)
    _publish(fairness_run.run(course), json_path)


def _publish(verdict: Verdict, json_path: Path | None) -> None:
    verdict.publish(_console, json_path)


if __name__ == "__main__":
    try:
        main()
    except FaultError as error:
        _console.print(f"the run could not go on: {error}")
        sys.exit(2)
