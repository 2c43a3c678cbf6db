# Generated from foqs/client/aio/admin_rates.py by scripts/generate_sync.py: edit that one.
"""Verbs of service FoqsAdmin for rates and history, as methods of its client."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from time import time

from foqs.client import rate_flows
from foqs.client.sync.base import BaseClient
from foqs.model import limits
from foqs.model.event_history import History
from foqs.model.given_times import time_ms
from foqs.model.topic_rates import RateOrder, RatesPage

HISTORY_MS_DEFAULT = limits.HOUR_MS
"""The time of a history whose begin is not given, in milliseconds."""


class RateVerbs(BaseClient):
    """Verbs for rates and history. It is a part of `AdminClient`."""

    def get_rates(
        self,
        namespace: str,
        topics: str | Iterable[str] | None = None,
        *,
        prefix: str = "",
        order: RateOrder = RateOrder.ENQUEUED,
        limit: int = 100,
        group: str | None = None,
        with_series: bool = False,
        partial: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> RatesPage:
        """Return the rates of topics on all hosts together, over 1 and 15 minutes.

        topics: up to 1,000 names, each of which has a row; by default the first `limit` topics by `order`, the fastest
            first, of those that have moved in the last 15 minutes.
        prefix (""): only topics whose names begin with it; not with `topics`.  group: the consumer group of `topics`.
        with_series (False): True for the counts of the last 15 minutes in slots of 10 s; for up to 50 named `topics`.
        partial (False): True to leave out shards and hosts that do not respond; `missing` of the result names them.
        """
        flow = rate_flows.get_rates(
            self._within(deadline_ms, deadline), namespace, topics, prefix, order, limit,
            group=group, with_series=with_series, partial=partial,
        )  # fmt: skip
        return self._run(flow)

    def namespace_rates(
        self,
        namespace: str,
        *,
        with_series: bool = False,
        partial: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> RatesPage:
        """Return the rates of a whole namespace as one row, whose topic is "". Arguments: as with `get_rates`."""
        terms = self._within(deadline_ms, deadline)
        return self._run(rate_flows.namespace_rates(terms, namespace, with_series=with_series, partial=partial))

    def get_history(
        self,
        namespace: str,
        topics: str | Iterable[str] | None = None,
        *,
        since_ms: int | None = None,
        since: datetime | None = None,
        until_ms: int | None = None,
        until: datetime | None = None,
        step_minutes: int = 0,
        group: str | None = None,
        partial: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> History:
        """Return counts of the past from the event logs of the hosts that serve shards now.

        topics: up to 10 names, each with rows of its own; by default the whole namespace.  group: the consumer group of
            `topics`.
        until or until_ms: the end, by default now.
        since or since_ms: the begin, by default an hour before the end, and at most 31 days before it.
        step_minutes (0): the length of a row; 0 for the shortest with up to 500 rows.
        The last two minutes are possibly not written yet. Raises InvalidArgumentError if a host has no event log.
        """
        until_ms = time_ms("until_ms", until_ms, until)
        since_ms = time_ms("since_ms", since_ms, since)
        to_ms = int(time() * 1000) if until_ms is None else until_ms
        from_ms = max(0, to_ms - HISTORY_MS_DEFAULT) if since_ms is None else since_ms
        terms = self._within(deadline_ms, deadline)
        flow = rate_flows.get_history(
            terms, namespace, topics, from_ms, to_ms, step_minutes, group=group, partial=partial
        )
        return self._run(flow)
