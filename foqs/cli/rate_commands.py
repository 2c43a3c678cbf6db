"""`foqs topic rates` and `history`: how fast topics move, and moved."""

from __future__ import annotations

from collections.abc import Sequence

import click

from foqs.cli.group_commands import group_option
from foqs.cli.numbers import WholeNumber
from foqs.cli.output import Exit, leave, note, time_of
from foqs.cli.remote import Remote, remote_command
from foqs.cli.times import PastTime
from foqs.model import limits
from foqs.model.event_history import STEPS_MINUTES, HistoryRow, quantile_ms
from foqs.model.topic_rates import SERIES_TOPICS_MAX, RateOrder, RatesPage, TopicRates

_COLUMNS = ("IN/S", "OUT/S", "DELIVERED/S", "FAIL/S", "IN/S 15 MIN", "OUT/S 15 MIN", "READY", "TOPIC")


@click.command()
@click.argument("namespace")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--prefix", default="", help="Only topics with this prefix.")
@click.option(
    "--order",
    type=click.Choice([order.name.lower() for order in RateOrder]),
    default=RateOrder.ENQUEUED.name.lower(),
    show_default=True,
    help="The topics with the largest number of this come first.",
)
@click.option("--limit", type=WholeNumber(1, limits.PAGE_ITEMS_MAX), default=100, show_default=True)
@group_option
@click.option("--series", is_flag=True, help="The counts of the last 15 minutes by 10 s, of up to 50 topics.")
@click.option("--all", "of_all", is_flag=True, help="The namespace as a whole, in one row.")
@click.option("--partial", is_flag=True, help="Exit code 0 also while shards or hosts do not respond.")
@remote_command
def rates(
    remote: Remote,
    namespace: str,
    topics: tuple[str, ...],
    prefix: str,
    order: str,
    limit: int,
    group: str | None,
    series: bool,
    of_all: bool,
    partial: bool,
) -> None:
    """Show the rates of the topics of NAMESPACE that move most, or of each TOPIC, on all hosts together.

    Rates are averages of one minute, and of 15 minutes, in items per second: IN of stored items, OUT of items that have
    left the topic, DELIVERED of deliveries and FAIL of failed attempts. They begin at 0, and show two thirds of a new
    rate after a minute. A topic that was still for 15 minutes is not listed.

    Shards and hosts that do not respond are named on stderr, and are not counted. The exit code is then 6, unless
    --partial accepts that.
    """
    if of_all and (topics or prefix or group):
        raise click.UsageError("--all is the namespace as a whole: give no TOPIC, --prefix or --group")
    if group and not topics:
        raise click.UsageError("--group is the group of each TOPIC: name the topics")
    chosen = RateOrder[order.upper()]
    with remote.admin() as admin:
        if of_all:
            page = admin.namespace_rates(namespace, with_series=series, partial=True)
        elif series and not topics:
            first = admin.get_rates(
                namespace, prefix=prefix, order=chosen, limit=min(limit, SERIES_TOPICS_MAX), partial=True
            )
            # Groups have series of their own, by the name of the group alone.
            names = list(dict.fromkeys(row.topic for row in first.topics if row.group is None))
            page = first
            if names:
                page = admin.get_rates(namespace, names, with_series=True, partial=True)
        else:
            page = admin.get_rates(
                namespace, topics or None, prefix=prefix, order=chosen, limit=limit, group=group, with_series=series,
                partial=True,
            )  # fmt: skip
    _show(remote, page, namespace, is_series=series)
    for part in page.missing:
        note(f"not counted: {part}")
    if page.missing and not partial:
        leave(Exit.PARTIAL)


def _show(remote: Remote, page: RatesPage, namespace: str, *, is_series: bool) -> None:
    if remote.output.as_json:
        remote.output.document(page if is_series else page.topics)
    elif is_series:
        _show_series(remote, page, namespace)
    else:
        remote.output.table(_COLUMNS, (_row_of(row, namespace) for row in page.topics))


def _row_of(row: TopicRates, namespace: str) -> Sequence[object]:
    return (
        shown_rate(row.enqueued_1min),
        shown_rate(row.ended_1min),
        shown_rate(row.delivered_1min),
        shown_rate(row.failed_1min),
        shown_rate(row.enqueued_15min),
        shown_rate(row.ended_15min),
        row.ready,
        _name_of(row, namespace),
    )


