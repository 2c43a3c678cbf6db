"""The consumer groups of a meta database in memory: foqs.storage.meta.meta_groups on dictionaries."""

from __future__ import annotations

from foqs.model.groups import GroupBook, TopicGroup
from foqs.storage.meta.meta_groups import GroupChange, still_held
from foqs.testing.fake_censuses import FakeCensuses
from foqs.testing.fake_meta_tables import Reach


class FakeGroups:
    """The table of groups."""

    def __init__(self, reach: Reach, censuses: FakeCensuses) -> None:
        self._reach = reach
        self._censuses = censuses

    def create(self, name: str, wanted: TopicGroup) -> GroupChange:
        number, book = self._book(name, wanted.topic)
        return self._stored(number, book.create(wanted))

    def delete(self, name: str, topic: str, group: str) -> GroupChange:
        number, book = self._book(name, topic)
        return self._stored(number, book.delete(topic, group))

    def finish(self, change: GroupChange) -> TopicGroup | list[int]:
        _, missing = self._censuses.counted(change.census)
        if missing:
            return missing
        self._censuses.end(change.census)
        return change.group

    def begin_forgetting(self, name: str, topic: str, group: str) -> GroupChange | None:
        tables = self._reach().tables
        number = tables.named(name).number
        known = TopicGroup(topic, group)
        found = tables.groups.get(number, {}).get(known.hidden_name)
        if found is None or not found.is_deleted:
            return None
        return GroupChange(found, self._censuses.begin(0, number, found.hidden_name))

    def finish_forgetting(self, change: GroupChange) -> TopicGroup | list[int]:
        answers, missing = self._censuses.counted(change.census)
        if held := sum([answer.items_count for answer in answers]):
            raise still_held(change.group, held)
        if missing:
            return missing
        tables, number = self._reach().tables, change.census.topic_namespace
        some = tables.groups.get(number, {})
        rest = {name: one for name, one in some.items() if name != change.group.hidden_name or not one.is_deleted}
        tables.groups = {**tables.groups, number: rest}
        self._censuses.end(change.census)
        return change.group

    def forget_all_of(self, number: int) -> None:
        tables = self._reach().tables
        tables.groups = {other: some for other, some in tables.groups.items() if other != number}

    def _book(self, name: str, topic: str) -> tuple[int, GroupBook]:
        tables = self._reach().tables
        number = tables.named(name).number
        some = tables.groups.get(number, {})
        return number, GroupBook({one.group: one for one in some.values() if one.topic == topic}, len(some))

    def _stored(self, number: int, group: TopicGroup) -> GroupChange:
        tables = self._reach().tables
        some = tables.groups.get(number, {})
        if some.get(group.hidden_name) != group:
            tables.groups = {**tables.groups, number: {**some, group.hidden_name: group}}
        return GroupChange(group, self._censuses.begin(0))
