"""What ties the hosts of a chaotic cluster together: network namespaces where the machine permits them, else loopback.

With namespaces each host has a network of its own, at a bridge like those of containers. So a host can be cut off, and
two hosts parted, without anybody being told: packets just do not arrive.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadtest.chaos.packet_loss import NOBODY, Peer, keep_packets, lose_packets
from tests.support.faults import FaultError

HOSTS_MAX = 50
_NUMBERS = 256
_SPACES = Path("/run/netns")
"""Where `ip netns add` has them."""
_INTERFACE = "eth0"
"""A host's only way to anybody."""


class Links:
    """All on 127.0.0.1: nobody can be parted from anybody but by the proxies."""

    can_part = False
    server_side = "127.0.0.1"
    """Where hosts reach the servers."""

    def host_address(self, host: int) -> str:
        """Where the host listens."""
        return "127.0.0.1"

    def door_address(self, host: int) -> str:
        """Where other hosts reach it, by a proxy."""
        return "127.0.0.1"

    def command(self, host: int, command: Sequence[str]) -> Sequence[str]:
        """The command, run where the host lives."""
        return command

    def cut_off(self, host: int) -> None:
        """Nothing comes from the host any more, and nothing to it."""

    def take_back(self, host: int) -> None:
        """The end of `cut_off`."""

    def part(self, host: int, other: int) -> None:
        """What the host sends to the door of the other one is lost."""

    def join(self, host: int, other: int) -> None:
        """The end of `part`."""

    def lose_packets(self, host: int, percent: int, peer: Peer | None = None) -> None:
        """So many of the packets from the host and to it are lost, or only of those from and to the peer."""

    def keep_packets(self, host: int, peer: Peer | None = None) -> None:
        """The end of `lose_packets`."""


class Namespaces(Links):
    """A network namespace for each host, all at one bridge. Made and removed by `namespaces`."""

    can_part = True

    def __init__(self, number: int) -> None:
        """`number` is below 256, and nobody else's on this machine: the networks and all names have it."""
        self._number = number
        self._net = f"198.18.{number}"
        self.server_side = f"{self._net}.1"

    def host_address(self, host: int) -> str:
        return f"{self._net}.{10 + host}"

    def door_address(self, host: int) -> str:
        return f"{self._net}.{100 + host}"

    def command(self, host: int, command: Sequence[str]) -> Sequence[str]:
        """Not with `ip netns exec`: that also copies all mounts, and the copy of a file system that is a test's own
        keeps it alive after the test has unmounted it.
        """
        return (*self._enter(host), *command)

    def cut_off(self, host: int) -> None:
        _ip("link", "set", self._wire(host), "down")

    def take_back(self, host: int) -> None:
        _ip("link", "set", self._wire(host), "up")

    def part(self, host: int, other: int) -> None:
        self._neighbour("replace", host, other, "lladdr", NOBODY, "nud", "permanent")

    def join(self, host: int, other: int) -> None:
        self._neighbour("del", host, other)

    def lose_packets(self, host: int, percent: int, peer: Peer | None = None) -> None:
        lose_packets(self._enter(host), _INTERFACE, percent, peer)

    def keep_packets(self, host: int, peer: Peer | None = None) -> None:
        keep_packets(self._enter(host), peer)

    def make(self, hosts: int, stack: ExitStack) -> None:
        """For hosts of these numbers, from 1; the stack removes all of it."""
        bridge = f"fq{self._number}"
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{self.server_side}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for host in range(1, hosts + 1):
            space, wire = self._space(host), self._wire(host)
            _ip("addr", "add", f"{self.door_address(host)}/24", "dev", bridge)
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space)
            _ip("link", "add", wire, "type", "veth", "peer", "name", _INTERFACE, "netns", space)
            _ip("link", "set", wire, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.host_address(host)}/24", "dev", _INTERFACE)
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", _INTERFACE, "up")

    def _neighbour(self, verb: str, host: int, other: int, *options: str) -> None:
        _ip("-n", self._space(host), "neigh", verb, self.door_address(other), *options, "dev", _INTERFACE)

    def _enter(self, host: int) -> tuple[str, ...]:
        return ("nsenter", f"--net={_SPACES / self._space(host)}")

    def _space(self, host: int) -> str:
        return f"foqs-{self._number}-{host}"

    def _wire(self, host: int) -> str:
        return f"fq{self._number}h{host}"


@contextmanager
def links(hosts: int, *, with_namespaces: bool) -> Iterator[Links]:
    """For hosts of these numbers, from 1."""
    with ExitStack() as stack:
        found = Links()
        if with_namespaces:
            found = Namespaces(_free_number())
            found.make(hosts, stack)
        yield found


def _free_number() -> int:
    """One that no other run has, nor one that was killed and has left its bridge behind."""
    taken = {path.name for path in Path("/sys/class/net").iterdir()}
    numbers = range(os.getpid(), os.getpid() + _NUMBERS)
    for number in [number % _NUMBERS for number in numbers]:
        if not taken & {f"fq{number}", f"fq{number}h1"}:
            return number
    raise FaultError(f"all {_NUMBERS} networks of chaos are taken: remove those that are left behind with ip link del")


def missing_for_namespaces() -> str:
    """Why this machine has no network namespaces for us; empty if it has."""
    if os.geteuid() != 0:
        return "root"
    if shutil.which("ip") is None:
        return "the program ip (Debian: apt-get install iproute2)"
    if shutil.which("nsenter") is None:
        return "the program nsenter (Debian: apt-get install util-linux)"
    name = f"foqs-probe-{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1")
        _ip("-n", name, "link", "add", "probe2", "type", "bridge")
        _ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        return f"a kernel that permits them: {error.stderr.strip()}"
    return ""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
