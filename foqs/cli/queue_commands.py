"""The commands topics, enqueue, dequeue, ack and nack."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO

import click

from foqs.cli.group_commands import group_option
from foqs.cli.numbers import WholeNumber
from foqs.cli.output import Exit, exit_of, leave, leave_for, note, report_failures, time_of
from foqs.cli.rate_commands import shown_rate
from foqs.cli.remote import Remote, remote_command
from foqs.client.consumer_names import consumer_name
from foqs.client.dequeued import Dequeued
from foqs.client.queue_items import PRIORITY_MAX, PRIORITY_MIN, Item, NewItem
from foqs.client.sync import Client
from foqs.model import limits
from foqs.model.calls import DedupUntil, DeliveryPolicy, TopicStats
from foqs.model.errors import FoqsError, InvalidArgumentError, TooLargeError
from foqs.model.topic_rates import TopicRates

_STDIN = "-"
_LINES_PER_BATCH = 100
"""Lines in one batch. A batch fits even if each line is a payload of the largest size."""
_MS = WholeNumber(hint="give milliseconds")
_ITEM_OPTIONS = (
    click.option(
        "--priority",
        type=WholeNumber(PRIORITY_MIN, PRIORITY_MAX, hint="the smaller, the more urgent; 0 is usual"),
        metavar="NUMBER",
        default=0,
        show_default=True,
        help="Smaller is more urgent.",
    ),
    click.option(
        "--delay-ms",
        type=WholeNumber(hint="milliseconds"),
        metavar="MS",
        help="Not delivered before this time from now.",
    ),
    click.option(
        "--deliver-after-ms",
        type=WholeNumber(hint="milliseconds"),
        metavar="MS",
        help="Not delivered before this time since the epoch.",
    ),
    click.option(
        "--ttl-ms",
        type=WholeNumber(hint="milliseconds"),
        metavar="MS",
        help="Deleted this long after it may be delivered.",
    ),
    click.option("--lease-ms", type=_MS, metavar="MS", help="Lease of its deliveries."),
    click.option("--metadata", help="Small text beside the payload."),
    click.option("--dedup-id", help="Stored only if no item with this id was, in the namespace's dedup_ms."),
    click.option("--unique", is_flag=True, help="With --dedup-id: stored only if no item with this id lives."),
    click.option("--ordering-key", metavar="KEY", help="Items with one key are delivered one at a time, in order."),
    click.option("--fairness-key", metavar="KEY", help="The keys of TOPIC take turns."),
    click.option("--trace-context", help="Text that comes with every delivery."),
    click.option("--at-most-once", is_flag=True, help="Delivered once or never."),
)


def _item_options(command: Callable[..., None]) -> Callable[..., None]:
    return functools.reduce(lambda decorated, option: option(decorated), reversed(_ITEM_OPTIONS), command)


@click.command()
@click.argument("namespace")
@click.option("--prefix", default="", help="Only topics with this prefix.")
@click.option("--rates", is_flag=True, help="Show how fast each topic moves, in items per second over one minute.")
@click.option("--partial", is_flag=True, help="Exit code 0 also while shards or hosts do not respond.")
@remote_command
def topics(remote: Remote, namespace: str, prefix: str, rates: bool, partial: bool) -> None:
    """List the topics of NAMESPACE that hold an item.

    Shards and hosts that do not respond are named on stderr, and their items are not counted. The exit code is then 6,
    unless --partial accepts an incomplete list.
    """
    missing: dict[str, None] = {}

    def note_missing(parts: Sequence[str]) -> None:
        for what in parts:
            if what not in missing:  # Each page names the missing parts again.
                missing[what] = None
                note(f"not counted: {what}")

    with remote.client() as client:
        _show_topics(remote, client.topics(namespace, prefix, on_missing=note_missing, with_rates=rates), rates)
    if missing and not partial:
        leave(Exit.PARTIAL)


def _show_topics(remote: Remote, stats: Iterable[TopicStats], with_rates: bool) -> None:
    if remote.output.as_json:
        remote.output.document(list(stats))
    else:
        remote.output.table(
            [
                *["READY", "DELAYED", "LEASED", "LIMIT", "DEAD", "KEYS", "URGENT", "OLDEST READY"],
                *(["IN/S", "OUT/S", "TOPIC"] if with_rates else ["TOPIC"]),
            ],
            (
                (
                    s.ready,
                    s.delayed,
                    s.leased,
                    s.in_flight_max,
                    s.dead,
                    (s.ordering_keys or 0) + (s.fairness_keys or 0) or None,
                    s.most_urgent_priority if s.ready else None,
                    time_of(s.oldest_ready_at_ms),
                    *(_rates_of(s) if with_rates else ()),
                    f"{s.topic} (group {s.group})" if s.group else s.topic,
                )
                for s in stats
            ),
        )


def _rates_of(stats: TopicStats) -> tuple[str, str]:
    rates = stats.rates or TopicRates(stats.topic)
    return shown_rate(rates.enqueued_1min), shown_rate(rates.ended_1min)


@click.command()
@click.argument("namespace")
@click.argument("topic")
@click.argument("payload", default=_STDIN)
@click.option("--allow-empty", is_flag=True, help="Store an item without payload when stdin has nothing.")
@click.option("--lines", is_flag=True, help="Each line of stdin is an item, stored by the hundred. JSON: a line each.")
@_item_options
@remote_command
def enqueue(
    remote: Remote, namespace: str, topic: str, payload: str, allow_empty: bool, lines: bool, **item_options: Any
) -> None:
    """Store an item with PAYLOAD, or with what comes from stdin (-), and print its id.

    The item is on disk when the id is printed. After exit code 5 the item may or may not exist. With --dedup-id it is
    safe to repeat the command, because no second item is stored. With --unique as well the id is taken only as long as
    the item lives: a repeat after its end stores another one.
    """
    if lines and payload != _STDIN:
        raise click.UsageError("--lines reads stdin: give no PAYLOAD")
    if lines and item_options["dedup_id"] is not None:
        raise click.UsageError("--lines and --dedup-id exclude each other: the id is of one item")
    if item_options["unique"] and item_options["dedup_id"] is None:
        raise click.UsageError("--unique needs --dedup-id: it says how long that id is taken")
    if payload == _STDIN and sys.stdin.isatty():
        what = "items, one a line," if lines else "the payload"
        note(f"reading {what} from stdin: Ctrl-D ends it")
    with remote.client() as client:
        if lines:
            bodies = _lines_of(sys.stdin.buffer)
            items = (_new_item(topic, body, **item_options) for body in bodies)
            _enqueue_lines(remote, client, namespace, items)
            return
        body = _read_payload(sys.stdin.buffer, allow_empty) if payload == _STDIN else os.fsencode(payload)
        result = client.enqueue_many(namespace, [_new_item(topic, body, **item_options)], return_errors=True)
    if result.errors:
        raise result.errors[0]
    remote.output.document({"id": result.ids[0], "duplicate": bool(result.duplicates)})
    remote.output.line(result.ids[0])
    if result.duplicates:
        note("an item with this dedup id was enqueued before, and this is its id: nothing was stored")


def _new_item(
    topic: str, payload: bytes, *, metadata: str | None, at_most_once: bool, unique: bool, **fields: Any
) -> NewItem:
    return NewItem(
        topic,
        payload,
        metadata=None if metadata is None else os.fsencode(metadata),
        delivery=DeliveryPolicy.AT_MOST_ONCE if at_most_once else None,
        dedup_until=DedupUntil.ACKED if unique else None,
        **fields,
    )


def _enqueue_lines(remote: Remote, client: Client, namespace: str, items: Iterator[NewItem]) -> None:
    """Enqueue batch after batch, and report each before reading the next, so that the output is current at any time."""
    first_line, codes = 1, set[Exit]()
    while batch := list(islice(items, _LINES_PER_BATCH)):
        try:
            result = client.enqueue_many(namespace, batch, return_errors=True)
        except FoqsError:
            note(f"stopped at line {first_line}: from there on nothing is known to be stored")
            raise
        for position, item_id in enumerate(result.ids):
            line, error = first_line + position, result.errors.get(position)
            if error is None:
                remote.output.json_line({"line": line, "id": item_id})
                remote.output.line(item_id)
            else:
                remote.output.json_line({"line": line, "error": error})
                note(f"error: line {line}: {error.message}")
                codes.add(exit_of(error))
        first_line += len(batch)
    if first_line == 1:
        note("stdin held no line: nothing is stored")
    leave_for(codes)


def _read_payload(stream: BinaryIO, allow_empty: bool) -> bytes:
    body = stream.read(limits.PAYLOAD_BYTES_MAX + 1)
    if len(body) > limits.PAYLOAD_BYTES_MAX:
        raise TooLargeError(f"stdin holds more than {limits.PAYLOAD_BYTES_MAX} bytes, the largest payload")
    if not body and not allow_empty:
        raise InvalidArgumentError("stdin holds nothing: --allow-empty stores an item without payload")
    return body


def _lines_of(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(limits.PAYLOAD_BYTES_MAX + 2):
        body = line.removesuffix(b"\n")
        if len(body) > limits.PAYLOAD_BYTES_MAX:
            raise TooLargeError(f"a line of stdin is over {limits.PAYLOAD_BYTES_MAX} bytes, the largest payload")
        yield body


@click.command()
@click.argument("namespace")
@click.argument("topic")
@click.option(
    "--count", type=WholeNumber(1, limits.DEQUEUE_ITEMS_MAX), default=1, show_default=True, help="Items at most."
)
@click.option("--wait-ms", type=WholeNumber(0, limits.WAIT_MS_MAX), default=0, help="Wait for an item.")
@click.option("--lease-ms", type=WholeNumber(limits.LEASE_MS_MIN, limits.LEASE_MS_MAX), help="Duration of the lease.")
@click.option("--ack/--no-ack", default=False, help="Delete the items once they are printed.")
@click.option("--name", help="The name by which operators see who has the items. Default: foqs@HOSTNAME/PID.")
@click.option("--prefix", is_flag=True, help='Take items of any topics that begin with TOPIC; "" for all topics.')
@group_option
@remote_command
def dequeue(
    remote: Remote,
    namespace: str,
    topic: str,
    group: str | None,
    count: int,
    wait_ms: int,
    lease_ms: int | None,
    ack: bool,
    name: str | None,
    prefix: bool,
) -> None:
    """Take the most urgent ready items of TOPIC under a lease and print them.

    Without --ack the items become ready again when the lease ends, unless `foqs ack` gets their receipts. If no item is
    ready, the command says why; exit code 6 means that shards or hosts that were not asked may have items.
    """
    with remote.client() as client:
        topics, topic_prefix = ((), topic) if prefix else (topic, None)
        items = client.dequeue(
            namespace,
            topics,
            count,
            topic_prefix=topic_prefix,
            group=group,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            want_why=True,
            consumer=consumer_name("foqs") if name is None else name,
        )
        remote.output.document(items)
        _print_items(remote, items)
        if isinstance(items, Dequeued) and items.is_partial:
            leave(Exit.PARTIAL)
        if not ack or not items:
            return
        # Print first, so that the reader of the output has the items even if the ack is lost.
        sys.stdout.flush()
        errors = client.ack(namespace, items, return_errors=True)
    report_failures([item.id for item in items], errors)


def _print_items(remote: Remote, items: list[Item]) -> None:
    if isinstance(items, Dequeued) and not items:
        if items.is_none_ready:
            note("no item is ready")
        for reason in items.why_empty:
            until = f" (until {time_of(reason.until_ms)})" if reason.until_ms else ""
            remedy = f": see `{reason.remedy}`" if reason.remedy else ""
            note(f"{reason.text}{until}{remedy}")
        return
    remote.output.table(
        ["RECEIPT", "PRIORITY", "ATTEMPT", "LEASE UNTIL", "PAYLOAD"],
        ((i.receipt, i.priority, i.attempt, time_of(i.lease_expires_at_ms), i.payload) for i in items),
        is_last_cut=True,
    )


@click.command()
@click.argument("namespace")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@remote_command
def ack(remote: Remote, namespace: str, receipts: tuple[str, ...]) -> None:
    """Delete delivered items: they never come back."""
    with remote.client() as client:
        errors = client.ack(namespace, receipts, return_errors=True)
    remote.output.document({"errors": errors})
    report_failures(receipts, errors)


@click.command()
@click.argument("namespace")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--delay-ms", type=WholeNumber(0, limits.DELAY_MS_MAX), default=0, help="Ready again after this time.")
@click.option("--release", is_flag=True, help="Return it without counting a failed attempt.")
@click.option("--dead-letter", is_flag=True, help="Make it a dead letter at once.")
@click.option("--reason", metavar="TEXT", help="Why it failed, for operators. One line of 500 bytes is kept.")
@remote_command
def nack(
    remote: Remote,
    namespace: str,
    receipts: tuple[str, ...],
    delay_ms: int,
    release: bool,
    dead_letter: bool,
    reason: str | None,
) -> None:
    """Give delivered items back as failed attempts."""
    if release and dead_letter:
        raise click.UsageError("--release and --dead-letter exclude each other")
    with remote.client() as client:
        if release:
            errors = client.release(namespace, receipts, delay_ms=delay_ms, reason=reason, return_errors=True)
        else:
            errors = client.nack(
                namespace, receipts, delay_ms=delay_ms, dead_letter=dead_letter, reason=reason, return_errors=True
            )
    remote.output.document({"errors": errors})
    report_failures(receipts, errors)
