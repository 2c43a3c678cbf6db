"""`foqs dev` as a newcomer meets it: start it, use it by hand, stop it, start it again."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import socket
import ssl
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from foqs.client.queue_items import Item
from foqs.client.sync import AdminClient, Client
from foqs.wire.codec import structs
from tests.support.faults.programs import FOQS, Program, foqs, free_port
from tests.support.raw_client import RawClient
from tests.support.sign_in_world import log_in, who
from tests.support.waiting import PATIENCE_S, eventually, until_true

pytestmark = [pytest.mark.database]


OF_HOSTS_THAT_ARE_WELL = re.compile(
    r"\[(?:warning|error) *\] (?:read_only_does_not_bind|address_not_told|peer_refused"
    r"|shard_lost .*is owned by).*"
)
"""What a cluster of `foqs dev` would warn of by itself. Others, as `server_left`, are of a busy machine."""


class StartDev(Protocol):
    def __call__(self, metrics_port: int = 0) -> tuple[Program, str]: ...


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dev") / "data"


@pytest.fixture
def start_dev(data_dir: Path) -> Iterator[StartDev]:
    """Start `foqs dev` and return it with its address; one after the other, on the same data."""
    with ExitStack() as programs:

        def start(metrics_port: int = 0) -> tuple[Program, str]:
            ports = ["--port", "0", "--metrics-port", str(metrics_port)]
            program = Program(str(FOQS), "dev", "--data-dir", str(data_dir), *ports, name="dev")
            programs.callback(program.close)
            said = re.search(r"ready on (127\.0\.0\.1:\d+)", program.wait_for_line("foqs is ready"))
            assert said is not None, program.output
            return program, said[1]

        yield start


def assert_nothing_runs(data_dir: Path) -> None:
    """The MySQL server inherits the lock on its directory: it is free only when the server is gone."""
    with (data_dir / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def wait_until_a_dequeue_waits(metrics_port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=PATIENCE_S) as metrics:
            if b"foqs_dequeues_waiting 1.0" in metrics.read():
                return
        assert time.monotonic() < deadline, "no dequeue waits"


@pytest.mark.deep
def test_dev_serves_until_sigterm_and_its_items_survive(start_dev: StartDev, data_dir: Path) -> None:
    program, address = start_dev()
    line = program.wait_for_line("foqs is ready")
    assert "namespace default, 4 shards" in line
    assert str(data_dir) in line
    for number in range(3):
        foqs("enqueue", "default", "letters", f"letter {number}", "--priority", str(number), "--address", address)
    with Client(address) as client:
        (first,) = client.dequeue("default", "letters", wait_ms=25_000)
        client.ack("default", first)
        (second,) = client.dequeue("default", "letters", lease_ms=3_600_000)
    assert (first.payload, second.payload) == (b"letter 0", b"letter 1")
    program.signal(signal.SIGTERM)
    assert program.wait() == 0, program.output
    assert_nothing_runs(data_dir)

    program, address = start_dev()
    with Client(address) as client:
        (third,) = client.dequeue("default", "letters", 10, wait_ms=25_000)
        assert third.payload == b"letter 2", "the second one is under lease still"
        assert client.ack("default", [second, third]) == {}
        assert list(client.topics("default", "letters")) == []


@pytest.mark.deep
def test_ctrl_c_answers_who_waits_and_stops_everything(start_dev: StartDev, data_dir: Path) -> None:
    metrics_port = free_port()
    program, address = start_dev(metrics_port)
    answers: list[list[Item]] = []
    with Client(address) as client:
        client.enqueue("default", "mail", b"one")
        (item,) = client.dequeue("default", "mail", wait_ms=25_000)
        waiting = threading.Thread(
            target=lambda: answers.append(client.dequeue("default", "mail", wait_ms=25_000)), name="waiting"
        )
        waiting.start()
        wait_until_a_dequeue_waits(metrics_port)
        program.signal(signal.SIGINT)
        waiting.join(PATIENCE_S)
    assert answers == [[]], "who waits is told that there is nothing"
    assert program.wait() == 0, program.output
    assert "draining" in program.output
    assert_nothing_runs(data_dir)
    program, address = start_dev()
    with Client(address) as client:
        client.ack("default", item)


@pytest.mark.deep
def test_after_kill_9_of_dev_its_server_ends_too_and_the_next_start_has_the_items(
    start_dev: StartDev, data_dir: Path
) -> None:
    program, address = start_dev()
    item_id = foqs("enqueue", "default", "after", "the crash", "--address", address).strip()
    program.kill()
    wait_until_nothing_runs(data_dir)
    program, address = start_dev()
    with Client(address) as client:
        (item,) = client.dequeue("default", "after", wait_ms=25_000)
        assert (item.id, item.payload, item.attempt) == (item_id, b"the crash", 1)
        client.ack("default", item)
    program.signal(signal.SIGTERM)
    assert program.wait() == 0, program.output


@pytest.mark.deep
def test_several_hosts_share_shards_on_several_servers(data_dir: Path) -> None:
    with small_cluster(data_dir.parent / "cluster") as (dev, addresses):
        assert_each_serves(addresses)
        assert "zookeeper" not in dev.output
        assert OF_HOSTS_THAT_ARE_WELL.findall(dev.output) == [], "a newcomer is greeted without warnings"
        dev.signal(signal.SIGINT)
        assert dev.wait() == 0, dev.output
    assert_nothing_runs(data_dir.parent / "cluster")


@pytest.mark.slow
def test_hosts_find_each_other_by_a_private_zookeeper_and_the_next_start_may_do_without(data_dir: Path) -> None:
    directory = data_dir.parent / "cluster-by-zookeeper"
    with small_cluster(directory) as (dev, addresses):
        foqs("enqueue", "default", "kept", "one", "--address", addresses[0])
        dev.kill()
    for part in (directory, directory / "server-2"):
        wait_until_nothing_runs(part)
    # Those that were killed beat in the meta database until a moment ago.
    with small_cluster(directory, "--zookeeper") as (dev, addresses):
        assert "membership by zookeeper://127.0.0.1:" in dev.wait_for_line("foqs is ready")
        assert_each_serves(addresses)
        with Client(addresses) as client:
            # The host that was killed is known to be dead only after a while.
            (item,) = client.dequeue("default", "kept", wait_ms=30_000) or client.dequeue(
                "default", "kept", wait_ms=30_000
            )
            client.ack("default", item)
        os.kill(zookeeper_pid(directory), signal.SIGKILL)
        assert "ZooKeeper does not answer" in dev.wait_for_line("heartbeat_missed")
        assert_each_serves(addresses)
        dev.kill()
    for part in (directory, directory / "server-2", directory / "zookeeper"):
        wait_until_nothing_runs(part)
    with small_cluster(directory) as (dev, addresses):
        assert_each_serves(addresses)
        dev.signal(signal.SIGINT)
        assert dev.wait() == 0, dev.output
    with small_cluster(directory, "--zookeeper") as (dev, addresses):
        assert_each_serves(addresses)
        dev.signal(signal.SIGINT)
        assert dev.wait() == 0, dev.output
    for part in (directory, directory / "zookeeper"):
        assert_nothing_runs(part)


@contextmanager
def small_cluster(directory: Path, *options: str) -> Iterator[tuple[Program, list[str]]]:
    """Two hosts that share the four shards of two servers, and their addresses."""
    port = free_port_for(2)
    arguments = ["--data-dir", str(directory), "--port", str(port), "--hosts", "2", "--servers", "2", *options]
    dev = Program(str(FOQS), "dev", *arguments, name="dev")
    try:
        dev.wait_for_line("2 servers")
        addresses = [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
        with AdminClient(addresses) as admin:
            until_true(lambda: Counter(one.owner for one in admin.list_shards()) == {"dev": 2, "dev-2": 2}, PATIENCE_S)
            assert len({one.place.partition("?")[2] for one in admin.list_shards()}) == 2
        yield dev, addresses
    finally:
        dev.close()


def assert_each_serves(addresses: list[str]) -> None:
    for address in addresses:
        with Client(address) as client:
            client.enqueue("default", "t", b"x")
            (item,) = client.dequeue("default", "t", wait_ms=25_000)
            client.ack("default", item)


def zookeeper_pid(directory: Path) -> int:
    return int((directory / "zookeeper" / "lock").read_text())


def wait_until_nothing_runs(data_dir: Path) -> None:
    with (data_dir / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def free_port_for(count: int) -> int:
    """The first of so many ports that nobody listens on."""
    while True:
        port = free_port()
        try:
            with ExitStack() as sockets:
                for at in range(port, port + count):
                    sockets.enter_context(socket.create_server(("127.0.0.1", at)))
                return port
        except OSError:
            continue


async def test_dev_with_tls_shows_the_protected_way(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    tokens, authorities = set(), set()
    for _ in range(2):  # What the first run made is used by the second.
        arguments = ["--data-dir", str(data_dir), "--port", "0", "--shards", "1", "--tls"]
        dev = Program(str(FOQS), "dev", *arguments, name="dev")
        try:
            port = int(dev.wait_for_line("foqs is ready").partition(":")[2].partition(":")[0])
            said = re.search(r"--ca-file (\S+) --token-file (\S+)", dev.wait_for_line("It requires TLS"))
            assert said is not None, dev.output
            ca_file, token_file = Path(said[1]), Path(said[2])
            assert token_file.stat().st_mode & 0o077 == 0  # noqa: ASYNC240
            assert (ca_file.parent / "host.key.pem").stat().st_mode & 0o077 == 0
            token = token_file.read_text().strip()  # noqa: ASYNC240
            tokens.add(token)
            authorities.add(ca_file.read_bytes())  # noqa: ASYNC240
            context = ssl.create_default_context(cafile=ca_file)
            item = structs.NewItem("t", b"x")
            async with RawClient.connect("127.0.0.1", port, tls=context) as client:
                assert (await who(client)).principal == "nobody"
                assert (await log_in(client, token)).error is None
                stored = await client.call("enqueue", structs.EnqueueRequest("default", [item]))
                assert (stored.error, stored.response.errors) == (None, {})
            options = ["--ca-file", str(ca_file), "--token-file", str(token_file)]
            known = await asyncio.to_thread(foqs, "whoami", "--address", f"localhost:{port}", *options)
            assert "admin" in known
            async with RawClient.connect("127.0.0.1", port) as plain:
                refused = (await plain.call("enqueue", structs.EnqueueRequest("default", [item]))).error
                assert "this port speaks TLS alone" in str(refused)
        finally:
            dev.close()
        assert token not in dev.output
    assert len(tokens) == len(authorities) == 1


@pytest.mark.deep
async def test_the_hosts_of_dev_with_tls_know_each_other_by_certificates(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    port = str(free_port_for(2))
    options = ["--port", port, "--shards", "2", "--hosts", "2", "--log-level", "info", "--tls"]
    dev = Program(str(FOQS), "dev", "--data-dir", str(data_dir), *options, name="dev")
    try:
        dev.wait_for_line("foqs is ready")
        token = (data_dir / "admin.token").read_text().strip()
        ca_file = next(data_dir.glob("*/ca.pem"))
        async with RawClient.connect("127.0.0.1", int(port), tls=ssl.create_default_context(cafile=ca_file)) as client:
            assert (await log_in(client, token)).error is None

            async def both() -> bool:
                listed = await client.call("listHosts", structs.ListHostsRequest())
                return listed.error is None and len(listed.response.hosts) == 2

            await eventually(both, bool)

            async def asks_the_other_host() -> bool:
                return (await client.call("getActiveTopics", structs.ActiveTopicsRequest("default"))).error is None

            await eventually(asks_the_other_host, bool)
        dev.wait_for_line("peer_admitted")
        assert {path.name for path in ca_file.parent.glob("peer-*")} == {
            f"peer-{name}.{part}.pem" for name in ("dev", "dev-2") for part in ("cert", "key")
        }
    finally:
        dev.close()
    assert "peer_refused" not in dev.output
