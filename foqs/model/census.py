"""A census: one question to every shard of the cluster, asked through the meta database.

How many items of a namespace do you hold, which is the highest namespace number that you ever saw, and which slot table
do you know? A namespace is created or deleted, the first slot table is made, and a consumer group is declared or
forgotten, only on the answers of all shards (docs/decisions/0022-deleting-namespaces.md, 0026-slots.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Census(NamedTuple):
    id: int
    """A random number. A meta database that was restored from an older state does not know it."""
    namespace: int
    """The number of the namespace that is closed during the census, because it is being deleted; 0 for none."""
    topic_namespace: int = 0
    """The number of the namespace of `topic`, which stays open."""
    topic: str = ""
    """The hidden name of the topic whose items are counted; empty for the closed namespace, or for none."""


class CensusAnswer(NamedTuple):
    """The answer of one shard's owner, which has committed a transaction since it saw the census.

    Until the owner sees that the census is over, it admits no item of the closed namespace.
    """

    shard_id: int
    epoch: int
    items_count: int
    """Items of the closed namespace that the shard holds; of a topic, 1 if it holds any."""
    number_max: int
    """The highest namespace number that the shard, or its owner's process, ever saw."""
    slots_version: int
    """The highest version of a slot table that the shard or its owner's process knows, or that is under way to the
    shard; 0 for none.
    """


def unanswered(epochs: Mapping[int, int], answers: Iterable[CensusAnswer]) -> list[int]:
    """Return the shards whose present owner has not answered. `epochs` has the last epoch taken of each shard.

    A restored meta database can know an older epoch than the shard has, so the answer of a later owner counts.
    """
    answered = {answer.shard_id: answer.epoch for answer in answers}
    return sorted(shard_id for shard_id, epoch in epochs.items() if answered.get(shard_id, -1) < epoch)
