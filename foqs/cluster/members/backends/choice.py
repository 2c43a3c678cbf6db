"""The choice of a membership backend by the configuration."""

from __future__ import annotations

from collections.abc import Callable

from foqs.cluster.members.backends import zookeeper_url
from foqs.cluster.members.backends.meta_backend import MetaBackend
from foqs.cluster.members.backends.zookeeper_url import ZookeeperAccess
from foqs.cluster.members.view import MembershipBackend
from foqs.model.errors import InvalidArgumentError
from foqs.storage.meta.meta_store import MetaStore


def membership_backend(
    url: str,
    cluster: str,
    meta: MetaStore,
    now_s: Callable[[], float],
    beats: Callable[[], MetaStore],
    access: ZookeeperAccess = zookeeper_url.NO_ACCESS,
) -> MembershipBackend:
    """Return a backend on ZooKeeper if the URL names an ensemble, else one on the meta database.

    `beats` returns the meta database with the short timeouts of heartbeats, for a membership that is kept there. Raises
    InvalidArgumentError if a required package is missing.
    """
    if not url:
        return MetaBackend(meta, beats())
    try:
        # Imported only here, so that a host without ZooKeeper does not need the package.
        from foqs.cluster.members.backends.zookeeper_backend import ZookeeperBackend
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kazoo":
            raise
        raise InvalidArgumentError(
            f"membership is {url}, which needs the package kazoo: pip install 'foqs[zookeeper]'"
        ) from error
    return ZookeeperBackend(zookeeper_url.parse(url), cluster, meta, now_s, access)
