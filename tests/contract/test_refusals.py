"""A MemoryQueue refuses what a host refuses, in the same words: each case is the same call of the same principal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import foqs
from foqs import AccessGrant, AccessMode, RetryPolicy
from foqs.testing import MemoryQueue
from foqs.testing.memory_clients import Clients
from foqs.wire.codec import structs
from tests.support.raw_client import RawClient
from tests.support.running_host import running_host

ONCE = RetryPolicy(deadline_ms=0)
GRANTS = {"jobs": ["producer"]}
NEW_ITEM = structs.NewItem("t", b"x")
DEMANDS = [structs.TopicDemand("t", 1)]

CASES: list[tuple[str, Any, Callable[[Clients], Any], str]] = [
    (
        "dequeue",
        structs.DequeueRequest("jobs", DEMANDS),
        lambda caller: caller.client(retry=ONCE).dequeue("jobs", "t", 1),
        "mailer may not call dequeue in namespace 'jobs': it lacks CONSUME",
    ),
    (
        "enqueue",
        structs.EnqueueRequest("no such", [NEW_ITEM]),
        lambda caller: caller.client(retry=ONCE).enqueue("no such", "t", b"x"),
        "mailer may not call enqueue in namespace 'no such': it lacks ENQUEUE",
    ),
    (
        "createNamespace",
        structs.CreateNamespaceRequest("mine", structs.NamespaceSettings()),
        lambda caller: caller.admin(retry=ONCE).create_namespace("mine"),
        "mailer may not call createNamespace in namespace 'mine': it lacks MANAGE",
    ),
    (
        "listHosts",
        structs.ListHostsRequest(),
        lambda caller: list(caller.admin(retry=ONCE).list_hosts()),
        "mailer may not call listHosts in this cluster: it lacks WATCH",
    ),
]


def said(text: str) -> str:
    return text.partition(" (request ")[0]


@pytest.mark.parametrize(("verb", "request_", "call", "text"), CASES, ids=[case[0] for case in CASES])
def test_a_memory_queue_refuses_in_these_words(
    verb: str, request_: Any, call: Callable[[Clients], Any], text: str
) -> None:
    with MemoryQueue("jobs", principals={"mailer": GRANTS}) as queue:
        with pytest.raises(foqs.PermissionDeniedError) as refused:
            call(queue.as_principal("mailer"))
        assert said(refused.value.message) == text


@pytest.mark.database
async def test_a_host_refuses_in_these_words(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with running_host(meta_url, {0: shard_urls[0]}) as host:
        roles = [AccessGrant(name, roles) for name, roles in GRANTS.items()]
        await host.admin.create_principal("mailer", roles)
        await host.admin.create_principal("boss", [AccessGrant("*", ["admin"])])
        token = (await host.admin.create_token("mailer")).token
        await host.admin.create_token("boss")
        await host.admin.set_access_mode(AccessMode.ENFORCED)
        async with RawClient.connect("127.0.0.1", host.host.port) as raw:
            assert (await raw.call("authenticate", structs.AuthenticateRequest(token))).error is None
            assert (await raw.call("enqueue", structs.EnqueueRequest("jobs", [NEW_ITEM]))).error is None
            for verb, request_, _, text in CASES:
                error = (await raw.call(verb, request_)).error
                assert error is not None, verb
                assert said(error.message) == text
