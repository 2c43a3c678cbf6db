"""Verbs of service Foqs: arguments to requests, responses to results, and the repetition of each call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from foqs.client.addresses import Address
from foqs.client.checks import check_consumer, check_many, check_text, check_whole
from foqs.client.client_errors import BatchError, NotSentError
from foqs.client.dequeued import Dequeued
from foqs.client.entries import CALL_BYTES_MAX, Entries, Verb, batch_flow, cut
from foqs.client.flows import Call, Flow, Terms, call_flow
from foqs.client.giving_back import late_items
from foqs.client.owners import owner_of_ids
from foqs.client.queue_items import (
    Item,
    Nack,
    NewItem,
    Receipts,
    Topics,
    decoded_item,
    entries_of,
    faults_of,
    is_single,
    nack_bytes,
    receipt_bytes,
    receipt_of,
    topic_demands,
)
from foqs.client.rate_flows import rates_of
from foqs.client.retry import Repeat
from foqs.model import limits
from foqs.model.calls import EnqueueResult, PositionErrors, TopicPage, TopicStats
from foqs.model.errors import FoqsError, InternalError, InvalidArgumentError, TooLargeError, UnavailableError
from foqs.model.groups import items_at_a_time
from foqs.wire import codec as wire

T = TypeVar("T")
NAMESPACES_KNOWN_MAX = 1_000
"""Most namespaces whose batch limits a client remembers."""


def enqueue_limited(
    terms: Terms,
    namespace: str,
    items: Sequence[NewItem],
    repeat: Repeat,
    *,
    bulk: bool = False,
    job_id: str | None = None,
    defers: bool = False,
) -> Flow[EnqueueResult]:
    """Enqueue up to one call's worth of items, in several calls if they or their copies are too many for one.

    defers: leave items that were certainly not done to the caller, see Verb.
    Raises if the first call fails as a whole; a later one leaves its error at its positions.
    """
    result = EnqueueResult(ids=[])
    left, size = items, len(items)
    while left:
        part = left[: min(size, terms.batch_limits.get(namespace, size))]
        try:
            done = yield from enqueue_batch(terms, namespace, part, repeat, bulk=bulk, job_id=job_id, defers=defers)
        except FoqsError as refusal:
            smaller = yield from smaller_call(terms, namespace, len(part), refusal)
            if smaller < len(part):
                size = smaller
                continue
            if not result.ids:
                raise
            _refuse_rest(result, part, len(items), refusal)
            return result
        offset = len(result.ids)
        result.ids += done.ids
        if done.errors:
            result.errors.update({position + offset: error for position, error in done.errors.items()})
        result.duplicates += [position + offset for position in done.duplicates]
        left = left[len(part) :]
    return result


def smaller_call(terms: Terms, namespace: str, count: int, refusal: FoqsError) -> Flow[int]:
    """Return the size of the next call after one of `count` items was refused, or `count` if fewer are refused, too.

    The number of copies that the groups of a topic allow is remembered for the namespace, as its own limit is.
    """
    if not isinstance(refusal, TooLargeError) or count <= 1:
        return count
    if (named := items_at_a_time(refusal)) is not None:
        if named < 1:
            return count // 2
        remember_limit(terms, namespace, named)
        return min(named, count)
    return terms.batch_limits[namespace] if (yield from finds_lower_limit(terms, namespace, count)) else count


def remember_limit(terms: Terms, namespace: str, items_max: int) -> None:
    """Remember the most items of a call in a namespace."""
    if len(terms.batch_limits) >= NAMESPACES_KNOWN_MAX:
        terms.batch_limits.clear()
    terms.batch_limits[namespace] = items_max


def finds_lower_limit(terms: Terms, namespace: str, count: int) -> Flow[bool]:
    """Fetch the batch limit of the namespace after a call of `count` items was too large. True if it is lower."""
    request = wire.structs.GetNamespaceRequest(name=namespace)
    try:
        found = yield from call_flow(terms, Call("getNamespace", request, Repeat.READ))
    except FoqsError:
        return False  # The refusal says more than this error.
    limit = min(found.settings.batch_items_max, found.settings.enqueues_per_minute_max)
    remember_limit(terms, namespace, limit)
    return bool(limit < count)


def _refuse_rest(result: EnqueueResult, part: Sequence[NewItem], total: int, error: FoqsError) -> None:
    """Record that `part` failed as a whole, so that the items behind it were not sent."""
    offset = len(result.ids)
    not_sent = NotSentError(f"not sent: an earlier call failed: {error.message}")
    result.errors.update(dict.fromkeys(range(offset, total), not_sent))
    result.errors.update(dict.fromkeys(range(offset, offset + len(part)), error))
    result.ids += [""] * (total - offset)


def enqueue_batch(
    terms: Terms,
    namespace: str,
    items: Sequence[NewItem],
    repeat: Repeat,
    *,
    bulk: bool = False,
    job_id: str | None = None,
    defers: bool = False,
) -> Flow[EnqueueResult]:
    """Enqueue up to one batch in one call, and repeat the positions that allow it."""
    ids = [""] * len(items)
    duplicates: list[int] = []

    def make_call(pending: Sequence[NewItem], repeated: bool) -> Call:
        request = wire.structs.EnqueueRequest(namespace_name=namespace, items=pending, bulk=bulk, job_id=job_id)
        return Call("enqueue", request, repeat)

    def take(response: Any, places: Sequence[int]) -> Mapping[int, Any] | None:
        check_count(response.ids, len(places))
        if len(places) == len(ids):
            ids[:] = response.ids
        else:
            for place, item_id in zip(places, response.ids, strict=True):
                ids[place] = item_id
        if response.duplicates:
            duplicates.extend([places[at] for at in response.duplicates])
        return response.errors  # type: ignore[no-any-return]

    def owner(pending: Sequence[NewItem]) -> Flow[Address | None]:
        yield from ()
        return owner_of_slot(terms, namespace, pending)

    try:
        errors = yield from batch_flow(
            terms, Verb(make_call, take, owner_of=owner, faults_of=faults_of, defers=defers), items
        )
    except UnavailableError:
        doubt_groups(terms, namespace)
        raise
    if errors and any(isinstance(error, UnavailableError) for error in errors.values()):
        doubt_groups(terms, namespace)
    return EnqueueResult(ids, errors, sorted(duplicates))


def check_count(ids: Sequence[str] | None, count: int) -> None:
    """Raise InternalError for a response without exactly one id for each item."""
    if len(ids or ()) != count:
        raise InternalError(f"the host answered {len(ids or ())} ids for {count} items")


def owner_of_slot(terms: Terms, namespace: str, items: Sequence[NewItem]) -> Address | None:
    """Return the owner of the first item's dedup id, which receives the whole batch."""
    groups = terms.groups.get(namespace)
    if terms.owners is None or groups is None or not items or items[0].dedup_id is None:
        return None
    return terms.owners.addresses.get(groups.of(items[:1])[0])


