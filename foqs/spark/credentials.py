"""TLS and the identity of a read or a write: options that name files, which the driver and each task read.

No secret is among them, because Spark keeps options in plans and sends them to every executor.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from foqs.client.addresses import parse_addresses
from foqs.client.own_tls import OwnTls
from foqs.client.own_token import OwnToken
from foqs.model.errors import InvalidArgumentError, shown
from foqs.spark.option_texts import flag

Stamps = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How the clients of a read or a write are connected. `CREDENTIAL_OPTIONS` has the meanings of the fields."""

    tls: bool = False
    ca_file: str | None = None
    server_name: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    token_file: str | None = None
    tokens_without_tls: bool = False

    def client_arguments(self) -> dict[str, Any]:
        """Return the arguments of a client on this machine."""
        files = {name: None if path is None else located(path) for name, path in self._files().items()}
        return {
            "tls": self.tls, "server_name": self.server_name, "tokens_without_tls": self.tokens_without_tls, **files
        }  # fmt: skip

    def problems(self, addresses: str) -> list[str]:
        """Return the contradictions between the options. `addresses` is empty if they are not valid."""
        found = []
        for name in ("ca_file", "server_name", "cert_file", "key_file"):
            value = getattr(self, name)
            if value is not None and not self.tls:
                found.append(f"{_SPELLED[name]} {shown(value)} is given, and tls is not true: set tls to true as well")
        if found:
            return found
        given = {name: getattr(self, name) for name in ("ca_file", "server_name", "cert_file", "key_file")}
        try:
            OwnTls(self.tls, **given)
            token = OwnToken(None, self.token_file, without_tls=self.tokens_without_tls, over_tls=self.tls)
            token.check(parse_addresses(addresses) if addresses else [])
        except InvalidArgumentError as error:
            found.append(in_options(error.message))
        return found

    def check_files(self) -> None:
        """Read all files once on this machine. Raises InvalidArgumentError for one that is missing or of no use."""
        for name, path in self._files().items():
            if path is None:
                continue
            try:
                with Path(located(path)).open("rb") as file:
                    file.read(1)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or "it is not a path"
                raise InvalidArgumentError(
                    f"{_SPELLED[name]} {path!r:.4096} cannot be read on {socket.gethostname()} ({reason}): the driver "
                    "and every executor need the file, at this path or as a file of spark.files, readable by Spark's "
                    "user"
                ) from None
        made = self.client_arguments()
        del made["tokens_without_tls"]
        token_file = made.pop("token_file")
        try:
            if self.tls:
                OwnTls(**{"on": made.pop("tls"), **made}).context()
            if token_file is not None:
                OwnToken(None, token_file, without_tls=True).call()
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{in_options(error.message)} (on {socket.gethostname()})") from None

    def stamps(self) -> Stamps:
        """Return a value that differs once a file has been replaced."""
        found: list[tuple[int, ...]] = []
        for path in self._files().values():
            try:
                at = None if path is None else os.stat(located(path))
            except (OSError, ValueError):
                at = None
            found.append(() if at is None else (at.st_dev, at.st_ino, at.st_mtime_ns, at.st_size))
        return tuple(found)

    def _files(self) -> dict[str, str | None]:
        return {name: getattr(self, name) for name in ("ca_file", "cert_file", "key_file", "token_file")}


class CredentialOption(NamedTuple):
    """One option: its field of Credentials, its meaning and default in the documents, and the parser of its text."""

    field: str
    meaning: str
    default: str
    parse: Callable[[str, str], object]


def _given(name: str, text: str) -> str:
    if not text or "\0" in text:
        raise InvalidArgumentError(f"{name} {shown(text)} is not a name: leave it out, or name a file or a host")
    return text


CREDENTIAL_OPTIONS: Final[Mapping[str, CredentialOption]] = {
    "tls": CredentialOption("tls", "connect with TLS, and verify the certificates of hosts", "false", flag),
    "caFile": CredentialOption(
        "ca_file", "file with the certificates of the CAs that sign those of hosts, in PEM", "the system's CAs", _given
    ),
    "serverName": CredentialOption(
        "server_name", "name for which the certificates of all hosts must be", "the host in the address", _given
    ),
    "certFile": CredentialOption(
        "cert_file", "file with the certificate by which hosts know the job, in PEM", "none", _given
    ),
    "keyFile": CredentialOption(
        "key_file", "file with the key of `certFile`, in PEM, without a pass phrase", "in `certFile`", _given
    ),
    "tokenFile": CredentialOption(
        "token_file", "file with the token by which hosts know the job; it is read for each connection", "none", _given
    ),
    "tokensWithoutTls": CredentialOption(
        "tokens_without_tls", "send the token to other machines without TLS, where others can read it", "false", flag
    ),
}
"""The options for TLS and identity by their names, which are those of the Python clients in Spark's spelling."""
_FIELDS = frozenset(option.field for option in CREDENTIAL_OPTIONS.values())
_SPELLED = {option.field: name for name, option in CREDENTIAL_OPTIONS.items()}
_SPOKEN = re.compile(r"\b(" + "|".join(_FIELDS) + r")(=True)?\b")


def take_credentials(values: dict[str, Any]) -> Credentials:
    """Return the credentials of parsed options, and remove their fields from `values`."""
    return Credentials(**{name: values.pop(name) for name in _FIELDS if name in values})


def in_options(message: str) -> str:
    """Return an error of a client in the words of Spark's options."""

    def spelled(found: re.Match[str]) -> str:
        if found[1] == "tls" and not found[2]:
            return found[0]
        return _SPELLED[found[1]] + ("=true" if found[2] else "")

    return _SPOKEN.sub(spelled, message)


def located(path: str) -> str:
    """Return the path of a file on this machine: as it is, or else that of a file of `spark.files`."""
    if os.path.isabs(path) or os.path.exists(path):
        return path
    try:
        from py4j.protocol import Py4JError
        from pyspark import SparkFiles
    except ImportError:
        return path
    try:
        copied = SparkFiles.get(path)
    except (AssertionError, TypeError, Py4JError):  # A Spark session is not here, or is over, and this is no task.
        return path
    return copied if os.path.exists(copied) else path


class Replacements:
    """Notices that files of credentials were replaced, after which a refused call is worth another connection."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._stamps = credentials.stamps()

    def came(self) -> bool:
        """Return True if a file was replaced since the last time."""
        before, self._stamps = self._stamps, self._credentials.stamps()
        return self._stamps != before
