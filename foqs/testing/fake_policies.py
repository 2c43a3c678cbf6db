"""The policies of a meta database in memory: foqs.storage.meta.meta_policies on dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from foqs.model.errors import FoqsError
from foqs.model.policies import NamespacePolicies, Policies
from foqs.model.policy import NOTHING_SAID, OwnPolicy, TopicPolicyEntry
from foqs.model.policy_book import NamedChange, PolicyBook, PolicyCounts
from foqs.testing.fake_meta_tables import Reach


class FakePolicies:
    """The tables of policies."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def set(self, name: str, changes: Sequence[NamedChange]) -> list[TopicPolicyEntry | FoqsError]:
        tables = self._reach().tables
        number = tables.named(name).number
        topics, prefixes = tables.policies.get(number, {}), tables.prefix_policies.get(number, {})
        all_count = sum(map(len, [*tables.policies.values(), *tables.prefix_policies.values()]))
        book = PolicyBook(name, topics, prefixes, PolicyCounts(len(topics), len(prefixes), all_count))
        results: list[TopicPolicyEntry | FoqsError] = []
        for wanted in changes:
            try:
                results.append(book.change(wanted))
            except FoqsError as error:
                results.append(error)
        tables.policies = _changed(tables.policies, number, book.topics_changed)
        tables.prefix_policies = _changed(tables.prefix_policies, number, book.prefixes_changed)
        return results

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
