"""The verbs of service Foqs: arguments to requests, responses to results, and how each may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from foqs.client.addresses import Address
from foqs.client.checks import check_many, check_whole
from foqs.client.errors import BatchError, NotSentError
from foqs.client.flows import Call, Flow, Terms, batch_flow, call_flow
from foqs.client.giving_back import late_items
from foqs.client.items import (
    Item,
    Nack,
    NewItem,
    Receipts,
    Topics,
    check_new_items,
    faults_of,
    is_single,
    item_told,
    receipt_list,
    receipt_of,
    topic_demands,
)
from foqs.client.owners import owner_of_ids
from foqs.client.retry import Repeat
from foqs.model import limits
from foqs.model.calls import EnqueueResult, PositionErrors, TopicPage, TopicStats
from foqs.model.errors import FoqsError, InternalError, InvalidArgumentError, TooLargeError, UnavailableError
from foqs.wire import codec as wire

NAMESPACES_KNOWN_MAX = 1_000
"""The most namespaces for which a client remembers how many items a call may have."""


def enqueue_limited(
    terms: Terms,
    namespace: str,
    items: Sequence[NewItem],
    repeat: Repeat,
    *,
    bulk: bool = False,
    job_id: str | None = None,
) -> Flow[EnqueueResult]:
    """Enqueue what one call may carry by itself, in several calls where the namespace allows no such call.

    Raises when the first of them fails as a whole; a later one leaves its error at its positions.
    """
    check_new_items(items)
    result = EnqueueResult(ids=[])
    left = items
    while left:
        part = left[: terms.batch_limits.get(namespace, len(left))]
        try:
            done = yield from enqueue_batch(terms, namespace, part, repeat, bulk=bulk, job_id=job_id)
        except FoqsError as refusal:
            if isinstance(refusal, TooLargeError) and (yield from _learns_limit(terms, namespace, len(part))):
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


def _learns_limit(terms: Terms, namespace: str, count: int) -> Flow[bool]:
    """Ask how many items a call may have, after one of `count` was too large, and return whether that is less."""
    request = wire.structs.GetNamespaceRequest(name=namespace)
    try:
        found = yield from call_flow(terms, Call("getNamespace", request, Repeat.READ))
    except FoqsError:
        return False  # The refusal that is known already says more.
    limit = min(found.settings.batch_items_max, found.settings.enqueues_per_minute_max)
    if len(terms.batch_limits) >= NAMESPACES_KNOWN_MAX:
        terms.batch_limits.clear()
    terms.batch_limits[namespace] = limit
    return bool(limit < count)


def _refuse_rest(result: EnqueueResult, part: Sequence[NewItem], total: int, error: FoqsError) -> None:
    """Enter that `part` failed as a whole: what is at fault gets the error, all else and what follows NotSentError."""
    offset = len(result.ids)
    not_sent = NotSentError(f"not sent: an earlier call failed: {error.message}")
    result.errors.update(dict.fromkeys(range(offset, total), not_sent))
    faults = dict(faults_of(part)) if isinstance(error, InvalidArgumentError) else {}
    # Without a fault in an item the call itself was refused.
    result.errors.update({offset + at: faults[at] if faults else error for at in faults or range(len(part))})
    result.ids += [""] * (total - offset)


def enqueue_batch(
    terms: Terms,
    namespace: str,
    items: Sequence[NewItem],
    repeat: Repeat,
    *,
    bulk: bool = False,
    job_id: str | None = None,
) -> Flow[EnqueueResult]:
    """Enqueue at most a batch in one call, repeated for the positions that may be."""
    ids = [""] * len(items)
    duplicates: list[int] = []

    def make_call(pending: Sequence[NewItem], repeated: bool) -> Call:
        request = wire.structs.EnqueueRequest(namespace_name=namespace, items=pending, bulk=bulk, job_id=job_id)
        return Call("enqueue", request, repeat)

    def take(response: Any, places: Sequence[int]) -> Mapping[int, Any] | None:
        if len(response.ids or ()) != len(places):
            raise InternalError(f"the host answered {len(response.ids or ())} ids for {len(places)} items")
        if len(places) == len(ids):
            ids[:] = response.ids
        else:
            for place, item_id in zip(places, response.ids, strict=True):
                ids[place] = item_id
        if response.duplicates:
            duplicates.extend([places[at] for at in response.duplicates])
        return response.errors  # type: ignore[no-any-return]

    try:
        errors = yield from batch_flow(terms, items, make_call, take, owner=_owner_of_slot(terms, namespace, items))
    except UnavailableError:
        _doubt_groups(terms, namespace)
        raise
    if errors and any(isinstance(error, UnavailableError) for error in errors.values()):
        _doubt_groups(terms, namespace)
    return EnqueueResult(ids, errors, sorted(duplicates))


def _owner_of_slot(terms: Terms, namespace: str, items: Sequence[NewItem]) -> Address | None:
    """Where the shard of the first item's id is; the others of a batch go with it."""
    groups = terms.groups.get(namespace)
    if terms.owners is None or groups is None or not items or items[0].dedup_id is None:
        return None
    return terms.owners.addresses.get(groups.of(items[:1])[0])


