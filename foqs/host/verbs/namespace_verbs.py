"""The verbs of operators on namespaces and on the policies of their topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from foqs.contract import requests as of
from foqs.contract.permissions import Permission
from foqs.host import arguments
from foqs.host.registry.namespace_calls import NamespaceCalls
from foqs.host.registry.namespaces import Namespaces
from foqs.model import limits
from foqs.model.calls import CallContext, NamespacePage, PositionErrors
from foqs.model.errors import FoqsError, InvalidArgumentError, UnavailableError
from foqs.model.namespace import Namespace, NamespaceSettings, check_namespace_name, with_changes
from foqs.model.policy import (
    NOTHING_SAID,
    ORDER_FIELDS,
    TopicPolicyEntry,
    TopicPolicyPage,
    check_aging,
    place_of,
    policy_page,
)
from foqs.model.policy_book import NamedChange
from foqs.model.principal import Principal
from foqs.storage.meta.meta_policies import Changed, PolicyCensus

ReadPage = Callable[[str, str, int], list[Namespace]]
"""Reads the next namespaces of a prefix behind a name, up to a count."""

_OBSERVE: Final = int(Permission.OBSERVE)
_MANAGE: Final = int(Permission.MANAGE)
_OPERATE: Final = int(Permission.OPERATE)


class NamespacePages:
    """Lists namespaces: those that the caller can observe."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    async def list_namespaces(self, context: CallContext, request: of.ListNamespacesRequest) -> NamespacePage:
        """A page ends with a namespace that is shown, so its token reveals no other one."""
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        who, prefix, after = context.principal, request.prefix, request.page_token
        if context.is_permissive or who.match_all(prefix) & _OBSERVE:
            found = await self._namespaces.calls.run(lambda meta: meta.namespaces.page(prefix, after, limit + 1))
        else:
            found = await self._namespaces.calls.run(
                lambda meta: observed(meta.namespaces.page, prefix, after, limit + 1, who)
            )
        return NamespacePage(found[:limit], found[limit - 1].name if len(found) > limit else "")