def _show_series(remote: Remote, page: RatesPage, namespace: str) -> None:
    columns = ("FROM", "IN", "OUT", "DELIVERED", "FAILED", "READY", "TOPIC")
    remote.output.table(columns, [slot for row in page.topics for slot in _slots_of(row, page, namespace)])


def _slots_of(row: TopicRates, page: RatesPage, namespace: str) -> Sequence[Sequence[object]]:
    series = (row.enqueued_series, row.ended_series, row.delivered_series, row.failed_series, row.ready_series)
    name = _name_of(row, namespace)
    found: list[Sequence[object]] = []
    for number, counts in enumerate(zip(*(values or () for values in series), strict=True)):
        if any(count >= 0 for count in counts):
            at = time_of(page.first_slot_ms + number * page.slot_ms)
            found.append((at, *(count if count >= 0 else None for count in counts), name))
    return found


def _name_of(row: TopicRates, namespace: str) -> str:
    if not row.topic:
        return f"(all of {namespace})"
    return f"{row.topic} (group {row.group})" if row.group else row.topic


def shown_rate(rate: float) -> str:
    """Return a rate with as many digits as it has a use for."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 1 or rate < 0.005 else f"{rate:.2f}"


@click.command()
@click.argument("namespace")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--since", type=PastTime(), default="1h", show_default=True, help="So long ago (15m, 6h), or a time in UTC."
)
@click.option("--until", type=PastTime(), help="The same, for the end.")
@click.option("--step", type=WholeNumber(0, STEPS_MINUTES[-1]), default=0, help="Minutes of a row; 0 for the best.")
@group_option
@click.option("--partial", is_flag=True, help="Exit code 0 also while shards or hosts do not respond.")
@remote_command
def history(
    remote: Remote,
    namespace: str,
    topics: tuple[str, ...],
    since: int,
    until: int | None,
    step: int,
    group: str | None,
    partial: bool,
) -> None:
    """Show past counts of NAMESPACE as a whole, or of each TOPIC, from the event logs of the hosts.

    Each row is a step of time, and steps without events are left out. WAIT is from ready to the first delivery, WORK
    from a delivery to its end; both are upper bounds of half and of 99 % of the times, as exact as the buckets of the
    event log. The last two minutes are possibly not written yet. Each host needs event_log_dir.
    """
    if group and not topics:
        raise click.UsageError("--group is the group of each TOPIC: name the topics")
    with remote.admin() as admin:
        found = admin.get_history(
            namespace, topics or None, since_ms=since, until_ms=until, step_minutes=step, group=group, partial=True
        )
    remote.output.document(found)
    columns = ["FROM", "IN", "ACKED", "FAILED", "DEAD", "OTHERS", "WAIT 50 %", "99 %", "WORK 50 %", "99 %", "TOPIC"]
    remote.output.table(columns, (_past_of(row, found.bounds_ms, namespace) for row in found.rows))
    if found.complete_from_ms > since + limits.MINUTE_MS and found.rows:
        note(f"rows before {time_of(found.complete_from_ms)} are not complete: ask for a shorter time")
    for part in found.missing:
        note(f"not counted: {part}")
    if found.missing and not partial:
        leave(Exit.PARTIAL)


def _past_of(row: HistoryRow, bounds_ms: Sequence[int], namespace: str) -> Sequence[object]:
    times = [
        _time_at(buckets, bounds_ms, ratio)
        for buckets in (row.wait_buckets, row.processing_buckets)
        for ratio in (0.5, 0.99)
    ]
    failed = row.nacked + row.lease_ended
    others = row.released + row.expired + row.deleted + row.at_most_once
    name = row.topic or f"(all of {namespace})"
    return time_of(row.at_ms), row.enqueued, row.acked, failed, row.dead, others, *times, name


def _time_at(buckets: Sequence[int], bounds_ms: Sequence[int], ratio: float) -> str | None:
    bound_ms = quantile_ms(buckets, bounds_ms, ratio)
    if bound_ms is None:
        return None
    return f"{bound_ms} ms" if bound_ms >= 0 else f"> {bounds_ms[-1]} ms"
