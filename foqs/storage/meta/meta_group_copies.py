"""The jobs that copy waiting items for new consumer groups, in the meta database.

Owners of shards write the total of each shard, and never a difference, so a write can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, delete, select, update
from sqlalchemy.dialects.mysql import insert

from foqs.model.cluster import ShardUse
from foqs.model.groups import TopicGroup, check_room_for_copy
from foqs.model.jobs import JobState
from foqs.storage.meta.meta_jobs import insert_job
from foqs.storage.meta.meta_policies import note_change
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import (
    GROUP_COPY,
    JOB,
    NAMESPACE,
    NAMESPACE_NUMBER,
    SERVER_NOW_MS,
    SHARD,
    TOPIC_GROUP,
)


class ShardCopy(NamedTuple):
    """The work of one shard for a copy."""

    copied_count: int
    is_done: bool


class CopyView(NamedTuple):
    """The part of a copy that hosts need."""

    items_per_second_max: int
    done: frozenset[int]
    """The shards that have copied all."""
    open_count: int
    """The number of the cluster's other shards."""


class MetaGroupCopies:
    """The progress of copies."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def report(
        self, connection: Connection, number: int, group: TopicGroup, shards: Mapping[int, ShardCopy]
    ) -> CopyView | None:
        """Write the totals of some shards, and return the state of the copy. Returns None if it is over.

        It ends when all shards are done, and when somebody has ended its job.
        """
        mine = _is(number, group)
        row = connection.execute(select(TOPIC_GROUP).where(mine).with_for_update()).first()
        if row is None or not row.is_copying or row.copy_job != group.copy_job.encode():
            return None
        job = connection.execute(select(JOB.c.state, JOB.c.items_per_second_max).where(_is_job(number, group))).first()
        if job is None or job.state != JobState.RUNNING:
            end_copy(connection, number, group, None)
            return None
        if shards:
            _write(connection, number, group, shards)
        of_copy = and_(GROUP_COPY.c.namespace == number, GROUP_COPY.c.topic == group.hidden_name.encode())
        found = connection.execute(select(GROUP_COPY).where(of_copy)).all()
        counted = {"items_count": sum(one.copied for one in found), "updated_at": SERVER_NOW_MS}
        connection.execute(update(JOB).where(_is_job(number, group)).values(counted))
        done = frozenset([one.shard_id for one in found if one.is_done])
        shard_ids = _shards(connection)
        if shard_ids and done >= shard_ids:
            end_copy(connection, number, group, JobState.SUCCEEDED)
            return None
        return CopyView(job.items_per_second_max, done, len(shard_ids - done))


def lock_jobs(connection: Connection) -> None:
    """Lock what all creations of jobs lock first."""
    connection.execute(select(NAMESPACE_NUMBER.c.last).with_for_update())


def begin_copy(
    connection: Connection, number: int, namespace_name: str, group: TopicGroup, prefixes: Sequence[str]
) -> None:
    """Make the record of the job of a new group. Raises OverloadedError if too many run."""
    # A namespace that is being deleted can lack its row, and its copies count nevertheless.
    named = TOPIC_GROUP.outerjoin(NAMESPACE, NAMESPACE.c.number == TOPIC_GROUP.c.namespace)
    running = select(NAMESPACE.c.name).select_from(named).where(TOPIC_GROUP.c.is_copying == 1)
    copying = [(name or b"").decode() for name in connection.execute(running).scalars()]
    check_room_for_copy(copying, namespace_name, prefixes)
    insert_job(connection, number, namespace_name, group.copy_job, 0, copy_detail(group))


def is_ended_early(connection: Connection, number: int, group: TopicGroup) -> bool:
    """Return True if somebody has ended the copy, so that the group lacks items."""
    state = connection.execute(select(JOB.c.state).where(_is_job(number, group))).scalar()
    return state == JobState.FAILED


def end_copy(connection: Connection, number: int, group: TopicGroup, state: JobState | None) -> None:
    """End a copy, and set the state of its job, unless `state` is None."""
    connection.execute(update(TOPIC_GROUP).where(_is(number, group)).values(is_copying=0))
    of_copy = and_(GROUP_COPY.c.namespace == number, GROUP_COPY.c.topic == group.hidden_name.encode())
    connection.execute(delete(GROUP_COPY).where(of_copy))
    if state is not None:
        changes = {"state": int(state), "updated_at": SERVER_NOW_MS}
        connection.execute(update(JOB).where(_is_job(number, group)).values(changes))
    note_change(connection, number)


def copy_detail(group: TopicGroup) -> str:
    """Return the text that the record of a job shows."""
    return f"copies the waiting items of topic {group.topic!r} for group {group.group!r}"


def _is(number: int, group: TopicGroup) -> ColumnElement[bool]:
    return and_(TOPIC_GROUP.c.namespace == number, TOPIC_GROUP.c.topic == group.hidden_name.encode())


def _is_job(number: int, group: TopicGroup) -> ColumnElement[bool]:
    return and_(JOB.c.namespace == number, JOB.c.id == group.copy_job.encode())


def _write(connection: Connection, number: int, group: TopicGroup, shards: Mapping[int, ShardCopy]) -> None:
    name = group.hidden_name.encode()
    rows = [
        {"namespace": number, "topic": name, "shard_id": shard_id, "copied": one.copied_count, "is_done": one.is_done}
        for shard_id, one in sorted(shards.items())
    ]
    statement = insert(GROUP_COPY).values(rows)
    changing = {name: statement.inserted[name] for name in ("copied", "is_done")}
    connection.execute(statement.on_duplicate_key_update(changing))


def _shards(connection: Connection) -> frozenset[int]:
    """Read the shards that were not removed."""
    known = select(SHARD.c.shard_id).where(SHARD.c.state != int(ShardUse.REMOVED))
    return frozenset(connection.execute(known).scalars())
