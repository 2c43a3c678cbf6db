"""The name of a server, which distinguishes two copies of a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from foqs.storage.schema import statements as sql

NAME_BYTES_MAX = 255
"""The width of the column."""
_DIGEST_CHARS = 32


def read_server(rows: Callable[..., Any]) -> str:
    """Read the name of a session's server; it stays the same across restarts with the same settings."""
    return server_name({str(name).lower(): str(value) for name, value in rows(sql.READ_SERVER)})


def server_name(variables: Mapping[str, str]) -> str:
    """Build a name that no other server has, from the variables of READ_SERVER.

    MySQL's server_uuid is a file in the data directory, so a clone of the volume has the same one. MariaDB's
    server_uid, which versions before 10.6.19 lack, depends on the machine and the port only. So the name includes the
    host name, the port and the directory.
    """
    own = variables.get("server_uuid") or variables.get("server_uid") or "-"
    name = f"{variables.get('hostname', '')}:{variables.get('port', '')} {variables.get('datadir', '')} {own}"
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    digest = sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    return name.encode()[: NAME_BYTES_MAX - _DIGEST_CHARS - 1].decode(errors="ignore") + " " + digest
