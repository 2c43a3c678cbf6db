"""The options in the URL of a database, after the question mark, which apply to its sessions; most are for TLS."""

from __future__ import annotations

import difflib
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qsl

from sqlalchemy import URL, make_url

from foqs.model import limits
from foqs.model.errors import InvalidArgumentError
from foqs.storage.sessions.passwords import FILE, is_kept, password_of
from foqs.storage.sessions.secret_file import path_of, secret_file
from foqs.storage.sessions.session import check_tls_files

_CONNECT_S_MAX = limits.CONNECT_MS_MAX // 1000
_PATH, _TEXT, _TRUTH, _SECONDS = "path", "text", "true, false", f"1..{_CONNECT_S_MAX}"
OPTIONS: Mapping[str, str] = {
    "unix_socket": _PATH,
    "connect_timeout": _SECONDS,
    FILE: _PATH,
    "ssl_ca": _PATH,
    "ssl_capath": _PATH,
    "ssl_cert": _PATH,
    "ssl_key": _PATH,
    "ssl_cipher": _TEXT,
    "ssl_verify_cert": _TRUTH,
    "ssl_verify_identity": _TRUTH,
    "ssl_check_hostname": _TRUTH,
}
"""The allowed options, each with the kind or the range of its value."""

_CHECK_NAME, _CHECK_NAME_TOO = "ssl_check_hostname", "ssl_verify_identity"
_AUTHORITIES = ("ssl_ca", "ssl_capath")
_TLS_HINT = "use ssl_ca, by which the server's certificate is verified, or ssl_verify_cert=false for encryption alone"
_LOGIN_HINT = "it stands before the @, as in mysql://USER:PASSWORD@HOST"
_HINTS = {
    "ssl": _TLS_HINT, "ssl_mode": _TLS_HINT, "sslmode": _TLS_HINT, "tls": _TLS_HINT, "ssl_disabled": "without any ssl_ "
    "option nothing is verified", "user": _LOGIN_HINT, "password": _LOGIN_HINT, "passwd": _LOGIN_HINT,
}  # fmt: skip


def with_checked_options(text: str) -> URL:
    """Check the options of a URL, and return the URL with those options in the form that the driver needs.

    Raises ValueError with the fault of each. `ssl_verify_cert` and `ssl_verify_identity` make the driver ignore
    `ssl_ca`, so both are expressed by `ssl_check_hostname` here.
    """
    url = make_url(text)
    if problems := list(_problems_of_each(text, url)) or list(_misfits(url.query)):
        raise ValueError(", and ".join(problems))
    query = dict(url.query)
    verify_cert, check_name = query.pop("ssl_verify_cert", None), query.pop(_CHECK_NAME_TOO, None)
    if check_name is not None:
        query[_CHECK_NAME] = check_name
    if verify_cert == "false":
        # Any TLS option requests encryption, and without an authority nothing can be verified.
        query[_CHECK_NAME] = "false"
    return url.set(query=query)


def password_problems(url: URL) -> list[str]:
    """Find a password inside the names of user or database, which a login shows to any server."""
    if FILE in url.query and (url.password or is_kept(url)):
        return [f"has a password and {FILE}; allowed: one of them"]
    if FILE in url.query:
        try:
            path_of(str(url.query[FILE]))
        except InvalidArgumentError as error:
            return [f"has the option {FILE}, and {error.message}"]
        return []
    names = (url.username or "", url.database or "")
    if not url.password or not any(str(url.password) in name for name in names):
        return []
    return ["has a password that is part of the user's or the database's name; allowed: one that is in neither"]


def check_password_file(url: str) -> None:
    """Read the file with the password that the URL names, if any. Blocks.

    Raises InvalidArgumentError with the option and the reason if a session cannot use it.
    """
    parsed = make_url(url)
    if (named := parsed.query.get(FILE)) is None:
        return
    try:
        secret_file(str(named)).check()
        password = password_of(parsed).read()
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{FILE} = {error.message}") from None
    names = ((parsed.username or "").encode(), (parsed.database or "").encode())
    if password is not None and any(password.reveal() in name for name in names):
        raise InvalidArgumentError(f"{FILE} = {named} has a password that is part of the user's or the database's name")