def observed(page: ReadPage, prefix: str, after: str, count: int, who: Principal) -> list[Namespace]:
    """Read on until `count` namespaces were found that `who` can observe, or all are read."""
    found: list[Namespace] = []
    for _ in range(limits.NAMESPACES_MAX // limits.PAGE_ITEMS_MAX + 1):
        read = page(prefix, after, limits.PAGE_ITEMS_MAX)
        found += [one for one in read if who.match(one.name) & _OBSERVE]
        if len(read) < limits.PAGE_ITEMS_MAX or len(found) >= count:
            break
        after = read[-1].name
    return found[:count]


class NamespaceCreation:
    """Creates namespaces: as many as the cluster has room for, or as the grant of a prefix makes."""

    def __init__(self, namespace_calls: NamespaceCalls) -> None:
        self._namespace_calls = namespace_calls

    async def create_namespace(self, context: CallContext, request: of.CreateNamespaceRequest) -> Namespace:
        name = check_namespace_name(request.name)
        wanted = with_changes(NamespaceSettings(), request.settings)
        return await self._namespace_calls.create(name, wanted, bounding_prefixes(context, name))


def bounding_prefixes(context: CallContext, name: str) -> tuple[str, ...]:
    """Return the prefixes by which the caller can create a namespace of this name; none if nothing but the cluster's
    bound holds for it.

    That is so for an exact name, for all namespaces, and for an operator, who can change settings that cost more.
    """
    who = context.principal
    if context.is_permissive or who.cluster & _OPERATE:
        return ()
    prefixes = who.prefixes_of(name, _MANAGE)
    return () if "" in prefixes else prefixes


class NamespaceVerbs:
    """Checks changes of namespaces and policies, has the meta database make them, and lets this host follow at once."""

    def __init__(
        self, namespaces: Namespaces, namespace_calls: NamespaceCalls, follow_access: Callable[[], Awaitable[None]]
    ) -> None:
        """`follow_access` reads which grants there are. Raises UnavailableError."""
        self._namespaces = namespaces
        self._namespace_calls = namespace_calls
        self._follow_access = follow_access

    async def update_namespace(self, request: of.UpdateNamespaceRequest) -> Namespace:
        check_namespace_name(request.name)
        self._namespaces.require_durable()
        name, settings = request.name, request.settings
        updated = await self._namespaces.calls.run(lambda meta: meta.namespaces.update(name, settings))
        await self._namespaces.refresh()
        return updated

    async def get_namespace(self, request: of.GetNamespaceRequest) -> Namespace:
        return self._namespaces.get(check_namespace_name(request.name))

    async def delete_namespace(self, request: of.DeleteNamespaceRequest) -> None:
        await self._namespace_calls.delete(check_namespace_name(request.name))
        with suppress(UnavailableError):  # It is deleted, with the grants of its name; this host reads that soon.
            await self._follow_access()

    async def recover_namespace(self, request: of.RecoverNamespaceRequest) -> Namespace:
        number = arguments.check_range("number", request.number, 1, limits.NAMESPACE_NUMBER_MAX)
        wanted = with_changes(NamespaceSettings(), request.settings)
        # Any text is another name, which needs a permission more, so an empty one is refused, not taken for none.
        name = "" if request.name is None else check_namespace_name(request.name)
        return await self._namespace_calls.recover(number, name, wanted)

    # ---- policies of topics, and of all topics that begin with a prefix ----

    async def set_topic_policy(self, request: of.SetTopicPolicyRequest) -> TopicPolicyEntry:
        """Raises InvalidArgumentError also for too many policies."""
        namespace_name = check_namespace_name(request.namespace_name)
        wanted = self._named(namespace_name, request)
        self._namespaces.require_durable()
        (changed,) = await self._set_policies(namespace_name, [wanted])
        if isinstance(changed, FoqsError):
            raise changed
        return changed

    async def set_topic_policies(self, request: of.SetTopicPoliciesRequest) -> PositionErrors:
        """Make changes in one transaction. A member that cannot be done has its error, and the others are done."""
        namespace_name = check_namespace_name(request.namespace_name)
        arguments.check_batch("changes", len(request.changes), limits.BATCH_ITEMS_MAX)
        errors: PositionErrors = {}
        wanted: dict[int, NamedChange] = {}
        for position, change in enumerate(request.changes):
            try:
                wanted[position] = self._named(namespace_name, change)
            except InvalidArgumentError as error:
                errors[position] = error.with_traceback(None)
        self._namespaces.require_durable()
        changed = await self._set_policies(namespace_name, list(wanted.values()))
        found = zip(wanted, changed, strict=True)
        errors.update({position: one for position, one in found if isinstance(one, FoqsError)})
        return dict(sorted(errors.items()))

    def _named(self, namespace_name: str, change: of.SetTopicPolicyRequest | of.TopicPolicyChange) -> NamedChange:
        """Check the names of a change, and that of a group that is to age. Raises InvalidArgumentError."""
        named = _named(change)
        number = self._namespaces.number_of(namespace_name)
        if change.group and change.aging_ms_per_priority and number is not None:
            policy = self._namespaces.settings.policy(number, change.topic or "")
            check_aging(replace(policy, aging_ms_per_priority=change.aging_ms_per_priority), change.topic or "")
        return named

    async def _set_policies(self, namespace_name: str, wanted: list[NamedChange]) -> Changed:
        """Make the changes, and let this host follow. Those that make topics serial need the answers of all shards."""
        changed = await self._namespaces.calls.run(lambda meta: meta.policies.set(namespace_name, wanted))
        if isinstance(changed, PolicyCensus):
            asked = changed
            return await self._namespace_calls.finish(
                asked.census, lambda meta: meta.policies.finish(asked), "no policy was changed"
            )
        await self._namespaces.refresh()
        return changed

    async def get_topic_policy(self, request: of.GetTopicPolicyRequest) -> TopicPolicyEntry:
        number = self._namespaces.get(request.namespace_name).number
        name = arguments.check_topic_of(request.topic, request.group)
        settings, is_prefix = self._namespaces.settings, request.is_prefix or False
        said = settings.prefix_policies if is_prefix else settings.policies
        own = said.get(number, {}).get(name, NOTHING_SAID)
        policy = own if is_prefix else settings.policy(number, name)
        if request.group:
            of_topic = settings.policy(number, request.topic)
            policy = replace(policy, **{name: getattr(of_topic, name) for name in ORDER_FIELDS})
        return TopicPolicyEntry.of(name, policy, own, is_prefix=is_prefix)

    async def list_topic_policies(self, request: of.ListTopicPoliciesRequest) -> TopicPolicyPage:
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        number, after = self._namespaces.get(request.namespace_name).number, place_of(request.page_token)
        prefix, with_prefixes = request.prefix, request.with_prefixes or False
        found = await self._namespaces.calls.run(
            lambda meta: meta.policies.page(number, prefix, after, limit + 1, with_prefixes=with_prefixes)
        )
        return policy_page(found, limit)


def _named(change: of.SetTopicPolicyRequest | of.TopicPolicyChange) -> NamedChange:
    """Check the names of a change. Raises InvalidArgumentError."""
    name, is_prefix = arguments.check_topic_of(change.topic, change.group), bool(change.is_prefix)
    if change.group and is_prefix:
        raise InvalidArgumentError(f"group {change.group!r} has a policy of one topic alone: leave is_prefix out")
    if change.group and change.enqueue_paused:
        raise InvalidArgumentError(
            f"enqueue_paused is of topic {change.topic!r}, whose items all groups get: set it without a group"
        )
    if change.group and any(getattr(change, name) is not None for name in ORDER_FIELDS):
        raise InvalidArgumentError(
            f"{', '.join(ORDER_FIELDS)} are of topic {change.topic!r}, and hold for each of its groups by itself: set "
            "them without a group"
        )
    return NamedChange(name, is_prefix, change)
