"""Principals of a MemoryQueue: what their grants permit is done, all else is refused, and changes hold at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

import foqs
from foqs import AccessGrant, RetryPolicy, Worker
from foqs.contract.permissions import ROLES, Permission
from foqs.model.access import CREDENTIALS_MAX
from foqs.testing import MemoryQueue
from foqs.testing.memory_queue import _ALL_ROLES
from tests.support.waiting import PATIENCE_S

ONCE = RetryPolicy(deadline_ms=0)
PRINCIPALS = {"shop": {"mails": ["producer"]}, "mailer": {"mails*": "consumer"}, "idle": {}}


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with MemoryQueue(["mails", "mails.eu", "orders"], principals=PRINCIPALS) as queue:
        yield queue


def test_each_principal_does_what_its_roles_permit_and_no_more(queue: MemoryQueue) -> None:
    shop, mailer = queue.as_principal("shop").client(retry=ONCE), queue.as_principal("mailer").client(retry=ONCE)
    shop.enqueue("mails", "t", b"x")
    with pytest.raises(
        foqs.PermissionDeniedError, match="shop may not call dequeue in namespace 'mails': it lacks CON"
    ):
        shop.dequeue("mails", "t", 1)
    with pytest.raises(
        foqs.PermissionDeniedError, match="mailer may not call enqueue in namespace 'mails': it lacks E"
    ):
        mailer.enqueue("mails", "t", b"y")
    (item,) = mailer.dequeue("mails", "t", 10)
    assert item.payload == b"x"
    with pytest.raises(foqs.PermissionDeniedError, match="it lacks ALTER for bare item ids"):
        mailer.ack("mails", item.id)
    mailer.ack("mails", item)
    assert mailer.dequeue("mails.eu", "t", 1) == []
    with pytest.raises(foqs.PermissionDeniedError, match="in namespace 'orders'"):
        mailer.dequeue("orders", "t", 1)


def test_a_refused_call_has_no_effect_and_is_not_repeated(queue: MemoryQueue) -> None:
    began_ms = queue.clock.now_ms()
    with pytest.raises(foqs.PermissionDeniedError) as refused:
        queue.as_principal("mailer").client().enqueue("mails", "t", b"x")
    assert refused.value.nothing_done
    assert queue.clock.now_ms() == began_ms
    assert list(queue.client().topics("mails")) == []


def test_a_refusal_does_not_tell_whether_a_namespace_exists(queue: MemoryQueue) -> None:
    client, texts = queue.as_principal("idle").client(), set()
    for name in ("orders", "no-such"):
        with pytest.raises(foqs.PermissionDeniedError) as refused:
            client.enqueue(name, "t", b"x")
        texts.add(refused.value.message.partition(" (request")[0].replace(name, "NAME"))
    assert texts == {"idle may not call enqueue in namespace 'NAME': it lacks ENQUEUE"}


def test_clients_of_the_queue_itself_do_everything(queue: MemoryQueue) -> None:
    assert sum(Permission) == int(ROLES["owner"] | ROLES["operator"] | ROLES["admin"])
    assert set(_ALL_ROLES) == {"owner", "operator", "admin"}
    queue.client().enqueue("orders", "t", b"x")
    queue.admin().create_namespace("new", enqueues_per_minute_max=5)
    assert queue.admin().get_access().mode is foqs.AccessMode.ENFORCED


def test_operators_are_checked_too(queue: MemoryQueue) -> None:
    admin = queue.as_principal("shop").admin(retry=ONCE)
    with pytest.raises(foqs.PermissionDeniedError, match="createNamespace in namespace 'mine': it lacks MANAGE"):
        admin.create_namespace("mine")
    with pytest.raises(foqs.PermissionDeniedError, match="setAccessMode in this cluster: it lacks ACCESS"):
        admin.set_access_mode(foqs.AccessMode.OPEN)


async def test_asyncio_clients_are_checked_too(queue: MemoryQueue) -> None:
    caller = queue.as_principal("mailer")
    async with caller.async_client(retry=ONCE) as client, caller.async_admin(retry=ONCE) as admin:
        assert await client.dequeue("mails", "t", 1, wait=timedelta(seconds=1)) == []
        with pytest.raises(foqs.PermissionDeniedError, match="it lacks ENQUEUE"):
            await client.enqueue("mails", "t", b"x")
        with pytest.raises(foqs.PermissionDeniedError, match="it lacks READ"):
            await admin.peek_items("mails", "t", 10)


def test_changes_of_a_principal_hold_for_the_clients_that_it_has(queue: MemoryQueue) -> None:
    client, admin = queue.as_principal("shop").client(retry=ONCE), queue.admin()
    client.enqueue("mails", "t", b"1")
    admin.update_principal("shop", grants=[AccessGrant("orders", ["producer"])])
    with pytest.raises(foqs.PermissionDeniedError, match="it lacks ENQUEUE"):
        client.enqueue("mails", "t", b"2")
    client.enqueue("orders", "t", b"3")
    admin.update_principal("shop", enabled=False)
    with pytest.raises(foqs.PermissionDeniedError, match="while its principal is disabled"):
        client.enqueue("orders", "t", b"4")
    with pytest.raises(foqs.PermissionDeniedError, match="while its principal is disabled"):
        queue.as_principal("shop")
    admin.update_principal("shop", enabled=True)
    client.enqueue("orders", "t", b"5")
    assert [item.payload for item in queue.client().dequeue("orders", "t", 10)] == [b"3", b"5"]


def test_a_principal_that_was_made_anew_signs_in_anew(queue: MemoryQueue) -> None:
    client = queue.as_principal("shop").client(retry=ONCE)
    queue.admin().delete_principal("shop")
    with pytest.raises(foqs.PermissionDeniedError, match="it was revoked"):
        client.enqueue("mails", "t", b"1")
    with pytest.raises(foqs.NotFoundError, match="shop"):
        queue.as_principal("shop")
    queue.admin().create_principal("shop", [AccessGrant("*", ["producer"])])
    queue.as_principal("shop").client(retry=ONCE).enqueue("orders", "t", b"2")
    client.enqueue("orders", "t", b"3")


def test_a_principal_has_one_credential_however_often_it_is_asked_for(queue: MemoryQueue) -> None:
    for _ in range(CREDENTIALS_MAX + 2):
        queue.as_principal("shop")
    assert len(list(queue.admin().list_tokens("shop"))) == 1


def test_the_credential_outlives_years(queue: MemoryQueue) -> None:
    client = queue.as_principal("shop").client(retry=ONCE)
    for _ in range(3):
        queue.clock.advance(timedelta(days=300))
    client.enqueue("mails", "t", b"x")
    queue.client().enqueue("mails", "t", b"x")


def test_a_worker_of_a_principal_runs_until_it_is_idle(queue: MemoryQueue) -> None:
    seen: list[bytes] = []
    queue.as_principal("shop").client().enqueue("mails", "t", b"x")
    mailer = queue.as_principal("mailer").client()
    queue.run_until_idle(Worker(mailer, "mails", "t", lambda item: seen.append(item.payload)))
    assert seen == [b"x"]


def test_a_blocked_dequeue_of_a_principal_that_loses_its_grant_ends_with_a_refusal() -> None:
    with MemoryQueue("mails", waits_move_clock=False, principals={"mailer": {"mails": "consumer"}}) as queue:
        client, errors = queue.as_principal("mailer").client(retry=ONCE), []

        def wait() -> None:
            try:
                client.dequeue("mails", "t", 1, wait=timedelta(seconds=30))
            except foqs.FoqsError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        queue.admin().update_principal("mailer", grants=[])
        thread.join(PATIENCE_S)
        assert [type(error) for error in errors] == [foqs.PermissionDeniedError]


def test_planned_faults_come_to_whichever_principal_calls_next(queue: MemoryQueue) -> None:
    queue.fail_next("enqueue", foqs.OverloadedError("planned"))
    with pytest.raises(foqs.OverloadedError, match="planned"):
        queue.as_principal("shop").client(retry=ONCE).enqueue("mails", "t", b"x")


def test_a_queue_without_principals_has_no_limits_and_says_how_to_have_some() -> None:
    with MemoryQueue() as queue:
        with pytest.raises(ValueError, match="MemoryQueue\\(principals="):
            queue.as_principal("shop")
        assert queue.admin().get_access().mode is foqs.AccessMode.OPEN


@pytest.mark.parametrize(
    ("principals", "words"),
    [
        ({"shop": {"mails": "producr"}}, "producr"),
        ({"Shop": {}}, "Shop"),
        ({"shop": {"no good*name": "owner"}}, "no g"),
    ],
)
def test_a_wrong_name_or_role_is_refused_when_the_queue_is_made(
    principals: dict[str, dict[str, str]], words: str
) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match=words):
        MemoryQueue(principals=principals)


def test_an_unknown_principal_is_not_found(queue: MemoryQueue) -> None:
    with pytest.raises(foqs.NotFoundError, match="nobody-such"):
        queue.as_principal("nobody-such")
