"""The rates of topics and namespaces for callers, from the tables of the host's sampler."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from foqs.contract.requests import GetRatesRequest
from foqs.host import arguments
from foqs.host.metrics.rate_table import RateTable
from foqs.host.metrics.rates import Rates, add_series
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.verbs.page_reads import Slices
from foqs.model import limits
from foqs.model.calls import CallContext
from foqs.model.errors import InvalidArgumentError, shown
from foqs.model.topic_name import check_group, hidden, is_hidden
from foqs.model.topic_rates import SERIES_TOPICS_MAX, SLOT_MS, RateOrder, RatesPage, TopicRates

SLICE_TOPICS_MAX = 500
"""Topics whose rates are compared in one turn of the event loop, which takes about a millisecond."""
SLICE_SERIES_MAX = 10
"""Topics whose series are read in one turn."""
MORE_TOPICS_MAX = 100
"""A host gives as many topics again as are wanted, up to this, because others have parts of the same topics."""

_Place = tuple[float, str]
"""The number by which a topic is ordered, negated, and its hidden name."""


class RateVerbs:
    """The verb getRates. It owns nothing: `Rates` has the numbers."""

    def __init__(self, namespaces: Namespaces, shards: Shards, rates: Rates, slices: Slices) -> None:
        self._namespaces = namespaces
        self._shards = shards
        self._rates = rates
        self._slices = slices

    async def get_rates(self, context: CallContext, request: GetRatesRequest) -> RatesPage:
        """Return the rates of this host: of the named topics, or of the first ones in the order, or of the namespace.

        The rates are those of all shards of the host, because it adds their counts up. Raises UnavailableError if it
        does not serve a shard that the call names, unless a `partial` page will do.
        """
        number = self._namespaces.serving(request.namespace_name).number
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        order = arguments.check_range("order", request.order, 0, max(RateOrder))
        topics = _checked_topics(request)
        if context.shards is None:
            self._shards.check_owns_any()
        asked = self._shards.here if context.shards is None else context.shards
        lost = sorted(at for at in asked if not self._shards.serves(at))
        if lost and not request.partial:
            raise self._shards.none_served(lost)
        if request.of_namespaces:
            rows = [self._rates.of_namespace(number)]
        elif topics:
            rows = await self._slices.each(lambda some: [self._row(number, at, request.group) for at in some], topics)
        else:
            count = limit if context.shards is None else limit + min(limit, MORE_TOPICS_MAX)
            rows = await self._first(number, request.topic_prefix, order, count)
        page = RatesPage(rows, missing=[self._shards.not_served(at).message for at in lost])
        if request.with_series:
            await self._add_series(number, page)
        return page

    def _row(self, number: int, topic: str, group: str | None) -> TopicRates:
        return self._rates.of_topic(number, hidden(topic, group)) or TopicRates(topic, group=group or None)

    async def _first(self, number: int, prefix: str, order: int, count: int) -> list[TopicRates]:
        """Return the first topics with this prefix."""
        names, first = self._rates.topics.names(number), list[_Place]()
        for start in range(0, len(names), SLICE_TOPICS_MAX):
            some = [name for name in names[start : start + SLICE_TOPICS_MAX] if name.startswith(prefix)]
            first = await self._slices.run(partial(self._first_of, number, order, count, first, some))
        rows = await self._slices.each(lambda places: [self._rates.of_topic(number, name) for _, name in places], first)
        return [row for row in rows if row is not None]

    def _first_of(self, number: int, order: int, count: int, first: list[_Place], names: Sequence[str]) -> list[_Place]:
        table = self._rates.topics
        # The first places are in order, so that the sort costs as much as one of the new names alone.
        return sorted([*first, *[(-table.number_of((number, name), order), name) for name in names]])[:count]

    async def _add_series(self, number: int, page: RatesPage) -> None:
        rates = self._rates
        table = rates.topics if page.topics[0].topic else rates.namespaces
        first, last = table.slots()
        page.first_slot_ms = first * SLOT_MS
        for start in range(0, len(page.topics), SLICE_SERIES_MAX):
            rows = page.topics[start : start + SLICE_SERIES_MAX]
            await self._slices.run(partial(_add_series, table, number, rows, first, last))


def _add_series(table: RateTable, number: int, rows: Sequence[TopicRates], first: int, last: int) -> None:
    for row in rows:
        add_series(table, (number, hidden(row.topic, row.group)), row, first, last)


def _checked_topics(request: GetRatesRequest) -> list[str]:
    """Return the topics that a request names. Raises InvalidArgumentError for a wrong choice of rows."""
    topics, prefix = list(dict.fromkeys(request.topics or ())), request.topic_prefix
    arguments.check_batch("topics", len(request.topics or ()), limits.PAGE_ITEMS_MAX)
    for topic in topics:
        arguments.check_topic(topic)
        if request.group:
            check_group(request.group, topic)
    if is_hidden(prefix):
        raise InvalidArgumentError(f"topic_prefix {shown(prefix)} must be text without control characters")
    if topics and prefix:
        raise InvalidArgumentError(f"topic_prefix {shown(prefix)} is given beside {len(topics)} topics: give one")
    if request.group and not topics:
        raise InvalidArgumentError(f"group {shown(request.group)} is given without topics: name the topics as well")
    if request.of_namespaces and (topics or prefix):
        raise InvalidArgumentError("of_namespaces is set beside topics or topic_prefix: leave one out")
    if request.with_series and not request.of_namespaces and not 1 <= len(topics) <= SERIES_TOPICS_MAX:
        raise InvalidArgumentError(
            f"with_series is set with {len(topics)} topics, and needs 1 to {SERIES_TOPICS_MAX}, or of_namespaces: "
            "name the topics, as a call without series returns them"
        )
    return topics
