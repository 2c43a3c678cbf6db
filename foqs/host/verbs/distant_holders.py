"""Items of other shards that held dedup ids when the slots of these came here: do they still live?

The item of an id stays where it is when the slot of the id moves. The shard that has the slot knows the holder, but
takes no part in its end. So an enqueue with such an id asks the database of the holder's shard, in which an item that
lives has a row of its id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from foqs.background.lane import Lane, LaneBounds
from foqs.host.registry.namespaces import Namespaces
from foqs.host.registry.slot_moves import Source
from foqs.host.shards.shards import Shards, check_open
from foqs.host.shards.waiting import Answer, Waiting
from foqs.model import limits
from foqs.model.calls import EnqueueResult, PositionErrors
from foqs.model.cluster import ShardUse
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.held import Holder, NamespaceDigest
from foqs.model.namespace import Namespace
from foqs.shard.writer.shard_writer import ShardWriter

READS_AT_ONCE: Final = 4
"""Calls that read shards of holders at the same time."""
_BOUNDS: Final = LaneBounds(
    waiting_max=64, call_ms_max=2_000, retry_after_ms=limits.SICK_RETRY_MS, target="a shard with holders of dedup ids"
)


class HeldElsewhere(NamedTuple):
    """A repeat, by its position in a call, of an item that held the id on another shard."""

    position: int
    digest: bytes
    holder: Holder


class DistantHolders:
    """Frees the ids of items on other shards that have ended. It owns a thread on which those shards are read."""

    def __init__(
        self,
        namespaces: Namespaces,
        shards: Shards,
        waiting: Waiting,
        source: Callable[[int, str, str], Source],
    ) -> None:
        """`source` makes the reader of a shard by its id, its place, and the server on which it is served."""
        self._namespaces = namespaces
        self._shards = shards
        self._waiting = waiting
        self._source = source
        self._lane = Lane("holders", READS_AT_ONCE, _BOUNDS)

    async def free(
        self,
        namespace: Namespace,
        writer: ShardWriter,
        held: Sequence[HeldElsewhere],
        result: EnqueueResult,
        refused: PositionErrors,
    ) -> list[int]:
        """Make the ids free whose holders have ended, and return the positions of their repeats.

        Those are taken out of `result`. If the shard of a holder cannot be read, its repeats are refused.
        """
        again: list[int] = []
        by_shard: dict[int, list[HeldElsewhere]] = {}
        for one in held:
            by_shard.setdefault(one.holder.shard_id, []).append(one)
        for shard_id, some in by_shard.items():
            try:
                ended = await self._ended(namespace, shard_id, some)
                if ended:
                    await self._release(namespace, writer, ended)
                positions = [one.position for one in ended]
                again += positions
            except FoqsError as error:
                positions = [one.position for one in some]
                refused.update(dict.fromkeys(positions, _unknown(shard_id, error)))
            _take_out(positions, result)
        return again

    async def _ended(self, namespace: Namespace, shard_id: int, held: Sequence[HeldElsewhere]) -> list[HeldElsewhere]:
        wanted = list(dict.fromkeys([NamespaceDigest(namespace.number, one.digest) for one in held]))
        owned = self._shards.by_id.get(shard_id)
        if owned is not None:
            place = owned.place, owned.writer.served_on
        else:
            rows = await self._namespaces.run_in_lane(lambda meta: meta.shards.read_all())
            row = next((row for row in rows if row.shard_id == shard_id and row.use is not ShardUse.REMOVED), None)
            if row is None:
                return list(held)  # A shard is removed when it holds no item.
            check_open(row)
            place = row.place, row.server
        living = await self._lane.call(partial(self._read, shard_id, place, wanted))
        return [
            one for one in held if not one.holder.is_same(living.get(NamespaceDigest(namespace.number, one.digest)))
        ]

    def _read(
        self, shard_id: int, place: tuple[str, str], wanted: Sequence[NamespaceDigest]
    ) -> dict[NamespaceDigest, Holder]:
        source = self._source(shard_id, *place)
        try:
            return source.holders(wanted)
        finally:
            source.close()

    async def _release(self, namespace: Namespace, writer: ShardWriter, ended: Sequence[HeldElsewhere]) -> None:
        """Wait until the shard that has the slots has forgotten these holders. Raises UnavailableError."""
        shard = writer.shard
        if shard is None:
            raise self._shards.not_served(writer.shard_id)
        answer = Answer(self._waiting)
        shard.release_dedup_ids(namespace.number, [one.digest for one in ended], [one.holder for one in ended], answer)
        writer.wake()
        await answer.done
        for error in answer.errors.values():
            raise error

    def stop(self) -> None:
        """End the thread."""
        self._lane.end()


def _take_out(positions: Sequence[int], result: EnqueueResult) -> None:
    gone = set(positions)
    result.duplicates = [at for at in result.duplicates if at not in gone]
    for position in positions:
        result.ids[position] = ""


def _unknown(shard_id: int, error: FoqsError) -> UnavailableError:
    return UnavailableError(
        f"an item of shard {shard_id} held this dedup id when its slot moved, and whether it still does is not known "
        f"now: nothing was enqueued, try again ({error.message})",
        retry_after_ms=limits.SICK_RETRY_MS,
        nothing_done=True,
    )
