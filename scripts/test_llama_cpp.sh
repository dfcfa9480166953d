#!/bin/bash
# Holds a GGUF file against llama.cpp, Debian testing's package in a folder
# (debootstrap, kept for the next time): the same tokens for 2,000 strings, the
# loss of `brigade evaluate` over the same windows of text, and of f32 the logits
# of some. As root.
#
#   scripts/test_llama_cpp.sh FILE.gguf [MODEL]
#     MODEL: the run or Hugging Face folder that it was exported from, with its
#     tokenizer; without it what `brigade import` makes of the file
#   BRIGADE=PROGRAM  # default build/release/brigade
#   ROOTS=FOLDER     # default /var/cache/brigade-debian
# Skips, with exit code 77, where the folder cannot be made.
set -euo pipefail
file=$(realpath "${1:?usage: scripts/test_llama_cpp.sh FILE.gguf [MODEL]}")
model=${2:+$(realpath "$2")}
cd "$(dirname "$0")/.."
brigade=${BRIGADE:-$PWD/build/release/brigade}
root=${ROOTS:-/var/cache/brigade-debian}/forky
oracle=$root/tmp/llama_cpp_oracle

if [ "$(id -u)" -ne 0 ]; then
  echo "test_llama_cpp: skipped: debootstrap and chroot need root" >&2
  exit 77
fi
inside() { chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 \
  PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
make_root() {
  command -v debootstrap || apt-get install -y -q debootstrap
  mkdir -p "$root"
  debootstrap --variant=minbase forky "$root" \
    "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" \
    /usr/share/debootstrap/scripts/sid
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  cp /etc/apt/apt.conf.d/*proxy* "$root/etc/apt/apt.conf.d/" || true
  touch "$root/.complete"
}
install_llama_cpp() {
  inside apt-get update -q
  inside apt-get install -y -q --no-install-recommends llama.cpp libllama-dev g++
}
if ! [ -e "$root/.complete" ]; then
  make_root >"$root.log" 2>&1 ||
    { echo "test_llama_cpp: skipped: no Debian testing here" >&2; exit 77; }
fi
if ! [ -e "$root/usr/include/llama.h" ]; then
  install_llama_cpp >"$root.log" 2>&1 ||
    { echo "test_llama_cpp: skipped: no llama.cpp in it" >&2; exit 77; }
fi
if [ tests/ecosystem/llama_cpp_oracle.cpp -nt "$oracle" ]; then
  cp tests/ecosystem/llama_cpp_oracle.cpp "$root/tmp/"
  inside g++ -O1 -std=c++20 /tmp/llama_cpp_oracle.cpp \
    -lllama -lggml -lggml-base -o /tmp/llama_cpp_oracle
fi
exec python3 tests/ecosystem/llama_cpp_test.py "$brigade" "$root" "$file" "$model"
