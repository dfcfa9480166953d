#!/usr/bin/env python3
"""Tokens to the same loss, state and step time of every optimizer, each at the
best of its learning rates: the tables of docs/optimizers.md. The quickstart's
model and text, one rank; needs build/release/brigade and the dataset that the
config names.

  bench/optimizers.py [--optimizers NAME,...] [--rates X,...] [--out FOLDER]
                      [--config FILE] [--nproc N] [KEY=VALUE...]  # of all runs

With --out runs stay in FOLDER, and those that are there and whole are not run
again: a sweep that was cut off, or is to have more rates, goes on.
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
# Rates are a factor of two apart, the middle first.
RATES = [4e-3, 2e-3, 8e-3, 1e-3, 16e-3]
OTHER_RATES = {"sgd": [0.2, 0.4, 0.1, 0.8, 0.05]}
# By name, beside training.optimizer, which is the name up to a "+".
MORE = {
    "adamw": [],
    "muon": [],
    "schedule_free_adamw": ["training.lr_schedule=constant"],
    "sgd": ["training.sgd_momentum=0.9", "training.adam_beta2=0.999"],
    "adamw+bfloat16": ["training.optimizer_state_dtype=bfloat16"],
    "adamw+int8": ["training.optimizer_state_dtype=int8"],
    "muon+int8": ["training.optimizer_state_dtype=int8"],
}
DEFAULT = "adamw,muon,schedule_free_adamw,sgd"


def command(arguments, name, overrides):
    return ([str(PROGRAM), "train", "--config", arguments.config, "--nproc",
             str(arguments.nproc)] + overrides
            + [f"training.optimizer={name.split('+')[0]}"] + MORE[name]
            + arguments.overrides)


def run_program(words, name):
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"optimizers: {name} failed:\n{result.stderr[-2000:]}")
    return result.stdout


def metrics(run):
    """The steps of a run that went to its end; none of another."""
    if not (run / "whole").exists():
        return []
    return [json.loads(line)
            for line in (run / "metrics.jsonl").read_text().splitlines()]


def train(arguments, folder, optimizer, rate):
    """Evaluations as (tokens, loss), and the median step in ms."""
    run = folder / f"{optimizer}-{rate}"
    if not metrics(run):
        run_program(
            command(arguments, optimizer,
                    ["--overwrite", "training.eval_every=10",
                     f"training.learning_rate={rate}",
                     f"logging.run_dir={run}"]), run.name)
        (run / "whole").touch()
    steps = metrics(run)
    times = sorted(step["step_ms"] for step in steps)
    return ([(step["tokens"], step["eval_loss"]) for step in steps
             if step.get("eval_loss")], times[len(times) // 2])


def state_mib(arguments, folder, optimizer):
    text = run_program(
        command(arguments, optimizer,
                ["--dry-run", f"logging.run_dir={folder / 'dry'}"]),
        "--dry-run")
    return float(re.search(r"optimizer state \(([\d.]+)\)", text).group(1))


def sweep(arguments, folder):
    """By optimizer, then rate, what train() returns."""
    results = {optimizer: {} for optimizer in arguments.optimizers}
    for number in range(len(arguments.rates or RATES)):
        for optimizer, of_optimizer in results.items():
            rate = (arguments.rates or OTHER_RATES.get(optimizer, RATES))[
                number]
            of_optimizer[rate] = train(arguments, folder, optimizer, rate)
            print(f"{optimizer} at {rate}: {of_optimizer[rate][0][-1][1]:.4f}",
                  file=sys.stderr, flush=True)
    return results


def write_tables(arguments, folder, results):
    for optimizer, of_optimizer in results.items():
        print(f"{optimizer}: " + ", ".join(
            f"{rate} {losses[-1][1]:.4f}"
            for rate, (losses, _) in sorted(of_optimizer.items())))
    best = {optimizer: min(of_optimizer.items(),
                           key=lambda run: run[1][0][-1][1])
            for optimizer, of_optimizer in results.items()}
    first = next(iter(best))
    tokens, goal = best[first][1][0][-1]
    print(f"\n| optimizer | best rate | evaluation loss | tokens to {first}'s"
          " | state MiB | step ms |\n|---|---|---|---|---|---|")
    for optimizer, (rate, (losses, step_ms)) in best.items():
        reached = next((t for t, loss in losses if loss <= goal), None)
        share = f"{reached / tokens:.2f}" if reached else "not reached"
        print(f"| {optimizer} | {rate} | {losses[-1][1]:.4f} | {share} | "
              f"{state_mib(arguments, folder, optimizer):.1f} | "
              f"{step_ms:.0f} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--optimizers", default=DEFAULT, help=", ".join(MORE),
                        type=lambda names: names.split(","))
    parser.add_argument("--rates", type=lambda rates: [
        float(rate) for rate in rates.split(",")])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--config", default="examples/quickstart.json")
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = (arguments.out or pathlib.Path(folder)).absolute()
        write_tables(arguments, folder, sweep(arguments, folder))


if __name__ == "__main__":
    main()