def _doubt_groups(terms: Terms, namespace: str) -> None:
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
    says_begun: bool = False,
) -> Flow[list[Item]]:
    check_whole("wait_ms", wait_ms, 0)
    if terms.deadline_at_ms is not None and wait_ms >= (left_ms := terms.deadline_at_ms - terms.clock_ms()):
        raise InvalidArgumentError(
            f"wait_ms {wait_ms} leaves no time for the response before the deadline in {left_ms} ms: "
            "wait for less, or give a later deadline"
        )
    request = wire.structs.DequeueRequest(
        namespace_name=namespace,
        topics=demands_of(topics, count, topic_prefix),
        lease_ms=lease_ms,
        wait_ms=wait_ms,
        topic_prefix=topic_prefix,
        count=None if topic_prefix is None else count,
        says_begun=says_begun or None,
    )
    late = partial(late_items, terms.until_whenever(), namespace)
    response = yield from call_flow(terms, Call("dequeue", request, Repeat.ALWAYS, wait_ms, late=late))
    return [item_told(told) for told in response.items or ()]


def demands_of(topics: Topics, count: int, topic_prefix: str | None) -> list[Any]:
    """The topics of a request: none with a prefix. Raises InvalidArgumentError for both."""
    if topic_prefix is None:
        return topic_demands(topics, count)
    if topics:
        raise InvalidArgumentError(f"topics {topics!r:.80} and topic_prefix {topic_prefix!r:.80}: give one of them")
    return []


def ack(terms: Terms, namespace: str, receipts: Receipts, return_errors: bool = False) -> Flow[PositionErrors]:
    def make_call(pending: Sequence[str], repeated: bool) -> Call:
        request = wire.structs.AckRequest(namespace_name=namespace, receipts=pending, repeated=repeated or None)
        return Call("ack", request, Repeat.ALWAYS)

    entries = receipt_list(receipts)
    errors = yield from _settle(terms, entries, make_call, gone_is_done=True)
    return judged("ack", errors, len(entries), is_single(receipts), return_errors)


class _Begun(str):
    """The receipt of an item on which somebody begins to work; others are those of leases to extend."""

    __slots__ = ()


def extend(
    terms: Terms,
    namespace: str,
    receipts: Receipts,
    lease_ms: int,
    return_errors: bool = False,
    begun: Receipts = (),
) -> Flow[PositionErrors]:
    """The errors of `begun` have the positions behind those of `receipts`."""

    def make_call(pending: Sequence[str], repeated: bool) -> Call:
        begun = [str(entry) for entry in pending if type(entry) is _Begun]
        extended = [entry for entry in pending if type(entry) is not _Begun] if begun else pending
        request = wire.structs.ExtendRequest(
            namespace_name=namespace, receipts=extended, lease_ms=lease_ms, begun=begun or None
        )
        return Call("extendLease", request, Repeat.ALWAYS)

    entries = receipt_list(receipts) + [_Begun(receipt) for receipt in receipt_list(begun)]
    errors = yield from _settle(terms, entries, make_call)
    return judged("extend", errors, len(entries), len(entries) == 1 and is_single(receipts), return_errors)


