#!/bin/bash
# Trains the quickstart's model for 300 steps in float32 and in bf16, on the same
# batches of two ranks, and says how far the curves of the loss lie apart: step
# by step, and as means of ten steps.
#
#   bench/loss_curves.sh [STEPS] [KEY=VALUE...]     # overrides for both runs
set -euo pipefail
cd "$(dirname "$0")/.."
steps=${1:-300}
shift || true
brigade=build/release/brigade
if [ ! -f data/jargon.idx ]; then
  echo "bench/loss_curves.sh: data/jargon is missing; run make quickstart" >&2
  exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for dtype in float32 bfloat16; do
  "$brigade" train --config examples/quickstart.json --nproc 2 --overwrite \
    "logging.run_dir=$folder/$dtype" "model.dtype=$dtype" \
    "training.total_train_steps=$steps" training.eval_every=0 "$@" \
    >"$folder/$dtype.log" 2>&1 || { cat "$folder/$dtype.log" >&2; exit 1; }
done

losses() {
  sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' \
    "$folder/$1/metrics.jsonl"
}
paste -d' ' <(losses float32) <(losses bfloat16) | awk -v steps="$steps" '
  function apart(a, b) { return a > b ? (a - b) / a : (b - a) / a }
  $1 != $3 { print "steps differ: " $0; exit 1 }
  {
    a += $2; b += $4; count += 1; last = $2 " in float32, " $4 " in bf16"
    if (apart($2, $4) > worst) { worst = apart($2, $4); at = $1 }
    if (count % 10 == 0) {
      if (apart(a, b) > worst_mean) { worst_mean = apart(a, b); near = $1 }
      printf "step %4d  %.4f  %.4f  %5.2f %%\n", $1, a / 10, b / 10,
        100 * apart(a, b)
      a = b = 0
    }
  }
  END {
    if (count != steps) { print count " of " steps " steps"; exit 1 }
    printf "\nlast step: %s\n", last
    printf "furthest apart: one step %.2f %% (step %d), means of ten %.2f %%" \
      " (to step %d)\n", 100 * worst, at, 100 * worst_mean, near
  }'
