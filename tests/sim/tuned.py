"""The numbers of a run in place of the package's, each in the module that has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from foqs import bootstrap
from foqs.cluster.members import host_watch, membership
from foqs.cluster.ownership import sharing
from foqs.host.dispatch import topic_queue
from foqs.host.registry import namespace_calls
from foqs.host.shards import ttl_scan
from foqs.model import grants, limits, meta_bounds, seen, seen_image
from foqs.shard import mysql_server
from foqs.shard.state import engine, journal
from foqs.shard.state import index as shard_index
from foqs.shard.state.ops import forget, image, refill, wake
from foqs.shard.writer import keeper, leased_runs, ownership, seen_loading
from foqs.storage.shard.packs import pack_index

_MODULES = (
    limits, bootstrap, host_watch, membership, sharing, namespace_calls, topic_queue, ttl_scan, mysql_server, keeper,
    leased_runs, ownership, engine, journal, shard_index, refill, wake, pack_index, seen, seen_image, forget, image,
    seen_loading, grants, meta_bounds,
)  # fmt: skip


@contextmanager
def tuned(values: Mapping[str, Any]) -> Iterator[None]:
    """Raises ValueError for a name that none of the modules has, or more than one."""
    with ExitStack() as patches:
        for name, value in values.items():
            (module,) = [module for module in _MODULES if hasattr(module, name)]
            patches.enter_context(patch.object(module, name, value))
        yield
