"""The console beside a queue of `foqs dev`: a process of its own, which ends with the queue."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import Final, Self

from foqs.cli.output import Exit, leave, note

CONSOLE_PORT: Final = 7680
_STOP_S_MAX: Final = 5
_PACKAGES: Final = ("starlette", "uvicorn", "jinja2", "multipart", "itsdangerous")


class DevConsole:
    """Runs `foqs console` from the time at which the queue is ready until this context ends."""

    def __init__(self, port: int) -> None:
        """Exit at once, before anything is started, if a package of the console is missing."""
        missing = [name for name in _PACKAGES if find_spec(name) is None]
        if missing:
            note(f"error: foqs dev --console needs {missing[0]}: pip install 'foqs[console]'")
            leave(Exit.USAGE)
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, address: str, options: Sequence[str]) -> None:
        """Start it. It prints the URL that signs in by itself. `options` are those of a client of the queue."""
        listen = f"127.0.0.1:{self._port}"
        words = ["console", "--address", address, "--listen", listen, "--allow-actions", *options]
        # It ends with this process, also if that is killed.
        setpriv = shutil.which("setpriv")
        bound = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        self._process = subprocess.Popen([*bound, sys.executable, "-m", "foqs", *words], stdin=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
