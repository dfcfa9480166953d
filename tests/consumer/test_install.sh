#!/bin/bash
# Installs a build into an empty folder, then builds and runs the project beside
# this script against it, as a user would.
#   test_install.sh cmake|pkg-config BUILD_FOLDER
set -euo pipefail
way=$1
build=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
launcher=$(command -v ccache || true)

DESTDIR='' cmake --install "$build" --prefix "$prefix" >"$work/install.log" ||
  { cat "$work/install.log"; exit 1; }

# A public header must not need one that stays at home.
(cd "$prefix/include" &&
  grep -rhoE '#include "brigade/[^"]+"' brigade | sort -u |
  sed 's/#include "\(.*\)"/\1/' | while read -r header; do
    [ -f "$header" ] || { echo "not installed, but included: $header"; exit 1; }
  done)

case "$way" in
  cmake)
    cmake -S "$here" -B "$work/build" -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_PREFIX_PATH="$prefix" \
      ${launcher:+-DCMAKE_CXX_COMPILER_LAUNCHER="$launcher"} \
      >"$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; exit 1; }
    cmake --build "$work/build"
    program=$work/build/consumer
    ;;
  pkg-config)
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    program=$work/consumer
    # shellcheck disable=SC2046  # flags are words
    $launcher g++ -O1 $(pkg-config --cflags brigade) \
      -c "$here/main.cpp" -o "$work/main.o"
    # shellcheck disable=SC2046
    g++ "$work/main.o" $(pkg-config --libs brigade) -o "$program"
    ;;
  *)
    echo "usage: test_install.sh cmake|pkg-config BUILD_FOLDER" >&2
    exit 2
    ;;
esac
"$program"
if [ -x "$prefix/bin/brigade" ]; then
  "$prefix/bin/brigade" --version
fi
