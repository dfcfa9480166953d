#!/bin/bash
# Fuzzes every reader of files under ASan and UBSan: FUZZ_SECONDS (default 30)
# for all targets together, split evenly. Finds seeds in tests/fuzz/corpus; what
# a target finds on the way stays in build/fuzz/corpus, and an input that breaks
# it in build/fuzz/artifacts, named at the end.
#
#   FUZZ_SECONDS=600 scripts/fuzz.sh [NAME...]     # NAME: idx, npy, ...
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${FUZZ_SECONDS:-30}
compiler=${FUZZ_CXX:-$(command -v clang++-14 || command -v clang++ || true)}
if [ -z "$compiler" ]; then
  echo "fuzz: no clang++ found; install clang-14" >&2
  exit 1
fi

mkdir -p build
cmake -G Ninja -S . -B build/fuzz \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" \
  -DBRIGADE_BUILD_FUZZ=ON -DBRIGADE_BUILD_TESTS=OFF \
  -DBRIGADE_BUILD_BENCH=OFF -DBRIGADE_BUILD_EXAMPLES=OFF >build/fuzz-cmake.log ||
  { cat build/fuzz-cmake.log >&2; exit 1; }
cmake --build build/fuzz --target fuzz_targets

if [ $# -gt 0 ]; then
  names=("$@")
else
  names=()
  for source in tests/fuzz/fuzz_*.cpp; do
    name=$(basename "$source" .cpp)
    names+=("${name#fuzz_}")
  done
fi

each=$((seconds / ${#names[@]}))
[ "$each" -gt 0 ] || each=1
mkdir -p build/fuzz/artifacts
failed=()
for name in "${names[@]}"; do
  mkdir -p "build/fuzz/corpus/$name"
  seeds=()
  [ -d "tests/fuzz/corpus/$name" ] && seeds=("tests/fuzz/corpus/$name")
  log=build/fuzz/$name.log
  if "build/fuzz/tests/fuzz/fuzz_$name" -max_total_time="$each" \
    -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=256 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/artifacts/$name-" \
    "build/fuzz/corpus/$name" "${seeds[@]}" >"$log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "fuzz $name: $runs inputs in $each s, nothing found"
  else
    failed+=("$name")
    tail -40 "$log"
    echo "fuzz $name: FAILED, see $log"
  fi
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "fuzz: ${failed[*]} failed; the inputs are in build/fuzz/artifacts:"
  ls build/fuzz/artifacts
  exit 1
fi