def doubt_groups(terms: Terms, namespace: str) -> None:
    """Fetch the groups of the namespace again soon, because a shard was unreachable."""
    if (groups := terms.groups.get(namespace)) is not None:
        groups.doubt()


def dequeue(
    terms: Terms,
    namespace: str,
    topics: Topics,
    count: int,
    lease_ms: int | None,
    wait_ms: int,
    topic_prefix: str | None = None,
    *,
    group: str | None = None,
    want_why: bool = False,
    says_begun: bool = False,
    consumer: str | None = None,
) -> Flow[list[Item]]:
    check_whole("wait_ms", wait_ms, 0)
    if terms.deadline_at_ms is not None and wait_ms >= (left_ms := terms.deadline_at_ms - terms.clock_ms()):
        raise InvalidArgumentError(
            f"wait_ms {wait_ms} leaves no time for the response before the deadline in {left_ms} ms: "
            "wait for less, or give a later deadline"
        )
    check_consumer(consumer)
    request = wire.structs.DequeueRequest(
        namespace_name=namespace,
        topics=demands_of(topics, count, topic_prefix, group),
        lease_ms=lease_ms,
        wait_ms=wait_ms,
        topic_prefix=topic_prefix,
        count=None if topic_prefix is None else count,
        group=None if topic_prefix is None else group or None,
        says_begun=says_begun or None,
        want_why=want_why or None,
        consumer=consumer,
    )
    late = partial(late_items, terms.until_whenever(), namespace)
    response = yield from call_flow(terms, Call("dequeue", request, Repeat.ALWAYS, wait_ms, late=late))
    items = [decoded_item(decoded) for decoded in response.items or ()]
    return Dequeued(items, response.why_empty or ()) if want_why else items


def demands_of(topics: Topics, count: int, topic_prefix: str | None, group: str | None = None) -> list[Any]:
    """Return the topics of a request; none with a prefix.

    Raises InvalidArgumentError for topics with a prefix.
    """
    if group is not None:
        check_text("group", group)
    if topic_prefix is None:
        return topic_demands(topics, count, group)
    if topics:
        raise InvalidArgumentError(f"topics {topics!r:.80} and topic_prefix {topic_prefix!r:.80}: give one of them")
    return []


