"""Membership by rows of the meta database; each host keeps writing its own row."""

from __future__ import annotations

from foqs.model.cluster import HostRow, host_name_of
from foqs.model.errors import InvalidArgumentError
from foqs.storage.meta.meta_store import MetaStore


class MetaBackend:
    """Implements foqs.cluster.members.view.MembershipBackend on the sessions of `meta`, which it does not close."""

    def __init__(self, meta: MetaStore, beats: MetaStore) -> None:
        """`beats` is the same database with short timeouts, for heartbeats and for leaving; it is closed with this."""
        self._meta = meta
        self._beats = beats

    def join(self, host: HostRow) -> None:
        if others := self._meta.hosts.beating(elsewhere=True):
            raise InvalidArgumentError(
                f"membership is the meta database, and {others[0]} finds others by ZooKeeper: all hosts of a cluster "
                "need the same membership, so set it here as there, or stop those hosts and start this one 10 s later"
            )
        self._meta.hosts.forget(host_name_of(host.id))

    def beat(self, host: HostRow) -> list[HostRow]:
        return self._beats.hosts.beat(host)

    def announce(self, host: HostRow) -> None:
        return None

    def leave(self, host: HostRow) -> None:
        self._beats.hosts.remove(host.id)

    def use_url(self, url: str) -> None:
        self._beats.use_url(url)

    def close(self) -> None:
        self._beats.close()
