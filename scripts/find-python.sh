#!/bin/sh
#   find-python.sh DIRECTORY...
# Prints the interpreter to set foqs up with, a tab, and why it is that one. PYTHON, a name or a path, is taken as it is
# when it is new enough. Else one of PATH or, behind it, the directories that was built with optimizations goes before
# all others, for most of a host's time is the interpreter's. Fails when there is none of 3.11 or newer.
set -eu
here=$(dirname "$0")
places=$(printf '%s\n' "$PATH" "$@" | tr : '\n')

# Debian's and its derivatives' are built with profiles, which their CONFIG_ARGS do not tell.
probe='
import sys, sysconfig
if sys.version_info < (3, 11):
    sys.exit(1)
told = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
kind = "optimized" if told or "deb_system" in sysconfig.get_scheme_names() else "plain"
try:
    import ensurepip, venv
except ImportError:
    kind += " without venv"
print(kind)
'

kind_of() {
    "$1" -c "$probe" 2>/dev/null </dev/null
}

candidates() {
    for name in python3 python3.13 python3.12 python3.11; do
        printf '%s\n' "$places" | while IFS= read -r directory; do
            # The environment that is to be made is none to make it with.
            if [ -x "$directory/$name" ] && ! [ "$directory" -ef "$here/../.venv/bin" ]; then
                echo "$directory/$name"
            fi
        done
    done
}

# The first candidate of a kind, of those in `found`.
first() {
    printf '%s\n' "$found" | sed -n "s/^$1	//p" | head -n 1 | grep .
}

tell() {
    printf '%s\t%s\n' "$1" "$2"
    exit
}

if [ -n "${PYTHON:-}" ]; then
    kind=$(kind_of "$PYTHON") || exit 1
    case $kind in
        optimized*) why="as PYTHON says" ;;
        *) why="as PYTHON says, though it was built without optimizations" ;;
    esac
    tell "$(command -v "$PYTHON")" "$why"
fi

found=$(candidates | while IFS= read -r path; do
    kind=$(kind_of "$path") || continue
    printf '%s\t%s\n' "$kind" "$path"
    [ "$kind" != optimized ] || break
done)
if path=$(first optimized); then
    tell "$path" "built with optimizations"
fi
# One without venv is of use where its package can be installed.
path=$(first "optimized without venv") && "$here/system-packages.sh" --possible && tell "$path" "built with optimizations"
better=${path:+": $path is, and lacks its venv package"}
path=$(first plain) || path=$(first "plain without venv") || path=$(first "optimized without venv") || exit 1
tell "$path" "the first that is new enough, though built without optimizations$better"
