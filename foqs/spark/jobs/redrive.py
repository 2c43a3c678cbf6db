"""Redrive: makes dead letters that meet a condition ready. `foqs spark redrive`, or this file for spark-submit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import click

from foqs.client.retry import RetryPolicy
from foqs.client.sync import AdminClient
from foqs.model import limits
from foqs.model.calls import DeadLettersResult
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.shown_text import one_line
from foqs.spark.credentials import Credentials
from foqs.spark.jobs.context_flag import context_flag
from foqs.spark.jobs.credential_flags import credential_flags, taken_credentials, with_tls
from foqs.spark.jobs.frame_reading import read_frame, read_options_of
from foqs.spark.jobs.spark_session import master_option, session
from foqs.spark.read_options import RETRY_TIMEOUT_MS_DEFAULT
from foqs.spark.rows import READ_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

GROUPS_SHOWN = 20
VARYING = r"\b(?=[a-fA-F]*\d)[0-9a-fA-F]{4,}(?:-[0-9a-fA-F]{4,})*\b|\d+"
"""Numbers and identifiers in hex, as Java and Python write regular expressions."""
PAUSE_S = 0.2
TRIES_MAX = 100
"""Number of tries of a call whose outcome is unknown, or whose items another call is just settling."""
_CALL_TIMEOUT_MS = 30_000
_BACKOFF_MS_MAX = 5_000


@dataclass(slots=True)
class Redriven:
    """The outcome for the dead letters of one task."""

    redriven: int = 0
    gone: int = 0
    """Items that were no longer dead letters: redriven by an earlier attempt or another caller, or purged."""
    refused: int = 0
    """Items that cannot be redriven, because they are delivered at most once."""


class DeadLetters(Protocol):
    """The client interface of a task; AdminClient implements it."""

    def redrive_dead_letters(
        self, namespace: str, topic: str, ids: Iterable[str] | None, *, group: str | None, return_errors: bool
    ) -> DeadLettersResult: ...


@click.command()
@click.option("--addresses", envvar="FOQS_ADDRESS", help="Hosts as host:port, comma-separated.")
@click.option("--namespace", required=True, help="The namespace of the dead letters.")
@click.option("--topic", "topics", multiple=True, help="Only those of this topic; may be repeated. Default: all.")
@click.option("--topic-prefix", help="Only dead letters of topics with this prefix.")
@click.option(
    "--where",
    metavar="CONDITION",
    help="Redrive those for which this SQL holds, such as \"death_reason LIKE '%timeout%'\".",
)
@click.option("--dry-run", is_flag=True, help="Only count them.")
@click.option("--splits-per-shard", type=click.IntRange(1, limits.EXPORT_SPLITS_MAX), default=1, show_default=True)
@click.option("--retry-timeout-ms", default=RETRY_TIMEOUT_MS_DEFAULT, show_default=True, help="Patience of one call.")
@credential_flags
@master_option
@context_flag()
def redrive(where: str | None, dry_run: bool, master: str | None, **given: Any) -> None:
    """Make dead letters ready again with no failed attempts, after counting them by topic and reason.

    It is safe to repeat the command. It does not touch items that are ready by then. Items that die again meanwhile are
    dead letters again.
    """
    options = {**read_options_of(with_tls(given)), "state": "dead"}
    schema = ", ".join(
        f"{name} {kind}" for name, (kind, _, _) in READ_COLUMNS.items() if name != "payload" or _names_payload(where)
    )
    with session("redrive", master) as spark:
        frame = read_frame(spark, options, schema)
        if where is not None:
            frame = frame.where(where)
        groups, groups_count, total = most_frequent(frame)
        for topic, reason, count in groups:
            click.echo(f"{count:,} of topic {one_line(topic)}: {one_line(reason or '')}", err=True)
        if groups_count > len(groups):
            click.echo(f"and {groups_count - len(groups):,} more topics and reasons", err=True)
        click.echo(f"{total:,} dead letters found", err=True)
        if dry_run or not total:
            click.echo(f"0 redriven of {total:,}")
            return
        credentials = taken_credentials(given)
        task = task_of(given["addresses"], given["namespace"], given["retry_timeout_ms"], credentials)
        done = (
            frame.select("topic", "id", "group")
            .mapInArrow(task, "redriven bigint, gone bigint, refused bigint")
            .collect()
        )
        redriven, gone, refused = (sum(row[at] for row in done) for at in range(3))
    click.echo(f"{redriven:,} redriven, {gone:,} were no dead letters any more, {refused:,} refused")
    if refused:
        print("refused: items that are delivered at most once cannot be redriven", file=sys.stderr)


def most_frequent(frame: DataFrame) -> tuple[list[tuple[str, str | None, int]], int, int]:
    """Return the most frequent topics and reasons of dead letters with their counts, the count of all these, and the
    count of dead letters.

    Reasons that differ in numbers and identifiers alone are one, because most name an order, a port or the like.
    """
    from pyspark.sql import functions as f

    reason = f.regexp_replace("death_reason", VARYING, "#")
    counted = frame.groupBy("topic", reason.alias("reason")).count().cache()
    shown = counted.orderBy(f.desc("count"), "topic", "reason").limit(GROUPS_SHOWN).collect()
    (sums,) = counted.agg(f.count("*"), f.coalesce(f.sum("count"), f.lit(0))).collect()
    return [(row[0], row[1], row[2]) for row in shown], sums[0], sums[1]


def _names_payload(where: str | None) -> bool:
    return where is not None and "payload" in where.lower()


def task_of(
    addresses: str, namespace: str, retry_timeout_ms: int, credentials: Credentials
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task, for its rows of topic, id and group."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        retry = RetryPolicy(deadline_ms=retry_timeout_ms, backoff_ms_max=_BACKOFF_MS_MAX)
        done = Redriven()
        credentials.check_files()
        own = credentials.client_arguments()
        with AdminClient(addresses, timeout_ms=_CALL_TIMEOUT_MS, connections_max=1, retry=retry, **own) as client:
            for batch in batches:
                redrive_rows(client, namespace, zip(*batch.to_pydict().values(), strict=True), done)
        yield pa.RecordBatch.from_pydict({"redriven": [done.redriven], "gone": [done.gone], "refused": [done.refused]})

    return task


def redrive_rows(
    client: DeadLetters, namespace: str, rows: Iterable[tuple[str, str, str | None]], done: Redriven
) -> None:
    """Redrive the items of these rows of topic, id and consumer group, by topic and group."""
    by_topic: dict[tuple[str, str | None], list[str]] = {}
    for topic, item_id, group in rows:
        by_topic.setdefault((topic, group), []).append(item_id)
    for (topic, group), ids in by_topic.items():
        for first in range(0, len(ids), limits.BATCH_ITEMS_MAX):
            _redrive(client, namespace, topic, group, ids[first : first + limits.BATCH_ITEMS_MAX], done)


def _redrive(
    client: DeadLetters, namespace: str, topic: str, group: str | None, ids: list[str], done: Redriven
) -> None:
    """Make one call, and repeat it for items of unknown outcome. Redriven items are then no longer dead letters."""
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            result = client.redrive_dead_letters(namespace, topic, ids, group=group, return_errors=True)
        except UnavailableError:
            if not tries_left:
                raise
            time.sleep(PAUSE_S)
            continue
        done.redriven += result.count
        again = [ids[position] for position, error in result.errors.items() if not _is_final(error, done)]
        if not again:
            return
        if not tries_left:
            raise next(error for error in result.errors.values() if isinstance(error, UnavailableError))
        ids = again
        time.sleep(PAUSE_S)


def _is_final(error: FoqsError, done: Redriven) -> bool:
    """Count the item unless another attempt can help; True if it is counted. Raises unexpected errors."""
    if isinstance(error, NotFoundError):
        done.gone += 1
    elif isinstance(error, InvalidArgumentError):
        done.refused += 1
    elif isinstance(error, UnavailableError):
        return False
    else:
        raise error
    return True


def main() -> None:
    """Run the command under spark-submit."""
    redrive(prog_name="redrive")


if __name__ == "__main__":
    main()
