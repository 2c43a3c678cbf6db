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
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import pytest

from loadtest.chaos import cluster_run
from loadtest.chaos.cluster_faults import KINDS as CLUSTER_KINDS
from loadtest.chaos.cluster_faults import (
    HostPacketsLost,
    HostsApart,
    PeerPacketsLost,
    ServerPacketsLost,
    ZookeeperKilled,
    ZookeeperStopped,
    kinds_for,
)
from loadtest.chaos.cluster_links import Links, links, missing_for_namespaces
from loadtest.chaos.cluster_room import ClusterRoom, Layout
from loadtest.chaos.packet_loss import Peer, missing_for_packet_loss
from loadtest.chaos.plan import AT_ONCE_MAX, KINDS, Planned, plan
from loadtest.chaos.room import Room
from loadtest.chaos.run import Course, run_round
from tests.support import impatient_foqs
from tests.support.faults.network import BadNetwork
from tests.support.faults.volume import missing_for_mounts
from tests.support.waiting import PATIENCE_S, until_true

PLAN_MS = 3_600_000
_DATAGRAMS = 200
"""As many as fit into the buffer of a socket."""
NO_NAMESPACES = missing_for_namespaces()
NO_PACKET_LOSS = NO_NAMESPACES or missing_for_packet_loss()
SMALL = Layout(3, 2, can_part=not NO_NAMESPACES, can_lose=not NO_PACKET_LOSS)
needs_namespaces = pytest.mark.skipif(bool(NO_NAMESPACES), reason=f"needs {NO_NAMESPACES}")
needs_packet_loss = pytest.mark.skipif(bool(NO_PACKET_LOSS), reason=f"needs {NO_PACKET_LOSS}")


@pytest.mark.database
@pytest.mark.deep
def test_every_promise_holds_through_some_seconds_of_chaos() -> None:
    course = Course()
    with Room(with_small_disk=not missing_for_mounts()) as room:
        run_round(room, "smoke-1", chaos_ms=12_000, calm_ms=2_000, course=course)
    assert not course.tally.violation_count, course.tally.examples
    assert course.faults.total() >= 3
    assert course.tally.counts["items"] > 1_000
    assert course.tally.recovery_ms


@pytest.mark.slow
@pytest.mark.database
def test_every_promise_holds_through_some_seconds_of_chaos_over_several_hosts() -> None:
    course = Course()
    with ClusterRoom(SMALL, impatient_foqs.COMMAND) as room:
        cluster_run.run_round(room, "smoke-395", 14_000, 1_000, course, settle_ms=impatient_foqs.CLAIM_MS_MAX + 4_000)
    assert not course.tally.violation_count, course.tally.examples
    assert course.faults.total() >= 3
    assert NO_PACKET_LOSS or course.faults[HostPacketsLost.kind], "the seed is one that loses packets"
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
    can_all, can_not = [Layout(4, 2, can_part=can, can_lose=can, by_zookeeper=can) for can in (True, False)]
    kinds = {type(each.fault) for each in plan(random.Random("1"), PLAN_MS, kinds_for(can_all))}
    assert kinds == set(CLUSTER_KINDS)
    kinds_left = {type(each.fault) for each in plan(random.Random("1"), PLAN_MS, kinds_for(can_not))}
    of_packets = {HostPacketsLost, PeerPacketsLost, ServerPacketsLost}
    assert kinds - kinds_left == {HostsApart, *of_packets, ZookeeperKilled, ZookeeperStopped}


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


def reaches(found: Links, host: int, address: str, port: int) -> bool:
    """Whether a program of the host can connect to the address within a second."""
    program = f"import socket; socket.create_connection({(address, port)!r}, timeout=1)"
    command = found.command(host, [sys.executable, "-c", program])
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def datagrams_of(found: Links, host: int) -> Iterator[socket.socket]:
    """A socket that is in the network of the host: a program there has made it and handed it over."""
    program = (
        "import socket, sys; made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); made.bind((sys.argv[1], 0));"
        "socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b'.'], [made.fileno()])"
    )
    here, there = socket.socketpair()
    with here, there:
        arguments = [found.host_address(host), str(there.fileno())]
        command = found.command(host, [sys.executable, "-c", program, *arguments])
        subprocess.run(command, pass_fds=[there.fileno()], check=True)
        (descriptor,) = socket.recv_fds(here, 1, 1)[1]
    with socket.socket(fileno=descriptor) as made:
        yield made


