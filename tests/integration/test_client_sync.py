from __future__ import annotations

import inspect
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import foqs
from foqs.client.sync.connections import ClientConnection
from foqs.model import limits
from foqs.model.calls import ExportSplit
from foqs.wire import codec as wire
from tests.support.client_host import HostThread, Peer, refused_address, running_host, scripted_peer, times_out
from tests.support.waiting import PATIENCE_MS, PATIENCE_S, longer

ONCE = foqs.RetryPolicy(deadline_ms=0)
S = wire.structs


@pytest.fixture
def host() -> Iterator[HostThread]:
    with running_host() as host:
        yield host


@pytest.fixture
def client(host: HostThread) -> Iterator[foqs.Client]:
    with foqs.Client(host.address) as client:
        yield client


def topic_answer(topic: str) -> Any:
    return S.ActiveTopicsResponse(topics=[S.TopicStats(topic, 1, 0, 0, 0, 0, 0)], next_page_token="")


def answers(peer: Peer, topic: str) -> None:
    method, seqid, _ = peer.next_call()
    peer.answer(method, seqid, topic_answer(topic))


def names(client: foqs.Client) -> list[str]:
    return [stats.topic for stats in client.topics("ns")]


def idle_connections(client: foqs.Client) -> list[ClientConnection]:
    return list(client._pool._idle)


def test_the_failures_of_many_are_raised_with_what_was_done(client: foqs.Client) -> None:
    news = [foqs.NewItem("t", b""), foqs.NewItem("t", bytes(limits.PAYLOAD_BYTES_DEFAULT + 1))]
    with pytest.raises(foqs.BatchError) as failed:
        client.enqueue_many("ns", news)
    assert {position: type(error) for position, error in failed.value.errors.items()} == {1: foqs.TooLargeError}
    [item] = client.dequeue("ns", "t")
    assert list(failed.value.ids) == [item.id, ""]
    for settle in (client.ack, client.nack, client.release, lambda *given: client.extend(*given, lease_ms=5_000)):
        with pytest.raises(foqs.BatchError) as failed:
            settle("ns", ["lost.1", "lost.2"])
        assert failed.value.done_count == 0