Nacks = Receipts | Nack | Iterable[Item | str | Nack]


def nack(
    terms: Terms, namespace: str, nacks: Nacks, as_given: Callable[[str], Nack], return_errors: bool = False
) -> Flow[PositionErrors]:
    """Give deliveries back. An entry that is a Nack stands for itself; `as_given` makes one of another's receipt."""

    def as_nack(entry: Item | str | Nack) -> Nack:
        return entry if isinstance(entry, Nack) else as_given(receipt_of(entry))

    def make_call(pending: Sequence[Nack], repeated: bool) -> Call:
        request = wire.structs.NackRequest(namespace_name=namespace, nacks=pending)
        return Call("nack", request, Repeat.UNLESS_UNKNOWN)

    if isinstance(nacks, str | Item | Nack):
        entries = [as_nack(nacks)]
    else:
        check_many("receipts", nacks, "items, receipts or Nacks")
        entries = [as_nack(entry) for entry in nacks]
    for entry in entries:
        entry.check()
    errors = yield from _settle(terms, entries, make_call)
    return judged("nack", errors, len(entries), is_single(nacks), return_errors)


def judged(verb: str, errors: PositionErrors, count: int, is_single: bool, return_errors: bool) -> PositionErrors:
    """Return the errors if the caller wants them or there are none. Raises a single entry's error, or BatchError."""
    if not errors or return_errors:
        return errors
    raise errors[0] if is_single else BatchError(verb, errors, count)


def topic_page(terms: Terms, namespace: str, prefix: str, page_token: str, partial: bool) -> Flow[TopicPage]:
    request = wire.structs.ActiveTopicsRequest(
        namespace_name=namespace,
        prefix=prefix,
        limit=limits.PAGE_ITEMS_MAX,
        page_token=page_token,
        partial=partial or None,
    )
    response = yield from call_flow(terms, Call("getActiveTopics", request, Repeat.READ))
    stats = [
        TopicStats(t.topic, t.ready, t.delayed, t.leased, t.dead, t.most_urgent_priority, t.oldest_ready_at_ms)
        for t in response.topics or ()
    ]
    return TopicPage(stats, response.next_page_token or "", list(response.missing or ()))


def _settle(
    terms: Terms, entries: Sequence[Any], make_call: Callable[[Any, bool], Call], *, gone_is_done: bool = False
) -> Flow[PositionErrors]:
    """Send the entries in batches, and return the errors by position.

    A batch that fails as a whole leaves its error at each of its positions, and the batches behind it are tried all
    the same: each of them names other leases that run out. A batch that is the only one raises.
    """
    errors: PositionErrors = {}
    for offset in range(0, len(entries), limits.BATCH_ITEMS_MAX):
        batch = entries[offset : offset + limits.BATCH_ITEMS_MAX]
        try:
            owner = yield from owner_of_ids(terms, map(_receipt_of, batch))
            failed = yield from batch_flow(terms, batch, make_call, _errors_of, gone_is_done=gone_is_done, owner=owner)
        except FoqsError as error:
            if len(batch) == len(entries):
                raise
            failed = dict.fromkeys(range(len(batch)), error)
        errors.update({position + offset: error for position, error in failed.items()})
    return errors


def _receipt_of(entry: str | Nack) -> str:
    return entry if isinstance(entry, str) else entry.receipt


def _errors_of(response: Any, _places: Sequence[int]) -> Mapping[int, Any] | None:
    return response.errors  # type: ignore[no-any-return]