def send(source: socket.socket, target: socket.socket, count: int) -> None:
    for _ in range(count):
        source.sendto(b"one", target.getsockname())


def arrivals(source: socket.socket, target: socket.socket, count: int) -> int:
    """How many datagrams have come since the last time, with so many that are sent now. No packet may be lost now."""
    send(source, target, count)
    source.sendto(b"last", target.getsockname())
    target.settimeout(PATIENCE_S)
    return sum(1 for _ in iter(lambda: target.recv(4), b"last"))


@needs_namespaces
def test_a_host_that_is_parted_from_another_or_cut_off_reaches_it_again_afterwards() -> None:
    with links(2, with_namespaces=True) as found, socket.create_server((found.door_address(2), 0)) as listener:
        can_reach = partial(reaches, found, 1, *listener.getsockname())
        assert can_reach()
        for begin, end in (
            (partial(found.part, 1, 2), partial(found.join, 1, 2)),
            (partial(found.cut_off, 1), partial(found.take_back, 1)),
        ):
            begin()
            assert not can_reach()
            end()
            until_true(can_reach)


@needs_namespaces
def test_what_runs_in_a_network_of_its_own_has_no_copy_of_the_mounts_which_would_keep_other_tests_volumes() -> None:
    with links(1, with_namespaces=True) as found:
        for kind, is_own in (("net", True), ("mnt", False)):
            command = found.command(1, ["readlink", f"/proc/self/ns/{kind}"])
            there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            assert (there != os.readlink(f"/proc/self/ns/{kind}")) == is_own, kind


@needs_packet_loss
def test_while_all_packets_of_a_host_are_lost_nothing_gets_through_and_afterwards_everything_does() -> None:
    with links(2, with_namespaces=True) as found, socket.create_server((found.server_side, 0)) as listener:
        address, port = listener.getsockname()
        assert reaches(found, 1, address, port)
        found.lose_packets(1, 100)
        assert not reaches(found, 1, address, port)
        assert reaches(found, 2, address, port)
        found.keep_packets(1)
        until_true(lambda: reaches(found, 1, address, port))


@needs_packet_loss
def test_packets_between_a_host_and_one_port_or_address_are_lost_apart_from_those_to_others() -> None:
    with (
        links(2, with_namespaces=True) as found,
        socket.create_server((found.server_side, 0)) as server,
        socket.create_server((found.server_side, 0)) as another_server,
        socket.create_server((found.door_address(2), 0)) as door,
    ):
        by_peer = {Peer(*server.getsockname()): server, Peer(found.door_address(2)): door}
        for peer, lost in by_peer.items():
            assert reaches(found, 1, *lost.getsockname())
            found.lose_packets(1, 100, peer)
            assert not reaches(found, 1, *lost.getsockname())
            assert reaches(found, 1, *another_server.getsockname())
        for peer, lost in by_peer.items():
            found.keep_packets(1, peer)
            until_true(partial(reaches, found, 1, *lost.getsockname()))


@needs_packet_loss
def test_of_the_packets_of_a_host_the_given_share_is_lost_each_way_and_no_sender_is_told() -> None:
    with (
        links(1, with_namespaces=True) as found,
        datagrams_of(found, 1) as host,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
    ):
        server.bind((found.server_side, 0))
        ends = ((host, server), (server, host))
        assert [arrivals(*way, 10) for way in ends] == [10, 10]
        found.lose_packets(1, 50)
        for source, target in ends:
            send(source, target, _DATAGRAMS)
        found.keep_packets(1)
        for source, target in ends:
            # The bounds are seven standard deviations away.
            assert _DATAGRAMS / 4 < arrivals(source, target, 0) < _DATAGRAMS * 3 / 4
