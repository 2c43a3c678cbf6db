"""The files of certificates, keys and authorities of a host, and their faults."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

from foqs.model.errors import InvalidArgumentError

_OF_OTHERS = stat.S_IRWXO | stat.S_IWGRP


class Pair(NamedTuple):
    """A certificate and its key."""

    cert_file: str
    """PEM, with the certificates of intermediate authorities behind it."""
    key_file: str
    """PEM, without a pass phrase."""
    prefix: Literal["tls", "peer"] = "tls"
    """The beginning of the settings that name the files."""

    def unfit(self, problem: str) -> InvalidArgumentError:
        """Return the error for a certificate that cannot be used."""
        return InvalidArgumentError(f"{self.prefix}_cert_file = {self.cert_file}: {problem}")

    def _refuse_key(self, problem: str) -> NoReturn:
        _refuse(f"{self.prefix}_key_file", self.key_file, problem)

    def end_ms(self, now_ms: int) -> int:
        """Return when the certificate expires. Raises InvalidArgumentError also if others can read the key."""
        from cryptography import x509

        self._check_key_mode()
        try:
            certificate = x509.load_pem_x509_certificates(Path(self.cert_file).read_bytes())[0]
        except OSError as error:
            raise self.unfit(error.strerror or str(error)) from None
        except ValueError:
            raise self.unfit("it is no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----") from None
        begins_at_ms, expires_at_ms = (
            int(at.timestamp() * 1000) for at in (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
        )
        if not begins_at_ms <= now_ms < expires_at_ms:
            held = f"it is valid from {utc_of(begins_at_ms)} to {utc_of(expires_at_ms)}, and now is {utc_of(now_ms)}"
            raise self.unfit(held)
        return expires_at_ms

    def load_into(self, context: ssl.SSLContext) -> None:
        """Let the context show the certificate. A pair that does not match spoils the context."""

        def no_pass_phrase() -> NoReturn:
            self._refuse_key("it needs a pass phrase, for which a host cannot ask: remove it")

        try:
            context.load_cert_chain(self.cert_file, self.key_file, no_pass_phrase)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                self._refuse_key(f"it is not the key of {self.cert_file}")
            self._refuse_key(f"it is no key in PEM, or {self.cert_file} is not one of its kind")
        except OSError as error:
            self._refuse_key(error.strerror or str(error))

    def _check_key_mode(self) -> None:
        try:
            mode = Path(self.key_file).stat().st_mode
        except OSError as error:
            self._refuse_key(error.strerror or str(error))
        if mode & _OF_OTHERS:
            self._refuse_key(f"others can read or change it (mode {stat.S_IMODE(mode):04o}): chmod 0600")


def load_authorities(context: ssl.SSLContext, key: str, path: str) -> None:
    """Let the context trust the authorities of the file that the setting `key` names."""
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        _refuse(key, path, "it has no certificate in PEM")
    except OSError as error:
        _refuse(key, path, error.strerror or str(error))


def _refuse(key: str, path: str, problem: str) -> NoReturn:
    """Raise InvalidArgumentError for the file that the setting `key` names."""
    raise InvalidArgumentError(f"{key} = {path}: {problem}") from None


def utc_of(at_ms: int) -> str:
    """Return a time for people."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).isoformat(sep=" ")
