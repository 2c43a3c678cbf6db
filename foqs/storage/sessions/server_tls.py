"""The settings by which sessions verify their MySQL server, for all database URLs."""

from __future__ import annotations

import ssl
from enum import StrEnum
from typing import Final

from sqlalchemy import URL, make_url

from foqs.model.host_addresses import is_loopback

_CA: Final = "ssl_ca"
_CA_DIRECTORY: Final = "ssl_capath"
_CHECK_NAME: Final = "ssl_check_hostname"


class DatabaseTls(StrEnum):
    """The proof that a session demands of a MySQL server that it reaches by TCP."""

    VERIFY = "verify"
    """A certificate of a known authority for the name in the URL. No other server gets a session."""
    REMOTE = "remote"
    """The same of servers on other machines. Those at a loopback address do as with ANY."""
    ANY = "any"
    """Nothing beyond the options of the URL."""


def with_tls(url: URL, mode: DatabaseTls, ca_file: str) -> URL:
    """Return the URL with the options by which its sessions do as `mode` says.

    The authorities are those of the URL, else those in `ca_file`, else those of the system. Raises ValueError if the
    URL has options to the contrary, or no authorities are known.
    """
    if mode is DatabaseTls.ANY or "unix_socket" in url.query or (mode is DatabaseTls.REMOTE and _is_here(url)):
        return url
    check_verifies(url, mode)
    if _CA in url.query or _CA_DIRECTORY in url.query:
        return url
    if ca_file:
        return url.update_query_dict({_CA: ca_file})
    system = ssl.get_default_verify_paths()
    if system.cafile:
        return url.update_query_dict({_CA: system.cafile})
    if system.capath:
        return url.update_query_dict({_CA_DIRECTORY: system.capath})
    raise ValueError("is to be verified, and this system has no authorities: set database_ca_file")


def check_verifies(url: URL, mode: DatabaseTls) -> None:
    """Raise ValueError if options of the URL leave servers unverified that are to be verified."""
    if mode is not DatabaseTls.ANY and url.query.get(_CHECK_NAME) == "false":
        raise ValueError(
            f"leaves the name or the certificate of the server unverified, and database_tls is {mode.value}; allowed: "
            "without ssl_verify_cert=false, ssl_verify_identity=false and ssl_check_hostname=false, or database_tls = "
            "any"
        )


def with_name_checked(url: URL) -> URL:
    """Return the URL without an option that leaves the name of the server unverified."""
    return url.difference_update_query([_CHECK_NAME]) if url.query.get(_CHECK_NAME) == "false" else url


def is_unverified(url: str) -> bool:
    """True if sessions go to another machine and do not verify it."""
    parsed = make_url(url)
    if _is_here(parsed):
        return False
    has_authority = _CA in parsed.query or _CA_DIRECTORY in parsed.query
    return not has_authority or parsed.query.get(_CHECK_NAME) == "false"


def _is_here(url: URL) -> bool:
    """True for a socket and for a loopback address."""
    return "unix_socket" in url.query or is_loopback(url.host or "localhost")
