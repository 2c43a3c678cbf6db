"""The TLS of a client's connections: its certificates, the names that hosts must prove, and the meaning of failures.

The name of the host is always verified, and no connection continues without TLS if that fails.
"""

from __future__ import annotations

import errno
import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foqs.client.addresses import Address
from foqs.client.checks import check_flag
from foqs.client.client_errors import NotSentError
from foqs.model.errors import InvalidArgumentError, shown

log = logging.getLogger("foqs.client")

CertificateFile = str | os.PathLike[str]
_FILES: Final = ("ca_file", "cert_file", "key_file")
_NAME_CHARS_MAX: Final = 253

_EXPIRED, _NOT_YET_VALID = 10, 9
_OTHER_NAME = (62, 64)
"""Codes of OpenSSL's verification, from x509_vfy.h: the certificate is of another host name, or another address."""
_OWN_CERTIFICATE_MISSING: Final = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "PEER_DID_NOT_RETURN")
"""Words of a server that wants a certificate and got none. Below TLS 1.3 there is no word of its own for it."""
_OWN_CERTIFICATE_REFUSED: Final = (
    "ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE_EXPIRED", "ALERT_CERTIFICATE_REVOKED",
    "ALERT_CERTIFICATE_UNKNOWN", "ALERT_UNSUPPORTED_CERTIFICATE", "ALERT_DECRYPT_ERROR", "ALERT_ACCESS_DENIED",
)  # fmt: skip
_NO_TLS: Final = (
    "WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE",
    "WRONG_SSL_VERSION", "UNEXPECTED_MESSAGE", "ENCRYPTED_LENGTH_TOO_LONG", "BAD_RECORD_TYPE",
)  # fmt: skip

