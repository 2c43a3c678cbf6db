#!/bin/sh
# Makes .venv with foqs and everything to develop it, and sees to a MySQL server program. Safe to repeat: when
# nothing changed it is done in a moment. PYTHON names the interpreter (3.11 or newer) to take instead of the best one.
set -eu
cd "$(dirname "$0")/.."

find_python() {
    scripts/find-python.sh /usr/local/bin /usr/bin /opt/homebrew/bin
}

have_mysql_server() {
    [ -n "${FOQS_MYSQLD:-}" ] && return
    for name in mariadbd mysqld; do
        PATH="$PATH:/usr/sbin:/usr/libexec:/usr/local/sbin:/usr/local/bin:/usr/local/mysql/bin" \
            command -v "$name" >/dev/null && return
    done
    return 1
}

have_mysql_server || scripts/system-packages.sh "a MySQL server is missing" mariadb-server-core mariadb-client-core

# While this is the same, nothing is to be done; a better interpreter that has come since is taken after `make clean`.
stamp=.venv/.foqs-setup
wanted="${PYTHON:-} $(cat pyproject.toml scripts/setup.sh scripts/find-python.sh | cksum)"
if [ -x .venv/bin/python ] && [ "$(cat $stamp 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

found=$(find_python) || {
    [ -n "${PYTHON:-}" ] || scripts/system-packages.sh "Python is missing" python3 python3-venv
    found=$(find_python)
} || { echo "error: foqs needs Python 3.11 or newer: name one in PYTHON" >&2; exit 1; }
python=${found%%	*}
version=$("$python" -c 'import platform; print(platform.python_version())')
echo "Python $version of $python: ${found#*	}"

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    scripts/system-packages.sh "the venv module of Python is missing" "python${version%.*}-venv"
fi
# An environment of another Python is made anew, one of the same is brought up to date.
which_python='import platform, sys; print(sys.base_prefix, platform.python_version())'
if [ "$(.venv/bin/python -c "$which_python" 2>/dev/null)" != "$("$python" -c "$which_python")" ]; then
    rm -rf .venv
    "$python" -m venv .venv
fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,loadtest]'
echo "$wanted" > $stamp
