#!/usr/bin/env python3
"""Draws a run's loss as SVG, to standard output.

  make quickstart
  scripts/draw_loss.py runs/quickstart/metrics.jsonl > docs/quickstart_loss.svg
"""
import json
import math
import sys

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 30, 44
LINE, EVALUATION = "#4c8bf5", "#e2574c"


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    if len(rows) < 2:
        sys.exit(f"{path}: a curve needs two steps, but there are {len(rows)}")
    return rows


def draw(path):
    rows = rows_of(path)
    last = rows[-1]["step"]
    losses = [row["loss"] for row in rows]
    losses += [row["eval_loss"] for row in rows if "eval_loss" in row]
    low, high = math.floor(min(losses)), math.ceil(max(losses))

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    out = []

    def text(at, height, words, anchor="middle"):
        out.append(f'<text x="{at:.1f}" y="{height:.1f}" '
                   f'text-anchor="{anchor}">{words}</text>')

    for loss in range(low, high + 1):
        out.append(f'<path d="M{LEFT} {y(loss):.1f} H{WIDTH - RIGHT}" '
                   'stroke="#dde1e7"/>')
        text(LEFT - 8, y(loss) + 4, loss, "end")
    tick = max(1, 10 ** math.floor(math.log10(last)) // 2)
    for step in range(0, last + 1, tick):
        text(x(step), HEIGHT - BOTTOM + 18, step)
    text(WIDTH - RIGHT, HEIGHT - 8, "optimizer step", "end")
    text(LEFT - 40, 16, "loss (nats per token)", "start")

    points = " ".join(f'{x(row["step"]):.1f},{y(row["loss"]):.1f}'
                      for row in rows)
    out.append(f'<polyline points="{points}" fill="none" stroke="{LINE}" '
               'stroke-width="1.5"/>')
    for row in rows:
        if "eval_loss" in row:
            out.append(f'<circle cx="{x(row["step"]):.1f}" '
                       f'cy="{y(row["eval_loss"]):.1f}" r="4" '
                       f'fill="{EVALUATION}"><title>step {row["step"]}: '
                       f'{row["eval_loss"]:.3f}</title></circle>')
    for row, colour, words in ((0, LINE, "training"),
                               (1, EVALUATION, "held-out text")):
        out.append(f'<rect x="{WIDTH - 150}" y="{40 + 20 * row}" width="14" '
                   f'height="10" fill="{colour}"/>')
        text(WIDTH - 130, 49 + 20 * row, words, "start")

    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
          f'height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
          'font-family="sans-serif" font-size="12" fill="#111">')
    print(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>')
    print("\n".join(out))
    print("</svg>")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    draw(sys.argv[1])
