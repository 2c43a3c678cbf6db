"""The passwords of database URLs. A URL in the memory of a host has a name in the place of its password.

A URL is a text, which errors, logs and tracebacks can show. So the configuration keeps each password here, as a Secret,
and only a session that logs in asks for it.
"""

from __future__ import annotations

import secrets
import threading
from hashlib import blake2b
from typing import Final

from sqlalchemy import URL, make_url

from foqs.model.secret import Secret
from foqs.storage.sessions.secret_file import SecretFile, secret_file

KEPT: Final = "kept_password"
"""The option in a URL that names a password kept here. Configurations cannot set it."""
FILE: Final = "password_file"
"""The option in a URL for the file with the password."""
PASSWORDS_MAX: Final = 100_000
_NAME_BYTES: Final = 16
_HIDDEN: Final = "***"

_key: Final = Secret(secrets.token_bytes(32))
"""The key of the names, so that nobody can try passwords by them."""
_kept: Final[dict[str, Secret]] = {}
_lock: Final = threading.Lock()


def without_password(url: URL) -> URL:
    """Keep the password of the URL here, and return the URL with the name of the password. Equal ones have one name.

    Raises ValueError for one too many, as after very many rotations.
    """
    if not url.password:
        return url._replace(password=None)
    return url._replace(password=None).update_query_dict({KEPT: _keep(Secret(_encoded(str(url.password))))})


def is_kept(url: URL) -> bool:
    """True if the URL has the name of a password in the place of it."""
    return url.query.get(KEPT) in _kept


def shown_url(url: URL) -> str:
    """Return the URL for people, with *** in the place of its password."""
    if KEPT in url.query:
        url = url.difference_update_query([KEPT])._replace(password=_HIDDEN)
    return url.render_as_string(hide_password=True)


class Password:
    """The password by which a session logs in, from its URL or from a file."""

    __slots__ = ("_file", "_secret")

    def __init__(self, secret: Secret | None, file: SecretFile | None = None) -> None:
        self._secret = secret
        self._file = file

    def read(self, *, again: bool = False) -> Secret | None:
        """Return the password, or None without one. A file is read even if it looks unchanged if `again` is set.

        Blocks. Raises InvalidArgumentError if the file cannot be used.
        """
        return self._file.read(again=again) if self._file is not None else self._secret


def password_of(url: URL) -> Password:
    """Return the password of a URL."""
    if url.password:
        return Password(Secret(_encoded(str(url.password))))
    if (named := url.query.get(FILE)) is not None:
        return Password(None, secret_file(str(named)))
    return Password(_kept.get(str(url.query.get(KEPT, ""))))


def password_text(url: str) -> str:
    """Return the password of a URL as a text, for programs that hand it on; empty without one."""
    found = password_of(make_url(url)).read()
    return found.reveal().decode() if found is not None else ""


def _keep(secret: Secret) -> str:
    name = blake2b(secret.reveal(), key=_key.reveal(), digest_size=_NAME_BYTES).hexdigest()
    with _lock:
        if name not in _kept and len(_kept) >= PASSWORDS_MAX:
            raise ValueError(f"has one more password than the {PASSWORDS_MAX} that a process keeps: restart it")
        _kept[name] = secret
    return name


def _encoded(text: str) -> bytes:
    try:
        return text.encode("latin1")  # The driver has always done so.
    except UnicodeEncodeError:
        return text.encode()
