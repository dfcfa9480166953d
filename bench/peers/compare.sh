#!/bin/bash
# Runs Brigade's step and PyTorch's in turn, several times, and prints medians
# and ratios. Needs build/release/bench_step and Debian's python3-torch.
#
#   bench/peers/compare.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3}
python=${PYTHON:-/usr/bin/python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

median() { sort -n "$1" | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}'; }
peer() { # NAME ARGUMENTS...: appends tokens/s to NAME
  local name=$1
  shift
  "$python" bench/peers/pytorch_step.py "$@" |
    sed -n 's/.*tokens_per_second=\([0-9]*\).*/\1/p' >>"$folder/$name"
}
ours() { # NAME THREADS SHAPE DTYPE: tokens/s, and the part of the bound
  build/release/bench_step "$2" "$3" "$4" 3 >"$folder/out"
  sed -n 's/.*threads: \([0-9]*\) tokens.*/\1/p' "$folder/out" >>"$folder/$1"
  sed -n 's/.*reaches \([0-9.]*\) of it.*/\1/p' "$folder/out" \
    >>"$folder/$1.bound"
}

for ((round = 0; round < rounds; ++round)); do
  ours bf16 2 stories15m bf16
  peer eager_fp32 --threads 2 --dtype fp32
  ours fp32 2 stories15m fp32
  peer eager_bf16 --threads 2 --dtype bf16
  peer ddp_fp32 --threads 1 --ranks 2 --dtype fp32
  peer ddp_bf16 --threads 1 --ranks 2 --dtype bf16
done
ours long 2 stories15m_4k bf16
ours smollm 2 smollm_135m bf16

for name in bf16 fp32 eager_fp32 eager_bf16 ddp_fp32 ddp_bf16; do
  printf '%-12s %8s tokens/s\n' "$name" "$(median "$folder/$name")"
done
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.2f", a / b}'; }
value() { median "$folder/$1"; }
better=$(printf '%s\n' "$(value ddp_fp32)" "$(value ddp_bf16)" | sort -n | tail -1)
echo
echo "target                                              wanted  measured"
line() { printf '%-50s %7s %9s\n' "$1" "$2" "$3"; }
line "bf16, 2 threads, of the products-only bound" 0.65 "$(value bf16.bound)"
line "bf16 against PyTorch DDP in its better dtype" 2.4 "$(ratio "$(value bf16)" "$better")"
line "fp32 against PyTorch DDP fp32" 1.3 "$(ratio "$(value fp32)" "$(value ddp_fp32)")"
line "SmolLM-135M bf16, of the bound" 0.70 "$(value smollm.bound)"
line "sequence 4096 bf16, of the bound" 0.55 "$(value long.bound)"
