#!/bin/bash
# Builds Brigade and runs its test suite in another release of Debian: makes the
# release in a folder (debootstrap, kept for the next time), installs the
# dependencies in it, builds this checkout and runs the tests. As root.
#
#   scripts/test_on.sh RELEASE [TEST...]   # trixie, forky, ...; default: all
#   scripts/test_on.sh RELEASE --arch arm64 [TEST...]   # scripts/test_on_arm.sh
#   ROOTS=FOLDER                           # default /var/cache/brigade-debian
#   KEEP_BUILD=1                           # build on where the last run stopped
# Prints one line at the end: release, libtorch, compiler, tests passed.
set -euo pipefail
release=${1:?usage: scripts/test_on.sh RELEASE [TEST...]}
shift
cd "$(dirname "$0")/.."
if [ "${1:-}" = --arch ]; then
  [ "${2:-}" = arm64 ] ||
    { echo "test_on: --arch takes arm64, but is '${2:-}'" >&2; exit 2; }
  exec scripts/test_on_arm.sh "$release" "${@:3}"
fi
roots=${ROOTS:-/var/cache/brigade-debian}
root=$roots/$release

if [ "$(id -u)" -ne 0 ]; then
  echo "test_on: skipped: debootstrap and chroot need root" >&2
  exit 77
fi

mounted=()
unmount() {
  local i
  for ((i = ${#mounted[@]} - 1; i >= 0; --i)); do
    umount -l "${mounted[i]}" || true
  done
}
trap unmount EXIT
mount_into() { # SOURCE TARGET OPTIONS...
  mkdir -p "$root/$2"
  mount "${@:3}" "$1" "$root/$2"
  mounted+=("$root/$2")
}
inside() { chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 \
  PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }

scripts/make_debian.sh "$release" "$root"
# What this machine's apt goes through, if anything.
cp /etc/apt/apt.conf.d/*proxy* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
mount_into proc proc -t proc
mount_into /dev dev --rbind
mount_into sysfs sys -t sysfs -o ro  # mpirun asks it for the cores
mount_into tmpfs tmp -t tmpfs
mount_into "$PWD" src --bind -o ro
if [ -d ../shared ]; then
  mount_into "$PWD/../shared" shared --bind -o ro
fi

echo "test_on: installing dependencies"
inside apt-get update -q >/dev/null
inside /src/scripts/install_dependencies.sh build test
[ -n "${KEEP_BUILD:-}" ] || rm -rf "$root/main"
mkdir -p "$root/main"
# As it stands here, ignored files left out.
git ls-files -z --cached --others --exclude-standard | xargs -0 tar -c | tar -x -C "$root/main"
inside bash -c 'cd /main && cmake --preset release \
  -DBRIGADE_WARNINGS_AS_ERRORS=OFF >/dev/null && cmake --build build/release -- -k 0'
status=0
named=()
[ $# -eq 0 ] || named=(-R "^($(IFS='|'; echo "$*"))\$")
inside bash -c 'cd /main && git init -q . 2>/dev/null; \
  scripts/run_tests.sh build/release "$@"' bash "${named[@]}" |
  tee "$roots/$release.tests" || status=$?
torch=$(inside dpkg-query -W -f '${Version}' libtorch-dev)
compiler=$(inside g++ -dumpfullversion)
echo "test_on: Debian $release, libtorch $torch, GCC $compiler:" \
  "$(tail -2 "$roots/$release.tests" | head -1), $(date +%F)"
exit "$status"
