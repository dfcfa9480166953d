// How the routers of a model with experts divide tokens: each expert of each
// layer over the last steps. How far the busiest one is above the mean, step by
// step, is among the curves.

// {steps, layers: [{layer, rows}]}: the sums over the steps that have them, of
// which report_page.cpp leaves the last ones. Null: no experts.
function expertsOf(run) {
  const steps = run.steps.filter(
    (s) => s.experts && s.experts.tokens_per_expert);
  if (!steps.length) return null;
  const layers = steps[steps.length - 1].experts.layers.map((layer, i) => ({
    layer,
    rows: steps.map((s) => s.experts.tokens_per_expert[i])
      .reduce((sum, rows) => rows.map((count, e) => count + sum[e])),
  }));
  return { steps, layers };
}

// Between no row and twice the mean, and beyond.
function heatOf(ratio) {
  const alpha = Math.min(1, Math.abs(ratio - 1)).toFixed(3);
  return ratio < 1 ? "rgba(43,123,186," + alpha + ")"
    : "rgba(217,98,43," + alpha + ")";
}

function addHeatMap(parent, layers) {
  const box = add(add(parent, "div", undefined, "wide"), "div", undefined,
    "heat");
  for (const { layer, rows } of layers) {
    const mean = rows.reduce((a, b) => a + b) / rows.length;
    const line = add(box, "div", undefined, "lane");
    line.dataset.layer = layer;
    add(line, "span", "layer " + layer, "lane-name");
    const cells = add(line, "div", undefined, "cells");
    rows.forEach((count, expert) => {
      const ratio = mean > 0 ? count / mean : 1;
      const cell = add(cells, "div");
      cell.style.background = heatOf(ratio);
      cell.title = "layer " + layer + ", expert " + expert + ": " + count +
        " tokens, " + ratio.toFixed(2) + " times the mean";
    });
  }
}

function showExperts(page) {
  const found = runs.map(expertsOf);
  if (!found.some((f) => f)) return;
  add(page, "h2", "Tokens of each expert");
  add(page, "p", "A row per layer, a cell per expert: without colour it has " +
    "the mean of its layer, blue less (full: none), orange more (full: twice " +
    "the mean or above).");
  found.forEach((each, index) => {
    if (!each) return;
    titleOf(page, runs[index], index);
    const last = each.steps[each.steps.length - 1];
    const dead = last.experts.dead.reduce((a, b) => a + b);
    add(page, "p", "Steps " + each.steps[0].step + " to " + last.step + " (" +
      each.steps.length + " of them noted each expert); in the last one " +
      dead + " experts got no token, and the busiest of a layer " +
      Math.max(...last.experts.max_over_mean).toFixed(2) + " times the mean.");
    addHeatMap(page, each.layers);
  });
}
