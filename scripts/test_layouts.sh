#!/bin/bash
# Trains in every layout of up to 8 ranks, one share of the layouts a CPU, and
# prints one table of the worst errors.
#   scripts/test_layouts.sh BUILD_FOLDER
# BRIGADE_LAYOUTS=aten: the quick layouts, computed by ATen's kernels.
# A share alone: GTEST_TOTAL_SHARDS=14 GTEST_SHARD_INDEX=3 (GoogleTest's own).
set -uo pipefail
build=${1:?usage: scripts/test_layouts.sh BUILD_FOLDER}
shares=$(nproc)  # before OMP_NUM_THREADS, which it obeys
export BRIGADE_LAYOUTS=${BRIGADE_LAYOUTS:-all} OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
program=$build/tests/test_layouts
if [ -n "${GTEST_TOTAL_SHARDS:-}" ]; then
  exec "$program"
fi

logs=$build/layouts
rm -rf "$logs"
mkdir -p "$logs"
total=$("$program" --gtest_list_tests 2>/dev/null | grep -c '^  ')
started=$SECONDS
workers=()
progress=
trap 'kill "${workers[@]}" $progress 2>/dev/null' EXIT
for ((share = 0; share < shares; ++share)); do
  GTEST_TOTAL_SHARDS=$shares GTEST_SHARD_INDEX=$share \
    "$program" >"$logs/$share.txt" 2>&1 &
  workers+=($!)
done

ended() { cat "$logs"/*.txt | grep -cE '^\[ +(OK|FAILED) +\].*ms\)$'; }
if [ -t 1 ]; then
  while sleep 5; do
    printf '\r%d of %d, %d s' "$(ended)" "$total" $((SECONDS - started))
  done &
  progress=$!
fi
status=0
for worker in "${workers[@]}"; do
  wait "$worker" || status=1
done
if [ -n "$progress" ]; then
  kill "$progress"
  printf '\r'
fi
trap - EXIT

# What went wrong, then the shares' tables as one.
awk '/^\[ RUN/ { text = "" } { text = text $0 "\n" }
     /^\[  FAILED  \].*ms\)$/ { printf "%s", text }' "$logs"/*.txt
awk '
  /^The worst error/ { if (!header) print; in_table = 1; next }
  in_table && /^layout / { if (!header++) print; next }
  in_table && NF == 7 && $3 ~ /^[0-9]+$/ {
    key = $1 " " $2
    if (!(key in runs)) order[++count] = key
    runs[key] += $3; failed[key] += $4
    for (i = 5; i <= 7; ++i)
      if (!((key, i) in worst) || $i + 0 > worst[key, i] + 0) worst[key, i] = $i
    next
  }
  { in_table = 0 }
  END {
    for (i = 1; i <= count; ++i) {
      split(order[i], name, " ")
      printf "%-18s %-8s %5d %6d  %8s %8s %8s\n", name[1], name[2],
        runs[order[i]], failed[order[i]], worst[order[i], 5],
        worst[order[i], 6], worst[order[i], 7]
    }
  }' "$logs"/*.txt
echo
echo "$(ended) of $total cases in $((SECONDS - started)) s:" \
  "$(cat "$logs"/*.txt | grep -cE '^\[ +OK +\].*ms\)$') passed"
if grep -q 'SKIPPED.*PyTorchOracle.*ms)' "$logs"/*.txt; then
  echo "nothing compared one rank with PyTorch: install python3-torch" >&2
  status=1
fi
exit "$status"
