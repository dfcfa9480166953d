#!/usr/bin/env python3
"""Low-communication training against data parallel at the same number of
tokens: evaluation loss, and the bytes that the ranks sent, the warm-up's
included. The 5.4-million-parameter model of bench/jargon_5m.json on the Jargon
File, four groups of one rank; each run is alone on the loopback device of a
network namespace. As root; needs build/release/brigade and Debian's package
jargon-text.

  bench/local_steps.py [--config FILE] [KEY=VALUE...]     # of all runs
  bench/local_steps.py --muon ...     # MuLoCo against DiLoCo instead: Muon
                                      # inside and 2-bit changes; AdamW and fp32
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = "/usr/share/doc/jargon-text/jargon.txt.gz"
COMMON = ["training.gradient_accumulation_steps=1", "training.eval_steps=8"]
GROUPS = ["distributed.local_steps=30", "distributed.outer_learning_rate=1",
          "distributed.outer_momentum=0.5"]
WARM_UPS = [(120, 2), (180, 3), (240, 4)]  # steps, interval


def train(arguments, folder, name, overrides):
    """The last evaluation's loss, and gigabytes sent."""
    run = folder / name
    command = [str(ROOT / "build/release/brigade"), "train", "--config",
               arguments.config, "--nproc", "4", f"logging.run_dir={run}"
               ] + COMMON + overrides + arguments.overrides
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


def prepare(config):
    model = json.loads((ROOT / config).read_text())
    dataset = model["dataset"]["name"]
    if not (ROOT / f"{dataset}.idx").exists():
        (ROOT / dataset).parent.mkdir(exist_ok=True)
        subprocess.run(
            [str(ROOT / "build/release/brigade"), "prepare", "--input", TEXT,
             "--train-tokenizer", str(model["model"]["config"]["vocab_size"]),
             "--out", dataset], cwd=ROOT, check=True)


def compare_warm_ups(arguments, folder):
    loss, sent = train(arguments, folder, "parallel", [])
    print(f"data parallel            loss {loss:.4f}"
          f"                 {sent:7.3f} GB", flush=True)
    for steps, interval in WARM_UPS:
        groups_loss, groups_sent = train(
            arguments, folder, f"warm-{steps}-{interval}", GROUPS + [
                "distributed.outer_wire=int4",
                f"distributed.local_warmup_steps={steps}",
                f"distributed.local_warmup_interval={interval}"])
        print(f"warm-up {steps}, interval {interval}  loss "
              f"{groups_loss:.4f} ({groups_loss / loss - 1:+.1%}, at most"
              f" 3 %)  {groups_sent:7.3f} GB, a"
              f" {sent / groups_sent:.0f}th (at most a 40th)", flush=True)


def compare_optimizers(arguments, folder):
    (diloco_loss, diloco_sent), (loss, sent) = [
        train(arguments, folder, optimizer, GROUPS + [
            "distributed.local_warmup_steps=60",
            "distributed.local_warmup_interval=3",
            f"training.optimizer={optimizer}",
            f"distributed.outer_wire={wire}"])
        for optimizer, wire in [("adamw", "fp32"), ("muon", "int2")]]
    print(f"DiLoCo  loss {diloco_loss:.4f}  {diloco_sent:.3f} GB\n"
          f"MuLoCo  loss {loss:.4f} ({loss / diloco_loss - 1:+.1%}, at most 0)"
          f"  {sent:.3f} GB, a {diloco_sent / sent:.1f}th (at most an eighth)")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="bench/jargon_5m.json")
    parser.add_argument("--muon", action="store_true")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    if os.geteuid() != 0:
        sys.exit("local_steps: network namespaces need root")
    prepare(arguments.config)
    with tempfile.TemporaryDirectory() as folder:
        compare = compare_optimizers if arguments.muon else compare_warm_ups
        compare(arguments, pathlib.Path(folder))


if __name__ == "__main__":
    main()
