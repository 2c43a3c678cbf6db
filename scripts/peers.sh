#!/bin/sh
# The queues that foqs is measured against, from the distribution's packages and PyPI. No service is left running: the
# benches start their own servers. foqs itself needs none of this.
set -eu
cd "$(dirname "$0")/.."

missing=""
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing="$missing rabbitmq-server"
PATH="$PATH:/usr/sbin" command -v beanstalkd >/dev/null || missing="$missing beanstalkd"
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
command -v redis-server >/dev/null || missing="$missing redis-server"

if [ -n "$missing" ]; then
    # Debian's way to have packages not start what they install.
    policy=/usr/sbin/policy-rc.d
    if [ "$(id -u)" -eq 0 ] && [ ! -e $policy ]; then
        trap 'rm -f $policy' EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
    fi
    # shellcheck disable=SC2086 # a list of packages
    scripts/system-packages.sh "peers are missing" $missing
fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[peers]'
