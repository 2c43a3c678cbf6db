"""Clients with tokens: each connection signs in before it calls, and goes on with no token that is refused."""

from __future__ import annotations

import asyncio
import math
import pickle
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from foqs import AccessGrant, AccessMode, AdminClient, AsyncAdminClient, AsyncClient, Client
from foqs.cli.main import cli
from foqs.client.client_errors import ClientClosedError, NotSentError
from foqs.client.client_options import Options
from foqs.client.own_token import OwnToken, renew_at_ms
from foqs.client.retry import RetryPolicy
from foqs.model import access_tokens
from foqs.model.calls import Identity
from foqs.model.errors import InvalidArgumentError, OverloadedError, PermissionDeniedError
from foqs.wire.codec import UNKNOWN_METHOD, Codec, Method
from foqs.wire.frames import LENGTH_BYTES
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import PATIENCE_S, eventually

TOKEN = access_tokens.new_token(bytes(range(access_tokens.RANDOM_BYTES)))


@asynccontextmanager
async def enforced(meta_url: str, shard_url: str) -> AsyncIterator[tuple[RunningHost, str, str]]:
    """A host with enforced access, a token of its administrator, and one of mailer, which works in `jobs`."""
    async with running_host(meta_url, {0: shard_url}) as host:
        await host.admin.create_principal("root", [AccessGrant("*", ("admin", "owner"))])
        await host.admin.create_principal("mailer", [AccessGrant("jobs", ("worker",))])
        root = (await host.admin.create_token("root")).token
        mailer = (await host.admin.create_token("mailer")).token
        await host.admin.set_access_mode(AccessMode.ENFORCED)
        yield host, root, mailer


def at(host: RunningHost) -> str:
    return f"127.0.0.1:{host.host.port}"


async def enqueue(client: Any, **more: Any) -> None:
    if isinstance(client, Client):
        await asyncio.to_thread(client.enqueue, "jobs", "t", b"x", **more)
    else:
        await client.enqueue("jobs", "t", b"x", **more)


def work(client: Client) -> bytes:
    """Enqueue, dequeue and ack, on whichever connections the client takes."""
    client.enqueue("jobs", "t", b"x")
    (item,) = client.dequeue("jobs", "t", count=1, wait_ms=20_000)
    client.ack("jobs", item.receipt)
    return item.payload


async def test_clients_with_a_token_or_its_file_do_what_it_permits_and_nothing_else(
    meta_url: str, shard_urls: dict[int, str], tmp_path: Path
) -> None:
    file = tmp_path / "mailer.token"
    async with enforced(meta_url, shard_urls[0]) as (host, _, token):
        file.write_text(token + "\n")
        for given in ({"token": token}, {"token_file": file}):
            with Client(at(host), **given) as client:
                assert await asyncio.to_thread(work, client) == b"x"
                with pytest.raises(PermissionDeniedError, match="mailer may not call enqueue in namespace 'other'"):
                    await asyncio.to_thread(client.enqueue, "other", "t", b"x")
            async with AsyncClient(at(host), **given) as client:
                await client.enqueue("jobs", "t", b"y")
                assert [item.payload for item in await client.dequeue("jobs", "t", wait_ms=20_000)] == [b"y"]


