"""Which membership a host has, by its configuration."""

from __future__ import annotations

from collections.abc import Callable

from foqs.cluster import zookeeper_url
from foqs.cluster.meta_backend import MetaBackend
from foqs.cluster.view import MembershipBackend
from foqs.model.errors import InvalidArgumentError
from foqs.storage.meta import MetaStore


def membership_backend(
    url: str, cluster: str, meta: MetaStore, now_s: Callable[[], float], beats: Callable[[], MetaStore]
) -> MembershipBackend:
    """A membership kept by ZooKeeper where the URL names an ensemble, and else by the meta database.

    `beats` gives the meta database with the short waits of heartbeats, for a membership that is kept there. Raises
    InvalidArgumentError when the package is missing that it needs.
    """
    if not url:
        return MetaBackend(meta, beats())
    try:
        # Only here, so that a host without ZooKeeper needs nothing of it.
        from foqs.cluster.zookeeper_backend import ZookeeperBackend
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kazoo":
            raise
        raise InvalidArgumentError(
            f"membership is {url}, which needs the package kazoo: pip install 'foqs[zookeeper]'"
        ) from error
    return ZookeeperBackend(zookeeper_url.parse(url), cluster, meta, now_s)
