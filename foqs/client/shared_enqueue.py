"""One attempt of an enqueue call that several callers share, with an outcome for each caller.

It repeats nothing, because the pause of one caller must not delay another; see `coalescing`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from foqs.client import queue_verbs
from foqs.client.addresses import Address
from foqs.client.client_errors import NotSentError, OutcomeUnknownError, error_from_wire
from foqs.client.flows import Attempts, Call, Flow, Terms
from foqs.client.queue_items import NewItem
from foqs.client.retry import Repeat, goes_elsewhere
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError, InternalError, RateLimitedError, TooLargeError, UnavailableError
from foqs.wire import codec as wire


@dataclass(slots=True)
class CallOutcome:
    """Outcomes of the enqueues of one call.

    ids: the id of each item, "" for a failed one.  errors: by position.
    addresses: the host that each failed item was tried on, by position, if one was reached.
    """

    ids: list[str]
    errors: PositionErrors = field(default_factory=dict)
    addresses: dict[int, Address] = field(default_factory=dict)

    def fail(self, positions: Iterable[int], error: FoqsError, address: Address | None) -> None:
        """Set the error of these positions."""
        for position in positions:
            self.errors[position] = error
            if address is not None:
                self.addresses[position] = address


def enqueue_shared(
    terms: Terms,
    namespace: str,
    items: Sequence[NewItem],
    repeat: Repeat,
    *,
    job_id: str | None = None,
    avoided: Collection[Address] = (),
) -> Flow[CallOutcome]:
    """Make one attempt to enqueue items of several callers, and return their outcomes.

    The batch is split into several calls if it exceeds the namespace's batch limit or its remaining quota, or has too
    many copies for groups, because the items can still succeed separately.
    """
    outcome = CallOutcome([""] * len(items))
    first, size = 0, len(items)
    while first < len(items):
        part = items if size == len(items) else items[first : first + size]
        attempts = Attempts(terms, queue_verbs.owner_of_slot(terms, namespace, part), avoided=avoided)
        request = wire.structs.EnqueueRequest(namespace_name=namespace, items=part, bulk=False, job_id=job_id)
        try:
            response = yield attempts.send(Call("enqueue", request, repeat))
            queue_verbs.check_count(response.ids, len(part))
        except FoqsError as error:
            smaller = yield from _smaller(terms, namespace, len(part), error)
            if smaller < len(part):
                size = smaller
                continue
            attempts.blame(error)
            if isinstance(error, UnavailableError):
                queue_verbs.doubt_groups(terms, namespace)
            outcome.fail(range(first, first + len(part)), error, attempts.address)
            _fail_rest(outcome, first + len(part), error, attempts.address)
            return outcome
        _enter(outcome, first, response, attempts)
        if any(isinstance(error, UnavailableError) for error in outcome.errors.values()):
            queue_verbs.doubt_groups(terms, namespace)
        first += len(part)
    return outcome


def _smaller(terms: Terms, namespace: str, count: int, refusal: FoqsError) -> Flow[int]:
    """Return the size of the next call after one of `count` items was refused, or `count` to stop."""
    if isinstance(refusal, TooLargeError):
        return (yield from queue_verbs.smaller_call(terms, namespace, count, refusal))
    return count // 2 if isinstance(refusal, RateLimitedError) and count > 1 else count


def _fail_rest(outcome: CallOutcome, first: int, error: FoqsError, address: Address | None) -> None:
    """Record the failure of a call for the items behind it: NotSentError if its outcome is unknown."""
    reason = error
    if isinstance(error, OutcomeUnknownError):
        reason, address = NotSentError(f"not sent: an earlier call failed: {error.message}"), None
    outcome.fail(range(first, len(outcome.ids)), reason, address)


def _enter(outcome: CallOutcome, first: int, response: object, attempts: Attempts) -> None:
    """Record the response for the items from `first` on."""
    ids: list[str] = response.ids  # type: ignore[attr-defined]
    wire_errors = response.errors or {}  # type: ignore[attr-defined]
    outcome.ids[first : first + len(ids)] = ids
    errors = {position: error_from_wire(error) for position, error in wire_errors.items()}
    if any(not 0 <= position < len(ids) for position in errors):
        raise InternalError(f"the host reported positions {sorted(errors)} of a batch of {len(ids)}")
    for position, error in errors.items():
        outcome.fail([first + position], error, attempts.address)
    if len(errors) < len(ids):
        attempts.served()
    elif all(map(goes_elsewhere, errors.values())):
        attempts.blame(next(iter(errors.values())))
