"""The list of modules that `make compiled` compiles."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUBCLASSES = """
import importlib, json, pkgutil, foqs

for module in pkgutil.walk_packages(foqs.__path__, "foqs."):
    if not module.name.endswith("__main__") and not module.name.startswith("foqs.spark."):
        importlib.import_module(module.name)
found, left = set(), [object]
while left:
    for one in type.__subclasses__(left.pop()):
        if one not in found:
            found.add(one)
            left.append(one)
pairs = [(one, base) for one in found for base in one.__bases__]
print(json.dumps([[f"{one.__module__}.{one.__qualname__}", base.__module__, base.__name__] for one, base in pairs
                  if str(one.__module__).startswith("foqs.") and str(base.__module__).startswith("foqs.")]))
"""


def modules() -> set[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        hooks = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    return {path.removesuffix(".py").strip("/").replace("/", ".") for path in hooks["mypyc"]["include"]}


def test_each_of_them_exists():
    assert [name for name in modules() if not (ROOT / f"{name.replace('.', '/')}.py").exists()] == []


def test_no_interpreted_class_inherits_from_a_compiled_one():
    """A compiled class refuses that only when the first instance is made: with the first dedup id of a shard."""
    listed = subprocess.run([sys.executable, "-c", SUBCLASSES], cwd=ROOT, capture_output=True, check=True, text=True)
    compiled, pairs = modules(), json.loads(listed.stdout)
    assert any(base in compiled for _, base, _ in pairs), "nothing was found at all"
    assert [(one, name) for one, base, name in pairs
            if base in compiled and one.rsplit(".", 1)[0] not in compiled] == []  # fmt: skip
