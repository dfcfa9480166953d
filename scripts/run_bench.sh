#!/bin/bash
# Runs every benchmark of a build, one after the other, and says which failed.
#   scripts/run_bench.sh BUILD_FOLDER
set -uo pipefail
build=${1:?usage: scripts/run_bench.sh BUILD_FOLDER}
shopt -s nullglob
failed=()
for program in "$build"/bench_*; do
  [ -f "$program" ] && [ -x "$program" ] || continue
  echo "== $program"
  "$program" || failed+=("$program")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
