"""The shards of this host, by id."""

from __future__ import annotations

from collections.abc import Iterator

from foqs.model import limits
from foqs.model.clock import Now
from foqs.model.errors import UnavailableError
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_writer import ShardWriter


class Shards:
    def __init__(self) -> None:
        self.runners: dict[int, ShardWriter] = {}

    def add(self, runner: ShardWriter) -> None:
        self.runners[runner.shard_id] = runner

    def state(self, shard_id: int) -> ShardState | None:
        """None while the shard is not owned."""
        return self.runners[shard_id].shard

    def wake(self, shard_id: int) -> None:
        self.runners[shard_id].wake()

    def placement_run_items(self, shard_id: int) -> int:
        return self.runners[shard_id].placement_run_items

    def now(self, shard_id: int) -> Now:
        return self.runners[shard_id].now()

    def now_ms(self, shard_id: int) -> int:
        """The shard server's clock."""
        return self.runners[shard_id].now_ms()

    def owned(self) -> Iterator[tuple[ShardWriter, ShardState]]:
        for runner in self.runners.values():
            if runner.shard is not None:
                yield runner, runner.shard

    def serving(self, shard_id: int) -> tuple[ShardWriter, ShardState]:
        """Raises UnavailableError for a shard that is not here or not owned now: nothing was done."""
        runner = self.runners.get(shard_id)
        if runner is None:
            raise UnavailableError(f"this host has no shard {shard_id}: ask the one that has", nothing_done=True)
        if runner.shard is None:
            raise self.away(runner)
        return runner, runner.shard

    def away(self, runner: ShardWriter) -> UnavailableError:
        return UnavailableError(
            f"shard {runner.shard_id} is not served by this host now: {runner.detail}",
            retry_after_ms=limits.NO_SHARD_RETRY_MS,
            nothing_done=True,
        )

    def check_healthy(self, shard_id: int) -> None:
        """Raises UnavailableError while the shard's breaker is open: who only reads does not wait for a sick server."""
        health = self.runners[shard_id].health
        if not health.healthy:
            raise UnavailableError(
                f"shard {shard_id} is sick, {health.reason}: nothing was done, try again",
                retry_after_ms=limits.NO_SHARD_RETRY_MS,
                nothing_done=True,
            )

    @property
    def owns_any(self) -> bool:
        return any(runner.shard is not None for runner in self.runners.values())

    def check_owns_any(self) -> None:
        """Raises UnavailableError: who serves nothing must not answer as if there were nothing to serve."""
        if not self.owns_any:
            raise UnavailableError(
                "this host owns no shard now, it is a standby or has lost them: nothing was done, ask another host",
                retry_after_ms=limits.NO_SHARD_RETRY_MS,
                nothing_done=True,
            )
