"""Many items in many calls, several of them in flight: the batches that they are cut into, and the result.

There is only state here, as in `coalescing`: the clients bring threads or tasks, and run the calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foqs.client.errors import NotSentError
from foqs.client.items import NewItem, enqueue_batches, faults_of
from foqs.model.calls import EnqueueResult
from foqs.model.errors import FoqsError, InvalidArgumentError


class Bulk:
    """The batches of one `enqueue_many` and what became of them; the call makes it and reads `result` at its end.

    Whoever has room for a call asks `next` for a batch, and says what became of it with `done` or `failed`. After a
    batch that failed as a whole `next` gives no other; the calls in flight still end. Not safe for threads.
    """

    def __init__(self, items: Iterable[NewItem], items_max: int) -> None:
        self._items = items
        self._batches = enqueue_batches(items, items_max)
        self._given_count = 0
        self._result = EnqueueResult(ids=[])
        self._ids_by_offset: dict[int, Sequence[str]] = {}
        self._failures: dict[int, tuple[int, FoqsError]] = {}
        """The batches that failed as a whole, by offset: how many items they have, and why they failed."""
        self._broken: BaseException | None = None
        """What the caller's iterable raised, or what `stop` was told."""

    def next(self) -> tuple[int, list[NewItem]] | None:
        """Return the next batch and its offset; None when there is no other, or one has failed."""
        if self._failures or self._broken is not None:
            return None
        try:
            batch = next(self._batches, None)
        except BaseException as error:
            self.stop(error)
            return None
        if batch is None:
            return None
        offset = self._given_count
        self._given_count += len(batch)
        return offset, batch

    def done(self, offset: int, result: EnqueueResult) -> None:
        self._ids_by_offset[offset] = result.ids
        for position, error in result.errors.items():
            self._result.errors[offset + position] = error

    def failed(self, offset: int, batch: Sequence[NewItem], error: FoqsError) -> None:
        self._failures[offset] = (len(batch), _naming_item(error, batch, offset))

    def stop(self, error: BaseException) -> None:
        """Give no more batches; `result` raises the first such error."""
        self._broken = self._broken or error

    def result(self) -> EnqueueResult:
        """Return ids and errors by position, once nothing is in flight.

        Raises what the caller's iterable raised or `stop` was told, and the first failure when no call went through.
        """
        if self._broken is not None:
            raise self._broken
        if self._failures and not self._ids_by_offset:
            error = self._failures[min(self._failures)][1]
            raise error from error.__cause__
        result = self._result
        for offset, (count, error) in self._failures.items():
            self._ids_by_offset[offset] = [""] * count
            result.errors.update(dict.fromkeys(range(offset, offset + count), error))
        for offset in sorted(self._ids_by_offset):
            result.ids += self._ids_by_offset[offset]
        if self._failures:
            self._refuse_rest()
        return result

    def _refuse_rest(self) -> None:
        """Enter NotSentError for the items that no call has carried, if they can be counted."""
        total = len(self._items) if isinstance(self._items, Sequence) else self._given_count
        first_error = self._failures[min(self._failures)][1]
        not_sent = NotSentError(f"not sent: an earlier batch failed: {first_error.message}")
        self._result.errors.update(dict.fromkeys(range(self._given_count, total), not_sent))
        self._result.ids += [""] * (total - self._given_count)


def _naming_item(error: FoqsError, batch: Sequence[NewItem], offset: int) -> FoqsError:
    """Return the same error, naming the first item that could not be encoded."""
    if isinstance(error, InvalidArgumentError):
        for position, fault in faults_of(batch):
            return InvalidArgumentError(f"position {offset + position}: {fault.message}")
    return error
