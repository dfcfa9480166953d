"use strict";
// The page of `brigade report`: what every section uses, figures and curves.
// Data: an array of runs, each with steps (the objects of metrics.jsonl),
// config (flat), layout, ranks, checkpoints, events (events.jsonl), timeline
// (of traces) and planned (the pipeline's schedule).
const colours = ["#2b7bba", "#d9622b", "#2f9e5b", "#a04fb5", "#b5892f",
  "#c23b52", "#4f9aa8", "#7a7a7a"];
const colourOf = (index) => colours[index % colours.length];
let runs = JSON.parse(document.getElementById("data").textContent);
// What a reader has chosen; it outlives a redraw of the live page.
const chosen = { axis: "step", smooth: 1 };

function add(parent, tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  parent.appendChild(element);
  return element;
}

function readable(value) {
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toFixed(2) + "B";
  if (size >= 1e6) return (value / 1e6).toFixed(2) + "M";
  if (size >= 1e4) return (value / 1e3).toFixed(1) + "K";
  return size >= 100 || Number.isInteger(value) ? String(Math.round(value))
    : value.toPrecision(4);
}

function duration(seconds) {
  const pad = (n) => String(Math.floor(n)).padStart(2, "0");
  return Math.floor(seconds / 3600) + ":" + pad(seconds / 60 % 60) + ":" +
    pad(seconds % 60);
}

// Without the first three steps, which warm up.
function meanOf(steps, pick) {
  const values = steps.slice(steps.length > 3 ? 3 : 0).map(pick)
    .filter((v) => typeof v === "number");
  return values.length ? values.reduce((a, b) => a + b) / values.length : NaN;
}

// A heading of one run where several are on the page.
function titleOf(parent, run, index) {
  if (runs.length < 2) return;
  const title = add(parent, "h3");
  add(title, "span", "", "swatch").style.background = colourOf(index);
  title.append(run.name);
}

function table(parent, id, heads, rows) {
  const made = add(add(parent, "div", undefined, "wide"), "table");
  if (id) made.id = id;
  const head = add(made, "tr");
  for (const text of heads) add(head, "th", text);
  for (const cells of rows) {
    const row = add(made, "tr");
    for (const cell of cells) add(row, "td", String(cell));
  }
  return made;
}

function addSeconds() {
  for (const run of runs) {
    let seconds = 0;
    for (const step of run.steps)
      step.seconds = seconds += (step.step_ms || 0) / 1000;
  }
}

// ---- figures

function showFigures(page) {
  add(page, "h2", "Where it stands");
  for (const [index, run] of runs.entries()) {
    const last = run.steps[run.steps.length - 1];
    titleOf(page, run, index);
    const tiles = add(page, "div", undefined, "tiles");
    const tile = (name, value) => {
      const box = add(tiles, "div", undefined, "tile");
      box.dataset.figure = name;
      add(box, "b", value);
      add(box, "span", name);
    };
    if (!last) {
      tile("steps", "none yet");
      continue;
    }
    const total = run.last_step;  // 0: not known
    tile("step", total ? last.step + " of " + total : String(last.step));
    tile("loss",
      typeof last.loss === "number" ? last.loss.toFixed(4) : "not finite");
    const evals = run.steps.filter((s) => typeof s.eval_loss === "number");
    if (evals.length)
      tile("evaluation loss", evals[evals.length - 1].eval_loss.toFixed(4));
    tile("tokens", readable(last.tokens));
    tile("tokens/s", readable(meanOf(run.steps, (s) => s.tokens_per_second)));
    tile("MFU", meanOf(run.steps, (s) => s.mfu).toFixed(1) + " %");
    if (typeof last.memory_gb === "number")
      tile("memory per rank", last.memory_gb.toFixed(2) + " GB");
    tile("trained for", duration(last.seconds));
    tile("layout", run.layout);
    const starts = run.events.filter((e) => e.event === "start").length;
    if (starts > 1) tile("starts", String(starts));
  }
}

// ---- curves

