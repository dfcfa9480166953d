#!/bin/bash
# Makes a bare Debian in a folder (debootstrap, minbase), once: a folder that has
# one is left alone. As root.
#
#   scripts/make_debian.sh RELEASE FOLDER [ARCHITECTURE]   # trixie, forky, ...
set -euo pipefail
release=${1:?usage: scripts/make_debian.sh RELEASE FOLDER [ARCHITECTURE]}
root=${2:?usage: scripts/make_debian.sh RELEASE FOLDER [ARCHITECTURE]}
architecture=${3:-}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
[ ! -e "$root/.complete" ] || exit 0

if ! command -v debootstrap >/dev/null; then
  apt-get install -y -q debootstrap >/dev/null
fi
echo "make_debian: making Debian $release in $root"
rm -rf "$root"
mkdir -p "$root"
# A release that is newer than this debootstrap is made as sid is.
script=/usr/share/debootstrap/scripts/$release
[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
debootstrap --variant=minbase ${architecture:+--arch="$architecture"} \
  "$release" "$root" "$mirror" "$script" >"$root.log" 2>&1 ||
  { tail -5 "$root.log" >&2; exit 1; }
# A snapshot's release file may be past its date.
echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/99brigade"
cp /etc/resolv.conf "$root/etc/resolv.conf"
touch "$root/.complete"
