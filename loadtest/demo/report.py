"""What the demo prints at its end, and whether all promises held."""

from __future__ import annotations

from dataclasses import dataclass

from hdrh.histogram import HdrHistogram
from rich.console import Console
from rich.table import Table

from loadtest.demo.cluster import HOSTS, SERVERS
from loadtest.demo.history import READY_MARGIN_MS, History
from loadtest.demo.messages import Phase
from loadtest.demo.run import CONSUMERS, PRODUCERS, STEADY_PER_S, Course

_PERCENTILES = (50, 90, 99, 99.9, 100)
_LATENCY_MS_MAX = 600_000
_EXAMPLES_MAX = 3
_HOW_ORDER_IS_CHECKED = (
    "* The order of a topic is (priority, deliver_after, id), on each host for its own shards. Counted is each "
    "delivery in a call begun after another call was answered with a less urgent item of its topic and host, though "
    "the item was certainly ready before that other call began: its enqueue was answered, and "
    f"{READY_MARGIN_MS} ms had passed since its deliver_after, if it was delayed, or since the end of its last lease. "
    "Calls that overlap are not judged: nobody can tell who came first. Looked at are the deliveries for which there "
    "is such an earlier call at all."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: `count` cases that should not be, and on what they were looked for."""

    promise: str
    count: int
    looked_at: str


def report(console: Console, history: History, course: Course, rows_left: dict[str, int], purged_count: int) -> bool:
    """Print the report; True when everything held."""
    console.print()
    _print_speed(console, history, course)
    _print_latency(console, history)
    findings = [*_findings(console, history), *_kill_findings(history, course)]
    table = Table("what was checked", "violations", "on", title="promises", title_justify="left")
    for finding in findings:
        table.add_row(finding.promise, str(finding.count), finding.looked_at)
    console.print(table)
    console.print(_HOW_ORDER_IS_CHECKED)
    balanced = _print_balance(console, history, rows_left, purged_count)
    return balanced and not any(finding.count for finding in findings)


def _print_speed(console: Console, history: History, course: Course) -> None:
    deliveries_count = sum(len(answer.handouts) for answer in history.answers)
    table = Table("what", "figure", title="speed", title_justify="left")
    table.add_row("records", f"{len(history.enqueued):,}")
    table.add_row("processes", f"{PRODUCERS} producers, {CONSUMERS} consumers, {HOSTS} hosts, {SERVERS} MySQL servers")
    table.add_row("enqueued in the flood", f"{course.flood_count / course.flood_enqueue_s:,.0f} items/s")
    table.add_row("whole life in the flood", f"{course.flood_count / course.flood_s:,.0f} items/s")
    table.add_row("items per answer", f"{deliveries_count / len(history.answers):,.0f}")
    again_count = sum(handout.attempt > 1 for _, handout in history.deliveries())
    table.add_row("delivered again (attempt 2 or more)", f"{again_count:,}")
    console.print(table)


def _print_latency(console: Console, history: History) -> None:
    table = Table("ms from ready to dequeued", *[_name(p) for p in _PERCENTILES], title="latency", title_justify="left")
    for phase, meaning in (
        (Phase.STEADY, f"steady: {STEADY_PER_S:,} items/s, no backlog"),
        (Phase.FLOOD, "flood: the wait in the backlog"),
    ):
        histogram = HdrHistogram(1, _LATENCY_MS_MAX * 1_000, 3)
        for latency_ms in history.latencies_ms(phase):
            histogram.record_value(max(1, int(latency_ms * 1_000)))
        values = [histogram.get_value_at_percentile(percentile) / 1_000 for percentile in _PERCENTILES]
        table.add_row(meaning, *[f"{value:,.1f}" for value in values])
    console.print(table)


def _name(percentile: float) -> str:
    return "max" if percentile == 100 else f"p{percentile:g}"


def _findings(console: Console, history: History) -> list[Finding]:
    order = history.check_order()
    for example in order.violations[:_EXAMPLES_MAX]:
        console.print(f"out of order: {example}")
    deliveries_count = sum(len(answer.handouts) for answer in history.answers)
    deliveries, items = f"{deliveries_count:,} deliveries", f"{len(history.enqueued):,} items"
    return [
        Finding(
            "P6 within an answer, each topic of a host is in order",
            history.out_of_order_answers(),
            f"{len(history.answers):,} answers",
        ),
        Finding(
            "P6 across answers, no ready item is passed over by a less urgent one *",
            len(order.violations),
            f"{order.compared_count:,} deliveries",
        ),
        Finding("P7 nothing is delivered before its deliver_after", history.early_count(), deliveries),
        Finding("P3 nothing is delivered while its lease runs", history.doubly_leased_count(), deliveries),
        Finding("P2 every item is acked or dead-lettered", history.lost_count(), items),
        Finding("P5 nothing is acked or dead-lettered twice", history.settled_twice_count(), items),
    ]


def _kill_findings(history: History, course: Course) -> list[Finding]:
    """The items that the killed consumer held: each is delivered again, with attempt 2, after its lease ended."""
    if not course.held:
        return [Finding("a consumer was killed while it held items", 1, "nothing: it was not")]
    held = {handout.id: handout for handout in course.held}
    came_back = {
        handout.id: (answer, handout)
        for answer, handout in history.deliveries()
        if handout.id in held and handout.attempt == held[handout.id].attempt + 1
    }
    after_ms = {item_id: a.answered_at_ms - held[item_id].lease_expires_at_ms for item_id, (a, _) in came_back.items()}
    late = [item_id for item_id, ms in after_ms.items() if ms > READY_MARGIN_MS]
    behind_count = sum(history.was_behind(*came_back[item_id], held[item_id].lease_expires_at_ms) for item_id in late)
    first_ms, last_ms = min(after_ms.values(), default=0.0), max(after_ms.values(), default=0.0)
    return [
        Finding(
            f"what the killed consumer held comes back as attempt 2; here {first_ms:,.0f} to {last_ms:,.0f} ms after "
            f"its lease ended, {len(late)} items after more than {READY_MARGIN_MS:,} ms, "
            f"{behind_count} of them behind more urgent ones",
            len(held) - len(came_back),
            f"{len(held)} items",
        )
    ]


def _print_balance(console: Console, history: History, rows_left: dict[str, int], purged_count: int) -> bool:
    enqueued, acked, dead = len(history.enqueued), len(history.acked), len(history.dead)
    left = sum(rows_left.values())
    table = Table("balance", "items", title="balance", title_justify="left")
    table.add_row("enqueued", f"{enqueued:,}")
    table.add_row("acked", f"{acked:,}")
    table.add_row("expired (no TTL ends within the demo)", "0")
    table.add_row("dead-lettered by the consumers: cancelled flights", f"{dead:,}")
    table.add_row("purged from the dead letters at the end", f"{purged_count:,}")
    table.add_row(f"rows in the {len(rows_left)} shard databases, by SELECT COUNT(*)", f"{left:,}")
    console.print(table)
    balanced = enqueued == acked + dead and purged_count == dead and not left
    sign = "=" if enqueued == acked + dead else "is not"
    console.print(
        f"enqueued {enqueued:,} {sign} acked {acked:,} + expired 0 + dead {dead:,}; MySQL rows left: {left:,}"
    )
    return balanced
