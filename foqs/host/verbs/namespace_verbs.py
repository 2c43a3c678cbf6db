"""The verbs of operators on namespaces."""

from __future__ import annotations

from foqs.contract import requests as of
from foqs.host import arguments
from foqs.host.registry.namespace_calls import NamespaceCalls
from foqs.host.registry.namespaces import Namespaces
from foqs.model import limits
from foqs.model.calls import NamespacePage
from foqs.model.namespace import Namespace, NamespaceSettings, check_namespace_name, with_changes


class NamespaceVerbs:
    """Checks what is asked of namespaces, and has it done in the meta database."""

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
        updated = await self._namespaces.calls.run(lambda meta: meta.update_namespace(name, settings))
        await self._namespaces.refresh()
        return updated

    async def get_namespace(self, request: of.GetNamespaceRequest) -> Namespace:
        return self._namespaces.get(check_namespace_name(request.name))

    async def list_namespaces(self, request: of.ListNamespacesRequest) -> NamespacePage:
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        found = await self._namespaces.calls.run(
            lambda meta: meta.page_namespaces(request.prefix, request.page_token, limit + 1)
        )
        return NamespacePage(found[:limit], found[limit - 1].name if len(found) > limit else "")

    async def delete_namespace(self, request: of.DeleteNamespaceRequest) -> None:
        await self._namespace_calls.delete(check_namespace_name(request.name))

    async def recover_namespace(self, request: of.RecoverNamespaceRequest) -> Namespace:
        number = arguments.check_range("number", request.number, 1, limits.NAMESPACE_NUMBER_MAX)
        wanted = with_changes(NamespaceSettings(), request.settings)
        return await self._namespace_calls.recover(number, request.name or "", wanted)
