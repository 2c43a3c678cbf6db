"""The history of topics for callers, from the event log of this host."""

from __future__ import annotations

import asyncio
from datetime import MAXYEAR, UTC, datetime

from foqs.contract.requests import GetHistoryRequest
from foqs.host import arguments
from foqs.host.event_log.history import HistoryQuery
from foqs.host.event_log.log_service import EventLog
from foqs.host.registry.namespaces import Namespaces
from foqs.model import limits
from foqs.model.calls import CallContext
from foqs.model.errors import InvalidArgumentError, UnavailableError, shown
from foqs.model.event_history import (
    HISTORY_MS_MAX,
    HISTORY_ROWS_MAX,
    HISTORY_TOPICS_MAX,
    STEPS_MINUTES,
    History,
)
from foqs.model.namespace import Namespace
from foqs.model.topic_name import check_group

_TIME_MS_MAX = int(datetime(MAXYEAR, 1, 1, tzinfo=UTC).timestamp()) * 1000
"""A time beyond it has no folder."""


class HistoryVerb:
    """The verb getHistory. It owns nothing: the event log reads its files."""

    def __init__(self, namespaces: Namespaces, event_log: EventLog | None) -> None:
        self._namespaces = namespaces
        self._event_log = event_log

    async def get_history(self, context: CallContext, request: GetHistoryRequest) -> History:
        """Return the history in the event log of this host, also of shards that it has served before.

        Raises InvalidArgumentError without an event log, and UnavailableError if it was not read in time.
        """
        query = checked_query(request, self._namespaces.serving(request.namespace_name))
        if self._event_log is None:
            raise InvalidArgumentError(
                "a host has no event log, which history is read from: set event_log_dir on each host, or read "
                "getRates for the last 15 minutes"
            )
        answer = self._event_log.ask_history(query)
        try:
            async with asyncio.timeout(limits.CALL_MS_MAX / 1000):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise UnavailableError(
                f"the event log was not read within {limits.CALL_MS_MAX} ms: try again", nothing_done=True
            ) from None


def checked_query(request: GetHistoryRequest, namespace: Namespace) -> HistoryQuery:
    """Return the query of a request. Raises InvalidArgumentError."""
    topics = list(dict.fromkeys(request.topics or ()))
    arguments.check_batch("topics", len(request.topics or ()), HISTORY_TOPICS_MAX)
    for topic in topics:
        arguments.check_topic(topic)
        if request.group:
            check_group(request.group, topic)
    if request.group and not topics:
        raise InvalidArgumentError(f"group {shown(request.group)} is given without topics: name the topics as well")
    to_ms = arguments.check_range("to_ms", request.to_ms, 1, _TIME_MS_MAX)
    from_ms = arguments.check_range("from_ms", request.from_ms, 0, to_ms - 1)
    if to_ms - from_ms > HISTORY_MS_MAX:
        raise InvalidArgumentError(
            f"the time from from_ms {from_ms} to to_ms {to_ms} is {to_ms - from_ms} ms, and the limit is "
            f"{HISTORY_MS_MAX} (31 days): make several calls"
        )
    from_ms -= from_ms % limits.MINUTE_MS
    step_minutes = arguments.check_range("step_minutes", request.step_minutes, 0, STEPS_MINUTES[-1])
    minutes = -((from_ms - to_ms) // limits.MINUTE_MS)
    rows_count = max(1, len(topics))
    steps = [step_minutes] if step_minutes else STEPS_MINUTES
    fitting = [step for step in steps if rows_count * -(-minutes // step) <= HISTORY_ROWS_MAX]
    if not fitting:
        raise InvalidArgumentError(
            f"step_minutes {step_minutes} makes {rows_count * -(-minutes // step_minutes)} rows, and the limit is "
            f"{HISTORY_ROWS_MAX}: take a longer step, a shorter time or fewer topics"
        )
    since_ms = namespace.created_at_ms - namespace.created_at_ms % limits.MINUTE_MS
    return HistoryQuery(namespace.name, frozenset(topics), request.group or "", from_ms, to_ms, fitting[0], since_ms)
