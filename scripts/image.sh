#!/bin/sh
# Builds the image of foqs into build/image/foqs.tar, an OCI archive, by buildah: without a daemon and, unless BASE names an
# image of a registry, without a registry. Then it runs foqs in it.
#   image.sh             on a small Debian that mmdebstrap makes; needs root
#   image.sh --wheels    only build/image/wheels, for a build by other tools (deploy/Containerfile)
set -eu
cd "$(dirname "$0")/.."
umask 022
out=build/image
version=$(.venv/bin/python -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')

rm -rf "$out"
mkdir -p "$out/wheels"
pip=".venv/bin/python -m pip --quiet --quiet --disable-pip-version-check"
$pip wheel --no-deps --wheel-dir "$out/wheels" .
$pip download --require-hashes --only-binary :all: --no-deps --dest "$out/wheels" --requirement requirements/host.lock
echo "$out/wheels: $(find "$out/wheels" -name '*.whl' | wc -l) wheels"
[ "${1:-}" != --wheels ] || exit 0

missing=""
command -v buildah >/dev/null || missing="$missing buildah"
[ -n "${BASE:-}" ] || command -v mmdebstrap >/dev/null || missing="$missing mmdebstrap"
# shellcheck disable=SC2086 # a list of packages
[ -z "$missing" ] || scripts/system-packages.sh "the image needs tools" $missing

# In folders of its own, so that nothing of the machine's images is touched, and by copies, which work on each file system.
images() {
    buildah --root "$PWD/$out/storage" --runroot "$PWD/$out/run" --storage-driver vfs "$@"
}

pull=--pull  # What is missing.
if [ -z "${BASE:-}" ]; then
    pull=--pull-never
    BASE=localhost/foqs-base
    # With usr-is-merged, because usrmerge would bring 50 MB of Perl.
    mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates,usr-is-merged \
        --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/lib/*/gconv/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/info/*' \
        --customize-hook='rm -rf "$1"/var/cache/* "$1"/var/log/* "$1"/var/lib/apt/lists/*' \
        bookworm "$out/base.tar" >"$out/base.log" 2>&1 || { tail -n 20 "$out/base.log" >&2; exit 1; }
    container=$(images from scratch)
    images add --quiet "$container" "$out/base.tar" / >/dev/null
    images commit --quiet --rm "$container" "$BASE" >/dev/null
    rm "$out/base.tar"
fi
images bud --quiet --isolation chroot "$pull" --build-arg "BASE=$BASE" \
    --file deploy/Containerfile --tag "foqs:$version" "$out" >/dev/null

container=$(images from --pull-never "foqs:$version")
in_image() {
    images run --isolation chroot --volume "$PWD/deploy/kubernetes:/etc/foqs:ro" "$container" -- "$@"
}
printed=$(in_image foqs --version)
case $printed in *"$version"*) ;; *) echo "error: foqs in the image says $printed" >&2; exit 1 ;; esac
in_image foqs config check --config /etc/foqs/foqs.toml --host-name foqs-0 --advertise-address foqs-0.foqs-hosts
user=$(in_image id -u)
[ "$user" = 7600 ] || { echo "error: the image runs as user $user" >&2; exit 1; }
size_mib=$(du -sm "$(images mount "$container")" | cut -f 1)
images rm "$container" >/dev/null
rm -f "$out/foqs.tar"
images push --quiet "foqs:$version" "oci-archive:$out/foqs.tar:foqs:$version"
rm -rf "$out/storage" "$out/run"
echo "$out/foqs.tar: foqs:$version runs, $size_mib MiB unpacked, $(du -m "$out/foqs.tar" | cut -f 1) MiB packed"
