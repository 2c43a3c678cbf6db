"""Checks that read_only binds the user of a session, because a planned switch to another server relies on it.

docs/operations.md, "The user of the hosts", lists the least privileges that a host needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from foqs.storage.schema import statements as sql

_GLOBAL_GRANT = re.compile(r"GRANT (.+) ON \*\.\* TO ", re.IGNORECASE)
_UNBOUND = frozenset({"ALL", "ALL PRIVILEGES", "SUPER", "READ ONLY ADMIN", "READ_ONLY ADMIN", "CONNECTION_ADMIN"})
"""Each of these global privileges lets its user write under read_only; they belong to MariaDB, MySQL, or both."""

_log = structlog.get_logger(__name__)


def unbound_by(grants: Iterable[str]) -> list[str]:
    """Return the privileges in the lines of SHOW GRANTS that let their user write under read_only."""
    found = [match[1] for grant in grants if (match := _GLOBAL_GRANT.match(grant)) is not None]
    return sorted({name for privileges in found for name in re.split(", ?", privileges.upper()) if name in _UNBOUND})


def read_only_problem(rows: Callable[..., Any]) -> str:
    """Return the reason why read_only would not stop this session's user from writing; empty if it would."""
    privileges = unbound_by([grant for (grant,) in rows(sql.READ_GRANTS)])
    if not privileges:
        return ""
    return (
        f"its user has {', '.join(privileges)} on *.*, and so may write while the server is read_only: what a host "
        "writes during a planned switch can be lost. Grant it no more than SELECT, INSERT, UPDATE and DELETE on the "
        "databases of foqs, or on MySQL set super_read_only"
    )


def warn_of_read_only(rows: Callable[..., Any], shard_id: int) -> None:
    """Warn the operator after the take-over of a shard. A server without a network has no replica to switch to."""
    found = rows(sql.READ_NETWORKING)
    if any(str(value).upper() in ("ON", "1") for _, value in found):
        return
    if problem := read_only_problem(rows):
        _log.warning("read_only_does_not_bind", shard=shard_id, error=problem)
