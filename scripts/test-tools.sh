#!/bin/sh
# What the tests with clients of other languages need: the Thrift compiler, C++ and Node with their Thrift libraries.
set -eu
cd "$(dirname "$0")/.."

has_cpp_thrift() {
    echo '#include <thrift/transport/TBufferTransports.h>' | g++ -x c++ -E - >/dev/null 2>&1
}

missing=""
command -v thrift >/dev/null || missing="$missing thrift-compiler"
has_cpp_thrift || missing="$missing g++ libthrift-dev libboost-dev"
command -v node >/dev/null || missing="$missing nodejs"
command -v npm >/dev/null || missing="$missing npm"
# shellcheck disable=SC2086 # a list of packages
[ -z "$missing" ] || scripts/system-packages.sh "tests of other languages need tools" $missing

if [ ! -d tests/e2e/node/node_modules/thrift ]; then
    mkdir -p tests/e2e/node
    npm install --silent --no-save --no-audit --no-fund --prefix tests/e2e/node 'thrift@^0.24.0'
fi
