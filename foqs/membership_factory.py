"""The membership of a host from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from foqs.cluster.members.backends.choice import membership_backend
from foqs.cluster.members.membership import Follower, Membership
from foqs.config import HostConfig
from foqs.model import limits
from foqs.model.cluster import HostRow
from foqs.model.peer_proof import PROOF
from foqs.parts import Parts
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.places import place_of


def make_membership(
    config: HostConfig,
    parts: Parts,
    host_id: str,
    started_at_ms: int,
    make_meta: Callable[[int], MetaStore],
    follower: Follower,
) -> Membership:
    """Make the membership. `make_meta` makes a meta database, with the longest time of its statements."""
    meta = make_meta(limits.META_STATEMENT_MS_MAX)
    # The listening port is known only after the start.
    me = HostRow(host_id, "", started_at_ms, 0, tier=config.tier, proof=PROOF, is_starting=True, peer_address="")
    places = {shard_id: place_of(url) for shard_id, url in config.shards.items()}
    beats = partial(make_meta, limits.BEAT_STATEMENT_MS_MAX)
    ensemble = (config.membership, config.cluster, meta, parts.monotonic_s, beats, config.membership_access)
    backend = membership_backend(*ensemble)
    return Membership(backend, meta, me, places, parts.monotonic_s, parts.chance.choose, follower)
