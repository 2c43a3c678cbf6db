"""Chaos in small: what `make chaos` does for an hour, and the parts that it is made of."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest

from loadtest.chaos import cluster_run
from loadtest.chaos.cluster_faults import KINDS as CLUSTER_KINDS
from loadtest.chaos.cluster_faults import HostsApart, ZookeeperKilled, ZookeeperStopped, kinds_for
from loadtest.chaos.cluster_links import links, missing_for_namespaces
from loadtest.chaos.cluster_room import ClusterRoom, Layout
from loadtest.chaos.plan import AT_ONCE_MAX, KINDS, Planned, plan
from loadtest.chaos.room import Room
from loadtest.chaos.run import Course, run_round
from tests.support import impatient_foqs
from tests.support.faults.network import BadNetwork
from tests.support.faults.volume import missing_for_mounts
from tests.support.waiting import PATIENCE_S, until_true

PLAN_MS = 3_600_000


@pytest.mark.database
@pytest.mark.slow
def test_every_promise_holds_through_some_seconds_of_chaos() -> None:
    course = Course()
    with Room(with_small_disk=not missing_for_mounts()) as room:
        run_round(room, "smoke-1", chaos_ms=12_000, calm_ms=2_000, course=course)
    assert not course.tally.violation_count, course.tally.examples
    assert course.faults.total() >= 3
    assert course.tally.counts["items"] > 1_000
    assert course.tally.recovery_ms


@pytest.mark.database
@pytest.mark.slow
def test_every_promise_holds_through_some_seconds_of_chaos_over_several_hosts() -> None:
    course = Course()
    with ClusterRoom(Layout(3, 2, can_part=not missing_for_namespaces()), impatient_foqs.COMMAND) as room:
        cluster_run.run_round(room, "smoke-7", 14_000, 1_000, course, settle_ms=impatient_foqs.CLAIM_MS_MAX + 4_000)
    assert not course.tally.violation_count, course.tally.examples
    assert course.faults.total() >= 3
    assert course.tally.counts["items"] > 1_000


# ---- the plan ----


def told(planned: list[Planned]) -> list[tuple[str, frozenset[str], int, int]]:
    return [(each.fault.kind, each.fault.targets, each.start_ms, each.end_ms) for each in planned]


def test_the_same_seed_plans_the_same_and_another_one_something_else() -> None:
    assert told(plan(random.Random("1"), PLAN_MS, KINDS)) == told(plan(random.Random("1"), PLAN_MS, KINDS))
    assert told(plan(random.Random("1"), PLAN_MS, KINDS)) != told(plan(random.Random("2"), PLAN_MS, KINDS))


def test_a_long_plan_has_every_kind_and_no_two_faults_on_one_target_at_once() -> None:
    planned = plan(random.Random("1"), PLAN_MS, KINDS)
    assert {type(each.fault) for each in planned} == set(KINDS)
    by_target: dict[str, list[Planned]] = defaultdict(list)
    for each in planned:
        for target in each.fault.targets:
            by_target[target].append(each)
    for found in by_target.values():
        assert all(first.end_ms < second.start_ms for first, second in pairwise(found))
    at_once = [sum(other.start_ms <= each.start_ms < other.end_ms for other in planned) for each in planned]
    assert max(at_once) == AT_ONCE_MAX


def test_a_long_plan_for_a_cluster_has_every_kind_that_it_can_have() -> None:
    can_part, can_not = [Layout(4, 2, can_part=can, by_zookeeper=can) for can in (True, False)]
    kinds = {type(each.fault) for each in plan(random.Random("1"), PLAN_MS, kinds_for(can_part))}
    assert kinds == set(CLUSTER_KINDS)
    kinds_left = {type(each.fault) for each in plan(random.Random("1"), PLAN_MS, kinds_for(can_not))}
    assert kinds - kinds_left == {HostsApart, ZookeeperKilled, ZookeeperStopped}


# ---- the network ----


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server of one connection that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    while data := connection.recv(4_096):
                        connection.sendall(data)
                except ConnectionError:
                    return

        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.fixture
def network(echo_port: int) -> Iterator[BadNetwork]:
    with BadNetwork(lambda: asyncio.open_connection("127.0.0.1", echo_port), "test") as network:
        yield network


@pytest.fixture
def connection(network: BadNetwork) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", network.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"hello")
        assert connection.recv(5) == b"hello"
        yield connection


def test_a_network_that_is_cut_passes_some_bytes_on_and_resets(network: BadNetwork, connection: socket.socket) -> None:
    received: list[bytes] = []

    def talk() -> None:
        while True:
            connection.sendall(b"x" * 100)
            received.append(connection.recv(100))

    network.cut(1, 3, random.Random(1))
    with pytest.raises(ConnectionError):
        talk()
    assert len(b"".join(received)) <= 3


def test_what_is_sent_into_a_network_that_is_gone_is_lost_without_a_word(
    network: BadNetwork, connection: socket.socket
) -> None:
    network.lose()
    connection.sendall(b"lost")
    connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        connection.recv(4)
    network.find()
    connection.settimeout(PATIENCE_S)
    with pytest.raises(ConnectionResetError):
        connection.recv(4)


def test_a_slow_network_changes_nothing_but_the_time(network: BadNetwork, connection: socket.socket) -> None:
    network.slow_down(50)
    sent = b"y" * 300_000
    thread = threading.Thread(target=connection.sendall, args=(sent,))
    thread.start()
    received = b""
    while len(received) < len(sent):
        received += connection.recv(65_536)
    thread.join(PATIENCE_S)
    assert received == sent


# ---- networks of their own ----


@pytest.mark.skipif(bool(missing_for_namespaces()), reason="needs network namespaces")
def test_a_host_that_is_parted_from_another_or_cut_off_reaches_it_again_afterwards() -> None:
    with links(2, with_namespaces=True) as found, socket.create_server((found.door_address(2), 0)) as listener:
        address = listener.getsockname()[:2]
        program = f"import socket; socket.create_connection({address!r}, timeout=1)"

        def reaches() -> bool:
            command = found.command(1, [sys.executable, "-c", program])
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        assert reaches()
        for begin, end in (
            (partial(found.part, 1, 2), partial(found.join, 1, 2)),
            (partial(found.cut_off, 1), partial(found.take_back, 1)),
        ):
            begin()
            assert not reaches()
            end()
            until_true(reaches)


@pytest.mark.skipif(bool(missing_for_namespaces()), reason="needs network namespaces")
def test_what_runs_in_a_network_of_its_own_has_no_copy_of_the_mounts_which_would_keep_other_tests_volumes() -> None:
    with links(1, with_namespaces=True) as found:
        for kind, is_own in (("net", True), ("mnt", False)):
            command = found.command(1, ["readlink", f"/proc/self/ns/{kind}"])
            there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            assert (there != os.readlink(f"/proc/self/ns/{kind}")) == is_own, kind
