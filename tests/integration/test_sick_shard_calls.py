"""The server of a shard hangs: every call for the shard ends soon, and says that nothing was done where that is so."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from foqs.cli.main import cli
from foqs.cli.output import Exit
from foqs.client.client_errors import BatchError
from foqs.client.queue_items import NewItem
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.calls import ExportSplit
from foqs.model.cluster import ShardUse
from foqs.model.errors import FoqsError, UnavailableError
from foqs.shard import mysql_server
from foqs.shard.writer import keeper
from foqs.storage.schema.migrations import SchemaKind, apply
from tests.support.cluster import cluster, shards_of
from tests.support.databases import prepared_server
from tests.support.deep import deep_but
from tests.support.running_host import RunningHost, running_host, shard_of
from tests.support.waiting import PATIENCE_MS, PATIENCE_S, until

pytestmark = [pytest.mark.database, pytest.mark.deep]

ANSWER_S_MAX = PATIENCE_S
"""The breaker opens, and then nobody waits: whoever waited for the server would wait for twice as long."""
SICK = 1


@pytest.fixture(autouse=True)
def _long_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("CALL_MS_MAX", "STATEMENT_MS_MAX", "META_CALL_MS_MAX"):
        monkeypatch.setattr(limits, bound, 2 * PATIENCE_MS)


@pytest.fixture(scope="module")
def frozen_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with prepared_server(tmp_path_factory.mktemp("frozen") / "data") as server:
        yield server


@pytest.fixture
def shards(shard_urls: dict[int, str], frozen_server: LocalServer) -> Iterator[dict[int, str]]:
    """Shard 1 is on a server of its own."""
    frozen_server.create_database("shard")
    apply(frozen_server.url("shard"), SchemaKind.SHARD)
    yield {0: shard_urls[0], SICK: frozen_server.url("shard")}
    with frozen_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE shard")


@dataclass
class Stored:
    """What there is of the sick shard, asked of `host`."""

    host: RunningHost
    ready: str
    dead: str
    receipt: str


Verb = Callable[[Stored], Awaitable[object]]


async def store(host: RunningHost) -> Stored:
    """Items in all states on the shard that is to be sick."""
    with patch.object(mysql_server, "PLACEMENT_RUN_ITEMS", 1):
        for _ in range(8):
            await host.client.enqueue_many("jobs", [NewItem("t", b"x")])
    items = await host.leased(8)
    leased, dead, ready, *_ = [item for item in items if shard_of(item.id) == SICK]
    assert await host.client.nack("jobs", [dead.receipt], dead_letter=True) == {}
    assert await host.client.release("jobs", [ready.receipt]) == {}
    return Stored(host, ready.id, dead.id, leased.receipt)


async def failure_of(call: Awaitable[object]) -> FoqsError:
    """What the call raises, or says of its only position."""
    try:
        result = await call
    except BatchError as error:
        (of_position,) = error.errors.values()
        return of_position
    except FoqsError as error:
        return error
    raise AssertionError(f"{result} is no failure")


VERBS: dict[str, Verb] = {
    "getItem": lambda at: at.host.admin.get_item("jobs", at.ready),
    "deleteItems": lambda at: at.host.admin.delete_items("jobs", [at.ready]),
    "peekItems": lambda at: at.host.admin.peek_items("jobs", "t"),
    "listDeadLetters": lambda at: at.host.admin.list_dead_letters("jobs", "t"),
    "redriveDeadLetters": lambda at: at.host.admin.redrive_dead_letters("jobs", "t", ids=[at.dead]),
    "redriveDeadLetters by topic": lambda at: at.host.admin.redrive_dead_letters("jobs", "t", limit=10),
    "purgeDeadLetters": lambda at: at.host.admin.purge_dead_letters("jobs", "t", ids=[at.dead]),
    "purgeDeadLetters by topic": lambda at: at.host.admin.purge_dead_letters("jobs", "t", limit=10),
    "planExport": lambda at: at.host.admin.plan_export("jobs", splits_per_shard=4),
    "exportItems": lambda at: at.host.admin.export_items("jobs", ExportSplit(SICK, 0, limits.KEY_MAX, 10)),
    "ack of an item": lambda at: at.host.client.ack("jobs", [at.ready]),
    "deleteNamespace": lambda at: at.host.admin.delete_namespace("empty"),
    "createNamespace": lambda at: at.host.admin.create_namespace("more"),
    "removeShard": lambda at: at.host.admin.remove_shard(SICK),
}
"""Those that only read of the shard before they write, so that it is certain what they have done."""
WRITES: dict[str, Verb] = {
    "ack": lambda at: at.host.client.ack("jobs", [at.receipt]),
    "nack": lambda at: at.host.client.nack("jobs", [at.receipt]),
    "release": lambda at: at.host.client.release("jobs", [at.receipt]),
    "extendLease": lambda at: at.host.client.extend("jobs", [at.receipt], 60_000),
}
OF_CLUSTER = {name: verb for name, verb in {**VERBS, **WRITES}.items() if not name.endswith(("Namespace", "Shard"))}
_QUICK = {"getItem", "ack", *VERBS.keys() - OF_CLUSTER.keys()}
"""The others stand in a test of all verbs at once."""


async def answer_of(verb: Verb, stored: Stored) -> None:
    began_s = time.monotonic()
    error = await failure_of(verb(stored))
    took_s = time.monotonic() - began_s
    assert isinstance(error, UnavailableError), repr(error)
    assert error.nothing_done, error
    assert f"shard {SICK} is sick, it has not answered for 700 ms" in error.message
    assert took_s < ANSWER_S_MAX, f"{error} after {took_s:.1f} s"


def is_sick(host: RunningHost) -> bool:
    return not host.host._shards.writers[SICK].health.healthy


@asynccontextmanager
async def frozen(server: LocalServer, host: RunningHost) -> AsyncIterator[None]:
    """The server hangs. Return when the host that serves the shard is well again."""
    server.pause()
    try:
        yield
    finally:
        server.resume()
        await until(lambda: not is_sick(host))


async def make_removable(name: str, host: RunningHost) -> None:
    """Only a shard that drains and to which no slots lead is looked at before its removal."""
    if name == "removeShard":
        await host.admin.update_shard(SICK, state=ShardUse.DRAINING)
        await until(lambda: host.host._shards.draining == {SICK})
        await until(lambda: host.host._slots.table.shards.count(SICK) == 0 and not host.host._slots.arrivals)


@pytest.fixture
async def stored(meta_url: str, shards: dict[int, str]) -> AsyncIterator[Stored]:
    async with running_host(meta_url, shards) as host:
        await host.admin.create_namespace("empty")
        yield await store(host)


@pytest.mark.parametrize("name", deep_but(_QUICK, [*VERBS, *WRITES]))
async def test_a_call_for_a_shard_that_hangs_ends_soon(name: str, stored: Stored, frozen_server: LocalServer) -> None:
    await make_removable(name, stored.host)
    async with frozen(frozen_server, stored.host):
        await until(lambda: is_sick(stored.host))
        await answer_of({**VERBS, **WRITES}[name], stored)
    assert (await stored.host.admin.get_item("jobs", stored.ready)).topic == "t"
    assert await stored.host.client.ack("jobs", [stored.receipt]) == {}, "its lease goes on"


@pytest.mark.parametrize("name", deep_but(["getItem", "removeShard"], VERBS))
async def test_a_call_that_was_sent_before_the_breaker_opens_ends_soon_where_it_only_reads(
    name: str, stored: Stored, frozen_server: LocalServer
) -> None:
    await make_removable(name, stored.host)
    async with frozen(frozen_server, stored.host):
        await answer_of(VERBS[name], stored)
    assert (await stored.host.admin.get_item("jobs", stored.ready)).topic == "t"


async def test_calls_through_another_host_end_as_soon(
    meta_url: str, shards: dict[int, str], frozen_server: LocalServer
) -> None:
    async with cluster(meta_url, shards, 2) as hosts:
        (owner,) = [host for host in hosts if SICK in shards_of(host)]
        stored = await store(owner)
        async with frozen(frozen_server, owner):
            await until(lambda: is_sick(owner))
            # The owner itself looks for another host as well.
            for stored.host in hosts:
                for verb in OF_CLUSTER.values():
                    await answer_of(verb, stored)


async def test_a_list_of_items_names_the_shard_that_is_sick_and_lists_the_others(
    meta_url: str, shards: dict[int, str], frozen_server: LocalServer
) -> None:
    async with cluster(meta_url, shards, 2) as hosts:
        (owner,) = [host for host in hosts if SICK in shards_of(host)]
        (other,) = [host for host in hosts if host is not owner]
        stored = await store(owner)
        seen = await other.client.enqueue("jobs", "seen", b"x")
        async with frozen(frozen_server, owner):
            await until(lambda: is_sick(owner))
            for host in hosts:
                for options, exit_code in ((), Exit.PARTIAL), (("--partial",), Exit.OK):
                    arguments = ["item", "list", "jobs", "--output", "json", "--address", host.address, *options]
                    result = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
                    assert result.exit_code == exit_code, result.output
                    assert f"not listed: shard {SICK} is sick" in result.stderr
                    listed = [json.loads(line)["id"] for line in result.stdout.splitlines() if line.startswith("{")]
                    assert listed == [seen], "and none of the sick shard"
    assert shard_of(stored.ready) == SICK


async def test_what_was_sent_before_waits_for_its_outcome(stored: Stored, frozen_server: LocalServer) -> None:
    with patch.object(mysql_server, "PULSE_MS", 60_000), patch.object(keeper, "CLOCK_PROBE_MS", 60_000):
        await sent_before_it_hangs(stored, frozen_server)


async def sent_before_it_hangs(stored: Stored, frozen_server: LocalServer) -> None:
    # A transaction that is under way when it begins to hang would leave the call waiting behind it.
    await until(stored.host.host._shards.writers[SICK]._idle.is_set)
    async with frozen(frozen_server, stored.host):
        sent = asyncio.create_task(stored.host.client.ack("jobs", [stored.receipt]))
        await until(lambda: is_sick(stored.host))
        await answer_of(VERBS["deleteItems"], stored)
        assert not sent.done(), "it may have been done, and nobody knows yet"
    assert await sent == {}
