"""Which interpreter `make setup` takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PROGRAM_S_MAX

pytestmark = pytest.mark.deep

SCRIPT = Path(__file__).parents[2] / "scripts/find-python.sh"
PLAIN, OPTIMIZED = ("'--prefix=/opt'", "posix_prefix"), ("'--prefix=/opt' '--enable-optimizations'", "posix_prefix")
DEBIAN = ("'--prefix=/usr' '--with-computed-gotos'", "deb_system")
"""CONFIG_ARGS and an install scheme of interpreters that were built in these ways."""


class Machine:
    """One with the directories `first`, `second` and `last`: two on PATH, and one that is looked in all the same."""

    def __init__(self, root: Path) -> None:
        self._root = root
        for name in ("first", "second", "last", "tools"):
            (root / name).mkdir()
        for tool in ("sh", "dirname", "grep", "head", "id", "sed", "tr"):
            (root / "tools" / tool).symlink_to(shutil.which(tool) or "/missing")

    def install(
        self, name: str, build: tuple[str, str], version: tuple[int, int] = (3, 11), *, without_venv: bool = False
    ) -> str:
        """An interpreter that says so of itself; its path."""
        path = self._root / name
        args, scheme = build
        path.write_text(
            f"#!{sys.executable}\n"
            "import sys, sysconfig\n"
            f"sys.version_info = {version}\n"
            f"sysconfig.get_config_var = {{'CONFIG_ARGS': {args!r}}}.get\n"
            f"sysconfig.get_scheme_names = lambda: ({scheme!r},)\n"
            f"sys.modules.update({dict.fromkeys(['ensurepip']) if without_venv else {}})\n"
            "exec(sys.argv[2])\n"
        )
        path.chmod(0o755)
        return str(path)

    def let_packages_be_installed(self) -> None:
        for name, text in (("id", "echo 0"), ("apt-get", "exit 0")):
            tool = self._root / "tools" / name
            tool.unlink(missing_ok=True)
            tool.write_text(f"#!/bin/sh\n{text}\n")
            tool.chmod(0o755)

    def found(self, python: str = "") -> tuple[str, str]:
        """What the script takes, and why."""
        path = ":".join(str(self._root / name) for name in ("first", "second", "tools"))
        done = subprocess.run(
            [SCRIPT, self._root / "last"],
            env={"PATH": path, "PYTHON": python},
            capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=True,
        )  # fmt: skip
        assert done.stderr == ""
        taken, _, why = done.stdout.strip().partition("\t")
        return taken, why


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("build", [OPTIMIZED, DEBIAN])
@pytest.mark.parametrize("name", ["second/python3", "second/python3.12", "last/python3.11"])
def test_an_optimized_interpreter_goes_before_others(machine: Machine, name: str, build: tuple[str, str]) -> None:
    machine.install("first/python3", PLAIN)
    machine.install("first/python3.11", PLAIN, (3, 13))
    optimized = machine.install(name, build)
    assert machine.found() == (optimized, "built with optimizations")


def test_the_first_of_several_optimized_interpreters_is_taken(machine: Machine) -> None:
    machine.install("second/python3", DEBIAN)
    machine.install("first/python3.13", OPTIMIZED, (3, 13))
    first = machine.install("first/python3", OPTIMIZED)
    assert machine.found()[0] == first


def test_an_interpreter_that_is_too_old_or_does_not_run_is_passed_over(machine: Machine) -> None:
    machine.install("first/python3", OPTIMIZED, (3, 10))
    Path(machine.install("second/python3", OPTIMIZED)).write_text("#!/bin/sh\necho not this one >&2\nexit 127\n")
    plain = machine.install("last/python3", PLAIN)
    taken, why = machine.found()
    assert taken == plain
    assert "without optimizations" in why


def test_where_there_is_none_the_script_fails(machine: Machine) -> None:
    machine.install("first/python3", OPTIMIZED, (3, 10))
    with pytest.raises(subprocess.CalledProcessError):
        machine.found()


def test_the_interpreter_that_python_names_is_taken_and_the_note_says_how_it_was_built(machine: Machine) -> None:
    machine.install("first/python3", OPTIMIZED)
    plain = machine.install("second/python3.12", PLAIN, (3, 12))
    assert machine.found(plain) == (plain, "as PYTHON says, though it was built without optimizations")
    assert machine.found("python3.12") == machine.found(plain)
    fast = machine.install("last/mine", DEBIAN)
    assert machine.found(fast) == (fast, "as PYTHON says")


def test_an_interpreter_that_python_names_and_that_is_too_old_is_not_replaced(machine: Machine) -> None:
    machine.install("first/python3", OPTIMIZED)
    with pytest.raises(subprocess.CalledProcessError):
        machine.found(machine.install("last/mine", OPTIMIZED, (3, 10)))


def test_an_optimized_interpreter_without_venv_is_taken_where_its_package_can_be_installed(machine: Machine) -> None:
    plain = machine.install("first/python3", PLAIN)
    bare = machine.install("second/python3", DEBIAN, without_venv=True)
    taken, why = machine.found()
    assert taken == plain
    assert f"{bare} is, and lacks its venv package" in why
    machine.let_packages_be_installed()
    assert machine.found() == (bare, "built with optimizations")