def ack(
    terms: Terms, namespace: str, receipts: Receipts, return_errors: bool = False, *, defers: bool = False
) -> Flow[PositionErrors]:
    """Ack deliveries. `defers`: leave items that were certainly not done to the caller, see Verb."""

    def make_call(pending: Sequence[str], repeated: bool) -> Call:
        request = wire.structs.AckRequest(namespace_name=namespace, receipts=pending, repeated=repeated or None)
        return Call("ack", request, Repeat.ALWAYS)

    entries, faults = _entries_of(receipts, receipt_of)
    verb = Verb(make_call, errors_of, True, _owner_of(terms), receipt_bytes, defers=defers)
    return settle("ack", terms, verb, entries, faults, is_single(receipts), return_errors)


class _Begun(str):
    """Receipt of an item on which work begins; a plain receipt is a lease to extend."""

    __slots__ = ()


def _begun_of(entry: object) -> _Begun:
    return _Begun(receipt_of(entry))


def extend(
    terms: Terms,
    namespace: str,
    receipts: Receipts,
    lease_ms: int,
    return_errors: bool = False,
    begun: Receipts = (),
    consumer: str | None = None,
) -> Flow[PositionErrors]:
    """Extend leases and report begun items. The errors of `begun` have the positions behind those of `receipts`."""

    check_consumer(consumer)

    def make_call(pending: Sequence[str], repeated: bool) -> Call:
        begun = [str(entry) for entry in pending if type(entry) is _Begun]
        extended = [entry for entry in pending if type(entry) is not _Begun] if begun else pending
        request = wire.structs.ExtendRequest(
            namespace_name=namespace, receipts=extended, lease_ms=lease_ms, begun=begun or None, consumer=consumer
        )
        return Call("extendLease", request, Repeat.ALWAYS)

    verb = Verb(make_call, errors_of, owner_of=_owner_of(terms), size_of=receipt_bytes)
    entries, faults = _entries_of(receipts, receipt_of)
    is_one = is_single(receipts)
    if not is_single(begun) and not begun:
        return settle("extend", terms, verb, entries, faults, is_one, return_errors)
    begun_entries, begun_faults = _entries_of(begun, _begun_of)
    faults |= {len(entries) + place: fault for place, fault in begun_faults.items()}
    return settle("extend", terms, verb, entries + begun_entries, faults, False, return_errors)


Nacks = Receipts | Nack | Iterable[Item | str | Nack]


def nack(
    terms: Terms,
    namespace: str,
    nacks: Nacks,
    as_given: Callable[[str], Nack],
    return_errors: bool = False,
    *,
    defers: bool = False,
) -> Flow[PositionErrors]:
    """Give deliveries back. An entry that is a Nack is used as it is; `as_given` makes one for other receipts.

    defers: leave items that were certainly not done to the caller, see Verb.
    """

    def as_nack(entry: object) -> Nack:
        nack = entry if isinstance(entry, Nack) else as_given(receipt_of(entry))
        nack.check()
        return nack

    def make_call(pending: Sequence[Nack], repeated: bool) -> Call:
        request = wire.structs.NackRequest(namespace_name=namespace, nacks=pending)
        return Call("nack", request, Repeat.UNLESS_UNKNOWN)

    entries, faults = _entries_of(nacks, as_nack)
    verb = Verb(make_call, errors_of, owner_of=_owner_of(terms), size_of=nack_bytes, defers=defers)
    return settle("nack", terms, verb, entries, faults, is_single(nacks), return_errors)


def judged(verb: str, errors: PositionErrors, count: int, is_single: bool, return_errors: bool) -> PositionErrors:
    """Return the errors if the caller wants them or all is well. Raises the error of a single entry, or BatchError."""
    if not errors or return_errors:
        return errors
    raise errors[0] if is_single else BatchError(verb, errors, count)


def topic_page(
    terms: Terms, namespace: str, prefix: str, page_token: str, partial: bool, with_rates: bool = False
) -> Flow[TopicPage]:
    request = wire.structs.ActiveTopicsRequest(
        namespace_name=namespace,
        prefix=prefix,
        limit=limits.PAGE_ITEMS_MAX,
        page_token=page_token,
        partial=partial or None,
        with_rates=with_rates or None,
    )
    response = yield from call_flow(terms, Call("getActiveTopics", request, Repeat.READ))
    stats = [
        TopicStats(
            t.topic, t.ready, t.delayed, t.leased, t.dead, t.most_urgent_priority, t.oldest_ready_at_ms, t.group,
            bool(t.serial), t.in_flight_max, t.ordering_keys, t.fairness_keys,
            None if t.rates is None else rates_of(t.rates),
        )
        for t in response.topics or ()
    ]  # fmt: skip
    return TopicPage(stats, response.next_page_token or "", list(response.missing or ()))


