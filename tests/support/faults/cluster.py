"""A host and its servers: databases that are migrated, a namespace, and what the rows say past the host."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from foqs import AdminClient
from foqs.client.retry import RetryPolicy
from foqs.dev.local_server import LocalServer
from foqs.model.errors import FoqsError, UnavailableError
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.storage.sessions.session import connect
from tests.support.faults import FaultError
from tests.support.faults.load import NAMESPACE

OWNED_S_MAX = 60.0
_POLL_S = 0.05
_PURGE_ITEMS = 1_000


@dataclass(frozen=True, slots=True)
class Databases:
    """`shard_urls` by shard id."""

    meta_url: str
    shard_urls: Mapping[int, str]


def make_databases(meta: LocalServer, servers: Mapping[int, LocalServer]) -> Databases:
    """One for the namespaces and one for each shard on its server, migrated."""
    databases = Databases(
        meta.url("meta"), {number: server.url(f"shard_{number}") for number, server in servers.items()}
    )
    apply(databases.meta_url, SchemaKind.META)
    for url in databases.shard_urls.values():
        apply(url, SchemaKind.SHARD)
    return databases


def wait_until_owned(address: str) -> None:
    """Return when the host at this address serves every shard; raises FaultError after a minute."""
    deadline_s = time.monotonic() + OWNED_S_MAX
    state = "it was not asked"
    with AdminClient(address, retry=RetryPolicy(deadline_ms=0)) as admin:
        while time.monotonic() < deadline_s:
            try:
                shards = admin.host_status().shards
            except FoqsError as error:
                state = str(error)
            else:
                if all(shard.state == "owned" for shard in shards):
                    return
                state = str(shards)
            time.sleep(_POLL_S)
    raise FaultError(f"the host does not own all its shards after {OWNED_S_MAX:.0f} s: {state}")


def make_namespace(address: str) -> None:
    """Make the namespace of the load when it is not there, with no quota to speak of."""
    with AdminClient(address) as admin:
        if not any(namespace.name == NAMESPACE for namespace in admin.list_namespaces()):
            admin.create_namespace(NAMESPACE, enqueues_per_minute_max=1_000_000_000)


def purge_dead_letters(address: str, topics: list[str], group: str = "") -> int:
    """Delete the dead letters of the topics in one group; how many there were.

    Connections that a fault cut are tried again.
    """
    count = 0
    deadline_s = time.monotonic() + OWNED_S_MAX
    with AdminClient(address) as admin:
        left = list(topics)
        while left:
            try:
                purged = admin.purge_dead_letters(NAMESPACE, left[-1], limit=_PURGE_ITEMS, group=group or None).count
            except UnavailableError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_POLL_S)
                continue
            count += purged
            if not purged:
                left.pop()
    return count


def audit(shard_urls: Mapping[int, str]) -> Iterator[str]:
    """What cannot be in sound tables, at any time: each problem a sentence."""
    for shard_id, url in shard_urls.items():
        with closing(connect(url)) as session, session.cursor() as cursor:
            for what, statement in _UNSOUND.items():
                cursor.execute(statement)
                ((count,),) = cursor.fetchall()
                if count:
                    yield f"shard {shard_id}: {count} {what}"


def torn_tables(shard_urls: Mapping[int, str]) -> Iterator[str]:
    """What the server's own CHECK TABLE finds: each problem a sentence."""
    for shard_id, url in shard_urls.items():
        with closing(connect(url)) as session, session.cursor() as cursor:
            cursor.execute("CHECK TABLE item, pack, tombstone, claim, topic, writer")
            for table, _, kind, text in cursor.fetchall():
                if (kind, text) != ("status", "OK"):
                    yield f"shard {shard_id}: {table}: {kind} {text}"


_UNSOUND = {
    "delayed items before the checkpoint, which no sweep will find": (
        "SELECT COUNT(*) FROM item WHERE lane = 0 AND due_at < (SELECT delay_checkpoint FROM writer)"
    ),
    "claims before the checkpoint, which no new owner will honour": (
        "SELECT COUNT(*) FROM claim WHERE id < (SELECT claim_checkpoint FROM writer)"
    ),
    "items of a topic that is not there": (
        "SELECT COUNT(*) FROM item LEFT JOIN topic ON topic.number = item.topic WHERE topic.number IS NULL"
    ),
    "items in the lane of another topic": (
        "SELECT COUNT(*) FROM item WHERE lane NOT IN (0, topic, -CAST(topic AS SIGNED))"
    ),
    "packs of a transaction yet to come": (
        "SELECT COUNT(*) FROM pack WHERE id >> 12 > (SELECT transaction_number FROM writer)"
    ),
    "items with the id of an owner yet to come": (
        "SELECT COUNT(*) FROM item WHERE id >> 40 > (SELECT epoch FROM writer)"
    ),
}
