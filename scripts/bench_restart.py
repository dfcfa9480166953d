#!/usr/bin/env python3
"""How long does a run that restarts itself stand still?

  scripts/bench_restart.py BUILD_FOLDER [KILLS]     # default 10

Trains over two ranks with --max-restarts on a machine that should be quiet, and
kills one of them again and again. Prints, per kill and as medians, seconds from
the kill to
  ended     the supervisor's message that all ranks are ended,
  loaded    the new ranks have met, and have loaded the checkpoint,
  step      the next step is in metrics.jsonl.
"""
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import soak

SAVE_EVERY = 20
PATIENCE_SECONDS = 120


def wait_until(condition):
    """The time at which it became true."""
    deadline = time.time() + PATIENCE_SECONDS
    while not condition():
        if time.time() > deadline:
            sys.exit("bench_restart: the run does not go on; see its log")
        time.sleep(0.001)
    return time.time()


class Watched:
    """What a run has written so far."""

    def __init__(self, run):
        self.run = run

    def restarts(self):
        return pathlib.Path(self.run.log.name).read_text().count("\nrestart ")

    def starts(self):
        path = self.run.folder / "events.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        return [line for line in map(json.loads, lines)
                if line["event"] == "start"]

    def last_step(self):
        path = self.run.folder / "metrics.jsonl"
        if not path.exists():
            return 0
        lines = path.read_bytes().split(b"\n")[:-1]
        return json.loads(lines[-1])["step"] if lines else 0


def measure(watched, kill):
    """Seconds to `ended`, `loaded` and `step` of the restart after this kill."""
    run = watched.run
    starts = watched.starts()
    wait_until(lambda: watched.last_step() >= starts[-1]["step"] + SAVE_EVERY + 5)
    restarts = watched.restarts()
    begin = time.time()
    soak.send(run.ranks()[kill % soak.RANKS], signal.SIGKILL)
    ended = wait_until(lambda: watched.restarts() > restarts)
    wait_until(lambda: len(watched.starts()) > len(starts))
    start = watched.starts()[-1]
    step = wait_until(lambda: watched.last_step() > start["step"])
    return ended - begin, start["time"] - begin, step - begin


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    brigade = str(build / "brigade")
    with tempfile.TemporaryDirectory(prefix="brigade-restart-") as name:
        folder = pathlib.Path(name)
        text = folder / "text.txt"
        text.write_text("a ring of buckets goes from hand to hand. " * 5000)
        subprocess.run(
            [brigade, "prepare", "--input", str(text), "--tokenizer", "bytes",
             "--out", str(folder / "tokens")],
            check=True, stdout=subprocess.DEVNULL)
        run = soak.Run(
            brigade, soak.write_config(folder), folder / "run", 10**8, SAVE_EVERY)
        run.start()
        watched = Watched(run)
        wait_until(watched.starts)
        print(f"{'kill':>6} {'ended':>8} {'loaded':>8} {'step':>8}", flush=True)
        rows = []
        for kill in range(kills):
            rows.append(measure(watched, kill))
            print(f"{kill + 1:>6} " + " ".join(f"{s:>8.2f}" for s in rows[-1]),
                  flush=True)
        medians = [statistics.median(column) for column in zip(*rows)]
        print("median " + " ".join(f"{s:>8.2f}" for s in medians))
        run.ask_to_end()
        run.process.wait()


if __name__ == "__main__":
    main()
