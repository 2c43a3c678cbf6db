"""Programs of a machine that tests do not have, for the commands of docs/: systemctl and mariadb-dump.

python -m tests.support.stand_ins PROGRAM ARGUMENT...    as PROGRAM would, with its state in FOQS_TEST_MACHINE
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from foqs.storage.sessions.session import connect

_ROWS_PER_INSERT = 100


def systemctl(arguments: list[str]) -> int:
    """Do for the unit foqs what systemd does, as far as the pages use it. Other units are left alone."""
    machine = Path(os.environ["FOQS_TEST_MACHINE"])
    verb, units = arguments[0], [word for word in arguments[1:] if not word.startswith("--")]
    service = _Service(machine / "etc/systemd/system/foqs.service", machine)
    if verb != "daemon-reload" and units == ["foqs"]:
        if verb in ("stop", "restart"):
            service.stop()
        if verb in ("enable", "start", "restart"):
            service.start()
        elif verb == "status":
            print(service.status())
    return 0


class _Service:
    """One service of Type=notify with LoadCredential. Files keep its process number and its status."""

    def __init__(self, unit: Path, machine: Path) -> None:
        self._settings = dict(re.findall(r"^(\w+)=(.*)$", unit.read_text() if unit.exists() else "", re.MULTILINE))
        self._machine = machine
        self._process_file, self._status_file = machine / "run/foqs.pid", machine / "run/foqs.status"

    def start(self) -> None:
        credentials = self._machine / "run/credentials"
        shutil.rmtree(credentials, ignore_errors=True)
        credentials.mkdir(mode=0o700, parents=True)
        name, _, source = self._settings["LoadCredential"].partition(":")
        shutil.copy(f"{self._machine}{source}", credentials / name)
        (credentials / name).chmod(0o400)
        for directory in self._settings["StateDirectory"].split():
            (self._machine / "var/lib" / directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        command = self._settings["ExecStart"].replace("/opt/foqs/bin/foqs", str(shutil.which("foqs")))
        command = command.replace("/etc/foqs", f"{self._machine}/etc/foqs")
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as notified:
            address = f"foqs-test-{os.getpid()}"
            notified.bind(f"\0{address}")
            notified.settimeout(float(os.environ["FOQS_TEST_PATIENCE_S"]))
            with (self._machine / "run/foqs.log").open("ab") as log:
                process = subprocess.Popen(
                    command.split(),
                    env=os.environ | {"CREDENTIALS_DIRECTORY": str(credentials), "NOTIFY_SOCKET": f"@{address}"},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            self._process_file.write_text(str(process.pid))
            while "READY=1" not in (report := notified.recv(4_096).decode()):
                if process.poll() is not None:
                    sys.exit(f"the host ended with {process.returncode}")
            self._status_file.write_text(report.partition("STATUS=")[2])

    def stop(self) -> None:
        """End the service, and wait until its process is gone."""
        number = int(self._process_file.read_text())
        os.kill(number, signal.SIGTERM)
        until_s = time.monotonic() + float(os.environ["FOQS_TEST_PATIENCE_S"])
        while _runs(number) and time.monotonic() < until_s:
            os.sched_yield()
        self._process_file.unlink()

    def status(self) -> str:
        return f'Status: "{self._status_file.read_text()}"'


def _runs(number: int) -> bool:
    """True if the process has not ended. One that nobody has waited for is a zombie."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def mariadb_dump(arguments: list[str]) -> int:
    """Print the tables of a database as SQL, all of one moment."""
    (database,) = [word for word in arguments if not word.startswith("--")]
    assert "--single-transaction" in arguments
    session = connect(f"mysql+pymysql://root@localhost/{database}?unix_socket={os.environ['MYSQL_UNIX_PORT']}")
    with closing(session), session.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SHOW TABLES")
        tables = [row[0] for row in cursor.fetchall()]
        print("SET NAMES utf8mb4; SET FOREIGN_KEY_CHECKS = 0;")
        for table in tables:
            cursor.execute(f"SHOW CREATE TABLE `{table}`")
            print(f"{cursor.fetchall()[0][1]};")
            cursor.execute(f"SELECT * FROM `{table}`")
            rows = [f"({', '.join(map(_literal, row))})" for row in cursor.fetchall()]
            for first in range(0, len(rows), _ROWS_PER_INSERT):
                print(f"INSERT INTO `{table}` VALUES {', '.join(rows[first : first + _ROWS_PER_INSERT])};")
    return 0


def _literal(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"x'{value.hex()}'"
        case int() | float():
            return str(value)
        case _:
            return f"CONVERT(x'{str(value).encode().hex()}' USING utf8mb4)"


_PROGRAMS = {"systemctl": systemctl, "mariadb-dump": mariadb_dump}

if __name__ == "__main__":
    sys.exit(_PROGRAMS[sys.argv[1]](sys.argv[2:]))
