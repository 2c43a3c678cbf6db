"""The verbs of operators on namespaces and on the policies of their topics."""

from __future__ import annotations

from foqs.contract import requests as of
from foqs.host import arguments
from foqs.host.registry.namespace_calls import NamespaceCalls
from foqs.host.registry.namespaces import Namespaces
from foqs.model import limits
from foqs.model.calls import NamespacePage, PositionErrors
from foqs.model.errors import FoqsError
from foqs.model.namespace import Namespace, NamespaceSettings, check_namespace_name, with_changes
from foqs.model.policy import NOTHING_SAID, TopicPolicyEntry, TopicPolicyPage, place_of, policy_page
from foqs.model.policy_book import NamedChange


class NamespaceVerbs:
    """Checks changes of namespaces and policies, has the meta database make them, and lets this host follow at once."""

    def __init__(self, namespaces: Namespaces, namespace_calls: NamespaceCalls) -> None:
        self._namespaces = namespaces
        self._namespace_calls = namespace_calls

    async def create_namespace(self, request: of.CreateNamespaceRequest) -> Namespace:
        check_namespace_name(request.name)
        wanted = with_changes(NamespaceSettings(), request.settings)
        return await self._namespace_calls.create(request.name, wanted)

    async def update_namespace(self, request: of.UpdateNamespaceRequest) -> Namespace:
        check_namespace_name(request.name)
        self._namespaces.require_durable()
        name, settings = request.name, request.settings
        updated = await self._namespaces.calls.run(lambda meta: meta.namespaces.update(name, settings))
        await self._namespaces.refresh()
        return updated

    async def get_namespace(self, request: of.GetNamespaceRequest) -> Namespace:
        return self._namespaces.get(check_namespace_name(request.name))

    async def list_namespaces(self, request: of.ListNamespacesRequest) -> NamespacePage:
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        found = await self._namespaces.calls.run(
            lambda meta: meta.namespaces.page(request.prefix, request.page_token, limit + 1)
        )
        return NamespacePage(found[:limit], found[limit - 1].name if len(found) > limit else "")

    async def delete_namespace(self, request: of.DeleteNamespaceRequest) -> None:
        await self._namespace_calls.delete(check_namespace_name(request.name))

    async def recover_namespace(self, request: of.RecoverNamespaceRequest) -> Namespace:
        number = arguments.check_range("number", request.number, 1, limits.NAMESPACE_NUMBER_MAX)
        wanted = with_changes(NamespaceSettings(), request.settings)
        name = check_namespace_name(request.name) if request.name else ""
        return await self._namespace_calls.recover(number, name, wanted)

    # ---- policies of topics, and of all topics that begin with a prefix ----

    async def set_topic_policy(self, request: of.SetTopicPolicyRequest) -> TopicPolicyEntry:
        """Raises InvalidArgumentError also where there are too many policies."""
        namespace_name = check_namespace_name(request.namespace_name)
        wanted = NamedChange(arguments.check_topic(request.topic), request.is_prefix or False, request)
        self._namespaces.require_durable()
        (told,) = await self._namespaces.calls.run(lambda meta: meta.policies.set(namespace_name, [wanted]))
        if isinstance(told, FoqsError):
            raise told
        await self._namespaces.refresh()
        return told

    async def set_topic_policies(self, request: of.SetTopicPoliciesRequest) -> PositionErrors:
        """Make changes in one transaction. A member that cannot be done has its error, and the others are done."""
        namespace_name = check_namespace_name(request.namespace_name)
        arguments.check_batch("changes", len(request.changes), limits.BATCH_ITEMS_MAX)
        errors: PositionErrors = {}
        wanted: dict[int, NamedChange] = {}
        for position, change in enumerate(request.changes):
            if fault := arguments.topic_fault(change.topic):
                errors[position] = fault
            else:
                wanted[position] = NamedChange(change.topic or "", bool(change.is_prefix), change)
        self._namespaces.require_durable()
        work = list(wanted.values())
        told = await self._namespaces.calls.run(lambda meta: meta.policies.set(namespace_name, work))
        found = zip(wanted, told, strict=True)
        errors.update({position: one for position, one in found if isinstance(one, FoqsError)})
        await self._namespaces.refresh()
        return dict(sorted(errors.items()))

    async def get_topic_policy(self, request: of.GetTopicPolicyRequest) -> TopicPolicyEntry:
        number, name = self._namespaces.get(request.namespace_name).number, arguments.check_topic(request.topic)
        settings, is_prefix = self._namespaces.settings, request.is_prefix or False
        said = settings.prefix_policies if is_prefix else settings.policies
        own = said.get(number, {}).get(name, NOTHING_SAID)
        return TopicPolicyEntry.of(name, own if is_prefix else settings.policy(number, name), own, is_prefix=is_prefix)

    async def list_topic_policies(self, request: of.ListTopicPoliciesRequest) -> TopicPolicyPage:
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        number, after = self._namespaces.get(request.namespace_name).number, place_of(request.page_token)
        prefix, with_prefixes = request.prefix, request.with_prefixes or False
        found = await self._namespaces.calls.run(
            lambda meta: meta.policies.page(number, prefix, after, limit + 1, with_prefixes=with_prefixes)
        )
        return policy_page(found, limit)
