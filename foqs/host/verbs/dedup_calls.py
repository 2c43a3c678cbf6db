"""The verb of operators on dedup ids: make them free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foqs.contract import requests as of
from foqs.host import arguments
from foqs.host.admission.placement import Placement
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import NO_SHARD_RETRY_MS
from foqs.host.shards.waiting import Answer, Waiting
from foqs.host.verbs.serial_part import NO_NAMES, digests_for, serial_names
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.namespace import DedupScope, Namespace
from foqs.shard.writer.shard_writer import ShardWriter


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
        keyed = NO_NAMES
        topic = request.topic or ""
        if request.ordering_key is not None:
            policy = self._namespaces.settings.policy(namespace.number, topic)
            topic = arguments.check_topic_of(request.topic, None, request.ordering_key, policy.key_buckets)
            keyed = frozenset([topic])
        items = [of.NewItem(topic=topic, dedup_id=dedup_id) for dedup_id in ids]
        serial = serial_names(self._namespaces.settings, namespace.number, items[:1], keyed) if topic else NO_NAMES
        _check_scope(namespace, request.topic, is_serial=bool(serial))
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
        elsewhere: PositionErrors = {}
        placed: Mapping[ShardWriter, Sequence[int]]
        anywhere: Sequence[int] = ()
        if serial:
            placed = self._placement.place_serial(namespace, {topic: valid}, elsewhere)
        else:
            placed, anywhere = self._placement.place_ids(namespace, items, valid, elsewhere)
        errors |= elsewhere | dict.fromkeys(anywhere, _away())
        answer = Answer(self._waiting)
        for writer, positions in placed.items():
            shard = writer.shard
            assert shard is not None, "it has just been chosen"
            digests = digests_for(namespace, items, positions, serial)
            shard.free_dedup_ids(namespace.number, digests, positions, answer)
            writer.wake()
        if placed:
            await answer.done
            errors.update(answer.errors)
        return errors


def _check_scope(namespace: Namespace, topic: str | None, *, is_serial: bool) -> None:
    """Raise InvalidArgumentError for a topic that is missing or must not be there."""
    if topic:
        arguments.check_topic(topic)
    if namespace.settings.dedup_scope is DedupScope.TOPIC and not topic:
        raise InvalidArgumentError(
            f"the dedup ids of namespace {namespace.name!r} are of their topics (dedup_scope): give the topic"
        )
    if namespace.settings.dedup_scope is not DedupScope.TOPIC and topic and not is_serial:
        raise InvalidArgumentError(
            f"the dedup ids of namespace {namespace.name!r} are of the whole namespace (dedup_scope), but for those of "
            f"serial topics, and {topic!r} is not serial: give no topic"
        )


def _away() -> UnavailableError:
    return UnavailableError(
        "the shard that knows this dedup id is not served now: it was not made free, try again",
        retry_after_ms=NO_SHARD_RETRY_MS,
        nothing_done=True,
    )
