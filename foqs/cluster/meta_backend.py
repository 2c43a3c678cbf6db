"""Membership by rows of the meta database, each of which its host writes once a second."""

from __future__ import annotations

from foqs.model.cluster import HostRow, host_name_of
from foqs.storage.meta import MetaStore


class MetaBackend:
    """Implements foqs.cluster.view.MembershipBackend on the sessions of `meta`, which others close."""

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta

    def join(self, host: HostRow) -> None:
        self._meta.forget_hosts(host_name_of(host.id))

    def beat(self, host: HostRow) -> list[HostRow]:
        return self._meta.beat(host)

    def leave(self, host: HostRow) -> None:
        self._meta.remove_host(host.id)

    def close(self) -> None:
        return None
