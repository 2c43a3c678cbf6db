"""Clients of other languages: generated from the IDL, and built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.waiting import PROGRAM_S_MAX

REPOSITORY = Path(__file__).parents[2]
NODE_MODULES = REPOSITORY / "tests/e2e/node/node_modules"

_GO_LIBRARIES = Path("/usr/share/gocode")
"""The GOPATH of Debian's packages."""
_IDL = REPOSITORY / "idl/foqs.thrift"
_DOCUMENT = REPOSITORY / "docs/other-languages.md"


def example(language: str) -> str:
    """The program of docs/other-languages.md in this language, as its code block is marked."""
    (program,) = re.findall(rf"```{language}\n(.*?)```", _DOCUMENT.read_text(), re.DOTALL)
    return str(program)


def generate(language: str, directory: Path) -> None:
    """Client code in a subdirectory of the directory, as `thrift` names it."""
    _need("thrift")
    subprocess.run(["thrift", "--gen", language, "-o", str(directory), str(_IDL)], check=True, timeout=PROGRAM_S_MAX)


def run_node(program: Path, *arguments: str) -> str:
    """What the program printed, which has to end well."""
    _need("node")
    if not (NODE_MODULES / "thrift").is_dir():
        _fail("npm package thrift")
    return _run(["node", str(program), *arguments], {"NODE_PATH": str(NODE_MODULES)})


def run(program: Path, *arguments: str) -> str:
    """What the program printed, which has to end well."""
    return _run([str(program), *arguments])


class CppClient:
    """The generated code of C++, compiled once for all programs that use it."""

    def __init__(self, directory: Path) -> None:
        _need("g++")
        generate("cpp", directory)
        self._directory = directory
        self._generated = directory / "gen-cpp"
        self._objects = [self._compile(self._generated / f"{name}.cpp") for name in ("Foqs", "FoqsAdmin", "foqs_types")]

    def build(self, source: Path) -> Path:
        """The program of this source file."""
        program = self._directory / source.stem
        self._compiler(
            "-Wall", "-Wextra", "-Werror", str(source), *map(str, self._objects), "-lthrift", "-o", str(program)
        )
        return program

    def _compile(self, source: Path) -> Path:
        made = source.with_suffix(".o")
        self._compiler("-c", str(source), "-o", str(made))
        return made

    def _compiler(self, *arguments: str) -> None:
        command = ["g++", "-std=c++17", "-O0", f"-I{self._generated}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)
        assert done.returncode == 0, f"{done.stderr[-4_000:]}\n(scripts/test-tools.sh installs what is missing)"


class JavaClient:
    """The generated code of Java, compiled with the Thrift library that Spark brings along."""

    def __init__(self, directory: Path) -> None:
        jars = java_jars()
        assert shutil.which("javac"), "there is no Java compiler (scripts/test-tools.sh installs what is missing)"
        assert jars, "there is no libthrift among the jars of pyspark"
        generate("java:generated_annotations=suppress", directory)
        self._directory = directory
        self._classes = os.pathsep.join([str(directory), *map(str, jars)])
        self._compile(*sorted((directory / "gen-java/foqs").glob("*.java")))

    def run(self, source: Path, *arguments: str) -> str:
        """Compile the program, and return what it printed, which has to end well."""
        self._compile(source)
        return _run(["java", "-cp", self._classes, source.stem, *arguments])

    def _compile(self, *sources: Path) -> None:
        options = ["-nowarn", "-cp", self._classes, "-d", str(self._directory)]
        command = ["javac", *options, *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)
        assert done.returncode == 0, done.stderr[-4_000:]


class GoClient:
    """The generated code of Go, with the Thrift library of Debian, in a GOPATH of its own."""

    def __init__(self, directory: Path) -> None:
        _need("go")
        assert (_GO_LIBRARIES / "src/github.com/apache/thrift").is_dir(), (
            "there is no Thrift library for Go (scripts/test-tools.sh installs what is missing)"
        )
        self._directory = directory
        generate("go", directory)
        (directory / "src").mkdir()
        (directory / "gen-go/foqs").rename(directory / "src/foqs")

    def build(self, source: Path) -> Path:
        """The program of this source file."""
        program = self._directory / source.stem
        variables = {
            "GO111MODULE": "off",
            "GOPATH": f"{self._directory}:{_GO_LIBRARIES}",
            "GOCACHE": str(self._directory / "cache"),
        }
        for command in (["go", "vet", str(source)], ["go", "build", "-o", str(program), str(source)]):
            _run(command, variables)
        return program


def java_jars() -> list[Path]:
    """The jars that generated clients need, of the package pyspark; empty without it."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        return []
    jars = Path(spark.origin).with_name("jars")
    found = [[*jars.glob(f"{name}-*.jar")] for name in ("libthrift", "slf4j-api")]
    return [jar for some in found for jar in some] if all(found) else []


def _run(command: list[str], variables: dict[str, str] | None = None) -> str:
    environment = os.environ | (variables or {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _need(tool: str) -> None:
    if shutil.which(tool) is None:
        _fail(tool)


def _fail(missing: str) -> None:
    """A missing tool is a failure, never a skip: without it the test proves nothing."""
    pytest.fail(f"missing: {missing}; run scripts/test-tools.sh", pytrace=False)
