#!/bin/bash
# Compiles the kernels for 64-bit Arm, so that what is said to run on NEON
# compiles at least: on an x86 machine nothing else looks at Highway's targets
# of Arm. Nothing is linked or run. Exit code 77 (skipped) where Debian's
# g++-aarch64-linux-gnu is missing.
#   scripts/check_neon.sh [SOURCE...]   # default: all of brigade/kernels/cpu
set -uo pipefail
cd "$(dirname "$0")/.."
compiler=aarch64-linux-gnu-g++
if ! command -v "$compiler" >/dev/null; then
  echo "neon: skipped, as there is no $compiler (g++-aarch64-linux-gnu)"
  exit 77
fi
sources=("$@")
if [ ${#sources[@]} -eq 0 ]; then
  # *_x86.cpp have what other processors get instead, too.
  sources=(brigade/kernels/cpu/*_{cpu,x86,arm}.cpp)
fi

# Headers of libtorch and Highway are the same for all processors; searched last,
# those of this machine do not hide the compiler's own. As little optimisation
# as gives the kernels: whether they compile does not depend on it.
compile() {
  "$1" -std=c++20 -O1 -DNDEBUG -fopenmp -DHWY_SHARED_DEFINE -Wall -Wextra \
    -Wno-unknown-pragmas -Werror -I. \
    -isystem /usr/include/torch/csrc/api/include \
    -idirafter /usr/include -idirafter "/usr/include/$(uname -m)-linux-gnu" \
    -c "$2" -o /dev/null || echo "$2" >>"$3"
}
export -f compile
failures=$(mktemp)
trap 'rm -f "$failures"' EXIT
printf '%s\0' "${sources[@]}" |
  xargs -0 -P2 -I{} bash -c 'compile "$@"' _ "$compiler" {} "$failures"

if [ -s "$failures" ]; then
  echo "neon FAILED:" $(sort "$failures")
  exit 1
fi
echo "neon: ${#sources[@]} sources compile for aarch64"
