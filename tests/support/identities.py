"""The id of a cluster for stores that have no meta database."""

from __future__ import annotations

from foqs.storage.shard.identity import ClusterId


def some_cluster(cluster_id: bytes = b"some cluster") -> ClusterId:
    """It is known from the beginning."""
    cluster = ClusterId(lambda found: cluster_id, lambda: cluster_id, lambda: b"")
    cluster.read()
    return cluster
