"""A directory in which the commands of a page run as on a machine of their own, with a private MySQL server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from foqs.dev.local_server import LocalServer
from tests.support.faults.programs import FOQS, free_port
from tests.support.waiting import PATIENCE_S, PROGRAM_S_MAX

_ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<kind>sh|toml)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_FILE = re.compile(r"# (?P<path>/\S+)\n")
_STAND_INS = ("systemctl", "mariadb-dump")
_PLACES = ("/etc/foqs", "/etc/systemd", "/etc/prometheus", "/var/lib/foqs", "/var/backups")
"""Where the pages write; these are directories of the machine instead."""
_SOCKET, _PORT, _METRICS_PORT = "/run/mysqld/mysqld.sock", 7600, 9600


class Block(NamedTuple):
    """Commands or a file of a page, below a heading. `reason` says why it is not run; empty if it is."""

    heading: str
    kind: str
    text: str
    reason: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in their order."""
    found = []
    for part in re.split(r"^##+ ", page.read_text(), flags=re.MULTILINE):
        heading = part.partition("\n")[0]
        found += [Block(heading, one["kind"], one["text"], one["reason"] or "") for one in _BLOCK.finditer(part)]
    return found


class Machine:
    """Runs blocks with `root` in place of /, and with ports of its own."""

    def __init__(self, root: Path, server: LocalServer) -> None:
        self.root = root
        self.port, self.metrics_port = free_port(), free_port()
        self._server = server
        for place in (*_PLACES, "/run", "/bin", "/etc/systemd/system"):
            (root / place[1:]).mkdir(parents=True, exist_ok=True)
        for name in _STAND_INS:
            program = root / "bin" / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.support.stand_ins {name} "$@"\n')
            program.chmod(0o755)
        (root / "bin/foqs").symlink_to(FOQS)
        (root / ".my.cnf").write_text(f"[client]\nsocket={server.socket_path}\nuser=root\n")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def run(self, block: Block) -> str:
        """Run a block, or write it to its file. Returns what it prints."""
        text = self._here(block.text)
        if block.kind == "toml":
            named = _FILE.match(block.text)
            assert named, f"{block.heading}: a file without its path"
            self._path(named["path"]).write_text(
                text.replace("\n[shards]", f'port = {self.port}\nmetrics_address = "127.0.0.1"\n\n[shards]')
            )
            return ""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=_ROOT, env=self._variables(), capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block.heading}:\n{block.text}\n{done.stdout}{done.stderr}{self._log()}"
        return done.stdout + done.stderr

    def close(self) -> None:
        """End the host if it runs."""
        process_file = self.root / "run/foqs.pid"
        if process_file.exists():
            os.kill(int(process_file.read_text()), signal.SIGKILL)

    def _path(self, path: str) -> Path:
        return self.root / path[1:]

    def _here(self, text: str) -> str:
        for place in _PLACES:
            text = text.replace(place, str(self._path(place)))
        text = text.replace(_SOCKET, str(self._server.socket_path))
        return text.replace(f"127.0.0.1:{_METRICS_PORT}", f"127.0.0.1:{self.metrics_port}").replace(
            f"metrics_port = {_METRICS_PORT}", f"metrics_port = {self.metrics_port}"
        )

    def _variables(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FOQS_")}
        return kept | {
            "PATH": f"{self.root / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(_ROOT),
            "HOME": str(self.root),
            "MYSQL_UNIX_PORT": str(self._server.socket_path),
            "FOQS_ADDRESS": self.address,
            "FOQS_TEST_MACHINE": str(self.root),
            "FOQS_TEST_PATIENCE_S": str(PATIENCE_S),
        }

    def _log(self) -> str:
        log = self.root / "run/foqs.log"
        return log.read_text()[-2_000:] if log.exists() else ""
