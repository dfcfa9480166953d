#!/usr/bin/env python3
"""Low-communication training against data parallel at the same number of tokens:
evaluation loss, and the bytes that the ranks sent, the warm-up's included. The
5.4-million-parameter model of bench/jargon_5m.json on the Jargon File, four groups
of one rank; each run is alone on the loopback device of a network namespace. As
root; needs build/release/brigade and Debian's package jargon-text.

  bench/local_steps.py [KEY=VALUE...]     # of all runs
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIG = "bench/jargon_5m.json"
TEXT = "/usr/share/doc/jargon-text/jargon.txt.gz"
COMMON = ["training.gradient_accumulation_steps=1", "training.eval_steps=8"]
GROUPS = ["distributed.local_steps=30", "distributed.outer_wire=int4",
          "distributed.outer_learning_rate=1", "distributed.outer_momentum=0.5"]
WARM_UPS = [(120, 2), (180, 3), (240, 4)]  # steps, interval


def train(folder, name, arguments):
    """The last evaluation's loss, and gigabytes sent."""
    run = folder / name
    command = [str(ROOT / "build/release/brigade"), "train", "--config",
               CONFIG, "--nproc", "4",
               f"logging.run_dir={run}"] + COMMON + arguments
    count = ('ip link set lo up && "$@" >&2 && '
             "awk '/lo:/ {print $10}' /proc/net/dev")
    result = subprocess.run(
        ["unshare", "--net", "bash", "-c", count, "bash"] + command, cwd=ROOT,
        capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"})
    if result.returncode:
        sys.exit(f"local_steps: {name} failed:\n{result.stderr[-2000:]}")
    steps = [json.loads(line)
             for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [step["eval_loss"] for step in steps if step.get("eval_loss")]
    return losses[-1], int(result.stdout) / 1e9


def main():
    if os.geteuid() != 0:
        sys.exit("local_steps: network namespaces need root")
    dataset = json.loads((ROOT / CONFIG).read_text())["dataset"]["name"]
    if not (ROOT / f"{dataset}.idx").exists():
        (ROOT / dataset).parent.mkdir(exist_ok=True)
        subprocess.run(
            [str(ROOT / "build/release/brigade"), "prepare", "--input", TEXT,
             "--train-tokenizer", "4096", "--out", dataset], cwd=ROOT,
            check=True)
    more = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        loss, sent = train(folder, "parallel", more)
        print(f"data parallel            loss {loss:.4f}"
              f"                 {sent:7.3f} GB", flush=True)
        for steps, interval in WARM_UPS:
            groups_loss, groups_sent = train(
                folder, f"warm-{steps}-{interval}", GROUPS + [
                    f"distributed.local_warmup_steps={steps}",
                    f"distributed.local_warmup_interval={interval}"] + more)
            print(f"warm-up {steps}, interval {interval}  loss "
                  f"{groups_loss:.4f} ({groups_loss / loss - 1:+.1%}, at most"
                  f" 3 %)  {groups_sent:7.3f} GB, a"
                  f" {sent / groups_sent:.0f}th (at most a 40th)", flush=True)


if __name__ == "__main__":
    main()
