"""Access to a private server: for the user who runs it, and by TCP, where it listens, with the password.

Access is by the permissions of directories and not by MySQL's socket authentication, whose plugin not every MySQL has:
to connect to a socket one has to be able to pass through its directory. Over the network nobody is root.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from pymysql.converters import escape_string

USER = "foqs"
"""The account that gets in over the network."""
_FILES_OF_A_SERVER = frozenset({"lock", "mysql", "error.log"})
"""A directory that has all of them was used before. Fewer will not do: /etc and /var/lib have a `mysql`, /var has a
`lock`.
"""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_PASSWORD_CHARACTERS_MIN = 12


class LocalAccessError(Exception):
    """The directory cannot be kept to one user; the message says what to do."""


@dataclass(frozen=True, slots=True)
class TcpListener:
    """Where a private server listens beside its socket, and the one account that gets in there.

    `port` has to be free. The account, `foqs`, may do everything in databases whose names begin with foqs_, and nothing
    beside: who may change the server's variables can have it write files. Raises ValueError for a password of fewer
    than 12 characters, for anybody on this machine can try; `secrets.token_urlsafe()` makes one.
    """

    port: int
    password: str = field(repr=False)
    address: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if len(self.password) < _PASSWORD_CHARACTERS_MIN:
            raise ValueError(
                f"the password has {len(self.password)} characters: take {_PASSWORD_CHARACTERS_MIN} or more"
            )

    def url(self, database: str = "") -> str:
        """The SQLAlchemy URL of a database, with the password."""
        return f"mysql+pymysql://{USER}:{quote(self.password, safe='')}@{self.address}:{self.port}/{database}"

    def statements(self) -> list[str]:
        """The statements that a server runs before it accepts anybody: they make this account, and no other is left."""
        account = f"'{USER}'@'%'"
        return [
            # MariaDB makes these, without a password, and they match an address on the network.
            "DROP USER IF EXISTS 'root'@'127.0.0.1', 'root'@'::1', ''@'localhost'",
            f"DROP USER IF EXISTS {account}",
            f"CREATE USER {account} IDENTIFIED BY '{escape_string(self.password)}'",
            f"GRANT ALL PRIVILEGES ON `foqs\\_%`.* TO {account}",
        ]


def make_private(directory: Path) -> None:
    """Make the directory, or close one that is there, so that its user alone reaches what is in it.

    Raises LocalAccessError when the directory is another user's, and when it is open to others and neither empty nor
    that of a private server: it is not ours to close then.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid != os.geteuid():
        raise LocalAccessError(f"{directory} belongs to another user (id {found.st_uid}): choose a directory of yours")
    if found.st_mode & _OTHERS == 0:
        return
    names = {path.name for path in directory.iterdir()}
    if names and not names >= _FILES_OF_A_SERVER:
        mode = stat.S_IMODE(found.st_mode)
        raise LocalAccessError(
            f"{directory} is open to other users (mode {mode:03o}) and is not that of a private server: choose an "
            "empty directory or one that is to be made"
        )
    directory.chmod(0o700)


def listen_options(listener: TcpListener | None, init_file: Path) -> list[str]:
    """Server options; the file is written, for who runs the server alone, when the server listens."""
    if listener is None:
        init_file.unlink(missing_ok=True)
        return ["--skip-networking"]
    init_file.touch(mode=0o600)
    init_file.write_text("".join(f"{statement};\n" for statement in listener.statements()))
    return [
        "--skip-networking=OFF",
        f"--bind-address={listener.address}",
        f"--port={listener.port}",
        f"--init-file={init_file}",
    ]


def file_options(files_dir: Path, *, is_mariadb: bool) -> list[str]:
    """Server options: no statement reads or writes files, but, on MariaDB, in this directory, which has none."""
    files_dir.mkdir(mode=0o700, exist_ok=True)
    # MariaDB has no word for nowhere, and takes the empty one for everywhere.
    return [f"--secure-file-priv={files_dir if is_mariadb else 'NULL'}", "--local-infile=OFF"]
