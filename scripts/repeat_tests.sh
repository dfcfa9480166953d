#!/bin/bash
# Runs a build's test suite again and again, to find tests whose verdict depends
# on how fast or how busy the machine is.
#   scripts/repeat_tests.sh [TIMES] [--beside LOOPS] [--build FOLDER] [CTEST_OPTION...]
#     TIMES     default 20
#     --beside  busy loops that take processor time from the tests; default 0
#     --build   default build/release
# Prints a line per run, and at the end how often each test failed. Exits 1 when
# one did. The output of a run that failed stays in FOLDER/repeated.
set -uo pipefail
cd "$(dirname "$0")/.."
times=20
loops=0
build=build/release
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  times=$1
  shift
fi
while [ $# -gt 0 ]; do
  case "$1" in
    --beside | --build)
      [ $# -gt 1 ] || { echo "repeat_tests: $1 wants a value" >&2; exit 2; }
      if [ "$1" = --beside ]; then loops=$2; else build=$2; fi
      shift 2
      ;;
    *) break ;;
  esac
done
if ! [[ $loops =~ ^[0-9]+$ ]]; then
  echo "repeat_tests: --beside wants a number of busy loops, but is '$loops'" >&2
  exit 2
fi
if [ ! -f "$build/CTestTestfile.cmake" ]; then
  echo "repeat_tests: no build with tests in '$build': run make build" >&2
  exit 2
fi

busy=()
trap '[ ${#busy[@]} -eq 0 ] || kill "${busy[@]}"' EXIT
for ((i = 0; i < loops; ++i)); do
  while :; do :; done &
  busy+=($!)
done

kept=$build/repeated
rm -rf "$kept"
mkdir -p "$kept"
failed_runs=0
for ((run = 1; run <= times; ++run)); do
  if scripts/run_tests.sh "$build" "$@" >"$kept/$run.txt" 2>&1; then
    summary=$(tail -2 "$kept/$run.txt" | head -1)
    rm "$kept/$run.txt"
  else
    summary=$(tail -2 "$kept/$run.txt" | head -1)
    failed_runs=$((failed_runs + 1))
    # Of a run whose tests all passed, or that ran none, its output says why.
    { grep '^failed ' "$build/test-results/cases.txt" ||
      echo "failed (no test: $kept/$run.txt)"; } | cut -d ' ' -f 2- \
      >>"$kept/failed.txt"
  fi
  echo "run $run of $times: $summary"
done
if [ "$failed_runs" -gt 0 ]; then
  echo "$failed_runs of $times runs failed; how often each test did:"
  sort "$kept/failed.txt" | uniq -c | sort -rn
  exit 1
fi
echo "$times runs beside $loops busy loops: no failure"
