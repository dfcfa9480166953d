// What a step's time goes to, the buckets of a step, and the pipeline's schedule
// as it ran beside the schedule as planned.
const parts = [
  ["compute", "computation, and what overlaps it", "#2b7bba"],
  ["tp", "tensor parallel", "#d9622b"],
  ["cp", "context parallel", "#c23b52"],
  ["pp", "pipeline: transfers and bubble", "#7a7a7a"],
  ["gradients", "gradients of data parallel ranks", "#b5892f"],
  ["norm", "loss and norm over ranks", "#a04fb5"],
  ["optimizer", "optimizer", "#2f9e5b"],
  ["data", "data", "#4f9aa8"],
];

// [name, ms, colour] of the mean step.
function partsOf(run, stepMs) {
  const keys = new Set(
    run.steps.flatMap((s) => Object.keys(s.time_ms || {})));
  if (keys.size > 0) {
    parts.forEach((part) => keys.delete(part[0]));
    const others = [...keys].map((key) => [key, key, "#888888"]);
    return [...parts, ...others].map(([key, name, colour]) =>
      [name, meanOf(run.steps, (s) => s.time_ms && s.time_ms[key]) || 0,
        colour]).filter((part) => part[1] > 0);
  }
  // metrics.jsonl of an older version.
  const exposed = Math.min(stepMs,
    meanOf(run.steps, (s) => s.exposed_comm_ms) || 0);
  return [["computation, and what overlaps it", stepMs - exposed, "#2b7bba"],
    ["waiting for gradients and pipeline neighbours", exposed, "#7a7a7a"]];
}

function showStepTime(page) {
  add(page, "h2", "What a step's time goes to");
  for (const [index, run] of runs.entries()) {
    const step = meanOf(run.steps, (s) => s.step_ms);
    if (!(step > 0)) continue;
    titleOf(page, run, index);
    add(page, "p", step.toFixed(1) +
      " ms per step on the reporting rank, mean without the first three");
    const bar = add(page, "div", undefined, "bar");
    const legend = add(page, "p", undefined, "legend");
    for (const [name, value, colour] of partsOf(run, step)) {
      const piece = add(bar, "div");
      piece.style.width = 100 * value / step + "%";
      piece.style.background = colour;
      piece.title = name;
      const entry = add(legend, "span", undefined, "entry");
      entry.dataset.part = name;
      add(entry, "span", "", "swatch").style.background = colour;
      entry.append(name + " " + value.toFixed(1) + " ms (" +
        (100 * value / step).toFixed(1) + " %)");
    }
  }
}

// Lanes of spans over one time axis. lanes: [{name, spans: [{begin, end,
// colour, label, title}]}], in the unit of `total`.
function lanes(parent, rows, total, className) {
  const box = add(add(parent, "div", undefined, "wide"), "div", undefined,
    "lanes " + (className || ""));
  for (const row of rows) {
    const line = add(box, "div", undefined, "lane");
    add(line, "span", row.name, "lane-name");
    const track = add(line, "div", undefined, "track");
    for (const span of row.spans) {
      const piece = add(track, "div");
      const share = 100 * (span.end - span.begin) / total;
      piece.style.left = 100 * span.begin / total + "%";
      piece.style.width = share + "%";
      piece.style.background = span.colour;
      piece.title = span.title || span.label || "";
      if (span.label && share > 2.2) piece.textContent = span.label;
    }
  }
  return box;
}

// From metrics.jsonl (--report-overlap), or from the trace.
function bucketsOf(run) {
  const step = [...run.steps].reverse().find((s) => s.buckets);
  if (step)
    return { step: step.step, buckets: step.buckets };
  const ranks = run.timeline ? run.timeline.ranks : [];
  const rank = ranks.find((r) => r.buckets.length);
  return rank ? { step: run.timeline.step, buckets: rank.buckets } : null;
}

function showBuckets(page) {
  const found = runs.map(bucketsOf);
  if (!found.some((f) => f)) return;
  add(page, "h2", "Buckets of a step");
  add(page, "p", "Each gradient bucket of one rank from its last gradient " +
    "(ready) over its launch to the end of its all-reduce; what the trainer " +
    "waited for is exposed. Times since the backward pass began.");
  found.forEach((each, index) => {
    if (!each) return;
    titleOf(page, runs[index], index);
    const end = Math.max(1e-6, ...each.buckets.map((b) => b.finished_ms));
    const box = lanes(page, each.buckets.map((b) => ({
      name: "bucket " + b.bucket,
      spans: [
        { begin: Math.max(0, b.ready_ms), end: b.launched_ms,
          colour: "#8886", title: "ready at " + b.ready_ms.toFixed(2) + " ms" },
        { begin: Math.max(0, b.launched_ms), end: b.finished_ms,
          colour: "#b5892f", label: (b.bytes / 1048576).toFixed(1) + " MiB",
          title: "launched at " + b.launched_ms.toFixed(2) + " ms, done at " +
            b.finished_ms.toFixed(2) + " ms, waited for " +
            b.waited_ms.toFixed(2) + " ms" },
      ],
    })), end, "buckets");
    add(box, "p", "step " + each.step + ": 0 to " + end.toFixed(2) +
      " ms, exposed " + each.buckets.reduce((s, b) => s + b.waited_ms, 0)
      .toFixed(2) + " ms");
  });
}

const kinds = { F: "#2b7bba", B: "#d9622b", W: "#2f9e5b", wait: "#8884",
  other: "#a04fb5" };

function laneOf(name, spans) {
  return { name, spans: spans.map((s) => ({ begin: s.begin, end: s.end,
    colour: kinds[s.kind] || kinds.other,
    label: s.micro_batch === undefined ? "" : s.kind + s.micro_batch,
    title: s.name + (s.stage === undefined ? "" : ", stage " + s.stage) })) };
}

function showSchedule(page) {
  if (!runs.some((run) => run.planned || run.timeline)) return;
  add(page, "h2", "Schedule of a step");
  const legend = add(page, "p", undefined, "legend");
  for (const [name, key] of [["forward", "F"], ["backward", "B"],
    ["weight gradients", "W"], ["waiting", "wait"], ["other", "other"]]) {
    const entry = add(legend, "span", undefined, "entry");
    add(entry, "span", "", "swatch").style.background = kinds[key];
    entry.append(name);
  }
  for (const [index, run] of runs.entries()) {
    titleOf(page, run, index);
    if (run.timeline) {
      add(page, "p", "As it ran, step " + run.timeline.step + ": " +
        run.timeline.total_ms.toFixed(1) + " ms");
      lanes(page, run.timeline.ranks.map((rank) =>
        laneOf("rank " + rank.rank, rank.spans)), run.timeline.total_ms,
      "as-run");
    } else {
      add(page, "p", "How it ran is in no file: logging.trace_steps=[10] " +
        "records step 10.");
    }
    if (run.planned) {
      add(page, "p", "As planned (" + run.planned.name + "), a forward and " +
        "each half of a backward one unit long: ranks wait " +
        (100 * run.planned.bubble).toFixed(1) + " % of the time");
      lanes(page, run.planned.ranks.map((spans, rank) =>
        laneOf("pp " + rank, spans)), run.planned.total, "as-planned");
    }
  }
}
