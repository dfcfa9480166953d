#!/usr/bin/env python3
"""Runs an example that divides one batch between its ranks on one, two and three
ranks, and compares the losses with which they end.

    examples_test.py build/release/brigade build/release/examples/example_06_gan
"""

import re
import subprocess
import sys

TOLERANCE = 1e-3  # relative: sums are in another order


def final_loss(brigade, example, ranks):
    done = subprocess.run(
        [brigade, "run", "-n", str(ranks), "--threads", "1", "--", example],
        capture_output=True,
        text=True,
        check=False,
    )
    text = done.stdout + done.stderr
    if done.returncode != 0:
        sys.exit(f"{example} on {ranks} ranks exits {done.returncode}:\n{text}")
    losses = re.findall(rf"rank \d+ of {ranks}: loss ([0-9.]+)", text)
    if len(losses) != ranks or len(set(losses)) != 1:
        sys.exit(f"{example} on {ranks} ranks: no loss, or several:\n{text}")
    return float(losses[0])


def main():
    brigade, example = sys.argv[1:]
    alone = final_loss(brigade, example, 1)
    for ranks in (2, 3):
        loss = final_loss(brigade, example, ranks)
        print(f"{ranks} ranks: loss {loss}, one process: {alone}")
        if abs(loss - alone) > TOLERANCE * abs(alone):
            sys.exit("the losses differ")


if __name__ == "__main__":
    main()
