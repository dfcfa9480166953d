#!/bin/bash
# The main job, from a fresh clone: installs packages, builds the program, learns
# the Jargon File (public domain, 1.6 MB of English) on two processes, writes
# some more of it. Says first how long each part will take, and at the end how
# long it took. make quickstart calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/release
brigade=$build/brigade
text=/usr/share/doc/jargon-text/jargon.txt.gz
out=data/jargon-2048
cores=$(nproc)

# Processor seconds of one translation unit, on average, and how many there are.
unit_seconds=6
all_units=86

about() { # SECONDS
  if [ "$1" -lt 45 ]; then
    echo "under a minute"
  else
    echo "about $((($1 + 59) / 60)) min"
  fi
}
took() { # SECONDS
  printf '%d:%02d' $(($1 / 60)) $(($1 % 60))
}

# Half of the processor seconds of an EPYC, so two of its cores when quiet.
if grep -qw avx512_bf16 /proc/cpuinfo; then
  training=65
elif grep -qw avx2 /proc/cpuinfo; then
  training=120
else
  training=420
fi
units=$all_units
if [ -f "$build/build.ninja" ]; then
  units=$(ninja -C "$build" -n brigade_cli 2>/dev/null |
    grep -c 'Building CXX' || true)
fi
echo "== on $cores cores, if nothing else runs: packages under a minute," \
  "build $(about $((units * unit_seconds / cores)))," \
  "tokenizer and training $(about $training)"

scripts/check_space.sh "$build" 1200
begin=$SECONDS
scripts/install_dependencies.sh build
packages=$((SECONDS - begin))
begin=$SECONDS
make -s --no-print-directory "$build/build.ninja"
cmake --build "$build" --target brigade_cli
building=$((SECONDS - begin))

begin=$SECONDS
if [ ! -f "$out.idx" ]; then
  echo "== 1 of 4: a tokenizer of 2048 pieces from the text, and its tokens"
  mkdir -p "$(dirname "$out")"
  # What an interrupted one left is no dataset.
  "$brigade" prepare --input "$text" --train-tokenizer 2048 --out "$out" \
    --overwrite
fi
echo "== 2 of 4: train on two processes (examples/quickstart.json)"
"$brigade" train --config examples/quickstart.json --nproc 2 --overwrite \
  logging.run_dir=runs/quickstart logging.log_frequency=30
echo "== 3 of 4: what it has learnt"
"$brigade" generate --run runs/quickstart \
  --prompt "hacker: n. A person who" --max-tokens 120 \
  --temperature 0.7
echo "== 4 of 4: a page with its loss curve, for a browser"
"$brigade" report runs/quickstart
training=$((SECONDS - begin))
echo "== it took $(took $((packages + building + training))) minutes:" \
  "packages $(took $packages), build $(took $building)," \
  "tokenizer and training $(took $training)"
