"""The namespaces of a meta database in memory: foqs.storage.meta.meta_namespaces on dictionaries."""

from __future__ import annotations

import copy
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from foqs.model import limits
from foqs.model.census import Census, CensusAnswer, unanswered
from foqs.model.cluster import ShardUse
from foqs.model.errors import (
    AlreadyExistsError,
    FoqsError,
    InvalidArgumentError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.model.namespace import Namespace, NamespaceSettings, updated
from foqs.model.policies import NamespacePolicies, Policies
from foqs.model.policy import NOTHING_SAID, OwnPolicy, TopicPolicyEntry
from foqs.model.policy_book import NamedChange, PolicyBook, PolicyCounts
from foqs.model.slots import NO_SLOTS, SlotMove, SlotTable, first_table
from foqs.storage.meta.meta_namespaces import NamespaceList
from foqs.testing.fake_cluster import ClusterTables, FakeCluster
from foqs.testing.fake_jobs import FakeJobs, JobTables
from foqs.testing.fake_quotas import FakeQuotas


@dataclass(slots=True)
class NamespaceTables:
    """The committed rows. A copy is a backup, or a replica that falls behind."""

    namespaces: dict[str, Namespace] = field(default_factory=dict)
    number_last: int = 0
    censuses: dict[int, tuple[Census, int]] = field(default_factory=dict)
    """Open censuses by id, each with the time at which it expires."""
    answers: dict[int, dict[int, CensusAnswer]] = field(default_factory=dict)
    """Answers by census and shard."""
    cluster: ClusterTables = field(default_factory=ClusterTables)
    jobs: JobTables = field(default_factory=JobTables)
    slots: SlotTable = NO_SLOTS
    slot_move: SlotMove | None = None
    quotas: dict[int, bytes] = field(default_factory=dict)
    """The packed books of quotas, by namespace."""
    policies: Policies = field(default_factory=dict)
    """Policies of topics, replaced with every change."""
    prefix_policies: Policies = field(default_factory=dict)
    """Policies of prefixes, replaced with every change."""

    @property
    def epochs(self) -> dict[int, int]:
        """The last epoch of each shard."""
        return self.cluster.epochs

    def copy(self) -> NamespaceTables:
        return copy.deepcopy(self)


class FakeNamespaces(FakeCluster, FakeJobs, FakeQuotas):
    """The database for one host; `chance` draws the ids of censuses.

    A subclass provides the tables, and the other calls of a host on its meta database.
    """

    def __init__(self, chance: random.Random) -> None:
        self._ids = chance

    @property
    @abstractmethod
    def _tables(self) -> NamespaceTables:
        """The content of the database. Raises UnavailableError while it is unreachable."""

    @property
    def _cluster(self) -> ClusterTables:
        return self._tables.cluster

    @property
    def _job_tables(self) -> JobTables:
        return self._tables.jobs

    @property
    def _books(self) -> dict[int, bytes]:
        return self._tables.quotas

    def _limit_of(self, namespace: int) -> int | None:
        found = [one for one in self._tables.namespaces.values() if one.number == namespace]
        return found[0].settings.enqueues_per_minute_max if found else None

    def read_namespaces(self) -> NamespaceList:
        tables = self._tables
        closing = {census.namespace for census, _ in tables.censuses.values()}
        namespaces = [
            replace(namespace, closing=namespace.number in closing)
            for _, namespace in sorted(tables.namespaces.items())
        ]
        censuses = [census for census, _ in tables.censuses.values()]
        epochs = {row.shard_id: row.epoch for row in tables.cluster.shards.values()}
        slots, move = tables.slots, tables.slot_move
        listed = NamespaceList(namespaces, censuses, epochs, slots, move, tables.policies, tables.prefix_policies)
        for census, expires_at in list(tables.censuses.values()):
            if expires_at < self._now_ms():
                self.end_census(census)
        return listed

    def list_namespaces(self) -> list[Namespace]:
        return self.read_namespaces().namespaces

    def page_namespaces(self, prefix: str, after: str, limit: int) -> list[Namespace]:
        found = [one for one in self.list_namespaces() if one.name.startswith(prefix) and one.name > after]
        return found[:limit]

    def update_namespace(self, name: str, changes: object) -> Namespace:
        before = self._named(name)
        after = self._tables.namespaces[name] = replace(before, settings=updated(before.settings, changes))
        return after

    def set_topic_policies(self, name: str, changes: Sequence[NamedChange]) -> list[TopicPolicyEntry | FoqsError]:
        number, tables = self._named(name).number, self._tables
        topics, prefixes = tables.policies.get(number, {}), tables.prefix_policies.get(number, {})
        all_count = sum(map(len, [*tables.policies.values(), *tables.prefix_policies.values()]))
        book = PolicyBook(name, topics, prefixes, PolicyCounts(len(topics), len(prefixes), all_count))
        told: list[TopicPolicyEntry | FoqsError] = []
        for wanted in changes:
            try:
                told.append(book.change(wanted))
            except FoqsError as error:
                told.append(error)
        tables.policies = _changed(tables.policies, number, book.topics_changed)
        tables.prefix_policies = _changed(tables.prefix_policies, number, book.prefixes_changed)
        return told

    def page_topic_policies(
        self, number: int, prefix: str, after: tuple[bool, str], limit: int, *, with_prefixes: bool
    ) -> list[TopicPolicyEntry]:
        topics, prefixes = self._tables.policies.get(number, {}), self._tables.prefix_policies.get(number, {})
        in_force, (is_after_prefix, name) = NamespacePolicies(topics, prefixes), after
        found = [
            TopicPolicyEntry.of(one, own, own, is_prefix=True)
            for one, own in sorted(prefixes.items(), key=itemgetter(0))
            if with_prefixes and is_after_prefix and one > name
        ] + [
            TopicPolicyEntry.of(one, in_force.of(one), own, is_prefix=False)
            for one, own in sorted(topics.items(), key=itemgetter(0))
            if is_after_prefix or one > name
        ]
        return [one for one in found if one.topic.startswith(prefix)][:limit]

    def _forget_policies_of(self, number: int) -> None:
        tables = self._tables
        tables.policies = {other: some for other, some in tables.policies.items() if other != number}
        tables.prefix_policies = {other: some for other, some in tables.prefix_policies.items() if other != number}

    def recover_namespace(
        self, number: int, name: str, former_name: str, settings: NamespaceSettings, now_ms: int
    ) -> Namespace:
        tables = self._tables
        if any(namespace.number == number for namespace in tables.namespaces.values()):
            raise AlreadyExistsError(f"number {number} is in use")
        tables.number_last = max(tables.number_last, number)
        return self._insert(Namespace(number, name, settings, now_ms, former_name=former_name))

    def begin_creation(self, name: str) -> Census:
        if name in self._tables.namespaces:
            raise AlreadyExistsError(f"namespace {name} exists already")
        return self._begin(0)

    def begin_deletion(self, name: str) -> Census:
        number = self._named(name).number
        if any(census.namespace == number for census, _ in self._tables.censuses.values()):
            raise UnavailableError(f"namespace {name!r} is being deleted by another call", nothing_done=True)
        return self._begin(number)

    def answer_census(self, census: Census, answers: Sequence[CensusAnswer]) -> None:
        tables = self._tables
        if census.id not in tables.censuses:
            return
        given = tables.answers.setdefault(census.id, {})
        for answer in answers:
            if answer.shard_id not in given or answer.epoch >= given[answer.shard_id].epoch:
                given[answer.shard_id] = answer

    def finish_creation(
        self, census: Census, name: str, settings: NamespaceSettings, now_ms: int
    ) -> Namespace | list[int]:
        answers, missing = self._counted(census)
        if missing:
            return missing
        tables = self._tables
        self._make_slots(answers)
        number = max([tables.number_last, *[answer.number_max for answer in answers]]) + 1
        created = self._insert(Namespace(number, name, settings, now_ms))
        tables.number_last = number
        self.end_census(census)
        return created

    def begin_slots(self) -> Census:
        return self._begin(0)

    def finish_slots(self, census: Census) -> list[int]:
        answers, missing = self._counted(census)
        if not missing:
            self._make_slots(answers)
            self.end_census(census)
        return missing

    def begin_slot_move(self, census: Census, move: SlotMove) -> list[int]:
        answers, missing = self._counted(census)
        if not missing:
            tables = self._tables
            version = tables.slots.version
            known = max([answer.slots_version for answer in answers], default=0)
            taker = tables.cluster.shards.get(move.to_shard)
            if taker is None or taker.use is not ShardUse.SERVING:
                raise UnavailableError(f"shard {move.to_shard} takes no slots now", nothing_done=True)
            if version != move.version - 1 or known > version or tables.slot_move is not None:
                raise UnavailableError("slots move already, or a shard knows another table", nothing_done=True)
            tables.slot_move = move
            self.end_census(census)
        return missing

    def restore_slot_move(self, move: SlotMove) -> None:
        tables = self._tables
        if tables.slot_move is None and tables.slots.version < move.version:
            tables.slot_move = move

    def set_slot_move(self, move: SlotMove) -> bool:
        tables = self._tables
        if tables.slot_move is None or not tables.slot_move.is_same(move):
            return False
        tables.slot_move = move
        return True

    def restore_slots(self, table: SlotTable) -> None:
        tables = self._tables
        if table.version > tables.slots.version:
            tables.slots = table
        if tables.slot_move is not None and tables.slot_move.version <= table.version:
            tables.slot_move = None

    def finish_deletion(self, census: Census, name: str) -> list[int]:
        answers, missing = self._counted(census)
        held = sum(answer.items_count for answer in answers)
        if held:
            count = f"at least {held}" if missing else str(held)
            raise InvalidArgumentError(
                f"namespace {name!r} still holds {count} items, dead letters included: consume or delete them first"
            )
        if not missing:
            del self._tables.namespaces[name]
            self._forget_jobs_of(census.namespace)
            self._tables.quotas.pop(census.namespace, None)
            self._forget_policies_of(census.namespace)
            self.end_census(census)
        return missing

    def end_census(self, census: Census) -> None:
        self._tables.censuses.pop(census.id, None)
        self._tables.answers.pop(census.id, None)

    def _make_slots(self, answers: Sequence[CensusAnswer]) -> None:
        if self._tables.slots == NO_SLOTS and answers:
            if any(answer.slots_version for answer in answers):
                raise UnavailableError("the meta database has lost its slot table", nothing_done=True)
            self._tables.slots = first_table([answer.shard_id for answer in answers])

    def _begin(self, number: int) -> Census:
        census = Census(self._ids.getrandbits(63), number)
        self._tables.censuses[census.id] = (census, self._now_ms() + limits.CENSUS_EXPIRY_MS)
        return census

    def _counted(self, census: Census) -> tuple[list[CensusAnswer], list[int]]:
        tables = self._tables
        if census.id not in tables.censuses:
            raise UnavailableError("the census is over")
        answers = list(tables.answers.get(census.id, {}).values())
        return answers, unanswered(tables.epochs, answers)

    def _named(self, name: str) -> Namespace:
        namespace = self._tables.namespaces.get(name)
        if namespace is None:
            raise UnknownNamespaceError(f"namespace {name!r} does not exist")
        return namespace

    def _insert(self, namespace: Namespace) -> Namespace:
        if namespace.name in self._tables.namespaces:
            raise AlreadyExistsError(f"namespace {namespace.name} exists already")
        self._tables.namespaces[namespace.name] = namespace
        return namespace


def _changed(policies: Policies, number: int, changes: Mapping[str, OwnPolicy]) -> Policies:
    """The policies with the changes; the same object if `changes` is empty."""
    if not changes:
        return policies
    after = {**policies.get(number, {}), **changes}
    rest = {name: own for name, own in after.items() if own != NOTHING_SAID}
    others = {other: some for other, some in policies.items() if other != number}
    return {**others, number: rest} if rest else others