_Stamp = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A context, and the state of the files from which it was made."""

    context: ssl.SSLContext
    stamp: _Stamp


class OwnTls:
    """The TLS settings of a client; they are false for a client without TLS. Safe for threads.

    Each new connection checks the files, and reads them again if one was replaced. If that fails, because the
    certificate is there before its key for example, new connections use the files that were read before.
    """

    def __init__(
        self,
        on: bool = False,
        *,
        ca_file: CertificateFile | None = None,
        server_name: str | None = None,
        cert_file: CertificateFile | None = None,
        key_file: CertificateFile | None = None,
    ) -> None:
        """Raises InvalidArgumentError for arguments that contradict each other. The files are not read yet."""
        check_flag("tls", on)
        given = {"ca_file": ca_file, "server_name": server_name, "cert_file": cert_file, "key_file": key_file}
        for name, value in given.items():
            if value is not None and not on:
                raise InvalidArgumentError(f"{name} is given, and tls is not: give tls=True as well")
        if key_file is not None and cert_file is None:
            raise InvalidArgumentError("key_file is given without cert_file: give the certificate of the key as well")
        self._on = on
        self._ca_file, self._cert_file, self._key_file = (_path(name, given[name]) for name in _FILES)
        self._server_name = None if server_name is None else _checked_name(server_name)
        self._loaded: _Loaded | None = None
        self._failed_stamp: _Stamp | None = None
        """The state of the files when they were last unusable, so that this is logged once."""

    def __bool__(self) -> bool:
        return self._on

    def __repr__(self) -> str:
        if not self._on:
            return "OwnTls(off)"
        return f"OwnTls(ca_file={self._ca_file}, server_name={self._server_name}, cert_file={self._cert_file})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnTls) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._key()

    def _key(self) -> tuple[bool, Path | None, str | None, Path | None, Path | None]:
        return self._on, self._ca_file, self._server_name, self._cert_file, self._key_file

    def context(self) -> ssl.SSLContext:
        """Return the context of a new connection. Raises InvalidArgumentError if the files were never usable."""
        loaded, stamp = self._loaded, self._stamp()
        if loaded is not None and stamp in (loaded.stamp, self._failed_stamp):
            return loaded.context
        try:
            # Always a new one: a certificate that does not match its key would damage the old one.
            made = self._load()
        except InvalidArgumentError as error:
            if loaded is None:
                raise
            self._failed_stamp = stamp
            log.warning("connections go on with the certificates that were read before: %s", error.message)
            return loaded.context
        # A file that was replaced meanwhile has another stamp, so it is read again for the next connection.
        self._loaded = _Loaded(made, stamp)
        return made

    def is_loaded(self) -> bool:
        """True if `context` has nothing to read."""
        loaded = self._loaded
        return loaded is not None and self._stamp() in (loaded.stamp, self._failed_stamp)

    def _stamp(self) -> _Stamp:
        found: list[tuple[int, ...]] = []
        for path in (self._ca_file, self._cert_file, self._key_file):
            try:
                at = None if path is None else path.stat()
            except OSError as error:
                found.append((error.errno or -1,))
            else:
                found.append(() if at is None else (at.st_dev, at.st_ino, at.st_mtime_ns, at.st_size))
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # It verifies certificates and host names.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.hostname_checks_common_name = False
        if self._ca_file is None:
            context.load_default_certs()
        else:
            _read("ca_file", self._ca_file, lambda: context.load_verify_locations(cafile=self._ca_file))
        cert_file, key_file = self._cert_file, self._key_file
        if cert_file is not None:
            name, path = ("cert_file", cert_file) if key_file is None else ("cert_file, key_file", cert_file)
            _read(name, path, lambda: context.load_cert_chain(cert_file, key_file, password=_no_pass_phrase))
        return context

    def name_at(self, address: Address) -> str:
        """Return the name for which the certificate of the host at this address must be."""
        return self._server_name or address.host.rstrip(".")

    def failure(self, address: Address, error: Exception) -> NotSentError:
        """Make the error of a handshake that failed. Nothing of a call had been sent then."""
        found = NotSentError(f"{address}: {self._meaning(address, error)}")
        found.__cause__ = error
        return found

    def refusal(self, address: Address, error: BaseException | None) -> NotSentError | None:
        """Make the error of a host that ended the handshake on its side, or return None for any other failure.

        From TLS 1.3 on, a host looks at the certificate of the client when the client has already sent its first call.
        The host does not read it if it refuses the certificate.
        """
        reason = getattr(error, "reason", None) or ""
        if not isinstance(error, ssl.SSLError) or not any(
            word in reason for word in (*_OWN_CERTIFICATE_MISSING, *_OWN_CERTIFICATE_REFUSED)
        ):
            return None
        return self.failure(address, error)

    def _meaning(self, address: Address, error: Exception) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return self._distrust(address, error)
        reason = (getattr(error, "reason", None) or "") if isinstance(error, ssl.SSLError) else ""
        if any(word in reason for word in _NO_TLS):
            return "the server speaks no TLS on this port: is the port right? Without tls=True the connection is plain"
        if any(word in reason for word in _OWN_CERTIFICATE_MISSING):
            if self._cert_file is None:
                return f"the server wants a certificate of the client ({reason}): give cert_file and key_file"
            return f"the server refused the handshake ({reason}): it may not trust the CA of cert_file"
        if any(word in reason for word in _OWN_CERTIFICATE_REFUSED):
            return (
                f"the server refused the client's certificate ({reason}): cert_file must be valid now, and of a CA "
                "that the server trusts"
            )
        if "ALERT_PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
            return f"the server and the client have no version of TLS in common ({reason}): TLS 1.2 is the oldest here"
        if isinstance(error, ssl.SSLEOFError | ConnectionError) or getattr(error, "errno", None) == errno.ECONNRESET:
            return f"the server closed the connection in the handshake of TLS ({error}): does this port speak TLS?"
        if isinstance(error, TimeoutError):
            return "the handshake of TLS was not over in time: does this port speak TLS?"
        return f"the handshake of TLS failed: {error}"

    def _distrust(self, address: Address, error: ssl.SSLCertVerificationError) -> str:
        code, message = error.verify_code, error.verify_message
        name = self.name_at(address)
        if code in _OTHER_NAME:
            return (
                f"the certificate of the server is not for {shown(name)}: give server_name, with a name that is in the "
                "certificate, or reach the host by such a name"
            )
        if code in (_EXPIRED, _NOT_YET_VALID):
            return f"the certificate of the server is not valid now ({message}): renew it there, or set this clock"
        by = f"ca_file {self._ca_file}" if self._ca_file else "the CAs of this system"
        return (
            f"the certificate of the server is not trusted by {by} ({message}): give ca_file, with the certificate of "
            "the CA that signed it"
        )


def _again(
    on: bool, ca_file: Path | None, server_name: str | None, cert_file: Path | None, key_file: Path | None
) -> OwnTls:
    return OwnTls(on, ca_file=ca_file, server_name=server_name, cert_file=cert_file, key_file=key_file)


def _path(name: str, value: Any) -> Path | None:
    try:
        path = None if value is None else Path(value)
    except TypeError:
        raise InvalidArgumentError(f"{name} is {type(value).__name__}, not a path") from None
    if path is not None and (not str(value) or "\0" in str(path)):
        raise InvalidArgumentError(f"{name} {shown(str(value))} is not a path")
    return path


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidArgumentError(f"server_name is {type(name).__name__}, not str")
    bare = name.rstrip(".")
    try:
        is_name = bool(bare) and not bare.startswith(".") and len(bare) <= _NAME_CHARS_MAX and bool(bare.encode("idna"))
    except UnicodeError:
        is_name = False
    if not is_name or "\0" in bare or " " in bare:
        raise InvalidArgumentError(f"server_name {shown(name)} is neither a host name nor an address")
    return bare


def _read(name: str, path: Path, read: Any) -> None:
    """Read files into a context. Errors name the file and never what is in it."""
    try:
        read()
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in (error.reason or ""):
            raise InvalidArgumentError(f"{name}: the key is not that of the certificate in {path}") from None
        raise InvalidArgumentError(f"{name}: {path} is no usable PEM file ({error.reason or 'no PEM'})") from None
    except OSError as error:
        raise InvalidArgumentError(f"{name}: {error.filename or path} cannot be read: {error.strerror}") from None


def _no_pass_phrase() -> str:
    """Called for an encrypted key. OpenSSL would ask at the terminal otherwise, and wait."""
    raise InvalidArgumentError("key_file has a pass phrase: give a key without one, in a file that only you can read")
