"""What a server calls itself: two copies of a database are on two of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from foqs.storage import statements as sql

NAME_BYTES_MAX = 255
"""The bytes of the column."""
_DIGEST_CHARS = 32


def read_server(rows: Callable[..., Any]) -> str:
    """The name of the server of a session; it stays the same when that is started anew as it was."""
    return server_name({str(name).lower(): str(value) for name, value in rows(sql.READ_SERVER)})


def server_name(variables: Mapping[str, str]) -> str:
    """A text that no two servers have, of the variables of READ_SERVER.

    MySQL's server_uuid is a file in the data directory, which a clone of the volume shares, and MariaDB's server_uid,
    which versions before 10.6.19 lack, is of the machine and the port. So the host's name, the port and the directory
    are part of it.
    """
    own = variables.get("server_uuid") or variables.get("server_uid") or "-"
    name = f"{variables.get('hostname', '')}:{variables.get('port', '')} {variables.get('datadir', '')} {own}"
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    digest = sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    return name.encode()[: NAME_BYTES_MAX - _DIGEST_CHARS - 1].decode(errors="ignore") + " " + digest