SILENT_CALLS: dict[str, Callable[[foqs.Client, foqs.AdminClient, Any], object]] = {
    "enqueue": lambda client, _, within: client.enqueue("ns", "t", b"", **within),
    "enqueue_many": lambda client, _, within: client.enqueue_many("ns", [foqs.NewItem("t", b"")], **within),
    "dequeue": lambda client, _, within: client.dequeue("ns", "t", **within),
    "ack": lambda client, _, within: client.ack("ns", "a.1", **within),
    "nack": lambda client, _, within: client.nack("ns", "a.1", **within),
    "release": lambda client, _, within: client.release("ns", "a.1", **within),
    "extend": lambda client, _, within: client.extend("ns", "a.1", 5_000, **within),
    "topics": lambda client, _, within: next(client.topics("ns", **within)),
    "shard_map": lambda client, _, within: client.shard_map("ns", **within),
    "create_namespace": lambda _, admin, within: admin.create_namespace("ns", **within),
    "update_namespace": lambda _, admin, within: admin.update_namespace("ns", **within),
    "get_namespace": lambda _, admin, within: admin.get_namespace("ns", **within),
    "list_namespaces": lambda _, admin, within: next(admin.list_namespaces(**within)),
    "delete_namespace": lambda _, admin, within: admin.delete_namespace("ns", **within),
    "recover_namespace": lambda _, admin, within: admin.recover_namespace(1, **within),
    "create_job": lambda _, admin, within: admin.create_job("ns", "job", **within),
    "create_bulk_job": lambda _, admin, within: admin.create_bulk_job("ns", foqs.BulkAction.COUNT, **within),
    "undo_bulk_job": lambda _, admin, within: admin.undo_bulk_job("ns", "job", **within),
    "update_job": lambda _, admin, within: admin.update_job("ns", "job", **within),
    "get_job": lambda _, admin, within: admin.get_job("ns", "job", **within),
    "list_jobs": lambda _, admin, within: next(iter(admin.list_jobs("ns", **within))),
    "get_rates": lambda _, admin, within: admin.get_rates("ns", **within),
    "namespace_rates": lambda _, admin, within: admin.namespace_rates("ns", **within),
    "get_history": lambda _, admin, within: admin.get_history("ns", **within),
    "plan_export": lambda _, admin, within: admin.plan_export("ns", **within),
    "export_items": lambda _, admin, within: admin.export_items("ns", ExportSplit(0, 0, 1), **within),
    "iterate_items": lambda _, admin, within: next(iter(admin.iterate_items("ns", **within))),
    "peek_items": lambda _, admin, within: admin.peek_items("ns", "t", **within),
    "get_item": lambda _, admin, within: admin.get_item("ns", "a", **within),
    "forget_dedup_ids": lambda _, admin, within: admin.forget_dedup_ids("ns", ["a"], **within),
    "delete_items": lambda _, admin, within: admin.delete_items("ns", ["a"], **within),
    "list_dead_letters": lambda _, admin, within: admin.list_dead_letters("ns", "t", **within),
    "redrive_dead_letters": lambda _, admin, within: admin.redrive_dead_letters("ns", "t", **within),
    "purge_dead_letters": lambda _, admin, within: admin.purge_dead_letters("ns", "t", **within),
    "set_topic_policy": lambda _, admin, within: admin.set_topic_policy("ns", "t", weight=2, **within),
    "set_topic_policies": lambda _, admin, within: admin.set_topic_policies(
        "ns", [foqs.TopicPolicyChange("t", weight=2)], **within
    ),
    "get_topic_policy": lambda _, admin, within: admin.get_topic_policy("ns", "t", **within),
    "create_group": lambda _, admin, within: admin.create_group("ns", "t", "g", **within),
    "delete_group": lambda _, admin, within: admin.delete_group("ns", "t", "g", **within),
    "list_groups": lambda _, admin, within: next(iter(admin.list_groups("ns", **within))),
    "list_consumers": lambda _, admin, within: next(iter(admin.list_consumers("ns", **within))),
    "explain": lambda _, admin, within: admin.explain("ns", "t", **within),
    "release_leases": lambda _, admin, within: admin.release_leases("ns", "worker", **within),
    "list_topic_policies": lambda _, admin, within: next(iter(admin.list_topic_policies("ns", **within))),
    "list_shards": lambda _, admin, within: admin.list_shards(**within),
    "add_shard": lambda _, admin, within: admin.add_shard(1, "mysql://h/s1", **within),
    "update_shard": lambda _, admin, within: admin.update_shard(1, **within),
    "remove_shard": lambda _, admin, within: admin.remove_shard(1, **within),
    "ungate_slot": lambda _, admin, within: admin.ungate_slot(7, force=True, **within),
    "list_hosts": lambda _, admin, within: admin.list_hosts(**within),
    "host_status": lambda _, admin, within: admin.host_status(**within),
    "list_audit": lambda _, admin, within: admin.list_audit(**within),
    "who_am_i": lambda _, admin, within: admin.who_am_i(**within),
    "create_principal": lambda _, admin, within: admin.create_principal("p", **within),
    "update_principal": lambda _, admin, within: admin.update_principal("p", enabled=True, **within),
    "delete_principal": lambda _, admin, within: admin.delete_principal("p", **within),
    "list_principals": lambda _, admin, within: next(iter(admin.list_principals(**within))),
    "create_token": lambda _, admin, within: admin.create_token("p", **within),
    "revoke_token": lambda _, admin, within: admin.revoke_token("a" * 12, **within),
    "list_tokens": lambda _, admin, within: next(iter(admin.list_tokens("p", **within))),
    "add_certificate": lambda _, admin, within: admin.add_certificate("p", "foqs://prod/p", **within),
    "remove_certificate": lambda _, admin, within: admin.remove_certificate("foqs://prod/p", **within),
    "set_access_mode": lambda _, admin, within: admin.set_access_mode(foqs.AccessMode.OPEN, **within),
    "get_access": lambda _, admin, within: admin.get_access(**within),
    "list_refusals": lambda _, admin, within: admin.list_refusals(**within),
}