def _entries_of(given: Any, entry_of: Callable[[Any], T]) -> tuple[list[T | None], dict[int, FoqsError]]:
    """Return the entries of a verb, and the errors of those that cannot be sent."""
    if is_single(given):
        return [entry_of(given)], {}
    check_many("receipts", given, "items, receipts or Nacks")
    return entries_of(given, entry_of)


def settle(
    name: str,
    terms: Terms,
    verb: Verb,
    entries: Sequence[Any],
    faults: PositionErrors,
    is_single: bool,
    return_errors: bool,
) -> Flow[PositionErrors]:
    """Send the entries in calls, and return the errors by position.

    An entry that cannot be sent gets its error, and the others are sent without it. A call that fails as a whole leaves
    its error at its positions. The other calls are still tried, because they concern other leases, which expire.
    Raises if no entry can be sent, and if the only call fails as a whole.
    """
    places: Sequence[int] = range(len(entries))
    if faults:
        places = [place for place in places if place not in faults]
        if not places and not return_errors:
            raise faults[0]
    pieces: Sequence[Sequence[int]] = [places]
    if len(places) != 1:
        sizes = [verb.size_of(entries[place]) for place in places]
        pieces = list(cut(places, sizes, limits.BATCH_ITEMS_MAX, CALL_BYTES_MAX))
    work = Entries(terms, verb, entries)
    for piece in pieces:
        work.add(piece)
    yield from work.send_all()
    if work.refusal is not None and not work.was_answered and len(pieces) == 1 and not faults:
        raise work.refusal from work.refusal.__cause__
    return judged(name, faults | work.errors if faults else work.errors, len(entries), is_single, return_errors)


def delete(terms: Terms, namespace: str, ids: str | Iterable[str], return_errors: bool) -> Flow[PositionErrors]:
    """Delete items in any state."""

    def make_call(pending: Sequence[str], repeated: bool) -> Call:
        request = wire.structs.DeleteItemsRequest(namespace_name=namespace, ids=pending)
        return Call("deleteItems", request, Repeat.ALWAYS)

    entries, faults = id_entries(ids)
    verb = Verb(make_call, errors_of, gone_is_done=True, size_of=receipt_bytes)
    return settle("delete_items", terms, verb, entries, faults, isinstance(ids, str), return_errors)


def forget(
    terms: Terms,
    namespace: str,
    dedup_ids: str | Iterable[str],
    topic: str | None,
    return_errors: bool,
    ordering_key: str | None = None,
) -> Flow[PositionErrors]:
    """Make dedup ids free."""

    def make_call(pending: Sequence[str], repeated: bool) -> Call:
        request = wire.structs.ForgetDedupIdsRequest(
            namespace_name=namespace, dedup_ids=pending, topic=topic, ordering_key=ordering_key
        )
        return Call("forgetDedupIds", request, Repeat.ALWAYS)

    given = [dedup_ids] if isinstance(dedup_ids, str) else dedup_ids
    check_many("dedup_ids", given, "dedup ids")
    entries, faults = entries_of(given, receipt_of)
    verb = Verb(make_call, errors_of, gone_is_done=True, size_of=receipt_bytes)
    return settle("forget_dedup_ids", terms, verb, entries, faults, isinstance(dedup_ids, str), return_errors)


def id_entries(ids: Any) -> tuple[list[str | None], dict[int, FoqsError]]:
    """Return ids of items, and the errors of those that cannot be sent, by position."""
    given = [ids] if isinstance(ids, str) else ids
    check_many("ids", given, "ids of items")
    return entries_of(given, receipt_of)


def _owner_of(terms: Terms) -> Callable[[Sequence[str | Nack]], Flow[Address | None]] | None:
    if terms.owners is None:
        return None
    return lambda batch: owner_of_ids(terms, map(_receipt_of, batch))


def _receipt_of(entry: str | Nack) -> str:
    return entry if isinstance(entry, str) else entry.receipt


def errors_of(response: Any, _places: Sequence[int]) -> Mapping[int, Any] | None:
    return response.errors  # type: ignore[no-any-return]
