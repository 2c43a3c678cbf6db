"""The consumer groups in the meta database: declared and deleted by calls, and read repeatedly by every host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, and_, delete, func, or_, select
from sqlalchemy.dialects.mysql import insert

from foqs.model.census import Census
from foqs.model.errors import PausedError
from foqs.model.groups import GroupBook, TopicGroup, ended_early
from foqs.model.jobs import JobState
from foqs.model.topic_name import group_range, parts
from foqs.storage.meta.meta_censuses import counted, delete_census, insert_census
from foqs.storage.meta.meta_group_copies import begin_copy, end_copy, is_ended_early, lock_jobs
from foqs.storage.meta.meta_policies import check_new_group, lock_number, note_change
from foqs.storage.meta.meta_rows import Blocks, Kind
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import GROUP_COPY, TOPIC_GROUP

FORGET_RETRY_MS = 2_000
"""The retry_after_ms of a call for a deleted group that still holds items."""


class GroupChange(NamedTuple):
    """A stored change of a group, and the census after which all hosts follow it."""

    group: TopicGroup
    census: Census


def _group_of(row: RowMapping) -> TopicGroup:
    topic, group = parts(row["topic"].decode())
    return TopicGroup(
        topic,
        group,
        bool(row["is_deleted"]),
        row["ttl_ms"],
        row["delay_ms"],
        row["created_at"],
        row["copy_job"].decode(),
        bool(row["is_copying"]),
    )


_KIND = Kind(TOPIC_GROUP, "topic", _group_of)


def group_blocks() -> Blocks[TopicGroup]:
    return Blocks(_KIND)


class MetaGroups:
    """The table of groups."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def create(
        self, connection: Connection, namespace_name: str, wanted: TopicGroup, prefixes: Sequence[str] = ()
    ) -> GroupChange:
        """Store a group, and ask all shards to follow. The record of its job is made with it, if it has one.

        `prefixes` are those of `check_room_for_copy`.

        Raises the errors of `GroupBook.create`, AlreadyExistsError if its job was ended early, and OverloadedError for
        too many jobs that run.
        """
        if wanted.copy_job:
            lock_jobs(connection)
        number = lock_number(connection, namespace_name)
        check_new_group(connection, number, wanted.topic, wanted.delay_ms, is_copied=bool(wanted.copy_job))
        book = GroupBook(_of_topic(connection, number, wanted.topic), _count(connection, number))
        stored = book.create(wanted)
        if stored is wanted and wanted.copy_job:
            begin_copy(connection, number, namespace_name, wanted, prefixes)
        elif wanted.copy_job and is_ended_early(connection, number, stored):
            raise ended_early(stored)
        return _stored(connection, number, stored)

    @in_transaction
    def delete(self, connection: Connection, namespace_name: str, topic: str, group: str) -> GroupChange:
        """Store that a group is deleted, and ask all shards to follow. Raises the errors of `GroupBook.delete`."""
        number = lock_number(connection, namespace_name)
        of_topic = _of_topic(connection, number, topic)
        deleted = GroupBook(of_topic, _count(connection, number)).delete(topic, group)
        if of_topic.get(group, deleted).is_copying:
            end_copy(connection, number, deleted, JobState.FAILED)
        return _stored(connection, number, deleted)

    @in_transaction
    def finish(self, connection: Connection, change: GroupChange) -> TopicGroup | list[int]:
        """Return the group, or the shards whose owners have not followed yet. Raises UnavailableError if it took too
        long.
        """
        _, missing = counted(connection, change.census, is_of_groups=True)
        if missing:
            return missing
        delete_census(connection, change.census)
        return change.group

    @in_transaction
    def begin_forgetting(
        self, connection: Connection, namespace_name: str, topic: str, group: str
    ) -> GroupChange | None:
        """Ask all shards for their items of a deleted group. Returns None if the group is not a deleted one."""
        number = lock_number(connection, namespace_name)
        known = _of_topic(connection, number, topic).get(group)
        if known is None or not known.is_deleted:
            return None
        return GroupChange(known, insert_census(connection, 0, number, known.hidden_name))

    @in_transaction
    def finish_forgetting(self, connection: Connection, change: GroupChange) -> TopicGroup | list[int]:
        """Forget a deleted group without items, and return it; or return the shards that have not answered.

        Raises PausedError while it still holds items, and UnavailableError if it took too long.
        """
        answers, missing = counted(connection, change.census, is_of_groups=True)
        if held := sum([answer.items_count for answer in answers]):
            raise still_held(change.group, held)
        if missing:
            return missing
        number, column = change.census.topic_namespace, TOPIC_GROUP.c
        named = and_(column.namespace == number, column.topic == change.group.hidden_name.encode())
        # One that was created and deleted again meanwhile can have items.
        mine = and_(named, column.is_deleted == 1, column.created_at == change.group.created_at_ms)
        connection.execute(delete(TOPIC_GROUP).where(mine))
        note_change(connection, number)
        delete_census(connection, change.census)
        return change.group


def still_held(group: TopicGroup, shards_count: int) -> PausedError:
    """Return the error for a deleted group with items on `shards_count` shards."""
    return PausedError(
        f"group {group.group!r} of topic {group.topic!r} was deleted, and its items are still being deleted "
        f"({shards_count} of the shards have some): try again",
        retry_after_ms=FORGET_RETRY_MS,
    )


def _of_topic(connection: Connection, number: int, topic: str) -> Mapping[str, TopicGroup]:
    first, beyond = [name.encode() for name in group_range(topic)]
    name = TOPIC_GROUP.c.topic
    named = or_(name == topic.encode(), and_(name >= first, name < beyond))
    rows = connection.execute(select(TOPIC_GROUP).where(TOPIC_GROUP.c.namespace == number, named)).mappings()
    return {one.group: one for one in map(_group_of, rows)}


def _count(connection: Connection, number: int) -> int:
    of_namespace = select(func.count()).select_from(TOPIC_GROUP).where(TOPIC_GROUP.c.namespace == number)
    count: int = connection.execute(of_namespace).scalar_one()
    return count


def _stored(connection: Connection, number: int, group: TopicGroup) -> GroupChange:
    if group.is_plain:
        return GroupChange(group, insert_census(connection, 0))
    statement = insert(TOPIC_GROUP).values(
        namespace=number,
        topic=group.hidden_name.encode(),
        is_deleted=int(group.is_deleted),
        ttl_ms=group.ttl_ms,
        delay_ms=group.delay_ms,
        created_at=group.created_at_ms,
        copy_job=group.copy_job.encode(),
        is_copying=int(group.is_copying),
    )
    changing = {name: statement.inserted[name] for name in ("is_deleted", "is_copying")}
    connection.execute(statement.on_duplicate_key_update(changing))
    note_change(connection, number)
    return GroupChange(group, insert_census(connection, 0))


def delete_groups_of(connection: Connection, number: int) -> None:
    connection.execute(delete(GROUP_COPY).where(GROUP_COPY.c.namespace == number))
    connection.execute(delete(TOPIC_GROUP).where(TOPIC_GROUP.c.namespace == number))
