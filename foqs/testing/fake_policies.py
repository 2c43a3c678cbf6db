"""The policies of a meta database in memory: foqs.storage.meta.meta_policies on dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from foqs.model.census import Closed, held_of
from foqs.model.errors import FoqsError
from foqs.model.policies import NamespacePolicies, Policies
from foqs.model.policy import NOTHING_SAID, OwnPolicy, TopicPolicyEntry
from foqs.model.policy_book import Emptied, NamedChange, PolicyBook, PolicyCounts
from foqs.storage.meta.meta_policies import Changed, PolicyCensus
from foqs.testing.fake_censuses import FakeCensuses
from foqs.testing.fake_meta_tables import Reach


class FakePolicies:
    """The tables of policies."""

    def __init__(self, reach: Reach, censuses: FakeCensuses) -> None:
        self._reach = reach
        self._censuses = censuses

    def set(self, name: str, changes: Sequence[NamedChange]) -> Changed | PolicyCensus:
        number = self._reach().tables.named(name).number
        changed, made_serial = self._change(name, changes, None)
        if made_serial:
            return PolicyCensus(self._censuses.begin(0, number, "", made_serial), name, changes)
        return changed

    def finish(self, wanted: PolicyCensus) -> tuple[TopicPolicyEntry | FoqsError, ...] | list[int]:
        census = wanted.census
        answers, missing = self._censuses.counted(census)
        if missing:
            return missing
        tables = self._reach().tables
        groups = tables.groups.get(tables.named(wanted.namespace_name).number, {}).values()
        delayed = {one.topic: one.group for one in groups if one.delay_ms and not one.is_deleted}
        emptied = Emptied(frozenset(census.closes), frozenset(held_of(census, answers)), delayed)
        changed, _ = self._change(wanted.namespace_name, wanted.changes, emptied)
        self._censuses.end(census)
        return tuple(changed)

    def _change(
        self, name: str, changes: Sequence[NamedChange], emptied: Emptied | None
    ) -> tuple[list[TopicPolicyEntry | FoqsError], tuple[Closed, ...]]:
        tables = self._reach().tables
        number = tables.named(name).number
        topics, prefixes = tables.policies.get(number, {}), tables.prefix_policies.get(number, {})
        all_count = sum(map(len, [*tables.policies.values(), *tables.prefix_policies.values()]))
        book = PolicyBook(name, topics, prefixes, PolicyCounts(len(topics), len(prefixes), all_count), emptied)
        results: list[TopicPolicyEntry | FoqsError] = []
        for wanted in changes:
            try:
                results.append(book.change(wanted))
            except FoqsError as error:
                results.append(error)
        if book.made_serial and emptied is None:
            return results, tuple(dict.fromkeys(book.made_serial))
        tables.policies = _changed(tables.policies, number, book.topics_changed)
        tables.prefix_policies = _changed(tables.prefix_policies, number, book.prefixes_changed)
        if book.topics_changed or book.prefixes_changed:
            namespace = tables.named(name)
            after = replace(namespace, policies_version=namespace.policies_version + 1)
            tables.namespaces = {**tables.namespaces, name: after}
        return results, ()

    def page(
        self, number: int, prefix: str, after: tuple[bool, str], limit: int, *, with_prefixes: bool
    ) -> list[TopicPolicyEntry]:
        tables = self._reach().tables
        topics, prefixes = tables.policies.get(number, {}), tables.prefix_policies.get(number, {})
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

    def forget_all_of(self, number: int) -> None:
        tables = self._reach().tables
        tables.policies = {other: some for other, some in tables.policies.items() if other != number}
        tables.prefix_policies = {other: some for other, some in tables.prefix_policies.items() if other != number}


def _changed(policies: Policies, number: int, changes: Mapping[str, OwnPolicy]) -> Policies:
    """The policies with the changes; the same object if `changes` is empty."""
    if not changes:
        return policies
    after = {**policies.get(number, {}), **changes}
    rest = {name: own for name, own in after.items() if own != NOTHING_SAID}
    others = {other: some for other, some in policies.items() if other != number}
    return {**others, number: rest} if rest else others
