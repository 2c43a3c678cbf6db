"""The consumer groups of a meta database in memory: foqs.storage.meta.meta_groups on dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from foqs.model.groups import GroupBook, TopicGroup, check_room_for_copy, ended_early
from foqs.model.jobs import JobState
from foqs.model.policies import NamespacePolicies
from foqs.model.policy import check_group_of
from foqs.storage.meta.meta_group_copies import CopyView, ShardCopy, copy_detail
from foqs.storage.meta.meta_groups import GroupChange, still_held
from foqs.storage.meta.meta_jobs import JobKey
from foqs.testing.fake_censuses import FakeCensuses
from foqs.testing.fake_jobs import FakeJobs
from foqs.testing.fake_meta_tables import Reach


class FakeGroups:
    """The table of groups."""

    def __init__(self, reach: Reach, censuses: FakeCensuses, jobs: FakeJobs) -> None:
        self._reach = reach
        self._censuses = censuses
        self._jobs = jobs

    def create(self, name: str, wanted: TopicGroup, prefixes: Sequence[str] = ()) -> GroupChange:
        number, book = self._book(name, wanted.topic)
        tables = self._reach().tables
        topics, of_prefixes = tables.policies.get(number, {}), tables.prefix_policies.get(number, {})
        policy, is_copied = NamespacePolicies(topics, of_prefixes).of(wanted.topic), bool(wanted.copy_job)
        check_group_of(policy, wanted.topic, wanted.delay_ms, is_copied=is_copied)
        stored = book.create(wanted)
        if stored is wanted and wanted.copy_job:
            names = {one.number: one.name for one in tables.namespaces.values()}
            groups = [(at, one) for at, some in tables.groups.items() for one in some.values()]
            copying = [names.get(at, "") for at, one in groups if one.is_copying]
            check_room_for_copy(copying, name, prefixes)
            self._jobs.create(tables.named(name), wanted.copy_job, 0, copy_detail(wanted))
        elif wanted.copy_job:
            job = tables.jobs.jobs.get(JobKey(number, stored.copy_job))
            if job is not None and job.state is JobState.FAILED:
                raise ended_early(stored)
        return self._stored(number, stored)

    def delete(self, name: str, topic: str, group: str) -> GroupChange:
        number, book = self._book(name, topic)
        deleted = book.delete(topic, group)
        known = self._reach().tables.groups.get(number, {}).get(deleted.hidden_name)
        if known is not None and known.is_copying:
            self._end_copy(number, known, JobState.FAILED)
        return self._stored(number, deleted)

    def report(self, number: int, group: TopicGroup, shards: Mapping[int, ShardCopy]) -> CopyView | None:
        tables = self._reach().tables
        known = tables.groups.get(number, {}).get(group.hidden_name)
        if known is None or not known.is_copying or known.copy_job != group.copy_job:
            return None
        key = JobKey(number, group.copy_job)
        job = tables.jobs.jobs.get(key)
        if job is None or job.state is not JobState.RUNNING:
            self._end_copy(number, known, None)
            return None
        found = tables.group_copies.setdefault((number, group.hidden_name), {})
        found |= {shard_id: (one.copied_count, one.is_done) for shard_id, one in shards.items()}
        items_count = sum(copied_count for copied_count, _ in found.values())
        tables.jobs.jobs[key] = replace(job, items_count=items_count, updated_at_ms=self._reach().now_ms())
        done = frozenset([shard_id for shard_id, (_, is_done) in found.items() if is_done])
        if tables.epochs and done >= tables.epochs.keys():
            self._end_copy(number, known, JobState.SUCCEEDED)
            return None
        return CopyView(job.items_per_second_max, done, len(tables.epochs.keys() - done))

    def _end_copy(self, number: int, group: TopicGroup, state: JobState | None) -> None:
        tables, key = self._reach().tables, JobKey(number, group.copy_job)
        ended = {group.hidden_name: replace(group, is_copying=False)}
        tables.groups = {**tables.groups, number: {**tables.groups[number], **ended}}
        tables.group_copies.pop((number, group.hidden_name), None)
        if state is not None and key in tables.jobs.jobs:
            tables.jobs.jobs[key] = replace(tables.jobs.jobs[key], state=state, updated_at_ms=self._reach().now_ms())

    def finish(self, change: GroupChange) -> TopicGroup | list[int]:
        _, missing = self._censuses.counted(change.census, is_of_groups=True)
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
        answers, missing = self._censuses.counted(change.census, is_of_groups=True)
        if held := sum([answer.items_count for answer in answers]):
            raise still_held(change.group, held)
        if missing:
            return missing
        tables, number = self._reach().tables, change.census.topic_namespace
        some = tables.groups.get(number, {})
        rest = {name: one for name, one in some.items() if one != change.group}
        tables.groups = {**tables.groups, number: rest}
        self._censuses.end(change.census)
        return change.group

    def forget_all_of(self, number: int) -> None:
        tables = self._reach().tables
        tables.group_copies = {at: some for at, some in tables.group_copies.items() if at[0] != number}
        tables.groups = {other: some for other, some in tables.groups.items() if other != number}

    def _book(self, name: str, topic: str) -> tuple[int, GroupBook]:
        tables = self._reach().tables
        number = tables.named(name).number
        some = tables.groups.get(number, {})
        return number, GroupBook({one.group: one for one in some.values() if one.topic == topic}, len(some))

    def _stored(self, number: int, group: TopicGroup) -> GroupChange:
        tables = self._reach().tables
        some = tables.groups.get(number, {})
        if not group.is_plain and some.get(group.hidden_name) != group:
            tables.groups = {**tables.groups, number: {**some, group.hidden_name: group}}
        return GroupChange(group, self._censuses.begin(0))
