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
tar -cf - --exclude=./.venv --exclude=./build --exclude=./.git --exclude=__pycache__ --exclude='./.*_cache' . |
    tar -xf - -C build/compiled
ln -s ../../.venv build/compiled/.venv
cd build/compiled
# The build leaves the modules in the tree too, which is why it is a copy: they would be used instead of edited ones.
HATCH_BUILD_HOOK_ENABLE_MYPYC=1 .venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir ../wheels .
echo "build/wheels has the wheel, build/compiled the tree: $(find foqs -name '*.so' | wc -l) compiled modules"
