#!/bin/sh
# Makes build/tools, an environment of its own for what makes locks, looks for vulnerabilities and writes bills of
# materials, so that their many packages are not among those of foqs. Safe to repeat.
set -eu
cd "$(dirname "$0")/.."

wanted=$(cksum < scripts/audit-tools.sh)
[ "$(cat build/tools/.foqs-tools 2>/dev/null)" = "$wanted" ] && exit 0
mkdir -p build
rm -rf build/tools
.venv/bin/python -m venv build/tools
build/tools/bin/python -m pip install --quiet --disable-pip-version-check \
    'uv>=0.9,<1' 'pip-audit>=2.10,<3' 'cyclonedx-bom>=7.5,<8'
echo "$wanted" > build/tools/.foqs-tools
