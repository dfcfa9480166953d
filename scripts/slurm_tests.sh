# The tests of scripts/slurm_cluster.sh --test, which sources this file with a
# cluster running: on, until_true, $dir and $tag are its own.
# shellcheck shell=bash

brigade=$PWD/build/release/brigade
[ -x "$brigade" ] || { echo "build/release/brigade is not built" >&2; exit 1; }
export OMP_NUM_THREADS=1
work=$dir/work
mkdir "$work"
failures=0

pass() { echo "ok      $*"; }
fail() {
  echo "FAILED  $*"
  failures=$((failures + 1))
}
# expect NAME COMMAND...: the command succeeds.
expect() {
  local name=$1
  shift
  if "$@" >"$work/expect" 2>&1; then
    pass "$name"
  else
    fail "$name: $*"
    tail -n 5 "$work/expect"
  fi
}
# expect_text NAME FILE TEXT...
expect_text() {
  local name=$1 file=$2 text
  shift 2
  for text in "$@"; do
    if ! grep -qF -- "$text" "$file"; then
      fail "$name: no '$text' in what it printed:"
      tail -n 15 "$file"
      return
    fi
  done
  pass "$name"
}

# same_losses A B: of two runs' metrics.jsonl.
same_losses() {
  python3 - "$1" "$2" <<'PYTHON'
import json, sys
a, b = ([json.loads(line)["loss"] for line in open(run + "/metrics.jsonl")]
        for run in sys.argv[1:])
worst = max(abs(x - y) / abs(x) for x, y in zip(a, b))
print(f"{len(a)} and {len(b)} steps, largest relative difference {worst:.1e}")
sys.exit(len(a) != len(b) or not a or worst > 1e-5)
PYTHON
}

