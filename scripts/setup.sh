#!/bin/sh
# Makes .venv with foqs and everything to develop it, and sees to a MySQL server program. Safe to repeat: when
# nothing changed it is done in a moment. PYTHON names another interpreter (3.11 or newer).
set -eu
cd "$(dirname "$0")/.."

find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

have_mysql_server() {
    [ -n "${FOQS_MYSQLD:-}" ] && return
    for name in mariadbd mysqld; do
        PATH="$PATH:/usr/sbin:/usr/libexec:/usr/local/sbin:/usr/local/bin:/usr/local/mysql/bin" \
            command -v "$name" >/dev/null && return
    done
    return 1
}

find_python >/dev/null || scripts/system-packages.sh "Python is missing" python3 python3-venv
python=$(find_python) || { echo "error: foqs needs Python 3.11 or newer: name one in PYTHON" >&2; exit 1; }
have_mysql_server || scripts/system-packages.sh "a MySQL server is missing" mariadb-server-core mariadb-client-core

stamp=.venv/.foqs-setup
python_version=$("$python" -c 'import platform; print(platform.python_version())')
wanted="$python_version $(cksum <pyproject.toml)"
if [ -x .venv/bin/python ] && [ "$(cat $stamp 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    scripts/system-packages.sh "the venv module of Python is missing" "python${python_version%.*}-venv"
fi
# An environment of another Python is made anew, one of the same is brought up to date.
if [ "$(.venv/bin/python -c 'import platform; print(platform.python_version())' 2>/dev/null)" != "$python_version" ]; then
    rm -rf .venv
    "$python" -m venv .venv
fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,loadtest]'
echo "$wanted" > $stamp
