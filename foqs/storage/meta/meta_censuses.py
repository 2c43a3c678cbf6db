"""The questions to all shards in the meta database, which precede the creation and the deletion of a namespace.

Why a creation and a deletion ask every shard, and why the answers suffice: docs/decisions/0022-deleting-namespaces.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select
from sqlalchemy.dialects.mysql import insert

from foqs.model import limits
from foqs.model.census import Census, CensusAnswer, Closed, of_old_builds, pack_closed, unanswered, unpack_closed
from foqs.model.cluster import ShardUse
from foqs.model.errors import OverloadedError, UnavailableError
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import CENSUS, CENSUS_ANSWER, SERVER_NOW_MS, SHARD

_REMOVED = int(ShardUse.REMOVED)
"""A shard in this state has no owner to ask."""

_ID_BITS = 63


class MetaCensuses:
    """The open censuses, and their answers. Others begin and finish them."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def answer(self, connection: Connection, census: Census, answers: Sequence[CensusAnswer]) -> None:
        """Write answers to a census, keeping those of later owners. Does nothing after the census is over."""
        if not _lock_census(connection, census):
            return
        for answer in answers:
            statement = insert(CENSUS_ANSWER).values(census=census.id, **answer._asdict())
            given, kept = statement.inserted, CENSUS_ANSWER.c
            is_later = given.epoch >= kept.epoch
            # The order matters, because the comparison needs the old epoch.
            columns = ("items_count", "number_max", "slots_version", "held", "epoch")
            changes = [(name, func.if_(is_later, given[name], kept[name])) for name in columns]
            connection.execute(statement.on_duplicate_key_update(changes))

    @in_transaction
    def end(self, connection: Connection, census: Census) -> None:
        """Abandon the census, which reopens its namespace. Does nothing if it is over."""
        delete_census(connection, census)


def insert_census(
    connection: Connection,
    namespace: int,
    topic_namespace: int = 0,
    topic: str = "",
    closes: tuple[Closed, ...] = (),
) -> Census:
    count: int = connection.execute(select(func.count()).select_from(CENSUS)).scalar_one()
    if count >= limits.CENSUSES_MAX:
        raise OverloadedError(
            f"{count} namespaces or groups are being created or deleted, and the limit is {limits.CENSUSES_MAX}: try "
            "again",
            retry_after_ms=limits.META_CALLS_RETRY_MS,
        )
    census = Census(secrets.randbits(_ID_BITS), namespace, topic_namespace, topic, closes)
    row = {**census._asdict(), "topic": topic.encode(), "closes": pack_closed(closes) if closes else None}
    connection.execute(CENSUS.insert().values(row | {"expires_at": SERVER_NOW_MS + limits.CENSUS_EXPIRY_MS}))
    return census


def open_censuses(connection: Connection) -> list[tuple[Census, bool]]:
    """Read the open censuses, each with True if it has expired."""
    found = connection.execute(select(CENSUS, CENSUS.c.expires_at < SERVER_NOW_MS)).all()
    return [(_census_of(row), bool(row[-1])) for row in found]


def _census_of(row: Row[Any]) -> Census:
    return Census(row.id, row.namespace, row.topic_namespace, row.topic.decode(), unpack_closed(row.closes or b""))


def _lock_census(connection: Connection, census: Census) -> bool:
    """Lock the census. False if it is over."""
    mine = select(CENSUS.c.id).where(CENSUS.c.id == census.id).with_for_update()
    return connection.execute(mine).first() is not None


def counted(
    connection: Connection, census: Census, *, is_of_groups: bool = False
) -> tuple[list[CensusAnswer], list[int]]:
    """Return the answers, and the shards that have not answered.

    An owner of a build that knows no closed things has not answered a census that closes some, or `is_of_groups`.
    """
    if not _lock_census(connection, census):
        raise UnavailableError(
            "this took too long or was given up by another call, or the meta database was restored meanwhile: "
            "nothing was done, try again",
            retry_after_ms=limits.META_CALLS_RETRY_MS,
            nothing_done=True,
        )
    columns = [CENSUS_ANSWER.c[name] for name in CensusAnswer._fields]
    found = connection.execute(select(*columns).where(CENSUS_ANSWER.c.census == census.id)).all()
    answers = [CensusAnswer(*row) for row in found]
    missing = {*unanswered(_epochs(connection), answers), *of_old_builds(census, answers, is_of_groups=is_of_groups)}
    return answers, sorted(missing)


def _epochs(connection: Connection) -> dict[int, int]:
    """Read the last epoch of every shard that was not removed."""
    known = select(SHARD.c.shard_id, SHARD.c.epoch).where(SHARD.c.state != _REMOVED)
    return {row.shard_id: row.epoch for row in connection.execute(known)}


def delete_census(connection: Connection, census: Census) -> None:
    connection.execute(delete(CENSUS).where(CENSUS.c.id == census.id))
    connection.execute(delete(CENSUS_ANSWER).where(CENSUS_ANSWER.c.census == census.id))


def end_expired(connection: Connection) -> None:
    connection.execute(delete(CENSUS).where(CENSUS.c.expires_at < SERVER_NOW_MS))
    connection.execute(delete(CENSUS_ANSWER).where(CENSUS_ANSWER.c.census.not_in(select(CENSUS.c.id))))
