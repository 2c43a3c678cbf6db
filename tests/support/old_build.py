"""foqs as it was at an earlier commit, taken from the history of this repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.faults import FaultError

_REPOSITORY = Path(__file__).parents[2]
_PARTS = ("foqs", "schema", "idl", "pyproject.toml", "README.md")


class OldBuild:
    """The program `foqs` of a commit, by the Python and the packages of today."""

    def __init__(self, commit: str, directory: Path) -> None:
        """Unpack it there. Raises FaultError where the history does not reach back so far."""
        self.command = (sys.executable, "-P", "-m", "foqs")
        self.variables = {"PYTHONPATH": str(directory)}
        archive = self._git("archive", "--format=tar", commit, "--", *_PARTS)
        directory.mkdir()
        subprocess.run(["tar", "-x", "-C", str(directory)], input=archive, check=True)

    def run(self, *arguments: str) -> str:
        """What a command of it prints; it must succeed."""
        import os

        return subprocess.run(
            [*self.command, *arguments],
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    @staticmethod
    def _git(*arguments: str) -> bytes:
        done = subprocess.run(["git", "-C", str(_REPOSITORY), *arguments], capture_output=True, check=False)
        if done.returncode != 0:
            raise FaultError(
                f"an older version of foqs is to be taken from the history of this repository, and git says: "
                f"{done.stderr.decode().strip()}. In a shallow clone, run git fetch --unshallow"
            )
        return done.stdout
