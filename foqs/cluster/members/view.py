"""The cluster as one host sees it after one round of its membership."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from foqs.model.assignment import ClusterMember
from foqs.model.cluster import HostRow, ShardRow, host_name_of


class ClusterView(NamedTuple):
    """The rows of the cluster that one round has read; never changed."""

    me: str
    """The id of this process."""
    hosts: Mapping[str, HostRow]
    """The living hosts by id, as far as this one knows, itself included."""
    shards: Mapping[int, ShardRow]
    """All shards by id, including removed ones."""
    is_settled: bool
    """True if no host has joined or left for a while."""

    @property
    def members(self) -> list[ClusterMember]:
        """The hosts that can be given shards."""
        return [
            ClusterMember(host.id, host_name_of(host.id), host.tier)
            for host in self.hosts.values()
            if not host.is_leaving
        ]

    def is_leaving(self, host_id: str) -> bool:
        """True if that host wants to hand over its shards."""
        host = self.hosts.get(host_id)
        return host is not None and host.is_leaving


class MembershipBackend(Protocol):
    """The store in which hosts find each other. Its methods block, run in one thread, and raise UnavailableError."""

    def join(self, host: HostRow) -> None:
        """Enter the membership."""

    def beat(self, host: HostRow) -> list[HostRow]:
        """Write a heartbeat of this host, and return all hosts.

        The `beat_number` of a living host changes within a few rounds. The caller's own row can be the previous one.
        """

    def announce(self, host: HostRow) -> None:
        """Record in the meta database the facts about this membership that others need, after each round.

        Another thread than the one of the other methods calls it, because the meta database can hang.
        """

    def leave(self, host: HostRow) -> None:
        """Leave in order, so that other hosts need not wait until this one looks dead."""

    def use_url(self, url: str) -> None:
        """Open new sessions with the meta database by this URL; any thread can call it."""

    def close(self) -> None:
        """Release all resources, while no round is in progress."""
