#!/bin/bash
# Installs the Debian packages that Brigade needs and that are missing, through
# sudo when not root. Does nothing, at once, when all are present.
#
#   scripts/install_dependencies.sh [GROUP...]   # default: build test
#   scripts/install_dependencies.sh --list [GROUP...]   # only says what they are
#     run    what the built program needs
#     build  what a build needs (and run)
#     test   what the test suite needs beyond that: oracles and tools
#     lint   what scripts/lint.sh and scripts/fuzz.sh need beyond build
#     slurm  what scripts/slurm_cluster.sh needs
#     docs   what scripts/make_docs.py needs
#     deb    what CPack needs for Debian packages
#     package  what build_wheel.sh, build_portable.sh, test_wheel.sh and build_cuda.sh
#            need beyond build
#     arm    what scripts/test_on_arm.sh needs beyond what it unpacks
set -euo pipefail

# libtorch's default BLAS is the reference one: 30 times slower than OpenBLAS,
# which takes its place by being installed.
run=(libopenblas0-pthread ca-certificates jargon-text)
build=("${run[@]}"
  g++ cmake ninja-build make ccache mold pkg-config
  libtorch-dev libgloo-dev libopenblas-pthread-dev libhwy-dev libdnnl-dev
  libfmt-dev nlohmann-json3-dev libcli11-dev
  libpcre2-dev libutf8proc-dev libsentencepiece-dev
  libopenmpi-dev libjs-dygraphs libcpp-httplib-dev libzstd-dev zlib1g-dev
  libcurl4-openssl-dev libssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev)
test=(file git dpkg-dev chromium man-db fish zsh python3 python3-torch python3-numpy openmpi-bin iproute2 zstd)
lint=(python3 git clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev
  g++-aarch64-linux-gnu)
slurm=(slurmctld slurmd slurm-client munge iproute2 python3)
docs=(python3 doxygen doxygen-awesome-css)
deb=(file dpkg-dev)
package=(patchelf python3 python3-venv)
arm=(qemu-user g++-aarch64-linux-gnu)

# The headers of newer releases' sentencepiece include Abseil's, which its
# package does not ask for.
release=$(sed -n 's/^VERSION_ID="\?\([0-9]*\).*/\1/p' /etc/os-release || true)
if [ "$release" != 12 ] && [ "$release" != 13 ]; then
  build+=(libabsl-dev)
fi

lists=
if [ "${1:-}" = --list ]; then
  lists=1
  shift
fi
wanted=()
for group in "${@:-build test}"; do
  for name in $group; do
    case "$name" in
      run) wanted+=("${run[@]}") ;;
      build) wanted+=("${build[@]}") ;;
      test) wanted+=("${test[@]}") ;;
      lint) wanted+=("${lint[@]}") ;;
      slurm) wanted+=("${slurm[@]}") ;;
      docs) wanted+=("${docs[@]}") ;;
      deb) wanted+=("${deb[@]}") ;;
      package) wanted+=("${package[@]}") ;;
      arm) wanted+=("${arm[@]}") ;;
      *)
        echo "unknown group '$name': run, build, test, lint, slurm, docs, deb, package or arm" >&2
        exit 2
        ;;
    esac
  done
done

if [ -n "$lists" ]; then
  printf '%s\n' "${wanted[@]}"
  exit 0
fi
if ! command -v dpkg-query >/dev/null; then
  echo "This is not Debian: install the equivalents of ${wanted[*]}" >&2
  exit 1
fi
present=$(dpkg-query -W -f='${db:Status-Abbrev}${Package}\n' "${wanted[@]}" \
  2>/dev/null | sed -n 's/^ii //p' || true)
missing=()
for package in "${wanted[@]}"; do
  grep -qx -- "$package" <<<"$present" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "Missing packages, and neither root nor sudo to install them:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "Installing ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -q
  -o DPkg::Lock::Timeout=600)

# Runs apt-get; where another one holds a lock, waits for it, ten minutes at most.
run_apt() {
  local errors status waited=0
  errors=$(mktemp)
  while true; do
    status=0
    "${apt[@]}" "$@" 2>&1 | tee "$errors" || status=$?
    if [ "$status" -eq 0 ] || [ "$waited" -ge 600 ] ||
      ! grep -q 'Could not get lock\|Unable to lock' "$errors"; then
      rm -f "$errors"
      return "$status"
    fi
    echo "Another apt is at work: waiting until it has ended" >&2
    sleep "${APT_RETRY_SECONDS:-5}"
    waited=$((waited + 5))
  done
}

# An old index is better than none: the install says what it cannot find.
run_apt update || true
run_apt install -y --no-install-recommends "${missing[@]}"
