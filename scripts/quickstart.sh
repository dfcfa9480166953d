#!/bin/bash
# The main job: learn the Jargon File (public domain, 1.6 MB of English) on two
# processes in about two minutes, then write some more of it.
set -euo pipefail
cd "$(dirname "$0")/.."
brigade=build/release/brigade
text=/usr/share/doc/jargon-text/jargon.txt.gz
out=data/jargon

if [ ! -f "$out.idx" ]; then
  echo "== 1 of 4: a tokenizer of 4096 pieces from the text, and its tokens"
  mkdir -p "$(dirname "$out")"
  "$brigade" prepare --input "$text" --train-tokenizer 4096 --out "$out"
fi
echo "== 2 of 4: train on two processes (examples/quickstart.json)"
"$brigade" train --config examples/quickstart.json --nproc 2 --overwrite \
  logging.run_dir=runs/quickstart
echo "== 3 of 4: what it has learnt"
"$brigade" generate --run runs/quickstart \
  --prompt "hacker: n. A person who" --max-tokens 120
echo "== 4 of 4: a page with its loss curve, for a browser"
"$brigade" report runs/quickstart
