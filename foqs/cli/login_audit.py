"""The audit of commands that change the meta database by their own login, and ask no host."""

from __future__ import annotations

import getpass
import socket
import time

from sqlalchemy import make_url

from foqs.cli.output import note
from foqs.model.audit import AuditNote
from foqs.model.cluster import process_id
from foqs.model.errors import FoqsError
from foqs.storage.meta.meta_store import MetaStore


def record_change(meta: MetaStore, url: str, what: str, changes: str = "") -> None:
    """Record a change that was made just now, by the user of the login `url` and of this machine.

    A change that cannot be recorded stays, and a message on stderr says so.
    """
    now_ms = time.time_ns() // 1_000_000
    machine = socket.gethostname()
    said = AuditNote(
        what,
        principal=f"(login {make_url(url).username or ''})",
        credential=f"(user {_user()})",
        address=machine,
        changes=changes,
    )
    try:
        meta.audit.write([said.record(now_ms, process_id(f"cli-{machine}"[:64], now_ms))])
    except FoqsError as error:
        note(f"warning: {what} is done, but is not in the audit: {error.message}")


def _user() -> str:
    """The user of this process, as far as the system knows it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
