"""Verbs for rates: arguments to requests, and responses to results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from foqs.client.flows import Call, Flow, Terms, call_flow
from foqs.client.retry import Repeat
from foqs.model.errors import InvalidArgumentError
from foqs.model.event_history import History, HistoryRow
from foqs.model.topic_rates import SLOT_MS, RateOrder, RatesPage, TopicRates
from foqs.wire import codec as wire


def get_rates(
    terms: Terms,
    namespace: str,
    topics: str | Iterable[str] | None,
    prefix: str,
    order: RateOrder,
    limit: int,
    *,
    group: str | None,
    with_series: bool,
    partial: bool,
) -> Flow[RatesPage]:
    """Return the rates of these topics, or of the first ones."""
    request = wire.structs.GetRatesRequest(
        namespace_name=namespace,
        topics=topics_of(topics),
        topic_prefix=prefix,
        order=int(order),
        limit=limit,
        with_series=with_series or None,
        partial=partial or None,
        group=group or None,
    )
    return _rates_call(terms, request)


def namespace_rates(terms: Terms, namespace: str, *, with_series: bool, partial: bool) -> Flow[RatesPage]:
    """Return the rates of a whole namespace, as one row."""
    request = wire.structs.GetRatesRequest(
        namespace_name=namespace, of_namespaces=True, with_series=with_series or None, partial=partial or None
    )
    return _rates_call(terms, request)


def topics_of(topics: str | Iterable[str] | None) -> list[str] | None:
    """Return the topics of a request; None for none. Raises InvalidArgumentError for other types."""
    if topics is None:
        return None
    found = [topics] if isinstance(topics, str) else list(topics)
    for topic in found:
        if not isinstance(topic, str):
            raise InvalidArgumentError(f"topics has {topic!r:.80}, which is no text: give names of topics")
    return found


def get_history(
    terms: Terms,
    namespace: str,
    topics: str | Iterable[str] | None,
    from_ms: int,
    to_ms: int,
    step_minutes: int,
    *,
    group: str | None,
    partial: bool,
) -> Flow[History]:
    """Return the history of these topics, or of the whole namespace."""
    request = wire.structs.GetHistoryRequest(
        namespace_name=namespace,
        topics=topics_of(topics),
        from_ms=from_ms,
        to_ms=to_ms,
        step_minutes=step_minutes,
        partial=partial or None,
        group=group or None,
    )
    response = yield from call_flow(terms, Call("getHistory", request, Repeat.READ))
    rows = [HistoryRow(*[_value(row, one) for one in fields(HistoryRow)]) for row in response.rows or ()]
    missing, bounds_ms = list(response.missing or ()), list(response.bounds_ms or ())
    return History(rows, response.step_minutes or 0, response.complete_from_ms or 0, bounds_ms, missing)


def _value(row: Any, one: Field[Any]) -> Any:
    """Return a field of a row; one that the peer does not send has its default."""
    value = getattr(row, one.name)
    if value is None:
        return "" if one.name == "topic" else 0 if one.default is MISSING else one.default
    return value


def _rates_call(terms: Terms, request: Any) -> Flow[RatesPage]:
    response = yield from call_flow(terms, Call("getRates", request, Repeat.READ))
    rows = [rates_of(row) for row in response.topics or ()]
    return RatesPage(rows, response.first_slot_ms or 0, response.slot_ms or SLOT_MS, list(response.missing or ()))


def rates_of(row: Any) -> TopicRates:
    """Return the rates in a struct of the wire; a number that the peer does not send is 0."""
    return TopicRates(
        row.topic or "",
        row.enqueued_1min or 0.0,
        row.delivered_1min or 0.0,
        row.ended_1min or 0.0,
        row.failed_1min or 0.0,
        row.enqueued_15min or 0.0,
        row.delivered_15min or 0.0,
        row.ended_15min or 0.0,
        row.failed_15min or 0.0,
        _series(row.enqueued_series),
        _series(row.delivered_series),
        _series(row.ended_series),
        _series(row.failed_series),
        _series(row.ready_series),
        row.group,
        row.ready or 0,
    )


def _series(values: Sequence[int] | None) -> Sequence[int] | None:
    return None if values is None else list(values)
