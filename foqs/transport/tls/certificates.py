"""The certificate of a host, which is replaced on the disk while the host runs."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import structlog

from foqs.background.lane import Lane
from foqs.background.service import Service
from foqs.model import limits
from foqs.model.audit import RELOAD_CERTIFICATES, AuditNote
from foqs.model.errors import InvalidArgumentError
from foqs.transport.tls.contexts import Contexts, PeerTls, ServerContext, TlsFiles, load
from foqs.transport.tls.layer import PortTls
from foqs.transport.tls.pem_files import utc_of

CHECK_MS = 60 * limits.SECOND_MS
"""Interval between two checks whether a file was replaced."""
SOON_MS = 14 * limits.DAY_MS
"""A certificate that expires within this time is warned of."""
WARN_MS = limits.DAY_MS
"""Interval of those warnings."""

_Seen = tuple[tuple[int, int, int], ...]
_log = structlog.get_logger(__name__)


class Certificates(Service):
    """Reads the files at its start, and again when one was replaced or `reload` asks for it.

    Open connections keep their contexts. Files that cannot be used change nothing.
    """

    def __init__(
        self, files: TlsFiles, wall_ms: Callable[[], int], note: Callable[[AuditNote], None] = lambda note: None
    ) -> None:
        """`note` takes each reload and each refusal of one, for the audit."""
        super().__init__("certificates")
        self._note = note
        self._files = files
        self._wall_ms = wall_ms
        self._lane = Lane(self.name)
        self._contexts: Contexts | None = None
        self._seen: _Seen = ()
        self._warned_at_ms = 0

    @property
    def server(self) -> ServerContext:
        """The newest context for callers; it exists after the start."""
        return self._known().server

    @property
    def peers(self) -> ssl.SSLContext:
        """The newest context for connections to other hosts."""
        return self._known().peers

    def port_tls(self, *, is_required: bool) -> PortTls:
        """The TLS of a port."""
        return PortTls(lambda: self.server, is_required)

    def peer_port_tls(self, *, is_required: bool, needs_certificates: bool) -> PortTls:
        """The TLS of a port for hosts alone. If they need certificates, no other handshake succeeds there."""
        if needs_certificates:
            return PortTls(self._for_hosts, is_required=True)
        return self.port_tls(is_required=is_required)

    def _for_hosts(self) -> ServerContext:
        entry = self.server.host_entry
        assert entry is not None, "hosts are known by certificates"
        return entry.served

    def peer_tls(self) -> PeerTls:
        """The TLS of connections to other hosts."""
        hosts = self._files.hosts
        return PeerTls(lambda: self.peers, hosts is not None and hosts.is_shown, self._left_with)

    def _left_with(self, other_ends_at_ms: int) -> float:
        return (min(self._known().host_expires_at_ms, other_ends_at_ms) - self._wall_ms()) / 1000

    @property
    def left_s(self) -> float:
        """Time until the first certificate expires, in seconds; negative after that."""
        return (self._known().expires_at_ms - self._wall_ms()) / 1000

    async def reload(self) -> None:
        """Read the files again. If they cannot be used, that is logged."""
        try:
            seen, contexts = await self._lane.run(self._read)
        except InvalidArgumentError as error:
            _log.error("certificate_not_reloaded", error=error.message)
            self._note(AuditNote(RELOAD_CERTIFICATES, error.code.name, changes=f"nothing: {error.message}"))
            return
        self._seen, self._contexts = seen, contexts
        self._warned_at_ms = 0
        expires = utc_of(contexts.expires_at_ms)
        _log.info("certificate_reloaded", expires=expires)
        self._note(AuditNote(RELOAD_CERTIFICATES, changes=f"the first one expires {expires}"))

    async def _start(self) -> None:
        """Raises InvalidArgumentError if the files cannot be used."""
        self._seen, self._contexts = await self._lane.run(self._read)
        self._warn()
        self._tasks.every(CHECK_MS, self._check)

    async def _stop(self) -> None:
        await self._lane.stop()

    async def _check(self) -> None:
        seen = await self._lane.run(self._file_states)
        if seen != self._seen:
            self._seen = seen  # Files that cannot be used are logged once.
            await self.reload()
        self._warn()

    def _read(self) -> tuple[_Seen, Contexts]:
        seen = self._file_states()  # Before they are read, so a file that is replaced meanwhile is read again.
        return seen, load(self._files, self._wall_ms())

    def _file_states(self) -> _Seen:
        return tuple(_state_of(Path(path)) for path in self._files.paths)

    def _warn(self) -> None:
        now_ms, expires_at_ms = self._wall_ms(), self._known().expires_at_ms
        if expires_at_ms - now_ms < SOON_MS and not now_ms - WARN_MS < self._warned_at_ms <= now_ms:
            self._warned_at_ms = now_ms
            _log.warning("certificate_expires", file=self._known().expires_first, expires=utc_of(expires_at_ms))

    def _known(self) -> Contexts:
        assert self._contexts is not None, "it is started"
        return self._contexts


def _state_of(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size