cat docs/*.md >"$work/text.txt"
"$brigade" prepare --input "$work/text.txt" --tokenizer bytes --out "$work/data" \
  >/dev/null
mkdir "$work/configs"
cat >"$work/configs/first.json" <<JSON
{"model": {"config": {"architectures": ["LlamaForCausalLM"], "vocab_size": 320,
   "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
   "num_attention_heads": 4, "num_key_value_heads": 4,
   "max_position_embeddings": 64, "tie_word_embeddings": true}},
 "training": {"seed": 1, "total_train_steps": 6, "seq_length": 32,
   "micro_batch_size": 8, "learning_rate": 1e-3},
 "distributed": {"timeout_seconds": 60},
 "dataset": {"name": "$work/data"}}
JSON
sed 's/"seed": 1/"seed": 2/' "$work/configs/first.json" \
  >"$work/configs/second.json"
config=$work/configs/first.json

# train RUN SRUN_OPTIONS... -- OVERRIDES...
train() {
  local run=$1 options=()
  shift
  while [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  shift
  on controller timeout 100 srun "${options[@]}" "$brigade" train \
    --config "$config" logging.run_dir="$work/$run" "$@" >"$work/$run.out" 2>&1
}

echo "== srun"
"$brigade" train --config "$config" --nproc 4 logging.run_dir="$work/one" \
  training.micro_batch_size=2 >"$work/one.out" 2>&1 || cat "$work/one.out"
expect "one rank on each of node[1-3,7]" \
  train four -N4 -n4 -w 'node[1-3,7]' -- training.micro_batch_size=2
expect "gives one machine's losses" same_losses "$work/one" "$work/four"
expect "cyclic ranks train too" \
  train cyclic -N4 -n8 --ntasks-per-node=2 -m cyclic -- training.micro_batch_size=2 \
  distributed.tp_size=2
expect_text "with a warning that says what to change" "$work/cyclic.out" \
  "4 of 4 tp groups have ranks on several hosts" "srun -m block"
expect "and one machine's losses" same_losses "$work/one" "$work/cyclic"
expect "blocks of ranks" \
  train block -N4 -n8 --ntasks-per-node=2 -m block -- training.micro_batch_size=2 \
  distributed.tp_size=2
expect "give no warning" \
  bash -c "! grep -q 'several hosts' '$work/block.out'"
expect "gradients summed by host" \
  train by_host -N4 -n8 --ntasks-per-node=2 -m cyclic -- training.micro_batch_size=1 \
  distributed.hierarchical_reduction=on
expect "give one machine's losses" same_losses "$work/one" "$work/by_host"
on controller bash -c "
  for i in 0 1; do
    srun --exclusive -N1 -n2 '$brigade' train --config '$config' \
      logging.run_dir='$work/step'\$i >'$work/step'\$i.out 2>&1 &
  done
  wait" 2>/dev/null
expect "two at once" same_losses "$work/step0" "$work/step1"

echo "== what stops one rank"
begin=$SECONDS
on controller srun -N4 -n4 bash -c '
  [ "$SLURM_PROCID" = 2 ] && name=/no/dataset || name='"$work"'/data
  exec '"$brigade"' train --config '"$config"' dataset.name=$name \
    logging.run_dir='"$work"'/stopped' >"$work/stopped.out" 2>&1 &&
  fail "a rank without its dataset: all ranks trained"
expect_text "a missing dataset: first cause with host on every rank" \
  "$work/stopped.out" "rank 2 on host node3 could not start" "/no/dataset"
expect "within 15 s" test $((SECONDS - begin)) -lt 15
on controller srun -N2 -n2 bash -c '
  exec '"$brigade"' train --config '"$config"' training.seed=$SLURM_PROCID \
    logging.run_dir='"$work"'/stopped' >"$work/differ.out" 2>&1 || true
expect_text "different configs" "$work/differ.out" \
  "the config differs among the ranks: rank 0 on host node1 has" \
  "rank 1 on host node2 has"
on controller srun -N2 -n2 bash -c '
  mkdir -p /tmp/brigade-of-$SLURM_PROCID
  mount --bind /tmp/brigade-of-$SLURM_PROCID /mnt
  '"$brigade"' train --config '"$config"' logging.run_dir=/mnt/run
  code=$?; umount /mnt; exit $code' >"$work/shared.out" 2>&1 || true
rm -rf /tmp/brigade-of-[01]
expect_text "a run folder of each host's own" "$work/shared.out" \
  "host node2 (rank 1) does not see what host node1 (rank 0) wrote"

# Debian's installer gives a host's own name this address.
cp "$dir/hosts-node1" "$work/hosts"
{ grep -v node1 "$work/hosts"; echo "127.0.1.1 node1"; } >"$work/debian-hosts"
cat "$work/debian-hosts" >"$dir/hosts-node1"
begin=$SECONDS
train debian -N2 -n2 -w 'node[1-2]' -- && fail "a loopback address: trained"
cat "$work/hosts" >"$dir/hosts-node1"
expect_text "a loopback address" "$work/debian.out" \
  "rank 0 on host node1 has only the loopback address" \
  "MASTER_ADDR='node1' resolves to 127.0.1.1 there" "/etc/hosts"
expect "refused within 15 s" test $((SECONDS - begin)) -lt 15

echo "== sbatch"
on controller sbatch --parsable -W -n2 -o "$work/script.out" --wrap "
  '$brigade' train --config '$config' --nproc 2 logging.run_dir='$work/script'" \
  >/dev/null 2>&1 || true
expect "--nproc 2 inside a batch script" \
  same_losses "$work/step0" "$work/script"

jobs=$work/jobs
# submit ARGUMENTS...
submit() {
  on controller "$brigade" submit --launcher slurm --jobs "$jobs" "$@"
}
states() {
  on controller "$brigade" status "$jobs" | tail -n 1
}
states_are() { [ "$(states)" = "$1" ]; }
id_of() { cat "$jobs/$1/submitted"; }

expect "a folder of configs" submit --config "$work/configs" --nodes 2
expect "one job each, at the same time" \
  until_true 100 states_are "2 completed"
expect "with one machine's losses" \
  same_losses "$work/step0" "$jobs/first/run"
expect "are not submitted again" \
  submit --config "$work/configs" --nodes 2 --only fail,timeout
expect "for they are completed" states_are "2 completed"

jobs="$work/an array"
expect "an array in a folder with a blank" submit --config "$config" --array 0-1 training.seed=%a
expect "of two tasks" until_true 100 states_are "2 completed"
expect "with seeds of their own" bash -c \
  "! cmp -s '$jobs/first/run.0/metrics.jsonl' '$jobs/first/run.1/metrics.jsonl'"

steps_of() {
  [ -f "$1/metrics.jsonl" ] && wc -l <"$1/metrics.jsonl" || echo 0
}
has_steps() { [ "$(steps_of "$1")" -ge "$2" ]; }
starts_of() { grep -c '^== brigade job' "$jobs/first/output"; }
has_starts() { [ "$(starts_of)" -ge "$1" ]; }
is_pending() {
  [ "$(on controller squeue -h -j "$(id_of first)" -o %T)" = PENDING ]
}
# A requeued job waits two minutes. Not started in the second in which it was
# requeued: slurmd takes that for the start that it has revoked.
start_soon() {
  until_true 60 is_pending
  until_true 60 on controller scontrol update "JobId=$(id_of first)" \
    StartTime=now+3
}

jobs=$work/long
submit --config "$config" --nodes 2 --time 00:10:00 \
  training.total_train_steps=1000000 checkpoint.save_frequency=200 >/dev/null
expect "a long job runs" until_true 60 has_steps "$jobs/first/run" 100
on controller scancel --batch --signal=USR1 "$(id_of first)"
expect "notice of the time limit: saved" until_true 60 \
  test -f "$jobs/first/run/checkpoints/latest"
start_soon
expect "started again from the queue" until_true 150 has_starts 2
expect "continues" \
  until_true 60 grep -qF "continuing '" "$jobs/first/output"
before=$(steps_of "$jobs/first/run")
expect "and trains on" until_true 60 \
  has_steps "$jobs/first/run" $((before + 300))

node=$(on controller squeue -h -j "$(id_of first)" -o %B)
on controller scontrol update NodeName="$node" State=down Reason=test
start_soon
expect "a node went down: started again elsewhere" until_true 150 has_starts 3
before=$(steps_of "$jobs/first/run")
expect "and trains on" until_true 60 \
  has_steps "$jobs/first/run" $((before + 50))
# Its slurmd registers again and may have brought it back already.
on controller scontrol update NodeName="$node" State=resume 2>/dev/null || true
on controller scancel "$(id_of first)"
expect "scancel ends it" until_true 60 states_are "1 fail"

if [ "$failures" -gt 0 ]; then
  echo "$failures of the tests under Slurm failed"
  exit 1
fi
echo "all tests under Slurm passed"
