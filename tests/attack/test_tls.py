"""TLS on the port, against callers who break it, abuse it, or do not speak it."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from foqs.model.access import AccessMode
from foqs.model.errors import ErrorCode, PermissionDeniedError
from foqs.transport.bounds import TransportLimits
from foqs.transport.tls.contexts import TlsFiles
from foqs.transport.tls.handshakes import WAITING_MAX
from foqs.transport.tls.layer import BARE_RECORDS_MAX
from foqs.wire.codec import Codec, structs
from foqs.wire.frames import FrameTimes
from tests.support.certificates import Authority
from tests.support.front_door import dequeue_request, enqueue_request
from tests.support.sign_in_world import SWEEP_MS, log_in, who
from tests.support.tls_records import APPLICATION_DATA, HANDSHAKE, KEY_UPDATE, RecordForger
from tests.support.tls_world import below_tls, call_is_done, hello_of, of_version, tls_world
from tests.support.waiting import PATIENCE_S

HEAD_BYTES = 4 + 8 + len("enqueue") + 4  # Up to the seqid of a framed call.
SAN = "foqs://prod/mailer"
OPEN, _, ENFORCED = AccessMode


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    issued = authority.issue("host", hosts=["127.0.0.1", "localhost"])
    return TlsFiles(cert_file=issued.cert_file, key_file=issued.key_file, ca_file=authority.ca_file, clients="wanted")


# ---- one port ----


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_plain_and_encrypted_calls_are_served_on_one_port(
    authority: Authority, files: TlsFiles, version: ssl.TLSVersion
) -> None:
    async with tls_world(files) as w:
        tls = of_version(authority.client_context(), version)
        async with w.connect(tls=tls) as client, w.connect() as plain:
            assert client.tls_version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]
            for count, size in ((1, 0), (1, 1), (4, 4_096), (90, 10_000)):
                for one, other in ((client, plain), (plain, client)):
                    payloads = [bytes([at]) * size for at in range(count)]
                    assert not (await one.call("enqueue", enqueue_request(*payloads))).response.errors
                    items = (await other.call("dequeue", dequeue_request(count))).response.items
                    assert sorted(item.payload for item in items) == payloads
        assert sorted(w.counts.handshakes) == ["done", "plain"]
        assert w.counts.errors == []


async def test_many_calls_at_once_are_all_answered(authority: Authority, files: TlsFiles) -> None:
    async with tls_world(files) as w, w.connect(tls=authority.client_context()) as client:
        for seqid in range(1, 101):
            client.send("enqueue", enqueue_request(b"x" * (seqid * 37)), seqid)
        replies = [await client.receive() for _ in range(100)]
        assert {reply.seqid for reply in replies} == set(range(1, 101))
        assert not any(reply.error for reply in replies)


async def test_a_plain_caller_is_told_to_use_tls_where_it_is_required(authority: Authority, files: TlsFiles) -> None:
    async with tls_world(files, is_required=True) as w:
        assert await call_is_done(w, authority.client_context())
        calls_count = len(w.queue.contexts)
        async with w.connect() as client:
            error = (await client.call("enqueue", enqueue_request(b"x"))).error
            assert isinstance(error, PermissionDeniedError)
            assert "this port speaks TLS alone" in error.message
            assert await client.is_closed()
        unframed = Codec().encode_call("enqueue", enqueue_request(b"x"), 1)[4:]
        async with w.connect() as client:
            await client.send_bytes(unframed)
            assert "this port speaks TLS alone" in str((await client.receive_unframed()).error)
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 20, b"\xff" * 20):
            async with w.connect() as client:
                await client.send_bytes(nonsense)
                assert await client.is_closed(), nonsense
        assert len(w.queue.contexts) == calls_count
        assert set(w.counts.errors) == {"plain_connection"}


async def test_the_head_of_a_plain_call_can_come_byte_by_byte(files: TlsFiles) -> None:
    async with tls_world(files, is_required=True) as w, w.connect() as client:
        for byte in Codec().encode_call("enqueue", enqueue_request(b"x"), 1)[:HEAD_BYTES]:
            await client.send_bytes(bytes([byte]))
            await asyncio.sleep(0)
        assert isinstance((await client.receive()).error, PermissionDeniedError)


# ---- certificates ----


async def test_a_certificate_with_a_row_makes_its_principal_and_others_prove_nothing(
    authority: Authority, files: TlsFiles, tmp_path: Path
) -> None:
    own = authority.issue("mailer", uris=[SAN], hosts=["mailer.example"])
    foreign = Authority(tmp_path, "foreign").issue("mailer", uris=[SAN])
    async with tls_world(files, mode=ENFORCED) as w:
        w.book.grant("mailer", {"ns": "worker"})
        w.book.certificate(SAN, "mailer")
        async with w.connect(tls=authority.client_context(own)) as client:
            assert (await client.call("enqueue", enqueue_request(b"x" * 10_000))).error is None
            assert (await who(client)).principal == "mailer"
            w.book.remove_certificate(SAN)
            assert await client.is_closed()
        for tls in (authority.client_context(own), authority.client_context()):
            async with w.connect(tls=tls) as client:
                assert (await who(client)).principal == "nobody"
                assert (await client.call("enqueue", enqueue_request(b"x"))).error.code is ErrorCode.PERMISSION_DENIED
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            async with w.connect(tls=authority.client_context(foreign)) as client:
                await who(client)
        assert w.counts.errors[-1] == "tls_handshake"


async def test_a_name_that_is_only_the_common_name_proves_nothing(authority: Authority, files: TlsFiles) -> None:
    async with tls_world(files, mode=ENFORCED) as w:
        w.book.grant("mailer", {"ns": "worker"})
        w.book.certificate("mailer", "mailer")
        async with w.connect(tls=authority.client_context(authority.issue("mailer"))) as client:
            assert (await who(client)).principal == "nobody"


async def test_where_certificates_are_required_a_caller_without_one_makes_no_call(
    authority: Authority, files: TlsFiles
) -> None:
    async with tls_world(replace(files, clients="required"), is_required=True) as w:
        assert await call_is_done(w, authority.client_context(authority.issue("one", uris=["foqs://one"])))
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await call_is_done(w, authority.client_context())
        await w.counts.until_error("tls_handshake")
        assert w.counts.handshakes == ["done", "failed"]


async def test_a_token_is_taken_over_tls_from_any_machine(authority: Authority, files: TlsFiles) -> None:
    async with tls_world(files, mode=ENFORCED) as w:
        w.book.grant("mailer", {"ns": "worker"})
        token, w.shown.address = w.book.token("mailer"), "10.0.0.9"
        async with w.connect(tls=authority.client_context()) as client:
            assert (await log_in(client, token)).error is None
            assert (await client.call("enqueue", enqueue_request(b"x"))).error is None
        async with w.connect() as plain:
            assert (await log_in(plain, token)).error.code is ErrorCode.PERMISSION_DENIED


# ---- callers that break the handshake ----


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_old_versions_are_refused(authority: Authority, files: TlsFiles, version: ssl.TLSVersion) -> None:
    context = authority.client_context()
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    async with tls_world(files) as w:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await call_is_done(w, of_version(context, version))
        await w.counts.until_error("tls_handshake")
        assert await call_is_done(w, authority.client_context())


async def test_tls_min_is_the_lowest_version_spoken(authority: Authority, files: TlsFiles) -> None:
    async with tls_world(replace(files, version_min="1.3")) as w:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await call_is_done(w, of_version(authority.client_context(), ssl.TLSVersion.TLSv1_2))
        assert await call_is_done(w, authority.client_context())


async def test_no_ticket_is_given_and_no_session_resumed(authority: Authority, files: TlsFiles) -> None:
    async with tls_world(files) as w:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = of_version(authority.client_context(), version)
            session = await asyncio.to_thread(_session_of, context, w.server.port)
            assert session is None or not session.has_ticket
            if version is ssl.TLSVersion.TLSv1_3:
                assert not await asyncio.to_thread(_is_reused, context, w.server.port, session)


def _session_of(context: ssl.SSLContext, port: int) -> ssl.SSLSession | None:
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as own,
    ):
        _call(own)
        return own.session


def _is_reused(context: ssl.SSLContext, port: int, session: ssl.SSLSession | None) -> bool:
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as own,
    ):
        _call(own)
        return bool(own.session_reused)


def _call(own: ssl.SSLSocket) -> None:
    own.settimeout(PATIENCE_S)
    own.sendall(Codec().encode_call("whoAmI", structs.WhoAmIRequest(), 1))
    assert own.recv(1)


HELLO = bytes.fromhex("160301")


@pytest.mark.parametrize(
    "sent",
    [HELLO + b"\xff\xff" + b"x" * 70_000, HELLO + b"\x00\x05" + b"\x01\x00\x00\x01\x00", HELLO + b"\x00\x00" * 50_000],
    ids=["too long", "cut", "empty"],
)
async def test_a_handshake_that_is_none_ends_the_connection_and_nothing_else(
    authority: Authority, files: TlsFiles, sent: bytes
) -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with tls_world(files) as w:
        async with w.connect() as client:
            with capture_logs() as logs:
                await client.send_bytes(sent)
                await w.counts.until_error("tls_handshake")
        assert [one["event"] for one in logs] == ["connection_refused"]
        assert await call_is_done(w, authority.client_context())
    assert failures == []


async def test_a_chain_of_hundreds_of_certificates_is_refused(authority: Authority, files: TlsFiles) -> None:
    own = authority.issue("many", uris=["foqs://many"])
    chain = Path(own.cert_file)
    chain.write_bytes(chain.read_bytes() * 600)  # noqa: ASYNC240
    async with tls_world(files) as w:
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await call_is_done(w, authority.client_context(own))
        await w.counts.until_error("tls_handshake")
        assert await call_is_done(w, authority.client_context())


async def test_who_ends_its_side_within_a_record_is_closed_and_has_called_nothing(
    authority: Authority, files: TlsFiles
) -> None:
    async with tls_world(files) as w:
        async with below_tls(w, authority.client_context()) as (own, writer):
            await own.call(writer)
            calls_count = len(w.queue.contexts)
            record = own.encrypted(Codec().encode_call("enqueue", enqueue_request(b"x"), 2))
            writer.write(record[:-1])
            writer.write_eof()
            assert await own.is_ended()
            assert len(w.queue.contexts) == calls_count
        await w.until_open(0)


SHORT = TransportLimits(sweep_ms=SWEEP_MS, frame_times=FrameTimes(first_frame_ms_max=200, header_ms_max=200))


@pytest.mark.parametrize("sent", [b"", HELLO, HELLO + b"\x02\x00" + b"x" * 100], ids=["nothing", "a head", "a part"])
async def test_who_opens_and_does_not_end_its_handshake_is_counted_and_turned_out(files: TlsFiles, sent: bytes) -> None:
    async with tls_world(files, bounds=SHORT) as w, w.connect() as client:
        await client.send_bytes(sent)
        await w.until_open(1)
        assert await client.is_closed()
        assert w.counts.errors == ["first_frame_deadline"]


async def test_a_handshake_whose_bytes_come_one_by_one_has_no_more_time(authority: Authority, files: TlsFiles) -> None:
    hello = hello_of(authority.client_context())
    async with tls_world(files, bounds=SHORT) as w, w.connect() as client:
        for byte in hello[:-1]:
            await client.send_bytes(bytes([byte]))
            await w.swept()
            if w.counts.errors:
                break
        assert await client.is_closed()
        assert w.counts.errors == ["first_frame_deadline"]


async def test_after_the_handshake_the_first_frame_has_the_same_deadline(authority: Authority, files: TlsFiles) -> None:
    async with tls_world(files, bounds=SHORT) as w, w.connect(tls=authority.client_context()) as client:
        assert await client.is_closed()
        assert w.counts.handshakes == ["done"]
        assert w.counts.errors == ["first_frame_deadline"]


async def test_a_record_whose_rest_does_not_come_is_counted_and_has_a_deadline(
    authority: Authority, files: TlsFiles
) -> None:
    async with tls_world(files, bounds=SHORT) as w, below_tls(w, authority.client_context()) as (own, writer):
        await own.call(writer)
        record = own.encrypted(b"\x00" * 10_000)
        writer.write(record[:5_000])
        (connection,) = w.connections()
        async with asyncio.timeout(PATIENCE_S):
            while connection.buffered_bytes != 5_000:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        await w.counts.until_error("record_deadline")
        assert connection.buffered_bytes == 0


async def test_bytes_that_were_changed_on_the_way_end_the_connection_before_they_are_a_call(
    authority: Authority, files: TlsFiles
) -> None:
    async with tls_world(files) as w, below_tls(w, authority.client_context()) as (own, writer):
        await own.call(writer)
        calls_count = len(w.queue.contexts)
        record = bytearray(own.encrypted(Codec().encode_call("enqueue", enqueue_request(b"x"), 2)))
        record[-1] ^= 1
        writer.write(bytes(record))
        await w.counts.until_error("tls_record")
        assert len(w.queue.contexts) == calls_count


async def test_records_that_were_sent_before_are_refused(authority: Authority, files: TlsFiles) -> None:
    async with tls_world(files) as w, below_tls(w, authority.client_context()) as (own, writer):
        await own.call(writer)
        calls_count = len(w.queue.contexts)
        record = own.encrypted(Codec().encode_call("enqueue", enqueue_request(b"x"), 2))
        writer.write(record)
        writer.write(record)
        await w.counts.until_error("tls_record")
        assert len(w.queue.contexts) <= calls_count + 1


async def test_every_cut_of_the_stream_is_the_same_stream(authority: Authority, files: TlsFiles) -> None:
    async with tls_world(files) as w, below_tls(w, authority.client_context(), byte_by_byte=True) as (own, writer):
        await own.call(writer)
        for byte in own.encrypted(Codec().encode_call("enqueue", enqueue_request(b"x"), 2)):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await own.reply()).error is None


async def test_a_thousand_small_records_do_not_hold_the_loop_and_are_all_read(
    authority: Authority, files: TlsFiles
) -> None:
    async with tls_world(files) as w, below_tls(w, authority.client_context()) as (own, writer):
        await own.call(writer)
        frame = Codec().encode_call("enqueue", enqueue_request(b"x" * 5_000), 2)
        writer.write(b"".join(own.encrypted(frame[at : at + 1]) for at in range(len(frame))))
        assert (await own.reply()).error is None


async def test_who_asks_for_new_keys_without_end_is_closed_and_does_not_hold_the_loop(
    authority: Authority, files: TlsFiles, tmp_path: Path
) -> None:
    context = authority.client_context()
    context.keylog_filename = str(tmp_path / "keys")
    async with tls_world(files) as w, below_tls(w, context) as (own, writer):
        await own.call(writer)
        forger = RecordForger(Path(context.keylog_filename), own.tls, sent_count=1)
        writer.write(b"".join(forger.record(HANDSHAKE, KEY_UPDATE) for _ in range(BARE_RECORDS_MAX)))
        writer.write(forger.record(APPLICATION_DATA, Codec().encode_call("enqueue", enqueue_request(b"x"), 2)))
        assert (await own.reply()).error is None
        assert w.counts.errors == []
        writer.write(b"".join(forger.record(HANDSHAKE, KEY_UPDATE) for _ in range(2_000)))
        await w.counts.until_error("tls_record")
        answer_bytes = 0
        while data := await own.reader.read(65_536):
            answer_bytes += len(data)
        assert answer_bytes < 1_000
        assert await call_is_done(w, authority.client_context())


async def test_the_time_for_a_record_begins_anew_with_each_and_not_with_each_byte(
    authority: Authority, files: TlsFiles
) -> None:
    unswept = TransportLimits(sweep_ms=3_600_000)  # A sweep would find the record of the test too old.
    async with tls_world(files, bounds=unswept) as w, below_tls(w, authority.client_context()) as (own, writer):
        await own.call(writer)
        (connection,) = w.connections()
        stream = own.encrypted(b"\x00\x01\x00\x00" + b"x" * 40_000)

        async def send(piece: bytes, buffered_bytes: int) -> float:
            connection._record_since_s = -1e9  # All times before are long ago.
            writer.write(piece)
            async with asyncio.timeout(PATIENCE_S):
                while connection._record_bytes != buffered_bytes:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0)
            return connection._record_since_s

        record_bytes = 5 + int.from_bytes(stream[3:5], "big")
        assert await send(stream[:1_000], 1_000) > 0
        assert await send(stream[1_000:2_000], 2_000) == -1e9
        assert await send(stream[2_000 : record_bytes + 1_000], 1_000) > 0
        assert await send(stream[record_bytes + 1_000 : record_bytes + 3_000], 3_000) == -1e9


# ---- callers that do not read ----


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_a_peer_that_does_not_take_its_responses_is_turned_out_as_without_tls(
    authority: Authority, files: TlsFiles, is_encrypted: bool
) -> None:
    bounds = TransportLimits(sweep_ms=SWEEP_MS, write_stall_ms_max=300, write_buffer_bytes_max=100_000)
    calls = b"".join(
        Codec().encode_call(verb, request, seqid)
        for seqid in range(1, 200, 2)
        for verb, request in (("enqueue", enqueue_request(b"x" * 10_000)), ("dequeue", dequeue_request(1)))
    )
    async with (
        tls_world(files, bounds=bounds) as w,
        below_tls(w, authority.client_context() if is_encrypted else None) as (own, writer),
    ):
        await own.call(writer)
        (connection,) = w.connections()
        most_bytes = 0
        async with asyncio.timeout(PATIENCE_S):
            while w.counts.open:
                if writer.transport.get_write_buffer_size() < len(calls):
                    writer.write(own.encrypted(calls))
                await asyncio.sleep(0.001)
                most_bytes = max(most_bytes, connection.unsent_bytes())
        assert w.counts.errors == ["write_stall"]
        assert 100_000 < most_bytes < 1_000_000


async def test_answers_are_sent_although_the_peer_has_ended_its_stream(authority: Authority, files: TlsFiles) -> None:
    async with tls_world(files) as w, below_tls(w, authority.client_context()) as (own, writer):
        await own.call(writer)
        w.queue.gate = asyncio.Event()
        writer.write(own.encrypted(Codec().encode_call("enqueue", enqueue_request(b"x"), 2)))
        await w.queue.until_running(1)
        with suppress(ssl.SSLError):
            own.tls.unwrap()
        writer.write(own.outgoing.read())
        writer.write_eof()
        w.queue.gate.set()
        assert (await own.reply()).seqid == 2
        assert await own.is_ended()


# ---- floods ----


async def test_lost_connections_are_no_work_for_the_garbage_collector(authority: Authority, files: TlsFiles) -> None:
    async with tls_world(files) as w, w.connect(tls=authority.client_context()) as served:
        async with below_tls(w, authority.client_context()), w.connect() as begun:
            await begun.send_bytes(HELLO)
            assert (await served.call("enqueue", enqueue_request(b"x"))).error is None
            lost = [weakref.ref(connection) for connection in w.connections()]
            gc.disable()
            served.reset()
        try:
            await w.until_open(0)
            assert not any(ref() for ref in lost)
        finally:
            gc.enable()


async def test_handshakes_beyond_the_bound_are_refused_and_those_before_are_served(
    authority: Authority, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foqs.transport.tls.handshakes.WAITING_MAX", 2)
    assert WAITING_MAX == 1_000
    async with tls_world(files) as w:
        w.server._handshakes[0]._left_s = -0.2  # Others have just taken what there was.
        hello = hello_of(authority.client_context())
        async with w.connect() as one, w.connect() as two, w.connect() as three:
            for client in (one, two, three):
                await client.send_bytes(hello)
            await w.counts.until_handshakes(1)
            assert w.counts.handshakes == ["refused"]
            assert w.server.handshakes_waiting == 2
            assert await three.is_closed()
        await w.until_open(0)
        assert w.server.handshakes_waiting == 0
        assert await call_is_done(w, authority.client_context())


async def test_bytes_that_wait_for_the_turn_of_their_handshake_are_counted_and_its_time_is_that_of_the_first_frame(
    authority: Authority, files: TlsFiles
) -> None:
    bounds = replace(SHORT, frame_times=FrameTimes(first_frame_ms_max=200, header_ms_max=0))
    async with tls_world(files, bounds=bounds) as w, w.connect() as client:
        w.server._handshakes[0]._left_s = -1e6  # Others have just taken what there was.
        sent = hello_of(authority.client_context()) + (b"\x17\x03\x03\x00\x01x" * 1_000)
        await client.send_bytes(sent)
        await w.until_open(1)
        (connection,) = w.connections()
        async with asyncio.timeout(PATIENCE_S):
            while connection.buffered_bytes != len(sent):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        assert await client.is_closed()
        assert w.counts.errors == ["first_frame_deadline"]
        assert connection.buffered_bytes == 0
