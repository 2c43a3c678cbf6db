"""`foqs audit ...`: who changed what, and who read payloads."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click

from foqs.cli.numbers import WholeNumber
from foqs.cli.output import time_of
from foqs.cli.remote import Remote, remote_command
from foqs.cli.times import PastTime
from foqs.client.sync import AdminClient
from foqs.model.audit import AuditRecord

FOLLOW_EVERY_S = 2.0
LATE_MS = 10_000
"""The time within which a record becomes a row, while the meta database answers."""
_PAGE_RECORDS = 1_000
_pause = time.sleep


@click.group()
def audit() -> None:
    """Show the record of changes and of reads of payloads."""


@audit.command("list")
@click.option(
    "--since", type=PastTime(), default="1d", show_default=True, help="So long ago (15m, 6h), or a time in UTC."
)
@click.option("--until", type=PastTime(), help="The same, for the end.")
@click.option("--principal", help="Only calls of this principal.")
@click.option("--namespace", help="Only calls on this namespace.")
@click.option("--verb", help="Only calls of this verb, such as updateNamespace.")
@click.option("--limit", type=WholeNumber(1), default=10_000, show_default=True, help="Records to show at most.")
@click.option("--follow", is_flag=True, help="Show new records as they come, until Ctrl-C.")
@remote_command
def list_records(
    remote: Remote,
    since: int,
    until: int | None,
    principal: str | None,
    namespace: str | None,
    verb: str | None,
    limit: int,
    follow: bool,
) -> None:
    """List the audit, the oldest records first. JSON is one record a line.

    A record that sums up several calls has their COUNT, and the times at which the first and the last one ended; its
    subject is that of the last one.
    """
    with remote.admin() as admin:
        records = _records(admin, since, until, (principal, namespace, verb), limit, is_endless=follow)
        columns = ["TIME", "PRINCIPAL", "ADDRESS", "VERB", "NAMESPACE", "SUBJECT", "CHANGES", "OUTCOME", "COUNT"]
        if remote.output.as_json or follow:
            for record in records:
                remote.output.json_line(record)
                remote.output.line("  ".join(str(value) for value in _row(record) if value not in (None, "")))
        else:
            remote.output.table(columns, map(_row, records), is_last_cut=False)


def _records(
    admin: AdminClient,
    since_ms: int,
    until_ms: int | None,
    wanted: tuple[str | None, str | None, str | None],
    limit: int,
    *,
    is_endless: bool,
) -> Iterator[AuditRecord]:
    """The records, each once. Rows come a little late and out of order, so an endless list looks back."""
    principal, namespace, verb = wanted
    shown: dict[tuple[int, str, int], None] = {}
    while True:
        token = ""
        while True:
            page = admin.list_audit(
                since_ms=since_ms, until_ms=until_ms, principal=principal, namespace=namespace, verb=verb,
                limit=min(limit, _PAGE_RECORDS), page_token=token,
            )  # fmt: skip
            for record in page.records:
                if record.place in shown:
                    continue
                if is_endless:
                    shown[record.place] = None
                yield record
                limit -= not is_endless
                if limit <= 0:
                    return
            token = page.next_page_token
            if not token:
                break
        if not is_endless:
            return
        if shown:
            since_ms = max(since_ms, max(shown)[0] - LATE_MS)
            for place in [place for place in shown if place[0] < since_ms]:
                del shown[place]
        _pause(FOLLOW_EVERY_S)


def _row(record: AuditRecord) -> tuple[object, ...]:
    count = record.count if record.count > 1 else None
    return (
        time_of(record.at_ms), record.principal, record.address, record.verb, record.namespace_name or None,
        record.subject or None, record.changes or None, record.outcome, count,
    )  # fmt: skip
