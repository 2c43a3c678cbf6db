#!/bin/sh
# What the Spark integration needs: the extra foqs[spark] in .venv (about 660 MB), and a Java runtime, 17 or newer.
set -eu
cd "$(dirname "$0")/.."

java_is_new_enough() {
    command -v java >/dev/null || return 1
    version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ]
}

# Newer releases have no 17, and a default above it.
java_package() {
    if apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
        echo openjdk-17-jre-headless
    else
        echo default-jre-headless
    fi
}

java_is_new_enough || scripts/system-packages.sh "a Java runtime, 17 or newer, is missing" "$(java_package)"
java_is_new_enough || { echo "error: java is older than 17: name a newer one in PATH" >&2; exit 1; }

stamp=.venv/.foqs-spark
wanted=$(cksum <pyproject.toml)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[spark]'
    echo "$wanted" >"$stamp"
fi
