#!/bin/bash
# Installs a build into an empty folder, then builds and runs the project beside
# this script against it, as a user would.
#   test_install.sh cmake|pkg-config|deb BUILD_FOLDER
# deb installs the Debian packages; whatever the build then reads of the system
# must belong to a package that they depend on. Exits 77 where Debian's tools
# are missing.
set -euo pipefail
way=$1
build=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
launcher=$(command -v ccache || true)
# The same sources in another folder are the same to ccache.
export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1

# What a bare system would get with $1, by name.
with_dependencies() {
  : >"$work/status"
  apt-get -s -o Dir::State::status="$work/status" install \
    --no-install-recommends "$@" 2>"$work/apt.log" |
    sed -n 's/^Inst \([^ ]*\).*/\1/p' | sort
}

# The packages of the files named on standard input.
packages_of() {
  # Files that belong to no package (links of the merged /usr) are skipped.
  { xargs -r -n 200 dpkg -S 2>/dev/null || true; } |
    sed -e 's/: .*//' -e 's/:[a-z0-9]*//g' | tr -d ' ' | tr ',' '\n' | sort -u
}

if [ "$way" = deb ]; then
  for tool in cpack dpkg-shlibdeps apt-get; do
    command -v "$tool" >/dev/null || exit 77
  done
  [ -n "$(with_dependencies zlib1g-dev)" ] || exit 77  # no lists of packages
  (cd "$work" && cpack --config "$build/CPackConfig.cmake" -B "$work/packages" \
    >"$work/cpack.log" 2>&1) || { cat "$work/cpack.log"; exit 1; }
  mkdir "$work/root"
  for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$work/root"
  done
  prefix=$work/root/usr
else
  DESTDIR='' cmake --install "$build" --prefix "$prefix" >"$work/install.log" ||
    { cat "$work/install.log"; exit 1; }
fi

# A public header must not need one that stays at home.
(cd "$prefix/include" &&
  grep -rhoE '#include "brigade/[^"]+"' brigade | sort -u |
  sed 's/#include "\(.*\)"/\1/' | while read -r header; do
    [ -f "$header" ] || { echo "not installed, but included: $header"; exit 1; }
  done)

case "$way" in
  cmake | deb)
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
if [ "$way" = deb ]; then
  with_dependencies "$work"/packages/libbrigade-dev_*.deb g++ >"$work/given"
  [ -s "$work/given" ] || { cat "$work/apt.log"; exit 1; }
  {
    find "$work/build" -name '*.d' -exec cat {} + | tr -s '\\ ' '\n'
    tr ' ' '\n' <"$work/build/CMakeFiles/consumer.dir/link.txt"
  } | grep -E '^/usr/(include|lib)/.*\.(h|hpp|so|a)$' | sort -u |
    packages_of >"$work/used"
  grep -q libtorch-dev "$work/used" || { echo "nothing was read?"; exit 1; }
  missing=$(comm -23 "$work/used" "$work/given")
  [ -z "$missing" ] || { echo "libbrigade-dev depends not on: $missing"; exit 1; }
  with_dependencies "$work"/packages/brigade_*.deb >"$work/given"
  ldd "$prefix/bin/brigade" "$prefix/libexec/brigade/brigade-torch" | sed -n 's/.* => \([^ ]*\) .*/\1/p' |
    xargs -n 1 readlink -f | packages_of >"$work/used"
  missing=$(comm -23 "$work/used" "$work/given")
  [ -z "$missing" ] || { echo "brigade depends not on: $missing"; exit 1; }
fi
if [ -x "$prefix/bin/brigade" ]; then
  "$prefix/bin/brigade" --version
  [ -f "$("$prefix/bin/brigade" --cmake-dir)/brigade-targets.cmake" ]
  # The other half is found where it was installed.
  "$prefix/bin/brigade" inspect bytes >"$work/inspect.log" ||
    { cat "$work/inspect.log"; exit 1; }
  for file in man/man1/brigade.1 man/man1/brigade-train.1 \
    bash-completion/completions/brigade zsh/vendor-completions/_brigade \
    fish/vendor_completions.d/brigade.fish; do
    [ -s "$prefix/share/$file" ] || { echo "not installed: $file"; exit 1; }
  done
fi
