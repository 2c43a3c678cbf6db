#!/bin/sh
# Installs Debian packages when that is possible, and says exactly what to install when it is not.
#   system-packages.sh WHY PACKAGE...
#   system-packages.sh --possible       whether it could
set -eu

if [ "$(id -u)" -eq 0 ]; then
    as_root=""
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    as_root="no"
fi
[ "$as_root" = no ] || command -v apt-get >/dev/null || as_root="no"
if [ "$1" = --possible ]; then
    [ "$as_root" != no ]
    exit
fi

why=$1
shift
command="apt-get install --no-install-recommends $*"
if [ "$as_root" = no ]; then
    echo "error: $why: install the equivalent of: $command" >&2
    exit 1
fi

echo "$why: $command"
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
# shellcheck disable=SC2086 # as_root is a command of several words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