const series = [
  ["loss", "loss", (s) => s.loss],
  ["eval_loss", "evaluation loss", (s) => s.eval_loss],
  ["lr", "learning rate", (s) => s.lr],
  ["grad_norm", "gradient norm", (s) => s.grad_norm],
  ["tokens_per_second", "tokens/s", (s) => s.tokens_per_second],
  ["mfu", "MFU, %", (s) => s.mfu],
  ["memory_gb", "memory of the largest rank, GB", (s) => s.memory_gb],
  ["exposed", "exposed communication, % of the step",
    (s) => s.step_ms ? 100 * s.exposed_comm_ms / s.step_ms : null],
  ["expert_load", "busiest expert over the mean, of the worst layer",
    (s) => s.experts ? Math.max(...s.experts.max_over_mean) : null],
  ["expert_entropy", "entropy of the use of experts, of the worst layer",
    (s) => s.experts && s.experts.entropy
      ? Math.min(...s.experts.entropy) : null],
  ["router_norm", "largest norm of a router's weight",
    (s) => s.experts && s.experts.router_norm
      ? Math.max(...s.experts.router_norm) : null],
  ["dropped", "choices that experts had no room for",
    (s) => s.experts ? s.experts.dropped : null],
  ["margin", "margin of rewards, chosen over rejected",
    (s) => s.preference ? s.preference.margin : null],
  ["accuracy", "pairs whose chosen answer has the larger reward",
    (s) => s.preference ? s.preference.accuracy : null],
];

// The mean of each value and those before it, `count` in all.
function smoothed(values, count) {
  let sum = 0;
  return values.map((value, i) => {
    sum += value - (i >= count ? values[i - count] : 0);
    return sum / Math.min(count, i + 1);
  });
}

// Rows of [x, values of run 0, values of run 1, ...]; each run has its value,
// or the smoothed one and the raw one.
function rowsOf(pick) {
  const per = chosen.smooth > 1 ? 2 : 1;
  const rows = new Map();
  runs.forEach((run, index) => {
    const steps = run.steps.filter((s) => typeof pick(s) === "number");
    const raw = steps.map(pick);
    const shown = chosen.smooth > 1 ? smoothed(raw, chosen.smooth) : raw;
    steps.forEach((step, i) => {
      const x = step[chosen.axis];
      if (!rows.has(x)) rows.set(x, new Array(per * runs.length).fill(null));
      rows.get(x)[per * index] = shown[i];
      if (per === 2) rows.get(x)[2 * index + 1] = raw[i];
    });
  });
  return [...rows.entries()].sort((a, b) => a[0] - b[0])
    .map(([x, values]) => [x, ...values]);
}

// Names that tell runs of the same name apart.
function labelsOf(title) {
  const names = runs.map((run, i) => runs.length > 1
    ? run.name + (runs.some((r, j) => j !== i && r.name === run.name)
      ? " (" + (i + 1) + ")" : "") : title);
  return chosen.smooth > 1 ? names.flatMap((n) => [n, n + ", raw"]) : names;
}

function chartOptions(id, title) {
  const shown = (index) => chosen.smooth > 1
    ? [colourOf(index), colourOf(index) + "55"] : [colourOf(index)];
  return {
    labels: ["x", ...labelsOf(title)],
    colors: runs.flatMap((_, index) => shown(index)),
    connectSeparatedPoints: true,
    drawPoints: id === "eval_loss",
    pointSize: 3,
    legend: runs.length > 1 ? "always" : "onmouseover",
    axisLineColor: "#8886",
    gridLineColor: "#8883",
    axes: { y: { axisLabelWidth: 64,
      valueFormatter: (v) => v.toPrecision(6) } },
  };
}

function choice(parent, text, key, options, redraw) {
  const select = add(add(parent, "label", text), "select");
  select.dataset.choice = key;
  for (const [value, name] of options) add(select, "option", name).value = value;
  select.value = String(chosen[key]);
  select.addEventListener("change", () => {
    chosen[key] = key === "smooth" ? Number(select.value) : select.value;
    redraw();
  });
}

function showCurves(page) {
  add(page, "h2", "Curves");
  const controls = add(page, "div", undefined, "controls");
  const charts = add(page, "div", undefined, "charts");
  const draw = () => {
    charts.textContent = "";
    for (const [id, title, pick] of series) {
      const rows = rowsOf(pick);
      if (!rows.length) continue;
      const chart = add(charts, "div", undefined, "chart");
      chart.dataset.chart = id;
      add(chart, "h3", title);
      new Dygraph(add(chart, "div", undefined, "plot"), rows,
        chartOptions(id, title));
    }
  };
  choice(controls, "over ", "axis", [["step", "steps"], ["tokens", "tokens"],
    ["seconds", "time (s)"]], draw);
  choice(controls, "smoothed over ", "smooth", [[1, "nothing"], [5, "5 steps"],
    [20, "20 steps"], [100, "100 steps"]], draw);
  draw();
}
