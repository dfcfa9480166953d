#!/bin/bash
# Is this build as fast as an earlier one? Runs the steps of
# bench/peers/compare.sh from two builds in turn and prints the ratio of the
# medians, and of the best rates, per row.
#
#   bench/before_after.sh BEFORE AFTER [ROUNDS]     # build folders; default 5
set -euo pipefail
before=${1:?usage: bench/before_after.sh BEFORE AFTER [ROUNDS]}
after=${2:?usage: bench/before_after.sh BEFORE AFTER [ROUNDS]}
rounds=${3:-5}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export GLOO_SOCKET_IFNAME=lo

median() {
  sort -n "$1" |
    awk '{v[NR]=$1} END {print (v[int((NR+1)/2)] + v[int((NR+2)/2)]) / 2}'
}
best() { sort -n "$1" | tail -1; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.3f", a / b}'; }
step() { # WHICH BUILD NAME ARGUMENTS...
  local which=$1 build=$2 name=$3
  shift 3
  "$build/bench_step" "$@" |
    sed -n 's/^result.*tokens_per_second=\([0-9.]*\).*/\1/p' \
      >>"$folder/$name.$which"
}
pair() { # NAME ARGUMENTS...: in turn, each first in every other round
  if ((round % 2)); then
    step after "$after" "$@"
    step before "$before" "$@"
  else
    step before "$before" "$@"
    step after "$after" "$@"
  fi
}

for ((round = 0; round < rounds; ++round)); do
  [ ! -t 2 ] || printf '\rround %d of %d' $((round + 1)) "$rounds" >&2
  pair dp2_bf16 ranks=2 threads=1 dtype=bf16
  pair dp2_fp32 ranks=2 threads=1 dtype=fp32 steps=3
  pair threads_bf16 ranks=1 threads=2 dtype=bf16
  pair long ranks=1 threads=2 shape=stories15m_4k steps=3
  pair smollm ranks=1 threads=2 shape=smollm_135m steps=3
done
[ ! -t 2 ] || echo >&2
printf '%-14s %10s %10s %8s %8s\n' 'tokens/s' before after median best
for name in dp2_bf16 dp2_fp32 threads_bf16 long smollm; do
  printf '%-14s %10s %10s %8s %8s\n' "$name" \
    "$(median "$folder/$name.before")" "$(median "$folder/$name.after")" \
    "$(ratio "$(median "$folder/$name.after")" "$(median "$folder/$name.before")")" \
    "$(ratio "$(best "$folder/$name.after")" "$(best "$folder/$name.before")")"
done
