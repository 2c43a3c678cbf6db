"""Contexts against a host that requires TLS and tokens: a name in the place of six options."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from foqs import AdminClient, AsyncClient, NotSentError
from foqs.cli.main import cli
from foqs.client.context_file import FILE_VARIABLE
from foqs.client.retry import RetryPolicy
from foqs.model.access import AccessMode
from foqs.transport.tls.contexts import TlsFiles
from tests.support.certificates import Authority
from tests.support.sign_in_world import mailer
from tests.support.tls_world import tls_world

ONCE = RetryPolicy(deadline_ms=0)


async def test_a_context_is_enough_for_commands_and_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("host", hosts=["queue-a.example"])
    files = TlsFiles(cert_file=issued.cert_file, key_file=issued.key_file, ca_file=authority.ca_file)
    async with tls_world(files, is_required=True, mode=AccessMode.ENFORCED) as w:
        (tmp_path / "mailer.token").write_text(mailer(w))
        hosts = f'addresses = "127.0.0.1:{w.server.port}"\n'
        trusted = f'ca_file = "{authority.ca_file}"\ntoken_file = "mailer.token"\n'
        contexts = tmp_path / "contexts.toml"
        contexts.write_text(
            f'default = "prod"\n[prod]\n{hosts}{trusted}server_name = "queue-a.example"\nnamespace = "ns"\n'
            f"[other-name]\n{hosts}{trusted}[plain]\n{hosts}"
        )
        contexts.chmod(0o600)
        monkeypatch.setenv(FILE_VARIABLE, str(contexts))

        async def run(*arguments: str) -> Any:
            return await asyncio.to_thread(CliRunner().invoke, cli, arguments, prog_name="foqs")

        for arguments in (["whoami"], ["whoami", "--context", "prod"]):
            done = await run(*arguments)
            assert done.exit_code == 0, done.output
            assert "mailer" in done.stdout
        enqueued = await run("enqueue", "@", "topic", "x")
        assert enqueued.exit_code == 0, enqueued.output
        assert "give server_name" in (await run("whoami", "--context", "other-name")).output
        assert (await run("whoami", "--context", "plain")).exit_code != 0
        without = await run("whoami", "--address", f"127.0.0.1:{w.server.port}")
        assert without.exit_code != 0, "the token of the default context went to another address"

        async with AsyncClient.from_context() as client:
            assert await client.enqueue("ns", "topic", b"x")
        with AdminClient.from_context("prod") as admin:
            assert (await asyncio.to_thread(admin.who_am_i)).principal == "mailer"
        async with AsyncClient.from_context("other-name", retry=ONCE) as client:
            with pytest.raises(NotSentError, match="give server_name"):
                await client.enqueue("ns", "topic", b"x")
