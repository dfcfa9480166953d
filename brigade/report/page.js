"use strict";
// The page of `brigade report`. Data: an array of runs, each with steps (the
// objects of metrics.jsonl), config (flat), layout, ranks and checkpoints.
const runs = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const colours = ["#2b7bba", "#d9622b", "#2f9e5b", "#a04fb5", "#b5892f",
  "#c23b52", "#4f9aa8", "#7a7a7a"];
const colourOf = (index) => colours[index % colours.length];

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

// Cumulative time of the steps, in seconds.
for (const run of runs) {
  let seconds = 0;
  for (const step of run.steps) {
    seconds += (step.step_ms || 0) / 1000;
    step.seconds = seconds;
  }
}

function meanOf(steps, key) {
  const values = steps.slice(steps.length > 3 ? 3 : 0).map((s) => s[key])
    .filter((v) => typeof v === "number");
  return values.length ? values.reduce((a, b) => a + b) / values.length : NaN;
}

// ---- figures

add(page, "h2", "Where it stands");
for (const [index, run] of runs.entries()) {
  const last = run.steps[run.steps.length - 1];
  if (runs.length > 1) {
    const title = add(page, "h3");
    add(title, "span", "", "swatch").style.background = colourOf(index);
    title.append(run.name);
  }
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
  const total = run.config["training.total_train_steps"];
  tile("step", total ? last.step + " of " + total : String(last.step));
  tile("loss", last.loss === null ? "not finite" : last.loss.toFixed(4));
  const evals = run.steps.filter((s) => typeof s.eval_loss === "number");
  if (evals.length)
    tile("evaluation loss", evals[evals.length - 1].eval_loss.toFixed(4));
  tile("tokens", readable(last.tokens));
  tile("tokens/s", readable(meanOf(run.steps, "tokens_per_second")));
  tile("MFU", meanOf(run.steps, "mfu").toFixed(1) + " %");
  tile("memory per rank", last.memory_gb.toFixed(2) + " GB");
  tile("trained for", duration(last.seconds));
  tile("layout", run.layout);
}

// ---- curves

add(page, "h2", "Curves");
const controls = add(page, "div", undefined, "controls");
const axisLabel = add(controls, "label", "over ");
const axis = add(axisLabel, "select");
for (const [key, name] of [["step", "steps"], ["tokens", "tokens"],
  ["seconds", "time (s)"]])
  add(axis, "option", name).value = key;
const smoothLabel = add(controls, "label", "smoothed over ");
const smooth = add(smoothLabel, "select");
for (const count of [1, 5, 20, 100])
  add(smooth, "option", count === 1 ? "nothing" : count + " steps").value =
    count;
const charts = add(page, "div", undefined, "charts");

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
];

// Rows of [x, value of run 0, value of run 1, ...].
function rowsOf(pick, key) {
  const rows = new Map();
  runs.forEach((run, index) => {
    for (const step of run.steps) {
      const value = pick(step);
      if (typeof value !== "number") continue;
      const x = step[key];
      if (!rows.has(x)) rows.set(x, new Array(runs.length).fill(null));
      rows.get(x)[index] = value;
    }
  });
  return [...rows.entries()].sort((a, b) => a[0] - b[0])
    .map(([x, values]) => [x, ...values]);
}

const plots = [];
for (const [id, title, pick] of series) {
  if (!rowsOf(pick, "step").length) continue;
  const chart = add(charts, "div", undefined, "chart");
  chart.dataset.chart = id;
  add(chart, "h3", title);
  const plot = add(chart, "div", undefined, "plot");
  plots.push([pick, new Dygraph(plot, rowsOf(pick, "step"), {
    labels: ["x", ...runs.map((run, i) => runs.length > 1
      ? run.name + (runs.some((r, j) => j !== i && r.name === run.name)
        ? " (" + (i + 1) + ")" : "") : title)],
    colors: runs.map((_, index) => colourOf(index)),
    connectSeparatedPoints: true,
    drawPoints: id === "eval_loss",
    pointSize: 3,
    legend: runs.length > 1 ? "always" : "onmouseover",
    axisLineColor: "#8886",
    gridLineColor: "#8883",
    axes: { y: { axisLabelWidth: 64,
      valueFormatter: (v) => v.toPrecision(6) } },
  })]);
}
function redraw() {
  for (const [pick, plot] of plots)
    plot.updateOptions({
      file: rowsOf(pick, axis.value),
      rollPeriod: Number(smooth.value),
    });
}
axis.addEventListener("change", redraw);
smooth.addEventListener("change", redraw);

// ---- what a step's time goes to

add(page, "h2", "What a step's time goes to");
for (const [index, run] of runs.entries()) {
  const step = meanOf(run.steps, "step_ms");
  if (!(step > 0)) continue;
  const exposed = Math.min(step, meanOf(run.steps, "exposed_comm_ms") || 0);
  const parts = [["computation, and what overlaps it", step - exposed,
    colourOf(index)], ["waiting for gradients and pipeline neighbours",
    exposed, "#8888"]];
  add(page, "p", (runs.length > 1 ? run.name + ": " : "") +
    step.toFixed(1) + " ms per step, mean without the first three");
  const bar = add(page, "div", undefined, "bar");
  const legend = add(page, "p");
  for (const [name, value, colour] of parts) {
    const piece = add(bar, "div");
    piece.style.width = 100 * value / step + "%";
    piece.style.background = colour;
    add(legend, "span", "", "swatch").style.background = colour;
    legend.append(name + " " + value.toFixed(1) + " ms (" +
      (100 * value / step).toFixed(1) + " %)  ");
  }
}

// ---- config

add(page, "h2", runs.length > 1 ? "Config, and where runs differ" : "Config");
const table = add(add(page, "div", undefined, "wide"), "table");
table.id = "config";
const head = add(table, "tr");
add(head, "th", "key");
for (const run of runs) add(head, "th", run.name);
const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))];
const rows = keys.sort().map((key) => {
  const values = runs.map((run) => JSON.stringify(run.config[key]));
  return [key, values, values.some((value) => value !== values[0])];
});
rows.sort((a, b) => b[2] - a[2]);
for (const [key, values, differs] of rows) {
  const row = add(table, "tr", undefined, differs ? "differs" : "");
  add(row, "td", key);
  for (const value of values) add(row, "td", value === undefined ? "" : value);
}

// ---- layout and checkpoints

for (const run of runs) {
  if (run.ranks) {
    add(page, "h2", "Ranks" + (runs.length > 1 ? " of " + run.name : ""));
    add(page, "pre", run.ranks);
  }
  add(page, "p", "Checkpoints" + (runs.length > 1 ? " of " + run.name : "") +
    ": " + (run.checkpoints.length ? "steps " + run.checkpoints.join(", ")
    : "none") + ". Folder: " + run.path);
}
