"""Enqueue exactly once: of the items with one dedup id the first is made, and the others get its id.

A call's items are sorted on arrival. An item whose digest is already pending waits for the outcome of the first item
with it. An item whose digest is new to the window of its namespace is inserted by the next transaction, as any item. An
item whose digest might have been seen waits until its block of the log is read (foqs/shard/state/ops/check.py). The
transaction that inserts the items writes their ids to the log, and the window adds them once it is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from foqs.model import limits
from foqs.model.clock import Now
from foqs.model.errors import FoqsError, NotWrittenError, UnavailableError
from foqs.model.item import ShardItem
from foqs.model.seen import BLOCK_IDS, DIGEST_BYTES, SeenTable, SeenWindow, hashes_in, slot_of_digest
from foqs.model.seen_image import Mark
from foqs.model.topic import ShardTopic
from foqs.shard.port import SeenDigests, SeenExtent, StoredImage, Transaction
from foqs.shard.state.events import Completion, OnceOutcome
from foqs.shard.state.index import ENQUEUE_BUFFER_RETRY_MS, ShardIndex
from foqs.shard.state.ops.check import Check, Checks
from foqs.shard.state.ops.forget import Forgetfulness
from foqs.shard.state.ops.hold import Holds
from foqs.shard.state.ops.image import Images
from foqs.shard.state.ops.insert import EnqueuedBatch, Inserts
from foqs.shard.state.ops.remember import Remembering

SLOT_MOVE_RETRY_MS = 100
"""The retry_after_ms of an enqueue with ids whose slot is just moving."""


class OnceCall(NamedTuple):
    """A call whose items wait until the ids of their namespace are read."""

    items: list[ShardItem]
    digests: list[bytes]
    completion: Completion
    outcome: OnceOutcome
    until_ms: int
    """The end of the wait, on the shard's steady clock."""


class RepeatedItem(NamedTuple):
    """An item that gets the outcome of the first one with its id."""

    item: ShardItem
    completion: Completion
    outcome: OnceOutcome


class Firsts:
    """Items of one call, none known to be a repeat, for a batch of `Inserts`."""

    __slots__ = ("_source", "completion", "digests", "items", "outcome")

    def __init__(
        self,
        source: Dedup,
        items: list[ShardItem],
        digests: list[bytes],
        completion: Completion,
        outcome: OnceOutcome,
    ) -> None:
        self._source = source
        self.items = items
        self.digests = digests
        self.completion = completion
        self.outcome = outcome

    def copies_counts(self) -> dict[int, int]:
        """Return the number of copies behind those items that have some, by key."""
        copies = self.outcome.copies
        return {item.key: len(copies[item.key]) for item in self.items if item.key in copies} if copies else {}

    def release_room(self) -> None:
        """Give back the room of the items in topics with a limit, because the items are stored."""
        if self.outcome.room is not None:
            for item in self.items:
                self.outcome.room.stored(names_of(item, self.outcome))

    def refuse(self, error: FoqsError) -> None:
        self._source.firsts_count -= 1
        self._source.refuse(self.items, self.digests, self.completion, self.outcome, error)


