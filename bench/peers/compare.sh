#!/bin/bash
# Runs Brigade's step and PyTorch's in turn, several times, and prints the table
# of targets with medians and ratios. Needs build/release/bench_step and Debian's
# python3-torch.
#
#   bench/peers/compare.sh [ROUNDS]      # default 3
#   PYTHON=PROGRAM                       # one that has another PyTorch
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3}
python=${PYTHON:-/usr/bin/python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export GLOO_SOCKET_IFNAME=lo

median() {
  sort -n "$1" |
    awk '{v[NR]=$1} END {print (v[int((NR+1)/2)] + v[int((NR+2)/2)]) / 2}'
}
# A whole word: fma_bound is not bound.
field() { sed -n "s/^\(.*[ ,]\)\{0,1\}$1=\([0-9.]*\).*/\2/p"; }
keep() { # NAME FILE: each figure of the file
  local key
  for key in tokens_per_second bound fma_bound peak_memory_gb start_s; do
    field "$key" <"$2" >>"$folder/$1.$key"
  done
}
peer() { # NAME ARGUMENTS...
  local name=$1
  shift
  "$python" bench/peers/pytorch_step.py "$@" >"$folder/out"
  keep "$name" "$folder/out"
}
ours() { # NAME ARGUMENTS...
  local name=$1
  shift
  build/release/bench_step "$@" | tee -a "$folder/log" | grep '^result' \
    >"$folder/out"
  keep "$name" "$folder/out"
}

for ((round = 0; round < rounds; ++round)); do
  ours dp2_bf16 ranks=2 threads=1 dtype=bf16
  peer ddp_fp32 --threads 1 --ranks 2 --dtype fp32
  ours dp2_fp32 ranks=2 threads=1 dtype=fp32 steps=3
  peer ddp_bf16 --threads 1 --ranks 2 --dtype bf16
  ours threads_bf16 ranks=1 threads=2 dtype=bf16
  peer eager_fp32 --threads 2 --dtype fp32
  ours long ranks=1 threads=2 shape=stories15m_4k steps=3
  ours smollm ranks=1 threads=2 shape=smollm_135m steps=3
done
build/release/bench_ops 2 optimizer >"$folder/optimizer"

value() { median "$folder/$1.$2"; }
rate() { value "$1" tokens_per_second; }
for name in dp2_bf16 dp2_fp32 threads_bf16 long smollm ddp_fp32 ddp_bf16 \
  eager_fp32; do
  printf '%-12s %8s tokens/s\n' "$name" "$(rate "$name")"
done
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.2f", a / b}'; }
better=$(printf '%s\n' "$(rate ddp_fp32)" "$(rate ddp_bf16)" | sort -n | tail -1)
line() { # WHAT SIGN TARGET MEASURED
  local verdict=met
  awk -v s="$2" -v t="$3" -v m="$4" \
    'BEGIN {exit !(s == ">=" ? m >= t : m <= t)}' || verdict=missed
  printf '%-52s %2s %5s %8s  %s\n' "$1" "$2" "$3" "$4" "$verdict"
}
echo
echo "target                                               wanted  measured"
line "dp=2 bf16, of the products-only bound" ">=" 0.70 "$(value dp2_bf16 bound)"
line "dp=2 bf16 / PyTorch DDP in its better dtype" ">=" 2.4 \
  "$(ratio "$(rate dp2_bf16)" "$better")"
line "dp=2 bf16, of the float32 FMA rate" ">=" 0.80 \
  "$(value dp2_bf16 fma_bound)"
line "one process, 2 threads, bf16, of the bound" ">=" 0.65 \
  "$(value threads_bf16 bound)"
line "dp=2 fp32 / PyTorch DDP fp32" ">=" 1.3 \
  "$(ratio "$(rate dp2_fp32)" "$(rate ddp_fp32)")"
line "SmolLM-135M bf16, 2 threads, of the bound" ">=" 0.70 "$(value smollm bound)"
line "sequence 4096 bf16, 2 threads, of the bound" ">=" 0.55 "$(value long bound)"
line "peak memory, dp=2 bf16 / PyTorch DDP fp32" "<=" 0.5 \
  "$(ratio "$(value dp2_bf16 peak_memory_gb)" "$(value ddp_fp32 peak_memory_gb)")"
line "optimizer step, of the bandwidth of a copy" ">=" 0.75 \
  "$(field 'of a copy' <"$folder/optimizer" | tail -1)"
line "start to first step, dp=2 bf16, seconds" "<=" 4 "$(value dp2_bf16 start_s)"