def check_tls(url: str) -> None:
    """Try the files and ciphers that the URL names for TLS, without a connection. Blocks while files are read.

    Raises InvalidArgumentError with the option and the file that cannot be used.
    """
    query = {key: str(value) for key, value in make_url(url).query.items() if key.startswith("ssl_")}
    if not query or "unix_socket" in make_url(url).query:
        return  # A local socket is not encrypted.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificate, key = query.get("ssl_cert"), query.get("ssl_key")
    files = [name for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in query]
    for name in files:
        _try(query, [name], Path(query[name]).read_bytes)
    if "ssl_capath" in query:
        _try(query, ["ssl_capath"], lambda: os.listdir(query["ssl_capath"]))
    if "ssl_ca" in query:
        _try(query, ["ssl_ca"], lambda: context.load_verify_locations(query["ssl_ca"]))
    if certificate:
        # For a key with a pass phrase, the host would prompt at its terminal.
        _try(query, [name for name in files if name != "ssl_ca"], lambda: context.load_cert_chain(certificate, key, ""))
    if "ssl_cipher" in query:
        _try(query, ["ssl_cipher"], lambda: context.set_ciphers(query["ssl_cipher"]))
    if files:
        _try(query, list(query), lambda: check_tls_files(url))


def _try(query: Mapping[str, str], names: list[str], work: Callable[[], object]) -> None:
    try:
        work()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError.
        named = ", ".join(f"{name} = {query[name]}" for name in names)
        what = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else error
        raise InvalidArgumentError(f"{named} cannot be used: {what or error}") from error


def _problems_of_each(text: str, url: URL) -> Iterator[str]:
    unknown = [f"the option {key:.80}, which is none of foqs: {_hint(key)}" for key in url.query if key not in OPTIONS]
    if unknown:
        yield f"has {', and '.join(unknown)}; allowed: {', '.join(OPTIONS)}"
    # An option without a value would have no effect, and its author would not notice.
    for key in _keys_without_value(text, url):
        yield f"has the option {key:.80} without a value; allowed: {OPTIONS.get(key, 'nothing')}"
    for key, value in url.query.items():
        allowed = OPTIONS.get(key)
        if not isinstance(value, str):
            yield f"has the option {key:.80} twice; allowed: once"
        elif allowed == _TRUTH and value not in ("true", "false"):
            yield f"has the option {key} = {value:.80}; allowed: {allowed}"
        elif allowed == _SECONDS and not (value.isdecimal() and 1 <= int(value) <= _CONNECT_S_MAX):
            yield f"has the option {key} = {value:.80}; allowed: {allowed}, in seconds"


def _hint(key: str) -> str:
    near = difflib.get_close_matches(key, OPTIONS, n=1, cutoff=0.8)
    return _HINTS.get(key) or (f"did you mean {near[0]}?" if near else "leave it out")


def _misfits(query: Mapping[str, object]) -> Iterator[str]:
    """Yield the faults of options that are allowed each, but not together."""
    if "ssl_key" in query and "ssl_cert" not in query:
        yield "has ssl_key without ssl_cert; allowed: both, or ssl_cert alone with the key in its file"
    has_authority = any(key in query for key in _AUTHORITIES)
    for key in ("ssl_verify_cert", _CHECK_NAME_TOO, _CHECK_NAME):
        if query.get(key) == "true" and not has_authority:
            yield f"has {key} = true without ssl_ca or ssl_capath; allowed: with one of them, to verify by"
    if query.get("ssl_verify_cert") == "false" and has_authority:
        named = next(key for key in _AUTHORITIES if key in query)
        yield f"has ssl_verify_cert = false beside {named}, by which it is verified; allowed: one of them"
    if _CHECK_NAME in query and _CHECK_NAME_TOO in query:
        yield f"has {_CHECK_NAME} and {_CHECK_NAME_TOO}, which are one option; allowed: one of them"


def _keys_without_value(text: str, url: URL) -> list[str]:
    # The first @ ends the password, which can contain any other character.
    behind = text.partition("@")[2] if url.username is not None else text
    pairs = parse_qsl(behind.partition("?")[2], keep_blank_values=True)
    return [key for key, value in pairs if not value]
