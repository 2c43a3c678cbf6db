"""The verb of operators on dedup ids: make them free."""

from __future__ import annotations

from foqs.contract import requests as of
from foqs.host import arguments
from foqs.host.admission.placement import Placement
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import NO_SHARD_RETRY_MS
from foqs.host.shards.waiting import Answer, Waiting
from foqs.host.verbs.enqueues import slots_of
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.namespace import DedupScope, Namespace
from foqs.model.seen import digests_of


class DedupCalls:
    """Makes dedup ids free on the shards of their slots. It owns nothing."""

    def __init__(self, namespaces: Namespaces, placement: Placement, waiting: Waiting) -> None:
        self._namespaces = namespaces
        self._placement = placement
        self._waiting = waiting

    async def forget_dedup_ids(self, request: of.ForgetDedupIdsRequest) -> PositionErrors:
        """Make ids free, and return the errors by position; NotFoundError for an id that was free already.

        Returns once it is durable. A shard that this host does not serve is ShardElsewhereError for its ids.
        """
        namespace, ids = self._namespaces.serving(request.namespace_name), request.dedup_ids
        if len(ids) > limits.BATCH_ITEMS_MAX:
            raise arguments.too_many("dedup_ids", len(ids), limits.BATCH_ITEMS_MAX)
        scope = _scope(namespace, request.topic)
        errors: PositionErrors = {}
        for position, dedup_id in enumerate(ids):
            try:
                arguments.check_dedup_id(dedup_id)
            except FoqsError as error:
                errors[position] = error.with_traceback(None)
        valid = [position for position in range(len(ids)) if position not in errors]
        if not self._placement.knows_slots:
            # The cluster never had an item with a dedup id.
            errors.update(dict.fromkeys(valid, NotFoundError("no dedup id was ever given: it is free already")))
            return errors
        items = [of.NewItem(dedup_id=dedup_id) for dedup_id in ids]
        elsewhere: PositionErrors = {}
        placed, anywhere = self._placement.place_ids(namespace, items, valid, elsewhere)
        errors |= elsewhere | dict.fromkeys(anywhere, _away())
        answer = Answer(self._waiting)
        for writer, positions in placed.items():
            shard = writer.shard
            assert shard is not None, "it has just been chosen"
            some = [ids[position] for position in positions]
            digests = digests_of(namespace.number, [scope], slots_of(namespace, some), some)
            shard.free_dedup_ids(namespace.number, digests, positions, answer)
            writer.wake()
        if placed:
            await answer.done
            errors.update(answer.errors)
        return errors


def _scope(namespace: Namespace, topic: str | None) -> bytes:
    """Return the scope of the ids in their digests. Raises InvalidArgumentError for a topic that must not be there."""
    if namespace.settings.dedup_scope is DedupScope.TOPIC:
        if not topic:
            raise InvalidArgumentError(
                f"the dedup ids of namespace {namespace.name!r} are of their topics (dedup_scope): give the topic"
            )
        return arguments.check_topic(topic).encode()
    if topic:
        raise InvalidArgumentError(
            f"the dedup ids of namespace {namespace.name!r} are of the whole namespace (dedup_scope): give no topic"
        )
    return b""


def _away() -> UnavailableError:
    return UnavailableError(
        "the shard that knows this dedup id is not served now: it was not made free, try again",
        retry_after_ms=NO_SHARD_RETRY_MS,
        nothing_done=True,
    )
