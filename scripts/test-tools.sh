#!/bin/sh
# What the tests with clients of other languages need: the Thrift compiler, C++ and Node with their Thrift libraries, Java, Go.
# And a ZooKeeper, of which they start servers of their own; promtool and systemd-analyze, for deploy/; Chromium and axe, for
# the console; and, for root, what parts hosts and loses their packets.
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
command -v javac >/dev/null || missing="$missing default-jdk-headless"
command -v go >/dev/null || missing="$missing golang-go"
[ -d /usr/share/gocode/src/github.com/apache/thrift ] || missing="$missing golang-thrift-dev"
[ -e /usr/share/java/zookeeper.jar ] || missing="$missing libzookeeper-java"
command -v promtool >/dev/null || missing="$missing prometheus"
command -v systemd-analyze >/dev/null || missing="$missing systemd"
command -v chromium >/dev/null || missing="$missing chromium"
if [ "$(id -u)" -eq 0 ]; then
    command -v ip >/dev/null || missing="$missing iproute2"
    command -v nft >/dev/null || missing="$missing nftables"
fi
# shellcheck disable=SC2086 # a list of packages
[ -z "$missing" ] || scripts/system-packages.sh "tests need tools" $missing

if [ ! -d tests/e2e/node/node_modules/thrift ] || [ ! -d tests/e2e/node/node_modules/axe-core ]; then
    mkdir -p tests/e2e/node
    npm install --silent --no-save --no-audit --no-fund --prefix tests/e2e/node 'thrift@^0.24.0' 'axe-core@4.14.1'
fi
