#!/usr/bin/env python3
"""How well Muon's owners divide Newton-Schulz: its time on two data-parallel
ranks against one. The optimizer's part of a step with 9 steps of Newton-Schulz
and with 1: the difference is 8 of them and nothing else. The quickest step of
runs that take turns, one thread per rank; two idle cores are wanted, and
build/release/brigade and the quickstart's dataset.

  bench/muon_owners.py [KEY=VALUE...]     # of all runs
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TURNS = 3
RUN = ["training.optimizer=muon", "training.seq_length=64",
       "training.micro_batch_size=1", "training.gradient_accumulation_steps=1",
       "training.warmup_steps=0", "training.total_train_steps=40"]


def optimizer_ms(folder, ranks, steps, overrides):
    """The quickest, but for the first two."""
    run = folder / "run"
    result = subprocess.run(
        [str(ROOT / "build/release/brigade"), "train", "--config",
         "examples/quickstart.json", "--nproc", str(ranks), "--overwrite",
         f"logging.run_dir={run}", f"training.muon_steps={steps}"] + RUN
        + overrides, cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"})
    if result.returncode:
        sys.exit(f"muon_owners: failed:\n{result.stderr[-2000:]}")
    return min(json.loads(line)["time_ms"]["optimizer"] for line in
               (run / "metrics.jsonl").read_text().splitlines()[2:])


def main():
    quickest = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(TURNS):
            for case in [(1, 1), (2, 1), (1, 9), (2, 9)]:
                ms = optimizer_ms(pathlib.Path(folder), *case, sys.argv[1:])
                quickest[case] = min(ms, quickest.get(case, ms))
    one, two = (quickest[ranks, 9] - quickest[ranks, 1] for ranks in (1, 2))
    print(f"8 steps of Newton-Schulz: one rank {one:.1f} ms, two {two:.1f} ms:"
          f" {two / one:.2f} (at most 0.6)\nall else, and one of its steps: "
          f"{quickest[1, 1]:.1f} ms, {quickest[2, 1]:.1f} ms")


if __name__ == "__main__":
    main()
