#!/bin/bash
# Trains a model for 300 steps on the same batches of two ranks, three times: in
# float32, in bf16, and in float32 with its sums in another order (micro-batches
# of half the size, twice as many). Says how far the loss curves differ,
# step by step and as means of ten. Where float32 parts from itself, the recipe
# is chaotic: a high learning rate drives any two runs apart, however little they
# differed at first.
#
#   bench/loss_curves.sh [CONFIG] [STEPS] [KEY=VALUE...]   # overrides for all runs
#
# The default CONFIG is the model and the step of bench_step at the default
# learning rate.
set -euo pipefail
cd "$(dirname "$0")/.."
config=${1:-bench/loss_curves.json}
steps=${2:-300}
shift $(($# < 2 ? $# : 2))
brigade=build/release/brigade
data=$(sed -n 's/.*"name": *"\(data[^"]*\)".*/\1/p' "$config")
if [ ! -f "$data.idx" ]; then
  echo "bench/loss_curves.sh: $data is missing: $brigade prepare --input" \
    "/usr/share/doc/jargon-text/jargon.txt.gz --train-tokenizer 4096" \
    "--out $data" >&2
  exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

number() { # KEY KEY=VALUE...: of the run, overrides included
  local key=$1
  shift
  printf '%s\n' "$@" | sed -n "s/^training\.$key=//p" | tail -1 | grep . ||
    sed -n "s/.*\"$key\": *\([0-9]*\).*/\1/p" "$config"
}
rows=$(number micro_batch_size "$@")
rounds=$(number gradient_accumulation_steps "$@")
if ((rows % 2)); then
  echo "bench/loss_curves.sh: micro_batch_size is $rows; give an even one" >&2
  exit 1
fi

train() { # NAME KEY=VALUE...
  local name=$1
  shift
  "$brigade" train --config "$config" --nproc 2 --overwrite \
    "logging.run_dir=$folder/$name" "training.total_train_steps=$steps" \
    training.eval_every=0 "$@" >"$folder/$name.log" 2>&1 ||
    { cat "$folder/$name.log" >&2; exit 1; }
  echo "trained $name: $(tail -1 "$folder/$name/metrics.jsonl")" >&2
}
train float32 "$@" model.dtype=float32
train bf16 "$@" model.dtype=bfloat16
train float32_other_order "$@" model.dtype=float32 \
  training.micro_batch_size=$((rows / 2)) \
  training.gradient_accumulation_steps=$((2 * rounds))

losses() {
  sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' \
    "$folder/$1/metrics.jsonl"
}
paste -d' ' <(losses float32) <(losses bf16) <(losses float32_other_order) |
  awk -v steps="$steps" '
  function apart(a, b) { return a > b ? (a - b) / a : (b - a) / a }
  function compare(who, a, b) {
    sum[who] += b
    if (apart(a, b) > worst[who]) { worst[who] = apart(a, b); at[who] = $1 }
  }
  function compare_means(who) {
    mean = apart(whole, sum[who])
    if (mean > worst_mean[who]) { worst_mean[who] = mean; near[who] = $1 }
    return mean
  }
  function report(who, name) {
    printf "%s: one step at most %.2f %% (step %d), means of ten %.2f %%" \
      " (to step %d)\n", name, 100 * worst[who], at[who],
      100 * worst_mean[who], near[who]
  }
  BEGIN { print "means of ten        float32  bf16             float32 again" }
  $1 != $3 || $1 != $5 { print "steps differ: " $0; exit 1 }
  {
    whole += $2; count += 1
    compare("bf16", $2, $4)
    compare("again", $2, $6)
    if (count % 10 == 0) {
      printf "to step %4d        %.4f   %.4f %5.2f %%   %.4f %5.2f %%\n", $1,
        whole / 10, sum["bf16"] / 10, 100 * compare_means("bf16"),
        sum["again"] / 10, 100 * compare_means("again")
      whole = sum["bf16"] = sum["again"] = 0
    }
  }
  END {
    if (count != steps) { print count " of " steps " steps"; exit 1 }
    print ""
    report("bf16", "bf16 against float32")
    report("again", "float32 against itself, sums in another order")
  }'
