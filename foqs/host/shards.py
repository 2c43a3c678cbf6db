"""The shards of this host, by id."""

from __future__ import annotations

from collections.abc import Iterator

from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_writer import ShardWriter


class Shards:
    """The shards of this host, by id, as the verbs see them: which are owned and well, and what time it is there.

    The host adds the writer of each shard once; all else of the host asks here and never keeps a shard's state, which
    changes with every takeover.
    """

    def __init__(self) -> None:
        self.writers: dict[int, ShardWriter] = {}

    def add(self, writer: ShardWriter) -> None:
        self.writers[writer.shard_id] = writer

    def owned(self) -> Iterator[tuple[ShardWriter, ShardState]]:
        for writer in self.writers.values():
            if writer.shard is not None:
                yield writer, writer.shard

    def serving(self, shard_id: int) -> tuple[ShardWriter, ShardState]:
        """Raises UnavailableError for a shard that is not here or not owned now: nothing was done."""
        writer = self.writers.get(shard_id)
        shard = writer.shard if writer is not None else None
        if writer is None or shard is None:
            raise self.not_served(shard_id)
        return writer, shard

    def not_served(self, shard_id: int) -> UnavailableError:
        """What is to be said of a shard that is not here or not owned now."""
        writer = self.writers.get(shard_id)
        if writer is None:
            return UnavailableError(f"this host has no shard {shard_id}: ask the one that has", nothing_done=True)
        return UnavailableError(
            f"shard {writer.shard_id} is not served by this host now: {writer.detail}",
            retry_after_ms=limits.NO_SHARD_RETRY_MS,
            nothing_done=True,
        )

    def check_healthy(self, shard_id: int) -> None:
        """Raises UnavailableError while the shard's breaker is open: who only reads does not wait for a sick server."""
        health = self.writers[shard_id].health
        if not health.healthy:
            raise UnavailableError(
                f"shard {shard_id} is sick, {health.reason}: nothing was done, try again",
                retry_after_ms=limits.NO_SHARD_RETRY_MS,
                nothing_done=True,
            )

    @property
    def owns_any(self) -> bool:
        return any(writer.shard is not None for writer in self.writers.values())

    def check_owns_any(self) -> None:
        """Raises UnavailableError: who serves nothing must not answer as if there were nothing to serve."""
        if not self.owns_any:
            raise UnavailableError(
                "this host owns no shard now, it is a standby or has lost them: nothing was done, ask another host",
                retry_after_ms=limits.NO_SHARD_RETRY_MS,
                nothing_done=True,
            )
