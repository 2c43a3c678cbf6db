"""A real host that requires TLS and enforces access, in a thread of its own, for Spark and blocking clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from foqs import AccessGrant, AccessMode, AdminClient, Client
from foqs.bootstrap import Host
from foqs.config import HostConfig
from foqs.model import access_tokens
from foqs.model.errors import PermissionDeniedError
from tests.support.certificates import Authority
from tests.support.waiting import PATIENCE_S, until_true

_numbers = count(1)


@dataclass(frozen=True)
class ProtectedHost:
    """Its address, its authority, and its administrator, who also owns every namespace."""

    address: str
    authority: Authority
    directory: Path
    root_token: str

    def admin(self) -> AdminClient:
        return AdminClient(self.address, tls=True, ca_file=self.authority.ca_file, token=self.root_token)

    def client(self) -> Client:
        return Client(self.address, tls=True, ca_file=self.authority.ca_file, token=self.root_token)

    def token(self, name: str) -> str:
        """Make one more token of the principal."""
        with self.admin() as admin:
            return admin.create_token(name).token

    def principal(self, name: str, grants: dict[str, str]) -> Path:
        """Make the principal with these roles by namespace, and return the file with its token."""
        with self.admin() as admin:
            admin.create_principal(name, [AccessGrant(at, tuple(roles.split())) for at, roles in grants.items()])
        path = self.directory / f"{name}-{next(_numbers)}.token"
        path.touch(0o600)
        path.write_text(self.token(name) + "\n")
        return path

    def revoke(self, token: str) -> None:
        """Return when the host takes the token no more."""
        with self.admin() as admin:
            admin.revoke_token(access_tokens.id_in(token))

        def is_refused() -> bool:
            try:
                with AdminClient(self.address, tls=True, ca_file=self.authority.ca_file, token=token) as admin:
                    admin.who_am_i()
            except PermissionDeniedError:
                return True
            return False

        until_true(is_refused)

    def options(self, token_file: Path) -> dict[str, str]:
        """The options of Spark for its port and this token."""
        return {"tls": "true", "caFile": self.authority.ca_file, "tokenFile": str(token_file)}


@contextmanager
def protected_host(
    meta_url: str, shard_urls: dict[int, str], directory: Path, namespace: str
) -> Iterator[ProtectedHost]:
    authority = Authority(directory)
    own = authority.issue("host", hosts=["127.0.0.1"])
    tls: dict[str, Any] = {
        "tls": "required", "tls_cert_file": own.cert_file, "tls_key_file": own.key_file,
        "tls_ca_file": authority.ca_file, "tls_clients": "wanted",
    }  # fmt: skip
    config = HostConfig(meta_url=meta_url, shards=dict(shard_urls), port=0, host_name="protected", **tls)
    ready, told = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]]()

    async def serve() -> None:
        stop, host = asyncio.Event(), Host(config)
        await host.start()
        try:
            told.append((asyncio.get_running_loop(), stop, f"127.0.0.1:{host.port}"))
            ready.set()
            await stop.wait()
            await host.drain()
        finally:
            await host.stop()

    thread = threading.Thread(target=asyncio.run, args=[serve()], name="protected-host")
    thread.start()
    try:
        assert ready.wait(PATIENCE_S), "the host did not start"
        address = told[0][2]
        with AdminClient(address, tls=True, ca_file=authority.ca_file) as admin:
            admin.create_namespace(namespace)
            admin.create_principal("root", [AccessGrant("*", ("admin", "owner"))])
            root_token = admin.create_token("root").token
            admin.set_access_mode(AccessMode.ENFORCED)
        yield ProtectedHost(address, authority, directory, root_token)
    finally:
        for loop, stop, _ in told:
            loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
