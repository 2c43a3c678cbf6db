#!/bin/sh
# A wheel with the host's hot modules compiled to C, in build/wheels, and in build/compiled a copy of this tree with the
# same modules: what runs there, tests and measurements, runs them. Needs a C compiler and the headers of Python.
set -eu
cd "$(dirname "$0")/.."

"${CC:-cc}" --version >/dev/null 2>&1 || scripts/system-packages.sh "a C compiler is missing" gcc libc6-dev
.venv/bin/python -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    scripts/system-packages.sh "the headers of Python are missing" python3-dev

rm -rf build/compiled
mkdir -p build/compiled
for part in .ci deploy foqs pyspark_foqs.py idl loadtest requirements schema scripts security tests docs pyproject.toml README.md \
    LICENSE Makefile CHANGELOG.md CONTRIBUTING.md SECURITY.md; do
    cp -R "$part" build/compiled/
done
find build/compiled -name __pycache__ -type d -prune -exec rm -rf {} +
ln -s ../../.venv build/compiled/.venv
cd build/compiled
# The build leaves the modules in the tree too, which is why it is a copy: they would be used instead of edited ones.
HATCH_BUILD_HOOK_ENABLE_MYPYC=1 .venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir ../wheels .
PYTHONPATH=. .venv/bin/python - <<'PYTHON'
import tomllib
from importlib import import_module

with open("pyproject.toml", "rb") as file:
    hook = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
modules = [path.removesuffix(".py").strip("/").replace("/", ".") for path in hook["include"]]
interpreted = [name for name in modules if import_module(name).__file__.endswith(".py")]
assert not interpreted, f"not compiled: {interpreted}"
print(f"build/wheels has the wheel, build/compiled the tree: {len(modules)} compiled modules")
PYTHON
