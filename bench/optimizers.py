#!/usr/bin/env python3
"""Tokens to the same loss, state and step time of every optimizer, each at the best
of its learning rates: the table of docs/optimizers.md. The quickstart's model and text,
one rank; needs build/release/brigade and the dataset that the config names.

  bench/optimizers.py [--config FILE] [--nproc N] [KEY=VALUE...]     # of all runs
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/release/brigade"
# Each over the same number of rates, a factor of two apart.
RATES = {
    "adamw": [5e-4, 1e-3, 2e-3, 4e-3, 8e-3],
    "muon": [5e-4, 1e-3, 2e-3, 4e-3, 8e-3],
    "schedule_free_adamw": [1e-3, 2e-3, 4e-3, 8e-3, 16e-3],
    "sgd": [0.05, 0.1, 0.2, 0.4, 0.8],
}
MORE = {"sgd": ["training.sgd_momentum=0.9", "training.adam_beta2=0.999"],
        "schedule_free_adamw": ["training.lr_schedule=constant"]}


def command(arguments, overrides):
    return [str(PROGRAM), "train", "--config", arguments.config, "--nproc",
            str(arguments.nproc)] + overrides


def run_program(words, name):
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"optimizers: {name} failed:\n{result.stderr[-2000:]}")
    return result.stdout


def train(arguments, folder, optimizer, rate):
    """Evaluations as (tokens, loss), and the median step in ms."""
    run = folder / f"{optimizer}-{rate}"
    run_program(
        command(arguments, ["training.eval_every=10",
                            f"training.optimizer={optimizer}",
                            f"training.learning_rate={rate}",
                            f"logging.run_dir={run}"]
                + arguments.overrides + MORE.get(optimizer, [])), run.name)
    steps = [json.loads(line)
             for line in (run / "metrics.jsonl").read_text().splitlines()]
    times = sorted(step["step_ms"] for step in steps)
    return ([(step["tokens"], step["eval_loss"]) for step in steps
             if step.get("eval_loss")], times[len(times) // 2])


def state_mib(arguments, folder, optimizer):
    text = run_program(
        command(arguments, ["--dry-run", f"training.optimizer={optimizer}",
                            f"logging.run_dir={folder / 'dry'}"]
                + arguments.overrides + MORE.get(optimizer, [])), "--dry-run")
    return float(re.search(r"optimizer state \(([\d.]+)\)", text).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="examples/quickstart.json")
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for optimizer, rates in RATES.items():
            for rate in rates:
                losses, step_ms = train(arguments, folder, optimizer, rate)
                print(f"{optimizer} at {rate}: {losses[-1][1]:.4f}",
                      file=sys.stderr, flush=True)
                if optimizer not in best or \
                        losses[-1][1] < best[optimizer][1][-1][1]:
                    best[optimizer] = (rate, losses, step_ms)
        tokens, goal = best["adamw"][1][-1]
        print("| optimizer | best rate | evaluation loss | tokens to AdamW's"
              " | state MiB | step ms |\n|---|---|---|---|---|---|")
        for optimizer, (rate, losses, step_ms) in best.items():
            reached = next((t for t, loss in losses if loss <= goal), None)
            share = f"{reached / tokens:.2f}" if reached else "not reached"
            print(f"| {optimizer} | {rate} | {losses[-1][1]:.4f} | {share} | "
                  f"{state_mib(arguments, folder, optimizer):.1f} | "
                  f"{step_ms:.0f} |")


if __name__ == "__main__":
    main()
