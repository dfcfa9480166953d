#!/bin/bash
# Tests the portable folder where nothing is installed: in a bare Debian 13 and a
# bare testing (debootstrap), without a network, with the PyTorch that it was
# built for mounted; and what it says in a Debian 11, whose glibc is too old, and
# of a processor that is. As root.
#
#   scripts/test_portable.sh [TARBALL]   # default: the newest in build
#   RELEASES="trixie forky"              # where it has to run
#   OLD_RELEASES=bullseye                # where it has to refuse
#   ROOTS=FOLDER                         # default /var/cache/brigade-debian
#   BRIGADE_TORCH=FOLDER                 # default: what it was built against
# Skips, with exit code 77, without root.
set -euo pipefail
cd "$(dirname "$0")/.."
tarball=${1:-$(ls -t build/brigade-portable-*.tar.gz | head -1)}
roots=${ROOTS:-/var/cache/brigade-debian}
most_bytes=60000000
if [ "$(id -u)" -ne 0 ]; then
  echo "test_portable: skipped: debootstrap and chroot need root" >&2
  exit 77
fi
fail() {
  echo "test_portable: FAILED: $*" >&2
  exit 1
}
bytes=$(stat -c %s "$tarball")
[ "$bytes" -lt "$most_bytes" ] || fail "$tarball has $bytes bytes"
version=$(basename "$tarball" | sed 's/brigade-portable-torch\([0-9.]*\).*/\1/')
torch=${BRIGADE_TORCH:-$(sed -n 's/^BRIGADE_TORCH:[A-Z]*=//p' \
  "build/torch-$version/CMakeCache.txt")}
packages=${torch%/*}

mounted=()
work=$(mktemp -d)
clean_up() {
  local i
  for ((i = ${#mounted[@]} - 1; i >= 0; --i)); do
    umount -l "${mounted[i]}" || true
  done
  rm -rf "$work"
}
trap clean_up EXIT

folder=/tmp/brigade-portable
# A root with what a running system mounts, and the folder in its /tmp.
enter() { # RELEASE
  local place
  root=$roots/bare-$1
  scripts/make_debian.sh "$1" "$root"
  for place in proc dev tmp opt/site-packages; do
    mkdir -p "$root/$place"
  done
  mount -t proc proc "$root/proc" && mounted+=("$root/proc")
  mount --rbind --make-rslave /dev "$root/dev" && mounted+=("$root/dev")
  mount -t tmpfs tmpfs "$root/tmp" && mounted+=("$root/tmp")
  mount --bind -o ro "$packages" "$root/opt/site-packages"
  mounted+=("$root/opt/site-packages")
  tar -C "$root/tmp" -xzf "$tarball"
  echo "test_portable: Debian $1, $(inside getconf GNU_LIBC_VERSION)"
}
# Its own loopback device and nothing else.
inside() {
  unshare --net sh -c 'ip link set lo up && exec "$@"' sh chroot "$root" \
    /usr/bin/env -i HOME=/tmp LANG=C.UTF-8 PATH=/usr/bin:/bin "$@"
}
refuses() { # WORDS COMMAND...
  local words=$1
  shift
  if "$@" >"$work/out" 2>&1 || ! grep -q "$words" "$work/out"; then
    fail "instead of '$words': $(cat "$work/out")"
  fi
}

# A processor of 2006, as /proc describes it.
sed 's/ sse4_[12]//g; s/ popcnt//' /proc/cpuinfo >"$work/cpuinfo"
with_old_processor() {
  unshare --mount sh -c 'mount --bind "$1" "$2" && shift 2 && exec "$@"' sh \
    "$work/cpuinfo" "$root/proc/cpuinfo" chroot "$root" "$@"
}

for release in ${OLD_RELEASES:-bullseye}; do
  enter "$release"
  refuses 'but this build needs 2.35 or later' inside "$folder/run" doctor
done
for release in ${RELEASES:-trixie forky}; do
  enter "$release"
  # Without a PyTorch it says what to do.
  refuses 'no PyTorch here, but this build needs PyTorch' \
    inside "$folder/run" doctor
  refuses 'lacks popcnt sse4_1 sse4_2, which x86-64-v2 has' \
    with_old_processor "$folder/run" doctor
  with_torch=(env BRIGADE_PATIENCE=10 BRIGADE_TORCH=/opt/site-packages/torch)
  inside "${with_torch[@]}" "$folder/run" doctor --nproc 2 --folder /tmp \
    >"$work/out" 2>&1 || fail "doctor: $(tail -5 "$work/out")"
  tail -1 "$work/out"
  # libcurl, which is loaded late, is inside. The config is valid without.
  inside "${with_torch[@]}" HF_ENDPOINT=http://127.0.0.1:1 \
    "$folder/run" create-config --download --model_name some/model \
    --out_dir /tmp/configs >"$work/out" 2>&1 || true
  grep -q 'cannot download' "$work/out" ||
    fail "instead of 'cannot download': $(cat "$work/out")"
  inside "${with_torch[@]}" "$folder/accept" /tmp ||
    fail "accept: $(tail -20 "$root"/tmp/acceptance-*.txt)"
  # A part that fails is one exit code, and the report says why.
  mv "$root$folder/bin/brigade-torch" "$root/tmp"
  refuses 'NOT fit' inside "${with_torch[@]}" "$folder/accept" /tmp
  grep -q 'NOT fit' "$root"/tmp/acceptance-*.txt ||
    fail "the report of a machine that is not fit does not say so"
done
echo "test_portable: passed ($((bytes / 1000000)) MB)"