class Dedup:
    """Knows which dedup ids the shard has seen and which are pending, and admits items that are no repeats.

    The host submits calls by `insert_once`. A new owner gives it the rows of the log by `load`, namespace by namespace.
    """

    def __init__(
        self,
        index: ShardIndex,
        inserts: Inserts,
        extents: Sequence[SeenExtent],
        images: Sequence[StoredImage],
        holding: Sequence[int] = (),
    ) -> None:
        """`holding`: the namespaces with items that hold their ids."""
        self.windows: dict[int, SeenWindow] = {}
        """The windows of namespaces, by number."""
        self.loading: dict[int, list[OnceCall]] = {}
        """The namespaces whose log is still to be read, each with the calls that wait for it."""
        self._waits: list[tuple[int, int]] = []
        """A heap of namespaces with such calls, each with the end of the first call's wait. A new owner can have
        thousands of logs to read, and a tick checks only those whose callers have waited for too long.
        """
        self.pending: dict[bytes, int] = {}
        """The pending digests, each with the key of the first item that has it."""
        self.repeats: dict[bytes, list[RepeatedItem]] = {}
        """The items that wait for the outcome of a pending digest."""
        self.firsts_count = 0
        """The batches of `Inserts` that have dedup ids."""
        self.closed_slots: frozenset[int] = frozenset()
        """The slots that move to this shard or from it, whose ids are refused."""
        self.checks = Checks(index, self)
        self.held = Holds(index.shard_id, holding)
        self._index = index
        self._inserts = inserts
        self._extents = {extent.namespace: extent for extent in extents}
        """The extents of the logs that are still to be read."""
        for extent in extents:
            window = self.windows[extent.namespace] = SeenWindow(extent.namespace, extent.first)
            window.expected_end, window.last_first = extent.end, extent.last_first
            window.moved_end = extent.moved_end
            self.loading[extent.namespace] = []
        self.images = Images(self.windows, self.loading, images)
        self.forgetfulness = Forgetfulness(index, self.windows, self.loading, self.images)

    # ---- calls ----

    def insert_once(
        self,
        items: list[ShardItem],
        digests: list[bytes],
        size_bytes: int,
        completion: Completion,
        outcome: OnceOutcome,
    ) -> None:
        """Insert the items of one call and namespace, except those whose digest was seen. `digests` are in their order.

        Each item takes its copies along, which the outcome has. `size_bytes` counts all. The completion is over when
        `outcome` has all items, which can be at once, and never fails itself. Raises
        OverloadedError if the buffer is full, and UnavailableError while the slot of an item moves.
        """
        if self.closed_slots:
            self._check_open(digests)
        self._inserts.hold(len(items) + sum(map(len, outcome.copies.values())), size_bytes)
        if self.loading and (waiting := self.loading.get(items[0].topic.namespace)) is not None:
            until_ms = self._index.topic_table.steady_ms + limits.DEDUP_WAIT_MS_MAX
            completion.open_count += 1
            if not waiting:
                heappush(self._waits, (until_ms, items[0].topic.namespace))
            waiting.append(OnceCall(items, digests, completion, outcome, until_ms))
        else:
            self._admit(items, digests, completion, outcome)

    def _check_open(self, digests: Sequence[bytes]) -> None:
        if not self.closed_slots.isdisjoint(map(slot_of_digest, digests)):
            raise UnavailableError(
                f"slots of these dedup ids move to or from shard {self._index.shard_id} just now: nothing was "
                "enqueued, try again",
                retry_after_ms=SLOT_MOVE_RETRY_MS,
                nothing_done=True,
            )

    def _admit(
        self, items: list[ShardItem], digests: list[bytes], completion: Completion, outcome: OnceOutcome
    ) -> None:
        pending = self.pending
        if len(set(digests)) < len(digests) or not pending.keys().isdisjoint(digests):
            items, digests = self._hang_repeats(items, digests, completion, outcome)
            if not items:
                return
        window = self.windows.get(items[0].topic.namespace)
        found = window.probe(digests) if window is not None else {}
        if items[0].topic.namespace in self.held.namespaces:
            found = {position: found.get(position, []) for position in range(len(items))}
        pending.update(zip(digests, [item.key for item in items], strict=True))
        if found:
            for position, blocks in found.items():
                self.checks.add(Check(items[position], digests[position], blocks, completion, outcome))
            items = [item for position, item in enumerate(items) if position not in found]
            digests = [digest for position, digest in enumerate(digests) if position not in found]
            if not items:
                return
        self.insert(items, digests, completion, outcome)

    def _hang_repeats(
        self, items: list[ShardItem], digests: list[bytes], completion: Completion, outcome: OnceOutcome
    ) -> tuple[list[ShardItem], list[bytes]]:
        """Return the items that are the first ones with their digests. The others get the outcome of the first."""
        firsts: dict[bytes, ShardItem] = {}
        for item, digest in zip(items, digests, strict=True):
            if digest in firsts or digest in self.pending:
                completion.open_count += 1
                self.repeats.setdefault(digest, []).append(RepeatedItem(item, completion, outcome))
            else:
                firsts[digest] = item
        return list(firsts.values()), list(firsts)

    def insert(
        self, items: list[ShardItem], digests: list[bytes], completion: Completion, outcome: OnceOutcome
    ) -> None:
        """Put items that are no repeats, and whose digests are pending, into the next transaction.

        Only now do they get new topics, so that repeats leave none behind. If the call wants repeats alone they are
        refused instead.
        """
        if outcome.refusal is not None:
            completion.open_count += 1  # It ends with these items.
            self._release(items, outcome)
            self.refuse(items, digests, completion, outcome, outcome.refusal)
            return
        if outcome.room is not None:
            names = [names_of(item, outcome) for item in items]
            outcome.room.recount()  # Others have taken room while a check was under way.
            rooms = zip(items, names, strict=True)
            faults = {item.key: full for item, some in rooms if (full := outcome.room.take(some)) is not None}
            if faults:
                self._insert_but(faults, items, digests, completion, outcome)
                return
        self._put(items, digests, completion, outcome)

    def _insert_but(
        self,
        faults: Mapping[int, FoqsError],
        items: list[ShardItem],
        digests: list[bytes],
        completion: Completion,
        outcome: OnceOutcome,
    ) -> None:
        """Refuse the items whose keys are in `faults`, and insert the others, which have room."""
        left = [(item, digest) for item, digest in zip(items, digests, strict=True) if item.key not in faults]
        if left:
            self._put([item for item, _ in left], [digest for _, digest in left], completion, outcome)
        completion.open_count += 1  # It ends with the last refused item.
        for item, digest in zip(items, digests, strict=True):
            if (error := faults.get(item.key)) is not None:
                completion.open_count += 1
                self._release([item], outcome)
                self.refuse([item], [digest], completion, outcome, error)
        self._index.events.done(completion)

    def _put(self, items: list[ShardItem], digests: list[bytes], completion: Completion, outcome: OnceOutcome) -> None:
        made = with_copies(items, outcome)
        refused = self._index.add_drafts(made)
        if refused:
            faults = {item.key: fault for item in items if (fault := _fault_of(item, outcome, refused))}
            self._insert_but(faults, items, digests, completion, outcome)
            return
        size_bytes = sum([item.size_bytes for item in made])
        self.firsts_count += 1
        firsts = Firsts(self, items, digests, completion, outcome)
        self._inserts.put(EnqueuedBatch(made, size_bytes, completion, firsts))

    # ---- outcomes ----

    def note_firsts(
        self,
        digests: Iterable[bytes],
        shard_id: int,
        keys: Iterable[int],
        copies_counts: Mapping[int, int],
        *,
        is_held_elsewhere: bool = False,
    ) -> None:
        """Note the first items with these digests. The items that wait for them get their ids.

        `copies_counts` has the number of copies behind those keys that have some. `is_held_elsewhere`: the first item
        held its id on that shard, which alone knows whether it still does.
        """
        pending, repeats = self.pending, self.repeats
        for digest, key in zip(digests, keys, strict=True):
            del pending[digest]
            if repeats and digest in repeats:
                for repeat in repeats.pop(digest):
                    repeat.outcome.firsts[repeat.item.key] = (shard_id, key)
                    if key in copies_counts:
                        repeat.outcome.first_copies[repeat.item.key] = copies_counts[key]
                    if is_held_elsewhere:
                        repeat.outcome.elsewhere[repeat.item.key] = digest
                    self.end(repeat.item, repeat.completion, repeat.outcome)

    def refuse(
        self,
        items: Sequence[ShardItem],
        digests: Sequence[bytes],
        completion: Completion,
        outcome: OnceOutcome,
        error: FoqsError,
    ) -> None:
        """Refuse pending items that are not made or of unknown outcome, and the items that wait for them."""
        outcome.errors.update(dict.fromkeys([item.key for item in items], error))
        self._index.events.done(completion)
        for digest in digests:
            del self.pending[digest]
            for repeat in self.repeats.pop(digest, ()):
                repeat.outcome.errors[repeat.item.key] = error
                self.end(repeat.item, repeat.completion, repeat.outcome)

    def refuse_held(self, check: Check, error: FoqsError) -> None:
        """Refuse an item that waits for a check."""
        self._release([check.item], check.outcome)
        self.refuse([check.item], [check.digest], check.completion, check.outcome, error)

    def end(self, item: ShardItem, completion: Completion, outcome: OnceOutcome) -> None:
        """End an item that is not inserted."""
        self._release([item], outcome)
        self._index.events.done(completion)

    def _release(self, items: Sequence[ShardItem], outcome: OnceOutcome) -> None:
        """Count items that are not inserted as buffered no more, with their copies."""
        some = with_copies(items, outcome)
        self._inserts.release(len(some), sum([item.size_bytes for item in some]))

    def evict(self, reason: str) -> None:
        """Refuse all items that no transaction has taken yet."""
        self._refuse_waiting(NotWrittenError(f"shard {self._index.shard_id} takes no items now: {reason}"))

    def abandon(self, undone: FoqsError) -> None:
        self._refuse_waiting(undone)

    def _refuse_waiting(self, error: FoqsError) -> None:
        self.checks.refuse_waiting(error)
        for namespace, calls in self.loading.items():
            self.loading[namespace] = []
            for call in calls:
                self._refuse_call(call, error)

    def _refuse_call(self, call: OnceCall, error: FoqsError) -> None:
        self._release(call.items, call.outcome)
        call.outcome.errors.update(dict.fromkeys([item.key for item in call.items], error))
        self._index.events.done(call.completion)

    # ---- queries ----

    def holds(self, namespace: int) -> bool:
        """True if items of the namespace wait here that can still be inserted."""
        return bool(self.loading.get(namespace)) or self.checks.holds(namespace)

    def holds_slots(self, slots: frozenset[int]) -> bool:
        """True if ids of these slots are pending."""
        waiting = [digest for calls in self.loading.values() for call in calls for digest in call.digests]
        return not slots.isdisjoint(map(slot_of_digest, [*self.pending, *waiting]))

    def window_ms(self, namespace: int) -> int | None:
        """Return the age up to which ids of the namespace are surely known here; None if none was forgotten yet."""
        window = self.windows.get(namespace)
        if window is None or namespace in self.loading:
            return None
        return window.age_ms(self._index.topic_table.steady_ms)

    def topics_waiting(self) -> set[ShardTopic]:
        """Return the topics of the items that wait here."""
        return {item.topic for items, outcome in self._waiting() for item in with_copies(items, outcome)}

    def first_key_waiting(self) -> int:
        """Return the first key of the items that wait here; limits.KEY_MAX if none."""
        return min([item.key for items, _ in self._waiting() for item in items], default=limits.KEY_MAX)

    def _waiting(self) -> list[tuple[list[ShardItem], OnceOutcome]]:
        waiting = [(call.items, call.outcome) for calls in self.loading.values() for call in calls]
        return waiting + [([check.item], check.outcome) for check in self.checks.held()]

    # ---- time, and a new owner ----

    def tick(self) -> None:
        """End the waits for logs that have not been read for too long."""
        steady_ms = self._index.topic_table.steady_ms
        while self._waits and self._waits[0][0] <= steady_ms:
            _, namespace = heappop(self._waits)
            calls = self.loading.get(namespace)
            if not calls or calls[0].until_ms > steady_ms:
                continue  # The call has ended otherwise; later ones have entries of their own.
            error = UnavailableError(
                f"shard {self._index.shard_id} has not read the dedup ids of this namespace for "
                f"{limits.DEDUP_WAIT_MS_MAX} ms: nothing was done, try again",
                retry_after_ms=ENQUEUE_BUFFER_RETRY_MS,
                nothing_done=True,
            )
            left = self.loading[namespace] = [call for call in calls if call.until_ms > steady_ms]
            if left:
                heappush(self._waits, (left[0].until_ms, namespace))
            for call in calls:
                if call.until_ms <= steady_ms:
                    self._refuse_call(call, error)

    def next_image(self, namespace: int) -> StoredImage | None:
        """Return the image that a new owner must read next, after the log up to its start."""
        return self.images.next_of(self.windows[namespace])

    def load_image(self, image: StoredImage, table: SeenTable, marks: Sequence[Mark]) -> None:
        """Add the table of an image, and the times of its ids."""
        window = self.windows[image.key.namespace]
        window.attach(table, marks)
        self.images.used(image)
        self.forgetfulness.read(window, image.key.ids_count)

    def load_from(self, namespace: int) -> int:
        """Return the number from which on the log must be read; rows can begin before the first unknown id."""
        return self.windows[namespace].end // BLOCK_IDS * BLOCK_IDS

    def load(self, namespace: int, rows: Sequence[SeenDigests], until: int | None = None) -> bool:
        """Add the next rows of a log that is being read, with ids before the number `until`.

        Returns True if these were the last ones. Without `until`, the whole log is then known. An empty `rows` does not
        end the log, because unknown ids would then count as new ones.
        """
        window = self.windows[namespace]
        window.fill_end = window.expected_end if until is None else until
        end_before = window.end
        for row in rows:
            if row.first >= window.fill_end:
                break
            window.begin_at(row.first)
            start, stop = (number - row.first for number in (window.end, window.fill_end))
            hashes = hashes_in(row.digests[start * DIGEST_BYTES : stop * DIGEST_BYTES])
            if hashes:
                window.add_hashes(hashes, row.at_ms, self.forgetfulness.table_ids_max(window))
        if window.end < window.fill_end:
            self.forgetfulness.read(window, window.end - end_before)
            return False
        if until is None:
            self._loaded(window)
        return True

    def _loaded(self, window: SeenWindow) -> None:
        namespace = window.namespace
        window.last_ms = max(window.last_ms, self._extents.pop(namespace).last_ms)
        calls = self.loading.pop(namespace)
        self.images.loaded(namespace)
        self.forgetfulness.added(window, self._index.topic_table.steady_ms, 0)
        for call in calls:
            call.completion.open_count -= 1
            self._admit(call.items, call.digests, call.completion, call.outcome)

    # ---- the ids of a transaction ----

    def begin(self, transaction: Transaction, now: Now) -> list[Remembering]:
        """Take the ids of the items that the transaction inserts, if they have any."""
        taken = [batch.firsts for batch in self._inserts.in_flight if batch.firsts is not None]
        if not taken:
            return []
        operation = Remembering(self, self._index, [firsts for firsts in taken if isinstance(firsts, Firsts)])
        operation.write(transaction, now)
        return [operation]


def with_copies(items: Sequence[ShardItem], outcome: OnceOutcome) -> list[ShardItem]:
    """Return the items, each with its copies."""
    copies = outcome.copies
    if not copies:
        return list(items)
    return [one for item in items for one in (item, *copies.get(item.key, ()))]


def names_of(item: ShardItem, outcome: OnceOutcome) -> list[str]:
    """Return the names of the topics of an item and of its copies."""
    return [one.topic.name for one in with_copies([item], outcome)]


def _fault_of(item: ShardItem, outcome: OnceOutcome, refused: Mapping[ShardTopic, FoqsError]) -> FoqsError | None:
    """Return the error of the first topic without room of the item and its copies, or None."""
    return next((refused[one.topic] for one in with_copies([item], outcome) if one.topic in refused), None)
