"""`pip install foqs` is the client alone; the command and the host are extras, and say so where they are missing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from tests.support.sources import parsed
from tests.support.waiting import PROGRAM_S_MAX

pytestmark = [pytest.mark.deep]

_ROOT = Path(__file__).parents[2]
_PROJECT: dict[str, Any] = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
_HOST_COMMANDS = ("dev", "host", "config", "schema")


def _distributions(*extras: str) -> set[str]:
    """What the base and these extras install, by name; an extra that names another one installs that too."""
    wanted = list(_PROJECT["dependencies"]) + [
        one for extra in extras for one in _PROJECT["optional-dependencies"][extra]
    ]
    names: set[str] = set()
    for requirement in wanted:
        if named := re.fullmatch(r"foqs\[(\w+)\]", requirement):
            names |= _distributions(named[1])
        else:
            names.add(_normalized(re.match(r"[\w.-]+", requirement)[0]))  # type: ignore[index]
    return names


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


_INSTALLED = {
    package: {_normalized(name) for name in distributions}
    for package, distributions in packages_distributions().items()
}


def _packages_of(*extras: str) -> set[str]:
    """The importable packages of the base and these extras."""
    direct = _distributions(*extras)
    if "pydantic-settings" in direct:
        direct |= {"pydantic", "pydantic-core", "annotated-types"}  # It stands on them, and promises so.
    return {package for package, names in _INSTALLED.items() if names & direct}


def _imported(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every package that the modules of a folder import, wherever in the module."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name.partition(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield path, node.module.partition(".")[0]


def _run(program: str, *arguments: str, without: set[str]) -> subprocess.CompletedProcess[str]:
    """Run a program as if these packages were not installed."""
    blocked = f"import sys\nfor name in {sorted(without)}: sys.modules[name] = None\n"
    command = [sys.executable, "-c", blocked + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)


_OF_A_HOST = _packages_of("host") - _packages_of()
_OF_A_HOST_ALONE = _OF_A_HOST - _packages_of("cli")


def test_the_base_installs_thriftpy2_alone() -> None:
    assert _distributions() == {"thriftpy2"}
    assert {"sqlalchemy", "pymysql", "pydantic", "structlog", "uvloop", "cryptography", "click"} <= _OF_A_HOST


def test_a_client_imports_nothing_of_a_host() -> None:
    program = (
        "import foqs, pkgutil, sys\n"
        "from importlib import import_module\n"
        "import foqs.client\n"
        "for name in foqs.__all__: getattr(foqs, name)\n"
        "for found in pkgutil.walk_packages(foqs.client.__path__, 'foqs.client.'): import_module(found.name)\n"
        "print(*{name.partition('.')[0] for name in sys.modules})\n"
    )
    done = _run(program, without=set())
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "thriftpy2" in loaded
    assert not loaded & (_OF_A_HOST | {"rich", "pyspark", "pyarrow"})


@pytest.mark.parametrize("arguments", [(), ("--help",), ("host",), ("enqueue", "ns", "t")])
def test_the_command_says_what_to_install_where_there_is_only_the_client(arguments: tuple[str, ...]) -> None:
    done = _run("from foqs.__main__ import main; main()", *arguments, without=_OF_A_HOST)
    assert done.returncode == 2
    assert done.stderr == "error: the foqs command is not installed: pip install 'foqs[cli]'\n"
    assert done.stdout == ""


@pytest.mark.parametrize("name", _HOST_COMMANDS)
def test_a_command_of_a_host_says_what_to_install(name: str) -> None:
    done = _run("from foqs.__main__ import main; main()", name, without=_OF_A_HOST_ALONE)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(rf"error: foqs {name} needs \w+: pip install 'foqs\[host\]'\n", done.stderr)


def test_the_console_says_what_to_install() -> None:
    done = _run(
        "from foqs.__main__ import main; main()", "console", without=_packages_of("console") - _packages_of("cli")
    )
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(r"error: foqs console needs \w+: pip install 'foqs\[console\]'\n", done.stderr)


@pytest.mark.parametrize(
    "name", ["enqueue", "dequeue", "ack", "nack", "topics", "namespace", "item", "dead-letter", "host-status"]
)
def test_the_other_commands_need_no_host(name: str) -> None:
    done = _run("from foqs.__main__ import main; main()", name, "--help", without=_OF_A_HOST_ALONE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: foqs ")


def test_foqs_lists_its_commands_without_a_host() -> None:
    done = _run("from foqs.__main__ import main; main()", "--help", without=_OF_A_HOST_ALONE)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in _HOST_COMMANDS)


def test_what_a_module_imports_is_installed_by_its_extra() -> None:
    shared = sys.stdlib_module_names | {"foqs"}
    assert _distributions("zookeeper") == _distributions("host") | {"kazoo"}
    allowed = {
        "client": _packages_of(),
        "cli": _packages_of("cli", "host"),
        "console": _packages_of("console"),
        "cluster": _packages_of("host") | {"kazoo"},  # The membership by ZooKeeper has it, and its extra.
        "testing": _packages_of("testing") | {"pytest"},  # Who uses the fixture has that.
        "spark": _packages_of("spark") | {"pyspark", "py4j", "pyarrow"},  # Not every developer has them.
    }
    for path, package in _imported(_ROOT / "foqs"):
        part = path.relative_to(_ROOT / "foqs").parts[0]
        assert package in shared | allowed.get(part, _packages_of("host")), f"{path} imports {package}"


def test_a_host_without_zookeeper_needs_nothing_of_it() -> None:
    done = _run("import foqs.supervised, foqs.cluster.members.backends.choice", without={"kazoo"})
    assert done.returncode == 0, done.stderr


def test_a_host_that_is_to_use_zookeeper_says_what_to_install() -> None:
    arguments = ("--meta-url", "mysql://nobody@127.0.0.1:1/meta", "--membership", "zookeeper://zk-1", "--port", "0")
    done = _run("from foqs.__main__ import main; main()", "host", *arguments, without={"kazoo"})
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        "error: membership is zookeeper://zk-1:2181/foqs, which needs the package kazoo: "
        "pip install 'foqs[zookeeper]'\n"
    )


def test_a_queue_in_memory_needs_what_its_extra_installs() -> None:
    done = _run(
        "from foqs.testing import MemoryQueue\n"
        "with MemoryQueue() as queue: print(queue.client().enqueue('default', 'topic', b'payload'))",
        without=_OF_A_HOST - _packages_of("testing"),
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[0-9a-f]+-[0-9a-f]+\n", done.stdout)


def test_a_queue_in_memory_says_what_to_install() -> None:
    done = _run("import foqs.testing.items\nfrom foqs.testing import MemoryQueue", without=_OF_A_HOST)
    assert done.returncode == 1
    needed = re.escape("pip install 'foqs[testing]'")
    assert re.search(rf"foqs\.testing\.MemoryQueue needs the package \w+: {needed}\n$", done.stderr), done.stderr