@pytest.mark.parametrize("verb", SILENT_CALLS)
def test_a_call_ends_at_its_deadline_and_not_at_the_timeout_of_an_attempt(verb: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # The system accepts, and nobody answers.
        address = "127.0.0.1:{1}".format(*silent.getsockname())
        with foqs.Client(address, timeout_ms=60_000) as client, foqs.AdminClient(address, timeout_ms=60_000) as admin:
            for deadline_ms in longer(60):  # A busy machine needs a longer one to send the call.
                began_s = time.monotonic()
                with pytest.raises((foqs.OutcomeUnknownError, foqs.NotSentError)) as ended:
                    SILENT_CALLS[verb](client, admin, {"deadline": timedelta(milliseconds=deadline_ms)})
                took_s = time.monotonic() - began_s
                if ended.type is foqs.OutcomeUnknownError:
                    break
            assert ended.type is foqs.OutcomeUnknownError, "it was never sent"
            assert deadline_ms / 1_200 < took_s < PATIENCE_S / 2


def test_every_verb_that_takes_a_deadline_is_tried_with_one() -> None:
    def with_deadline(cls: type) -> set[str]:
        methods = inspect.getmembers(cls, inspect.isfunction)
        return {name for name, method in methods if "deadline" in inspect.signature(method).parameters}

    found = {name for name in with_deadline(foqs.Client) | with_deadline(foqs.AdminClient) if name[0] != "_"}
    assert found == set(SILENT_CALLS)


def test_a_fork_cannot_use_the_client_of_its_parent() -> None:
    program = (
        "import os, foqs\n"
        "client = foqs.Client('127.0.0.1:1')\n"
        "child = os.fork()\n"
        "if child:\n"
        "    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "try:\n"
        "    client.enqueue('ns', 't', b'')\n"
        "except foqs.ClientClosedError as error:\n"
        "    assert 'make a client in each process' in str(error)\n"
        "    os._exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 7, done.stderr


def test_batches_in_flight_together_bring_every_item_once_in_the_order_of_its_id(host: HostThread) -> None:
    with foqs.Client(host.address, batch_items_max=10) as client:
        news = [foqs.NewItem("t", b"%d" % number) for number in range(95)]
        result = client.enqueue_many("ns", news, bulk=True, calls_in_flight=4, deadline_ms=PATIENCE_MS)
        assert not result.errors
        items = {item.id: item.payload for item in client.dequeue("ns", "t", 100)}
        assert [items[item_id] for item_id in result.ids] == [new.payload for new in news]


def test_no_more_calls_are_in_flight_than_the_client_has_connections(host: HostThread) -> None:
    with (
        foqs.Client(host.address, connections_max=2) as client,
        pytest.raises(foqs.InvalidArgumentError, match=r"calls_in_flight 3 is not a whole number within 1\.\.2"),
    ):
        client.enqueue_many("ns", [], calls_in_flight=3)


def test_errors_of_the_host_are_raised_typed(client: foqs.Client) -> None:
    with pytest.raises(foqs.UnknownNamespaceError):
        client.dequeue("nowhere", "t")
    with pytest.raises(foqs.InvalidArgumentError):
        client.enqueue("ns", "t", "text")  # type: ignore[arg-type]
    assert len(idle_connections(client)) == 1, "a declared error leaves the connection usable"


def test_answers_larger_than_one_read_arrive_whole(client: foqs.Client) -> None:
    payloads = [bytes([n]) * limits.PAYLOAD_BYTES_DEFAULT for n in range(100)]
    client.enqueue_many("ns", [foqs.NewItem("t", payload) for payload in payloads])
    assert [item.payload for item in client.dequeue("ns", "t", 100)] == payloads


def test_threads_share_the_client_and_their_enqueues_share_calls(host: HostThread) -> None:
    with foqs.Client(host.address, connections_max=2) as client, ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda n: client.enqueue("ns", "t", b"%d" % n), range(200)))
        assert len(set(ids)) == 200
        assert len(idle_connections(client)) <= 2


def test_the_late_answer_of_a_timed_out_call_reaches_nobody() -> None:
    def late(peer: Peer) -> None:
        peer.next_call()
        peer.wait_for_close()

    with (
        scripted_peer(late, lambda peer: answers(peer, "second")) as address,
        foqs.Client(address, retry=ONCE) as client,
    ):
        assert f"no answer from {address} within " in times_out(client, lambda: names(client))
        assert idle_connections(client) == []
        assert names(client) == ["second"]


def of_another_seqid(seqid: int) -> bytes:
    return wire.Codec().encode_reply(wire.METHODS["getActiveTopics"], topic_answer("stranger"), seqid + 1)


def twice(seqid: int) -> bytes:
    return wire.Codec().encode_reply(wire.METHODS["getActiveTopics"], topic_answer("t"), seqid) * 2


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (lambda _: b"\x7f\xff\xff\xff", "."),
        (lambda _: b"\x00\x00\x00\x00", "."),
        (lambda _: b"\x00\x00\x00\x05hello", "."),
        (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", "."),
        (of_another_seqid, "seqid"),
        (twice, "behind the answer"),
    ],
)
def test_what_is_not_the_answer_alone_closes_the_connection(sent: Callable[[int], bytes], told: str) -> None:
    def babble(peer: Peer) -> None:
        _, seqid, _ = peer.next_call()
        peer.send(sent(seqid))
        peer.wait_for_close()

    with (
        scripted_peer(babble, lambda peer: answers(peer, "mine")) as address,
        foqs.Client(address, retry=ONCE) as client,
    ):
        with pytest.raises(foqs.OutcomeUnknownError, match=told):
            names(client)
        assert idle_connections(client) == []
        assert names(client) == ["mine"]


def test_an_address_that_refuses_is_passed_over_and_when_all_do_nothing_was_done(host: HostThread) -> None:
    with foqs.Client([refused_address(), host.address], retry=ONCE, random=lambda: 0.0) as client:
        assert client.enqueue("ns", "t", b"")
    policy = foqs.RetryPolicy(deadline_ms=30, backoff_ms=1)
    with (
        foqs.Client(f"{refused_address()},{refused_address()}", retry=policy) as client,
        pytest.raises(foqs.NotSentError, match="no connection"),
    ):
        client.enqueue("ns", "t", b"")


