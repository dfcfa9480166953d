#!/usr/bin/env python3
"""Draws a traced step's buckets as SVG, to standard output.

  brigade train --config bench/jargon_5m.json --nproc 2 --report-overlap \\
    training.total_train_steps=10 distributed.bucket_cap_mb=4 \\
    logging.trace_steps=[10] logging.run_dir=runs/picture
  scripts/draw_buckets.py runs/picture/trace-rank0.json > docs/gradient_sync.svg
"""
import json
import sys

LEFT, RIGHT, WIDTH = 90, 20, 860
ROW, BAR, TOP = 22, 14, 46
COLOURS = {"backward": "#7a869a", "finish": "#c9ced6", "reduced": "#4c8bf5",
           "waited": "#e2574c"}


def spans_of(path):
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    return [e for e in events if e["ph"] == "X"]


def draw(path):
    spans = spans_of(path)
    last_step = [s for s in spans if s["name"].startswith("step ")][-1]
    begin, end = last_step["ts"], last_step["ts"] + last_step["dur"]
    spans = [s for s in spans if begin <= s["ts"] <= end]
    backward = [s for s in spans if s["name"].startswith("backward")][-1]
    finish = next(s for s in spans if s["name"] == "finish gradients")
    buckets = sorted((s for s in spans if s["cat"] == "communication"),
                     key=lambda s: s["args"]["bucket"])
    waits = {s["name"]: s for s in spans if s["cat"] == "wait"}
    if not buckets:
        sys.exit(f"{path}: the step has no buckets")

    zero = backward["ts"]
    total = max(s["ts"] + s["dur"] for s in buckets + [finish, backward]) - zero
    scale = (WIDTH - LEFT - RIGHT) / total
    height = TOP + ROW * (len(buckets) + 2) + 40

    def x(us):
        return LEFT + (us - zero) * scale

    out = []

    def text(at, y, words, **more):
        attributes = "".join(f' {k.replace("_", "-")}="{v}"'
                             for k, v in more.items())
        out.append(f'<text x="{at:.1f}" y="{y:.1f}"{attributes}>{words}</text>')

    def bar(row, from_us, to_us, kind, title):
        width = max((to_us - from_us) * scale, 0.7)
        out.append(
            f'<rect x="{x(from_us):.1f}" y="{TOP + row * ROW:.1f}" '
            f'width="{width:.1f}" height="{BAR}" fill="{COLOURS[kind]}">'
            f"<title>{title}</title></rect>")

    def label(row, words):
        text(LEFT - 8, TOP + row * ROW + BAR - 2, words, text_anchor="end")

    label(0, "backward")
    bar(0, zero, zero + backward["dur"], "backward",
        f'backward of the last micro-batch, {backward["dur"] / 1e3:.2f} ms')
    label(1, "finish()")
    bar(1, finish["ts"], finish["ts"] + finish["dur"], "finish",
        f'finish(), {finish["dur"] / 1e3:.2f} ms')
    for row, span in enumerate(buckets, start=2):
        times = span["args"]
        # Times of a report count from the first gradient.
        first = span["ts"] + span["dur"] - times["finished_ms"] * 1e3
        launched = first + times["launched_ms"] * 1e3
        finished = first + times["finished_ms"] * 1e3
        ready = first + times["ready_ms"] * 1e3
        label(row, f'bucket {times["bucket"]}')
        bar(row, launched, finished, "reduced",
            f'{times["bytes"] / 2**20:.2f} MiB, all-reduced in '
            f'{(finished - launched) / 1e3:.2f} ms')
        wait = waits.get(f'wait for bucket {times["bucket"]}')
        if wait and wait["dur"] * scale >= 0.7:
            out.append(
                f'<rect x="{x(wait["ts"]):.1f}" y="{TOP + row * ROW + 10}" '
                f'width="{wait["dur"] * scale:.1f}" height="4" '
                f'fill="{COLOURS["waited"]}">'
                f'<title>waited {wait["dur"] / 1e3:.2f} ms</title></rect>')
        top = TOP + row * ROW
        out.append(f'<path d="M{x(ready):.1f} {top - 2} v{BAR + 4}" '
                   'stroke="#111" stroke-width="1.5"/>')
    bottom = TOP + ROW * (len(buckets) + 2)
    end_of_backward = x(zero + backward["dur"])
    out.append(f'<path d="M{end_of_backward:.1f} {TOP - 6} V{bottom}" '
               'stroke="#111" stroke-dasharray="3 3"/>')

    step_ms = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
                   if total / 1e3 / s <= 12)
    for tick in range(0, int(total / 1e3) + 1, step_ms):
        at = x(zero + tick * 1e3)
        out.append(f'<path d="M{at:.1f} {bottom} v5" stroke="#111"/>')
        text(at, bottom + 17, tick, text_anchor="middle")
    text(WIDTH - RIGHT, bottom + 32, "ms since the backward pass began",
         text_anchor="end")

    legend = LEFT
    for kind, words in (("reduced", "launched to finished"),
                        ("waited", "waited for: exposed")):
        out.append(f'<rect x="{legend}" y="14" width="14" height="10" '
                   f'fill="{COLOURS[kind]}"/>')
        text(legend + 20, 23, words)
        legend += 175
    out.append(f'<path d="M{legend + 6} 11 v16" stroke="#111" '
               'stroke-width="1.5"/>')
    text(legend + 16, 23, "full (its last gradient is ready)")

    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
          f'height="{height}" viewBox="0 0 {WIDTH} {height}" '
          'font-family="sans-serif" font-size="12" fill="#111">')
    print(f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>')
    print("\n".join(out))
    print("</svg>")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    draw(sys.argv[1])
