"""The namespaces of a meta database in memory: foqs.storage.meta.meta_namespaces on dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foqs.model.census import Census
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from foqs.model.namespace import Namespace, NamespaceSettings, check_room_under, updated
from foqs.storage.meta.meta_namespaces import NamespaceList
from foqs.testing.fake_access import FakeAccess
from foqs.testing.fake_censuses import FakeCensuses, FakeSlots
from foqs.testing.fake_groups import FakeGroups
from foqs.testing.fake_jobs import FakeJobs
from foqs.testing.fake_meta_tables import Reach
from foqs.testing.fake_policies import FakePolicies


class FakeNamespaces:
    """The table of namespaces, and the records deleted with one."""

    def __init__(
        self,
        reach: Reach,
        censuses: FakeCensuses,
        slots: FakeSlots,
        jobs: FakeJobs,
        policies: FakePolicies,
        groups: FakeGroups,
        access: FakeAccess,
    ) -> None:
        self._reach = reach
        self._censuses = censuses
        self._slots = slots
        self._jobs = jobs
        self._policies = policies
        self._groups = groups
        self._access = access

    def read(self) -> NamespaceList:
        tables = self._reach().tables
        closing = {census.namespace for census, _ in tables.censuses.values()}
        namespaces = [
            replace(namespace, closing=namespace.number in closing)
            for _, namespace in sorted(tables.namespaces.items())
        ]
        censuses = [census for census, _ in tables.censuses.values()]
        epochs = {row.shard_id: row.epoch for row in tables.cluster.shards.values()}
        slots, move = tables.slots, tables.slot_move
        listed = NamespaceList(
            namespaces, censuses, epochs, slots, move, tables.policies, tables.prefix_policies, tables.groups,
            tables.gates, tables.jobs.bulk_running,
        )  # fmt: skip
        for census, expires_at in list(tables.censuses.values()):
            if expires_at < self._reach().now_ms():
                self._censuses.end(census)
        return listed

    def page(self, prefix: str, after: str, limit: int) -> list[Namespace]:
        found = [one for one in self.read().namespaces if one.name.startswith(prefix) and one.name > after]
        return found[:limit]

    def update(self, name: str, changes: object) -> Namespace:
        before = self._reach().tables.named(name)
        after = self._reach().tables.namespaces[name] = replace(before, settings=updated(before.settings, changes))
        return after

    def recover(self, number: int, name: str, former_name: str, settings: NamespaceSettings, now_ms: int) -> Namespace:
        tables = self._reach().tables
        if any(namespace.number == number for namespace in tables.namespaces.values()):
            raise AlreadyExistsError(f"number {number} is in use")
        tables.number_last = max(tables.number_last, number)
        return self._insert(Namespace(number, name, settings, now_ms, former_name=former_name))

    def begin_creation(self, name: str, prefixes: Sequence[str] = ()) -> Census:
        names = self._reach().tables.namespaces
        if name in names:
            raise AlreadyExistsError(f"namespace {name} exists already")
        check_room_under(prefixes, lambda prefix: sum(one.startswith(prefix) for one in names))
        return self._censuses.begin(0)

    def begin_deletion(self, name: str) -> Census:
        number = self._reach().tables.named(name).number
        if any(census.namespace == number for census, _ in self._reach().tables.censuses.values()):
            raise UnavailableError(f"namespace {name!r} is being deleted by another call", nothing_done=True)
        return self._censuses.begin(number)

    def finish_creation(
        self, census: Census, name: str, settings: NamespaceSettings, now_ms: int
    ) -> Namespace | list[int]:
        answers, missing = self._censuses.counted(census)
        if missing:
            return missing
        tables = self._reach().tables
        self._slots.make(answers)
        number = max([tables.number_last, *[answer.number_max for answer in answers]]) + 1
        created = self._insert(Namespace(number, name, settings, now_ms))
        tables.number_last = number
        self._censuses.end(census)
        return created

    def finish_deletion(self, census: Census, name: str) -> list[int]:
        answers, missing = self._censuses.counted(census)
        held = sum(answer.items_count for answer in answers)
        if held:
            count = f"at least {held}" if missing else str(held)
            raise InvalidArgumentError(
                f"namespace {name!r} still holds {count} items, dead letters included: consume or delete them first"
            )
        if not missing:
            del self._reach().tables.namespaces[name]
            self._jobs.forget_all_of(census.namespace)
            tables = self._reach().tables
            tables.quotas.pop(census.namespace, None)
            tables.permits = {key: book for key, book in tables.permits.items() if key[0] != census.namespace}
            self._policies.forget_all_of(census.namespace)
            self._groups.forget_all_of(census.namespace)
            self._access.forget_all_of(name)
            self._censuses.end(census)
        return missing

    def _insert(self, namespace: Namespace) -> Namespace:
        if namespace.name in self._reach().tables.namespaces:
            raise AlreadyExistsError(f"namespace {namespace.name} exists already")
        self._reach().tables.namespaces[namespace.name] = namespace
        return namespace
