"""The names by which consumers of this process show themselves to operators."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path
from typing import Final

from foqs.client.checks import check_text
from foqs.model.holder import CONSUMER_BYTES_MAX, consumer_fault

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def consumer_name(name: str | None) -> str:
    """Return the name of a consumer in this process: "NAME@HOSTNAME/PID", with the script's name if none is given.

    Raises InvalidArgumentError for a name that is not text, has control characters or is longer than 128 bytes by
    itself. A name that is longer with the rest behind it is cut.
    """
    if name is None:
        name = _clean(Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "") or "python"
    else:
        check_text("name", name)
        if fault := consumer_fault(name, "name"):
            raise fault
    pid = f"/{os.getpid()}"
    place = _cut(f"@{_clean(socket.gethostname())}", CONSUMER_BYTES_MAX // 2 - len(pid)) + pid
    return _cut(name, CONSUMER_BYTES_MAX - len(place.encode())) + place


def _clean(text: str) -> str:
    return _CONTROL.sub("", text)


def _cut(text: str, bytes_max: int) -> str:
    return text.encode()[:bytes_max].decode(errors="ignore")