def test_after_an_application_error_the_connection_is_not_used_again() -> None:
    def broken(peer: Peer) -> None:
        _, seqid, _ = peer.next_call()
        peer.send(wire.Codec().encode_application_error(b"getActiveTopics", 6, "defect 17", seqid))
        peer.wait_for_close()

    with (
        scripted_peer(broken, lambda peer: answers(peer, "fresh")) as address,
        foqs.Client(address, retry=ONCE) as client,
    ):
        with pytest.raises(foqs.InternalError, match="defect 17"):
            names(client)
        assert names(client) == ["fresh"]


def test_an_answer_may_come_byte_by_byte() -> None:
    def slow(peer: Peer) -> None:
        method, seqid, _ = peer.next_call()
        for byte in wire.Codec().encode_reply(wire.METHODS[method], topic_answer("t"), seqid):
            peer.send(bytes([byte]))

    with scripted_peer(slow) as address, foqs.Client(address, retry=ONCE) as client:
        assert names(client) == ["t"]


def test_an_idle_connection_that_the_host_closed_is_not_used_again() -> None:
    with (
        scripted_peer(lambda peer: answers(peer, "one"), lambda peer: answers(peer, "two")) as address,
        foqs.Client(address, retry=ONCE) as client,
    ):
        assert names(client) == ["one"]
        [connection] = idle_connections(client)
        assert connection._poll.poll(PATIENCE_S * 1000), "the host closes"
        assert names(client) == ["two"]


def test_a_lost_answer_is_asked_for_again_where_that_is_safe_and_nowhere_else() -> None:
    def lose(peer: Peer) -> None:
        peer.next_call()

    def ack_gone(peer: Peer) -> None:
        method, seqid, _ = peer.next_call()
        gone = S.ItemError(code=foqs.ErrorCode.NOT_FOUND, message="gone")
        peer.answer(method, seqid, S.BatchResponse(errors={0: gone}))

    with scripted_peer(lose, lose, ack_gone) as address, foqs.Client(address) as client:
        with pytest.raises(foqs.OutcomeUnknownError):
            client.enqueue("ns", "t", b"")
        assert client.ack("ns", "a.1") == {}


def test_a_call_waits_no_longer_than_its_timeout_for_a_free_connection() -> None:
    asked, over = threading.Event(), threading.Event()

    def hang(peer: Peer) -> None:
        peer.next_call()
        asked.set()
        assert over.wait(PATIENCE_S)

    with (
        scripted_peer(hang) as address,
        foqs.Client(address, connections_max=1, timeout_ms=50, retry=ONCE) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        busy = threads.submit(client.dequeue, "ns", "t", wait_ms=limits.WAIT_MS_MAX)
        assert asked.wait(PATIENCE_S)
        with pytest.raises(foqs.OverloadedError, match="connections of the client are busy"):
            names(client)
        client.close()
        over.set()
        assert isinstance(busy.exception(PATIENCE_S), foqs.OutcomeUnknownError | foqs.ClientClosedError)


def test_close_ends_calls_in_flight_and_later_ones(host: HostThread) -> None:
    client = foqs.Client(host.address)
    with ThreadPoolExecutor(1) as threads:
        polling = threads.submit(client.dequeue, "ns", "t", wait_ms=30_000)
        host.call(host.queue.long_poll_began.wait())
        client.close()
        assert isinstance(polling.exception(PATIENCE_S), foqs.ClientClosedError)
    with pytest.raises(foqs.ClientClosedError):
        client.enqueue("ns", "t", b"")
    client.close()


def test_a_host_that_does_nothing_is_left_for_the_next_one_and_makes_room_for_it() -> None:
    with running_host() as standby, running_host() as owner:
        standby.queue.failure = foqs.UnavailableError("a standby", retry_after_ms=60_000, nothing_done=True)
        settings: dict[str, Any] = {"random": lambda: 0.0, "retry": ONCE, "connections_max": 1}
        with foqs.Client([standby.address, owner.address], **settings) as client:
            client.enqueue("ns", "t", b"x")
            assert standby.queue.ready["ns", "t"], "it is asked first"
            for _ in range(3):
                assert names(client) == []
            assert [str(connection.address) for connection in idle_connections(client)] == [owner.address]
            owner.queue.failure = standby.queue.failure
            with pytest.raises(foqs.UnavailableError) as refused:
                names(client)
            assert refused.value.nothing_done
            standby.queue.failure = None
            assert names(client) == ["t"], "one that rests is asked all the same when the others do nothing either"
