"""The cluster as one host sees it after one round of its membership."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from foqs.model.assignment import ClusterMember
from foqs.model.cluster import HostRow, ShardRow, host_name_of


class ClusterView(NamedTuple):
    """The rows of the cluster that one round read. Never changed."""

    me: str
    """The id of this process."""
    hosts: Mapping[str, HostRow]
    """The hosts that live as far as this one knows, by id, itself included."""
    shards: Mapping[int, ShardRow]
    """All shards that there are or were, by id."""
    is_settled: bool
    """No host has come or gone for a while."""

    @property
    def members(self) -> list[ClusterMember]:
        """The hosts to which shards may be given."""
        return [
            ClusterMember(host.id, host_name_of(host.id), host.tier)
            for host in self.hosts.values()
            if not host.is_leaving
        ]

    def is_leaving(self, host_id: str) -> bool:
        """Tell whether that host wants to be rid of its shards."""
        host = self.hosts.get(host_id)
        return host is not None and host.is_leaving


class MembershipBackend(Protocol):
    """Where hosts find each other. Its methods block, are called by one thread, and raise UnavailableError."""

    def join(self, host: HostRow) -> None:
        """Begin to be there."""

    def beat(self, host: HostRow) -> list[HostRow]:
        """Say that this host lives, and return all that there are. Of those that live each `beat_number` has changed.

        It has changed since the last round but a few. The row of the caller may be the one before.
        """

    def announce(self, host: HostRow) -> None:
        """Note in the meta database what others need to know of this membership, after each round.

        Another thread than the one of the other methods calls it: the meta database may hang.
        """

    def leave(self, host: HostRow) -> None:
        """End in order: nobody has to wait until this host looks dead."""

    def use_url(self, url: str) -> None:
        """New sessions with the meta database are opened by this URL; any thread may call it."""

    def close(self) -> None:
        """Let go of what is open; not a round is under way."""
