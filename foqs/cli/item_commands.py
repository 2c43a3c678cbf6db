"""`foqs item ...` and `foqs dead-letter ...`: stored items, for operators to inspect and change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import islice
from typing import Any

import click

from foqs.cli import bulk_commands
from foqs.cli.group_commands import group_option, key_options
from foqs.cli.numbers import WholeNumber
from foqs.cli.output import Exit, leave, note, plain, report_failures, time_of
from foqs.cli.remote import Remote, confirmed, named, remote_command
from foqs.model import limits
from foqs.model.calls import DeadLettersResult, ItemState, StoredItem, StoredItemPage
from foqs.model.errors import FoqsError

_OPTIONAL = [field.name for field in fields(StoredItem) if field.default is None]
"""Optional fields of items. A page shows those that are texts in at least one of its items."""


def _page_options(command: Callable[..., None]) -> Callable[..., None]:
    limit = WholeNumber(1, limits.PAGE_ITEMS_MAX)
    command = click.option("--page-token", default="", help="Continue after an earlier page.")(command)
    return click.option("--limit", type=limit, default=100, show_default=True, help="Items at most.")(command)


@click.group()
def item() -> None:
    """Show items, delete them, and redrive dead letters."""


@item.command()
@click.argument("namespace")
@click.argument("topic")
@_page_options
@remote_command
def peek(remote: Remote, namespace: str, topic: str, limit: int, page_token: str) -> None:
    """List the ready items of TOPIC, most urgent first, including those under lease. Leases nothing."""
    with remote.admin() as admin:
        page = admin.peek_items(namespace, topic, limit, page_token)
    _print_page(remote, page)


_STATES = click.Choice([state.name.lower() for state in ItemState])


@item.command("list")
@click.argument("namespace")
@click.option("--topic", "topics", multiple=True, help="Only items of this topic; may be repeated. Default: all.")
@click.option("--topic-prefix", default="", metavar="TEXT", help="Only items of topics with this prefix.")
@click.option("--state", "states", multiple=True, type=_STATES, help="Only items in this state; may be repeated.")
@click.option("--limit", type=WholeNumber(1), help="Items at most. Default: all there are.")
@click.option("--payload/--no-payload", default=True, help="Read and show payloads.")
@click.option("--partial", is_flag=True, help="Exit code 0 also while shards or hosts do not respond.")
@remote_command
def list_items(
    remote: Remote,
    namespace: str,
    topics: tuple[str, ...],
    topic_prefix: str,
    states: tuple[str, ...],
    limit: int | None,
    payload: bool,
    partial: bool,
) -> None:
    """List the items that NAMESPACE has stored, in any state, shard by shard.

    The command changes no item and delays no consumer. Items are printed as they are read, in any number; JSON output
    has one item per line. Items enqueued after the start are not listed. Shards and hosts that do not respond are named
    on stderr. The exit code is then 6, unless --partial accepts an incomplete list.
    """
    page_size = min(limit or limits.PAGE_ITEMS_MAX, limits.PAGE_ITEMS_MAX)
    missing: list[str] = []

    def note_missing(parts: Sequence[str]) -> None:
        missing.extend(parts)
        for what in parts:
            note(f"not listed: {what}")

    with remote.admin() as admin:
        found = admin.iterate_items(
            namespace,
            topics=topics,
            topic_prefix=topic_prefix,
            states=states_of(states),
            with_payload=payload,
            page_size=page_size,
            on_missing=note_missing,
        )
        _show_items(remote, islice(found, limit), has_payload=payload)
    if missing and not partial:
        leave(Exit.PARTIAL)


def _show_items(remote: Remote, items: Iterable[StoredItem], *, has_payload: bool) -> None:
    if remote.output.as_json:
        for one in items:
            remote.output.json_line(one)
        return
    columns = ["ID", "TOPIC", "STATE", "PRIORITY", "DELIVER AFTER", "FAILED", "DEATH REASON", "LAST ERROR"]
    rows = (_list_row(one, has_payload=has_payload) for one in items)
    remote.output.table([*columns, "PAYLOAD"] if has_payload else columns, rows, is_last_cut=has_payload)


def states_of(names: Iterable[str]) -> list[ItemState]:
    return [ItemState[name.upper()] for name in names]


def _list_row(one: StoredItem, *, has_payload: bool) -> tuple[object, ...]:
    row = (
        one.id,
        _topic_of(one),
        one.state.name.lower(),
        one.priority,
        time_of(one.deliver_after_ms),
        one.failed_attempts,
        one.death_reason,
        _last_error(one),
    )
    return (*row, one.payload) if has_payload else row


def _last_error(one: StoredItem) -> str | None:
    return one.errors[0].reason if one.errors else None


def _topic_of(one: StoredItem) -> str:
    notes = [f"group {one.group}"] if one.group else []
    if one.ordering_key is not None:
        notes.append(f"key {one.ordering_key}")
    if one.fairness_key is not None:
        notes.append(f"fairness key {one.fairness_key}")
    return f"{one.topic} ({', '.join(notes)})" if notes else one.topic


@item.command()
@click.argument("namespace")
@click.argument("item_id", metavar="ID")
@remote_command
def get(remote: Remote, namespace: str, item_id: str) -> None:
    """Show one item, in any state."""
    with remote.admin() as admin:
        one = admin.get_item(namespace, item_id)
    remote.output.document(one)
    document = plain(one)
    document.pop("errors", None)  # Each is a row of its own.
    rows = [(key, _time_or(key, value)) for key, value in document.items() if not key.endswith("_base64")]
    rows += [
        (f"error of attempt {failure.attempt}", f"{time_of(failure.at_ms)} {failure.reason}") for failure in one.errors
    ]
    remote.output.table(["KEY", "VALUE"], rows)


item.add_command(bulk_commands.delete)
item.add_command(bulk_commands.redrive)


@click.group("dead-letter")
def dead_letter() -> None:
    """Show dead letters, make them ready again, or delete them."""


@dead_letter.command("list")
@click.argument("namespace")
@click.argument("topic")
@group_option
@key_options
@_page_options
@remote_command
def list_(
    remote: Remote,
    namespace: str,
    topic: str,
    group: str | None,
    ordering_key: str | None,
    fairness_key: str | None,
    limit: int,
    page_token: str,
) -> None:
    """List the dead letters of TOPIC, oldest first; behind them those of one key after the other."""
    with remote.admin() as admin:
        page = admin.list_dead_letters(
            namespace, topic, limit, page_token, group=group, ordering_key=ordering_key, fairness_key=fairness_key
        )
    _print_page(remote, page)


def _choice_options(command: Callable[..., None]) -> Callable[..., None]:
    help_text = "Items at most, without IDs.  [default: 1000]"
    command = click.option("--limit", type=WholeNumber(1), help=help_text)(command)
    command = click.option("--all", "takes_all", is_flag=True, help="All dead letters, including new ones.")(command)
    return click.argument("ids", nargs=-1, metavar="[ID...]")(command)


@dead_letter.command()
@click.argument("namespace")
@click.argument("topic")
@group_option
@key_options
@_choice_options
@remote_command
def redrive(
    remote: Remote,
    namespace: str,
    topic: str,
    group: str | None,
    ordering_key: str | None,
    fairness_key: str | None,
    ids: tuple[str, ...],
    limit: int | None,
    takes_all: bool,
) -> None:
    """Make dead letters ready again with no failed attempts: the IDs, or the oldest of TOPIC.

    Without IDs, items that are delivered at most once are skipped, because they cannot be redriven.
    """
    with remote.admin() as admin:
        change = partial(
            admin.redrive_dead_letters,
            namespace,
            topic,
            group=group,
            ordering_key=ordering_key,
            fairness_key=fairness_key,
        )
        _change_dead(remote, change, ids, limit, takes_all, "redriven")


def _purged(remote: Remote, arguments: dict[str, Any]) -> str:
    names = ("namespace", "topic", "group", "ordering_key", "fairness_key", "ids")
    chosen = {key: arguments[key] for key in names if arguments[key] is not None}
    if arguments["ids"]:
        return named(remote, chosen)
    most = arguments["limit"] or limits.PAGE_ITEMS_MAX
    return f"{named(remote, chosen)} ({'all dead letters' if arguments['takes_all'] else f'up to {most} items'})"


@dead_letter.command()
@click.argument("namespace")
@click.argument("topic")
@group_option
@key_options
@_choice_options
@remote_command
@confirmed(_purged)
def purge(
    remote: Remote,
    namespace: str,
    topic: str,
    group: str | None,
    ordering_key: str | None,
    fairness_key: str | None,
    ids: tuple[str, ...],
    limit: int | None,
    takes_all: bool,
) -> None:
    """Delete dead letters: the IDs, or the oldest of TOPIC."""
    with remote.admin() as admin:
        change = partial(
            admin.purge_dead_letters,
            namespace,
            topic,
            group=group,
            ordering_key=ordering_key,
            fairness_key=fairness_key,
        )
        _change_dead(remote, change, ids, limit, takes_all, "purged")


def _change_dead(
    remote: Remote,
    change: Callable[..., DeadLettersResult],
    ids: tuple[str, ...],
    limit: int | None,
    takes_all: bool,
    done: str,
) -> None:
    """Redrive or purge in calls of up to 1,000 items, and print the total result."""
    if ids and (takes_all or limit is not None):
        raise click.UsageError("IDs are given: leave --all and --limit out")
    if takes_all and limit is not None:
        raise click.UsageError("--all and --limit exclude each other")
    total = DeadLettersResult(0)
    try:
        for result in _calls(change, ids, None if takes_all else limit or limits.PAGE_ITEMS_MAX):
            first = len(total.ids)
            total.count += result.count
            total.ids += result.ids
            total.errors.update({first + position: error for position, error in result.errors.items()})
    finally:  # A call that fails must not hide the results of earlier calls.
        remote.output.document({"count": total.count, "errors": _by_id(total)})
        remote.output.line(f"{total.count} {done}")
    report_failures(total.ids, total.errors)


def _calls(
    change: Callable[..., DeadLettersResult], ids: tuple[str, ...], limit: int | None
) -> Iterator[DeadLettersResult]:
    """The results of the calls for these ids, or for the `limit` oldest dead letters (None: all)."""
    for first in range(0, len(ids), limits.BATCH_ITEMS_MAX):
        some = list(ids[first : first + limits.BATCH_ITEMS_MAX])
        yield replace(change(some, return_errors=True), ids=some)
    left, token = limit, ""
    while not ids and left != 0:
        most = limits.PAGE_ITEMS_MAX if left is None else min(left, limits.PAGE_ITEMS_MAX)
        result = change(None, most, page_token=token, return_errors=True)
        yield result
        token = result.next_page_token
        if not token:
            return
        left = None if left is None else left - result.count


def _by_id(result: DeadLettersResult) -> dict[str, FoqsError]:
    return {result.ids[position]: error for position, error in sorted(result.errors.items())}


def _print_page(remote: Remote, page: StoredItemPage) -> None:
    remote.output.document(page)
    texts = [name for name in _OPTIONAL if any(isinstance(getattr(one, name), str) for one in page.items)]
    has_errors = any(one.errors for one in page.items)
    headings = [*map(_heading, texts), "LAST ERROR"] if has_errors else map(_heading, texts)
    remote.output.table(
        ["ID", "STATE", "PRIORITY", "DELIVER AFTER", "FAILED", *headings, "PAYLOAD"],
        (_row(one, texts, has_errors=has_errors) for one in page.items),
        is_last_cut=True,
    )
    if page.next_page_token:
        note(f"there are more: --page-token {page.next_page_token}")


def _heading(name: str) -> str:
    return name.replace("_", " ").upper()


def _row(one: StoredItem, texts: list[str], *, has_errors: bool) -> tuple[object, ...]:
    return (
        one.id,
        one.state.name.lower(),
        one.priority,
        time_of(one.deliver_after_ms),
        one.failed_attempts,
        *[getattr(one, name) for name in texts],
        *([_last_error(one)] if has_errors else []),
        one.payload,
    )


def _time_or(key: str, value: object) -> object:
    is_time = key.endswith(("_at_ms", "_since_ms")) or key == "deliver_after_ms"
    return time_of(value) if is_time and isinstance(value, int) else value
