"""What operators say of topics, and of all topics that begin with a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.host import arguments
from foqs.host.registry.namespaces import Namespaces
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError
from foqs.model.namespace import check_namespace_name
from foqs.model.policy import NOTHING_SAID, TopicPolicyEntry, TopicPolicyPage, place_of, policy_page
from foqs.model.policy_book import NamedChange


class PolicyCalls:
    """Does the verbs of policies on the meta database, and lets this host follow them at once."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    async def set(self, namespace_name: str, topic: str, changes: object, *, is_prefix: bool) -> TopicPolicyEntry:
        """Raises InvalidArgumentError also where there are too many policies."""
        check_namespace_name(namespace_name)
        wanted = NamedChange(arguments.check_topic(topic), is_prefix, changes)
        self._namespaces.require_durable()
        (told,) = await self._namespaces.calls.run(lambda meta: meta.set_topic_policies(namespace_name, [wanted]))
        if isinstance(told, FoqsError):
            raise told
        await self._namespaces.refresh()
        return told

    async def set_all(self, namespace_name: str, changes: Sequence[Any]) -> PositionErrors:
        """Make changes in one transaction. A member that cannot be done has its error, and the others are done."""
        check_namespace_name(namespace_name)
        arguments.check_batch("changes", len(changes), limits.BATCH_ITEMS_MAX)
        errors: PositionErrors = {}
        wanted: dict[int, NamedChange] = {}
        for position, change in enumerate(changes):
            if fault := arguments.topic_fault(change.topic):
                errors[position] = fault
            else:
                wanted[position] = NamedChange(change.topic, bool(change.is_prefix), change)
        self._namespaces.require_durable()
        work = list(wanted.values())
        told = await self._namespaces.calls.run(lambda meta: meta.set_topic_policies(namespace_name, work))
        found = zip(wanted, told, strict=True)
        errors.update({position: one for position, one in found if isinstance(one, FoqsError)})
        await self._namespaces.refresh()
        return dict(sorted(errors.items()))

    def get(self, namespace_name: str, topic: str, *, is_prefix: bool) -> TopicPolicyEntry:
        number, name = self._namespaces.get(namespace_name).number, arguments.check_topic(topic)
        settings = self._namespaces.settings
        said = settings.prefix_policies if is_prefix else settings.policies
        own = said.get(number, {}).get(name, NOTHING_SAID)
        return TopicPolicyEntry.of(name, own if is_prefix else settings.policy(number, name), own, is_prefix=is_prefix)

    async def page(
        self, namespace_name: str, prefix: str, limit: int, page_token: str, *, with_prefixes: bool
    ) -> TopicPolicyPage:
        arguments.check_range("limit", limit, 1, limits.PAGE_ITEMS_MAX)
        number, after = self._namespaces.get(namespace_name).number, place_of(page_token)
        found = await self._namespaces.calls.run(
            lambda meta: meta.page_topic_policies(number, prefix, after, limit + 1, with_prefixes=with_prefixes)
        )
        return policy_page(found, limit)
