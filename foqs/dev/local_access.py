"""Access to a private server: by socket for the user who runs it, and by TCP, if it listens, with the password.

Access depends on the permissions of directories and not on MySQL's socket authentication, whose plugin not every MySQL
has: to connect to a socket, a process must be able to pass through its directory. Over the network nobody is root.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from pymysql.converters import escape_string

USER = "foqs"
"""The account for access over the network."""
_FILES_OF_A_SERVER = frozenset({"lock", "mysql", "error.log"})
"""A directory with all these files was used by a server before. Fewer are no proof: /etc and /var/lib have a `mysql`,
/var has a `lock`.
"""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_PASSWORD_CHARACTERS_MIN = 12


class LocalAccessError(Exception):
    """The directory cannot be closed to other users; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class TcpListener:
    """The address at which a private server listens besides its socket, and the only account there.

    `port` has to be free. The account, `foqs`, has all privileges in databases whose names begin with foqs_, and no
    others, because a user who can change the server's variables can make it write files. Raises ValueError for a
    password of fewer than 12 characters, because any user of this machine can try; `secrets.token_urlsafe()` makes one.
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
        """Return the SQLAlchemy URL of a database, with the password."""
        return f"mysql+pymysql://{USER}:{quote(self.password, safe='')}@{self.address}:{self.port}/{database}"

    def statements(self) -> list[str]:
        """Return the statements that the server runs before its first login: they make its only account over TCP."""
        account = f"'{USER}'@'%'"
        return [
            # MariaDB makes these accounts without a password, and they match an address on the network.
            "DROP USER IF EXISTS 'root'@'127.0.0.1', 'root'@'::1', ''@'localhost'",
            f"DROP USER IF EXISTS {account}",
            f"CREATE USER {account} IDENTIFIED BY '{escape_string(self.password)}'",
            f"GRANT ALL PRIVILEGES ON `foqs\\_%`.* TO {account}",
        ]


def make_private(directory: Path) -> None:
    """Make the directory, or close an existing one, so that only its user can reach its contents.

    Raises LocalAccessError if the directory belongs to another user, or if it is open to others and neither empty nor
    that of a private server, because it is then not ours to close.
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
    """Return server options; if the server listens, write its init file, readable only by its user."""
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
    """Return server options that keep statements from files, except, on MariaDB, in this empty directory."""
    files_dir.mkdir(mode=0o700, exist_ok=True)
    # MariaDB has no value for "nowhere", and an empty value means "everywhere".
    return [f"--secure-file-priv={files_dir if is_mariadb else 'NULL'}", "--local-infile=OFF"]