async def test_a_client_whose_token_was_replaced_in_its_file_goes_on_with_the_new_one(
    meta_url: str, shard_urls: dict[int, str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    async with enforced(meta_url, shard_urls[0]) as (host, root, token):
        file.write_text(token)
        async with (
            AsyncAdminClient(at(host), token=root) as admin,
            AsyncClient(at(host), token_file=file) as client,
        ):
            assert (await admin.who_am_i()).principal == "root"
            await client.enqueue("jobs", "t", b"1")
            made = await admin.create_token("mailer")
            (old,) = [one async for one in admin.list_tokens("mailer") if one.id != made.info.id]
            file.write_text(made.token)
            await admin.revoke_token(old.id)

            async def stored() -> bool:
                """The host ends the connections of the old token; whatever was in flight then may fail once."""
                try:
                    await client.enqueue("jobs", "t", b"2")
                except PermissionDeniedError:
                    return False
                return True

            await eventually(stored, bool)
            with pytest.raises(PermissionDeniedError):
                await asyncio.to_thread(lambda: Client(at(host), token=token).enqueue("jobs", "t", b"3"))


@pytest.mark.parametrize("make", [Client, AsyncClient])
async def test_a_refused_token_is_final_and_its_connection_makes_no_call(
    meta_url: str, shard_urls: dict[int, str], make: Any
) -> None:
    async with running_host(meta_url, {0: shard_urls[0]}) as host:  # Its access is open.
        client = make(at(host), token=TOKEN, connections_max=1)
        for _ in range(2):  # The second call does not find the connection of the first one.
            with pytest.raises(PermissionDeniedError):
                await enqueue(client)
        await client.close() if make is AsyncClient else client.close()
        assert (await host.client.dequeue("jobs", "t", wait_ms=0)) == []


class OtherHost:
    """A host that answers `authenticate` in its own way. It notes the names of the calls that come."""

    def __init__(self, answer: Callable[[Codec, Method, int], bytes]) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.called: list[str] = []
        self.has_called = threading.Event()
        self.has_hung_up = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        codec = Codec()
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with closing(connection), connection.makefile("rb") as frames:
                head = frames.read(LENGTH_BYTES)
                if len(head) < LENGTH_BYTES:
                    continue
                method, seqid, _, _ = codec.decode_call(frames.read(int.from_bytes(head, "big")))
                self.called.append(method.name)
                self.has_called.set()
                connection.sendall(self._answer(codec, method, seqid))
                with suppress(ConnectionError):
                    frames.read()
            self.has_hung_up.set()

    def close(self) -> None:
        self._listening.close()


def knows_no_tokens(codec: Codec, method: Method, seqid: int) -> bytes:
    return codec.encode_application_error(method.name_bytes, UNKNOWN_METHOD, "unknown", seqid)


def has_no_room(codec: Codec, method: Method, seqid: int) -> bytes:
    return codec.encode_error(method, OverloadedError("mailer has too many connections", retry_after_ms=1_000), seqid)


def is_silent(codec: Codec, method: Method, seqid: int) -> bytes:
    return b""


@contextmanager
def other_host(answer: Callable[[Codec, Method, int], bytes]) -> Iterator[OtherHost]:
    with closing(OtherHost(answer)) as host:
        yield host


@pytest.mark.parametrize("make", [Client, AsyncClient])
async def test_a_host_that_knows_no_tokens_gets_no_other_call(make: Any) -> None:
    with other_host(knows_no_tokens) as old_host:
        client = make(f"127.0.0.1:{old_host.port}", token=TOKEN, retry=RetryPolicy(deadline_ms=0))
        with pytest.raises(NotSentError, match="does not know tokens"):
            await enqueue(client)
        await client.close() if make is AsyncClient else client.close()
        assert set(old_host.called) == {"authenticate"}


@pytest.mark.parametrize("make", [Client, AsyncClient])
async def test_a_host_without_room_for_a_principal_is_passed_over(
    meta_url: str, shard_urls: dict[int, str], make: Any
) -> None:
    async with enforced(meta_url, shard_urls[0]) as (host, _, token):
        with other_host(has_no_room) as full:
            while not full.called:  # A client begins with any host.
                client = make(f"127.0.0.1:{full.port},{at(host)}", token=token)
                await enqueue(client)
                await client.close() if make is AsyncClient else client.close()


async def test_a_client_that_is_closed_in_a_sign_in_leaves_no_connection() -> None:
    with other_host(is_silent) as host:
        client = AsyncClient(f"127.0.0.1:{host.port}", token=TOKEN)
        call = asyncio.create_task(enqueue(client))
        assert await asyncio.to_thread(host.has_called.wait, PATIENCE_S)
        await client.close()
        with pytest.raises(ClientClosedError):
            await call
        assert await asyncio.to_thread(host.has_hung_up.wait, PATIENCE_S)


def test_a_client_whose_clock_is_ahead_does_not_sign_in_for_each_call() -> None:
    taken = Identity("mailer", 1_000_000, [])
    assert renew_at_ms(taken, wall_ms=800_000, clock_ms=7) == 7 + 140_000
    assert renew_at_ms(taken, wall_ms=999_000, clock_ms=7) == 7 + 500
    for wall_ms in (1_000_000, 9_000_000):
        assert renew_at_ms(taken, wall_ms, clock_ms=7) == 7 + 30_000
    assert renew_at_ms(Identity("mailer", 0, []), wall_ms=1, clock_ms=7) == math.inf


def test_a_token_is_in_no_pickle() -> None:
    with pytest.raises(TypeError, match="token_file"):
        pickle.dumps(Options(token=OwnToken(TOKEN, None, without_tls=False)))


def test_a_token_is_checked_before_it_is_sent_and_goes_to_this_machine_alone() -> None:
    with pytest.raises(InvalidArgumentError, match="copy it whole"):
        Client("127.0.0.1", token=TOKEN[:-1])
    with pytest.raises(InvalidArgumentError, match="give one of them"):
        Client("127.0.0.1", token=TOKEN, token_file="x")
    for address in ("queue-a.example:7600", "10.0.0.7:7600", "[2001:db8::1]:7600", "127.0.0.1, 10.0.0.7"):
        with pytest.raises(InvalidArgumentError, match="over a plain connection"):
            Client(address, token=TOKEN)
        Client(address, token=TOKEN, tokens_without_tls=True).close()
    for address in ("localhost", "127.0.0.1", "127.9.9.9:1", "[::1]:7600"):
        Client(address, token=TOKEN).close()


def test_a_file_that_is_no_token_is_told_without_its_text(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with closing(Client("127.0.0.1:1", token_file=file)) as client:
        for text in (None, "", "secret words", TOKEN[:-1] + "!", TOKEN + "x", "\N{SNOWMAN}" * 9):
            if text is not None:
                file.write_text(text)
            with pytest.raises(InvalidArgumentError, match="token_file") as caught:
                OwnToken(None, file, without_tls=False).call()
            assert not text or text not in str(caught.value)
        assert "foqs_" not in repr(client.options)
    assert TOKEN not in repr(Options(token=OwnToken(TOKEN, None, without_tls=False)))


async def test_a_connection_takes_no_new_calls_soon_before_its_token_ends(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    now_ms = 1_000_000
    async with running_host(meta_url, {0: shard_urls[0]}) as host:
        await host.admin.create_principal("mailer", [AccessGrant("*", ("owner",))])
        made = await host.admin.create_token("mailer", expires_in_ms=600_000)

        def signed_in(client: AdminClient) -> int:
            client.who_am_i()
            (connection,) = client._pool._idle
            return id(connection)

        known = eventually(lambda: _is_known(host, made.token), bool)
        await known
        with AdminClient(at(host), token=made.token, clock_ms=lambda: now_ms) as client:
            first = await asyncio.to_thread(signed_in, client)
            now_ms += 100_000
            assert await asyncio.to_thread(signed_in, client) == first
            now_ms += 450_000  # Less than a minute is left.
            kept = client._pool._idle[0]
            assert await asyncio.to_thread(signed_in, client) != id(kept)


async def _is_known(host: RunningHost, token: str) -> bool:
    async with AsyncAdminClient(at(host), token=token) as client:
        try:
            await client.who_am_i()
        except PermissionDeniedError:
            return False
    return True


async def test_the_command_line_goes_in_and_out_of_enforced_access(
    meta_url: str, shard_urls: dict[int, str], tmp_path: Path
) -> None:
    file = tmp_path / "root.token"
    async with enforced(meta_url, shard_urls[0]) as (host, root, _):
        file.write_text(root)

        def run(*words: str, **environment: str) -> Any:
            return CliRunner().invoke(cli, [*words, "--address", at(host)], env=environment)

        def whoami() -> Any:
            return run("whoami", FOQS_TOKEN_FILE=str(file))

        async def known() -> Any:
            return await asyncio.to_thread(whoami)

        done = await eventually(known, lambda found: found.exit_code == 0)
        assert (done.stdout.splitlines()[0], "admin, owner" in done.stdout) == ("root", True)
        refused = await asyncio.to_thread(run, "access", "mode")
        assert refused.exit_code == 1, refused.output
        assert "call authenticate with a token first" in refused.stderr
        by_text = await asyncio.to_thread(lambda: run("access", "mode", FOQS_TOKEN=root))
        assert "enforced" in by_text.stdout
        opened = await asyncio.to_thread(run, "access", "mode", "open", "--token-file", str(file))
        assert opened.exit_code == 0, opened.output
