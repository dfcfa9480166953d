#!/bin/bash
# Cross-compiles for 64-bit Arm against a Debian unpacked in a folder, and runs the
# core's and the kernels' tests under qemu-user, as two processors: one with NEON
# alone, and one with SVE and BF16. Says nothing of speed. As root.
#
#   scripts/test_on_arm.sh [RELEASE [TEST...]]   # bookworm; default: see tests
#   ROOTS=FOLDER                                 # default /var/cache/brigade-debian
set -euo pipefail
cd "$(dirname "$0")/.."
release=${1:-bookworm}
[ $# -eq 0 ] || shift
tests=("$@")
if [ ${#tests[@]} -eq 0 ]; then
  tests=(base options json topology model_spec schedule machine planner
    ops kernels_cpu kernels_aten param optim)
fi
folder=$(realpath -m "${ROOTS:-/var/cache/brigade-debian}")/$release-arm64
export BRIGADE_SYSROOT=$folder/root QEMU_LD_PREFIX=$folder/root
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

if [ "$(id -u)" -ne 0 ]; then
  echo "test_on_arm: skipped: packages need root" >&2
  exit 77
fi
scripts/install_dependencies.sh arm

# Packages are unpacked, not installed: what their scripts would do is below.
unpack() {
  local packages links link target
  mapfile -t packages < <(scripts/install_dependencies.sh --list build |
    grep -vxE 'g\+\+|cmake|ninja-build|make|ccache|mold|pkg-config')
  rm -rf "$folder"
  mkdir -p "$folder"/{etc/trusted.gpg.d,state/lists/partial,cache/archives/partial} \
    "$BRIGADE_SYSROOT/usr"/{lib,bin,sbin}
  for link in lib bin sbin; do
    ln -s "usr/$link" "$BRIGADE_SYSROOT/$link"
  done
  : >"$folder/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main" \
    >"$folder/etc/sources.list"
  local apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64
    -o Dir::State="$folder/state" -o Dir::State::status="$folder/status"
    -o Dir::Cache="$folder/cache" -o Dir::Etc::sourcelist="$folder/etc/sources.list"
    -o Dir::Etc::sourceparts=- -o APT::Install-Recommends=false
    -o Acquire::Check-Valid-Until=false)
  "${apt[@]}" update >/dev/null
  "${apt[@]}" install -y --download-only "${packages[@]}" libc6-dev \
    libstdc++-12-dev >/dev/null
  for package in "$folder"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" |
      tar -x --keep-directory-symlink -C "$BRIGADE_SYSROOT"
  done
  # Links to absolute paths would lead out of the folder.
  find "$BRIGADE_SYSROOT" -type l -lname '/*' | while read -r link; do
    target=$BRIGADE_SYSROOT$(readlink "$link")
    ln -sfnr "$target" "$link"
  done
  local libraries=$BRIGADE_SYSROOT/usr/lib/aarch64-linux-gnu
  for link in libblas.so.3 liblapack.so.3 libopenblas.so.0; do
    ln -sf "openblas-pthread/$link" "$libraries/$link"
  done
  rm -rf "$folder/cache"
  touch "$folder/.complete"
}
if [ ! -e "$folder/.complete" ]; then
  echo "test_on_arm: unpacking Debian $release for arm64 in $BRIGADE_SYSROOT"
  unpack
fi

build=build/arm64
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBRIGADE_UNITY=ON \
  -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/arm64.cmake" >/dev/null
cmake --build "$build" --target "${tests[@]/#/test_}"
pattern=$(IFS='|'; echo "${tests[*]}")
status=0
# Such tests start their own binary again, which qemu-user does not do for them.
export GTEST_FILTER='-*DeathTest*'
for processor in cortex-a72 max; do
  echo "test_on_arm: as $processor"
  QEMU_CPU=$processor scripts/run_tests.sh "$build" -R "^($pattern)\$" || status=1
done
exit "$status"
