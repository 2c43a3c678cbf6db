"""Programs under test as processes of their own, started the way a user starts them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from foqs.config import HostConfig
from foqs.dev.free_port import free_port as free_port
from tests.support.faults import FaultError
from tests.support.waiting import PATIENCE_S

FOQS = Path(sys.executable).with_name("foqs")
_LINES_MAX = 20_000
_EVENT = re.compile(r'"event": "([^"]+)"')


class Program:
    """A process whose output is read as it comes, and that never outlives its test.

    `variables` are added to its environment. `lines` are the last that it said, `events` how often it logged each.
    """

    def __init__(self, *arguments: str, name: str, variables: Mapping[str, str] | None = None) -> None:
        self.lines: deque[str] = deque(maxlen=_LINES_MAX)
        self.events: Counter[str] = Counter()
        self._said = threading.Condition()
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment() | dict(variables or {}),
            # Its own group: a Ctrl-C at the tests is not meant for it.
            start_new_session=True,
        )
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"{name}-output")
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_for_line(self, text: str) -> str:
        """The first line that holds the text. Raises FaultError when the program ends without it."""
        with self._said:
            self._said.wait_for(lambda: self._ended or self._find(text) is not None, PATIENCE_S)
        line = self._find(text)
        if line is None:
            raise FaultError(f"{self._process.args!r} did not say {text!r}:\n{self.output}")
        return line

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        """The exit code, once the program and its output have ended."""
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise FaultError(f"{error}:\n{self.output}") from error
        self._reader.join(PATIENCE_S)
        if self._reader.is_alive():
            raise FaultError("something that the program started still holds its output")
        return code

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.send_signal(signal.SIGCONT)
        self.wait()

    def _find(self, text: str) -> str | None:
        return next((line for line in self.lines if text in line), None)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                event = _EVENT.search(line)
                with self._said:
                    self.lines.append(line)
                    if event is not None:
                        self.events[event[1]] += 1
                    self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()


class HostProgram(Program):
    """`foqs host` on a port of 127.0.0.1, or of `listen`; ready when constructed.

    `command` is another program instead of `foqs`.
    """

    def __init__(
        self,
        name: str,
        port: int,
        meta_url: str,
        shard_urls: Mapping[int, str],
        variables: Mapping[str, str] | None = None,
        *,
        command: Sequence[str] = (str(FOQS),),
        listen: str = "127.0.0.1",
    ) -> None:
        shards = [flag for shard_id, url in shard_urls.items() for flag in ("--shard", f"{shard_id}={url}")]
        options = ["--host-name", name, "--listen-address", listen, "--port", str(port), "--meta-url", meta_url]
        super().__init__(*command, "host", *options, *shards, name=name, variables=variables)
        self.port = port
        self.address = f"{listen}:{port}"
        try:
            self.wait_for_line(f"serves {listen}")
        except BaseException:
            self.close()
            raise


def foqs(*arguments: str) -> str:
    """What a foqs command prints; it must succeed."""
    done = subprocess.run(
        [FOQS, *arguments], env=_environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode != 0:
        raise FaultError(f"foqs {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def _environment() -> dict[str, str]:
    """That of this process, without configuration that the programs would take for theirs."""
    configured = {f"FOQS_{key.upper()}" for key in HostConfig.model_fields} | {"FOQS_CONFIG"}
    variables = {key: value for key, value in os.environ.items() if key not in configured}
    return variables | {"PYTHONUNBUFFERED": "1"}
