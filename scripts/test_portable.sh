#!/bin/bash
# Tests the portable folder where nothing is installed: in a bare Debian 13 and a
# bare testing (debootstrap), without a network, with the PyTorch that it was
# built for mounted. As root.
#
#   scripts/test_portable.sh [TARBALL]   # default: the newest in build
#   RELEASES="trixie forky"
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
work=
clean_up() {
  local i
  for ((i = ${#mounted[@]} - 1; i >= 0; --i)); do
    umount -l "${mounted[i]}" || true
  done
  [ -z "$work" ] || rm -rf "$work"
}
trap clean_up EXIT

for release in ${RELEASES:-trixie forky}; do
  root=$roots/bare-$release
  scripts/make_debian.sh "$release" "$root"
  for place in proc dev tmp opt; do
    mkdir -p "$root/$place"
  done
  mount -t proc proc "$root/proc" && mounted+=("$root/proc")
  mount --rbind --make-rslave /dev "$root/dev" && mounted+=("$root/dev")
  mount -t tmpfs tmpfs "$root/tmp" && mounted+=("$root/tmp")
  mkdir -p "$root/opt/site-packages"
  mount --bind -o ro "$packages" "$root/opt/site-packages"
  mounted+=("$root/opt/site-packages")
  tar -C "$root/tmp" -xzf "$tarball"
  work=$(mktemp -d)
  # Its own loopback device and nothing else.
  inside() {
    unshare --net sh -c 'ip link set lo up && exec "$@"' sh chroot "$root" \
      /usr/bin/env -i HOME=/tmp LANG=C.UTF-8 PATH=/usr/bin:/bin "$@"
  }
  folder=/tmp/brigade-portable
  echo "test_portable: Debian $release, $(inside getconf GNU_LIBC_VERSION)"
  # Without a PyTorch it says what to do.
  if inside "$folder/run" doctor >"$work/out" 2>&1 ||
    ! grep -q 'no PyTorch here, but this build needs PyTorch' "$work/out"; then
    fail "without PyTorch: $(cat "$work/out")"
  fi
  with_torch=(env BRIGADE_PATIENCE=10 BRIGADE_TORCH=/opt/site-packages/torch)
  inside "${with_torch[@]}" "$folder/run" doctor --nproc 2 --folder /tmp \
    >"$work/out" 2>&1 || fail "doctor: $(tail -5 "$work/out")"
  tail -1 "$work/out"
  inside "${with_torch[@]}" "$folder/accept" /tmp ||
    fail "accept: $(tail -20 "$root"/tmp/acceptance-*.txt)"
  # A part that fails is one exit code, and the report says why.
  mv "$root$folder/bin/brigade-torch" "$root/tmp"
  if inside "${with_torch[@]}" "$folder/accept" /tmp >"$work/out" 2>&1 ||
    ! grep -q 'NOT fit' "$root"/tmp/acceptance-*.txt; then
    fail "accept without brigade-torch: $(tail -20 "$work/out")"
  fi
done
echo "test_portable: passed ($((bytes / 1000000)) MB)"
