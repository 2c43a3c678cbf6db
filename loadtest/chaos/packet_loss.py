"""Packets that are lost at random at a network interface of a namespace, by rules of nftables.

What leaves cannot just be dropped there: TCP would be told, and send it again soon. So it leaves for an address that
nobody has, and is missed like a packet that a wire lost.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from tests.support.faults import FaultError

NOBODY = "02:00:00:00:00:01"
"""An Ethernet address that no machine has."""


class Peer(NamedTuple):
    """Packets from and to it are lost: an IPv4 address, and a TCP port there unless that is 0."""

    address: str
    port: int = 0

    def matches(self, side: str) -> str:
        """The rule's conditions for packets whose `side` ("s" for source, "d" for destination) it is."""
        port = f" tcp {side}port {self.port}" if self.port else ""
        return f"ip {side}addr {self.address}{port}"


def lose_packets(space: Sequence[str], interface: str, percent: int, peer: Peer | None) -> None:
    """Both ways, of each packet by chance; all packets if no peer is given. `space` runs a command in the namespace."""
    arriving, leaving = (peer.matches("s"), peer.matches("d")) if peer is not None else ("", "")
    is_lost = f"numgen random mod 100 >= {100 - percent}"
    rules = f"""
table netdev {_table(peer)} {{
    chain arriving {{
        type filter hook ingress device "{interface}" priority 0;
        {arriving} {is_lost} drop
    }}
    chain leaving {{
        type filter hook egress device "{interface}" priority 0;
        {leaving} {is_lost} ether daddr set {NOBODY}
    }}
}}
"""
    _run([*space, "nft", "-f", "-"], rules)


def keep_packets(space: Sequence[str], peer: Peer | None) -> None:
    """The end of `lose_packets` with the same peer."""
    _run([*space, "nft", "delete", "table", "netdev", _table(peer)])


def missing_for_packet_loss() -> str:
    """Why this machine, which has network namespaces, cannot lose packets in one; empty if it can."""
    if shutil.which("nft") is None:
        return "the program nft (Debian: apt-get install nftables)"
    name = f"foqs-probe-{os.getpid()}"
    try:
        _run(["ip", "netns", "add", name])
        try:
            space = ("nsenter", f"--net=/run/netns/{name}")
            lose_packets(space, "lo", 1, Peer("127.0.0.1", 1))
        finally:
            _run(["ip", "netns", "del", name])
    except FaultError as error:
        return f"a kernel with nf_tables, its netdev hooks and numgen: {error}"
    return ""


def _table(peer: Peer | None) -> str:
    """The rules' name: for each peer another one, so that losses with different peers can overlap."""
    return "foqs_loss" if peer is None else f"foqs_loss_{peer.address.replace('.', '_')}_{peer.port}"


def _run(command: Sequence[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, check=False, capture_output=True, text=True)
    if done.returncode:
        raise FaultError(f"{' '.join(command)} failed: {done.stderr.strip()}")
