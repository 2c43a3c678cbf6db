"""`foqs explain`: why an item, a topic or a namespace moves or does not, and the commands that help."""

from __future__ import annotations

import click

from foqs.cli.output import Exit, leave, note, time_of
from foqs.cli.remote import Remote, remote_command
from foqs.model.reason_texts import counted, span
from foqs.model.reasons import Explanation, Reason, ReasonCode, Verdict


@click.command()
@click.argument("namespace")
@click.option("--topic", default="", help="Only this topic.")
@click.option("--item", "item_id", default="", metavar="ID", help="Only this item.")
@click.option("--group", help="A consumer group of the topic; by default its own items.")
@click.option("--ordering-key", metavar="KEY", help="Only items of the topic with this ordering key.")
@click.option("--fairness-key", metavar="KEY", help="Only items of the topic with this fairness key.")
@remote_command
def explain(
    remote: Remote,
    namespace: str,
    topic: str,
    item_id: str,
    group: str | None,
    ordering_key: str | None,
    fairness_key: str | None,
) -> None:
    """Say why items of NAMESPACE are not delivered: the decisive reason first, its end, and commands that help.

    All hosts are asked, for 2 s at most. Exit code 6 means that shards or hosts that were not asked can have items;
    exit code 3, that the item is not stored.
    """
    with remote.admin() as admin:
        found = admin.explain(
            namespace,
            topic,
            item_id=item_id,
            group=group,
            ordering_key=ordering_key,
            fairness_key=fairness_key,
        )
    remote.output.document(found)
    remote.output.line(found.summary)
    remote.output.table(["REASON", "UNTIL", "WHAT"], map(_cells, found.reasons))
    _note_rest(found)
    if found.verdict == Verdict.GONE:
        leave(Exit.NOT_FOUND)
    if found.missing:
        leave(Exit.PARTIAL)


def _cells(reason: Reason) -> tuple[object, ...]:
    is_known = reason.code in ReasonCode._value2member_map_
    return ReasonCode(reason.code).name if is_known else reason.code, time_of(reason.until_ms), reason.text


def _note_rest(found: Explanation) -> None:
    for remedy in dict.fromkeys(reason.remedy for reason in found.reasons if reason.remedy):
        note(f"$ {remedy}")
    if found.ahead_count:
        note(f"in front of it: {'' if found.ahead_is_exact else 'at least '}{counted(found.ahead_count, 'item')}")
    if found.expected_wait_ms:
        note(f"expected wait: about {span(found.expected_wait_ms)}")
