// How the routers of a model with experts divide tokens: each expert of each
// layer over the last steps, and each layer's busiest one over all steps. That
// of the worst layer is among the curves.

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

// lanes: [{layer, cells: [{ratio, title}]}]
function addHeatMap(parent, lanes) {
  const box = add(add(parent, "div", undefined, "wide"), "div", undefined,
    "heat");
  for (const { layer, cells } of lanes) {
    const line = add(box, "div", undefined, "lane");
    line.dataset.layer = layer;
    add(line, "span", "layer " + layer, "lane-name");
    const row = add(line, "div", undefined, "cells");
    for (const { ratio, title } of cells) {
      const cell = add(row, "div");
      cell.style.background = heatOf(ratio);
      cell.title = "layer " + layer + ", " + title;
    }
  }
}

function lanesOfExperts(layers) {
  return layers.map(({ layer, rows }) => {
    const mean = rows.reduce((a, b) => a + b) / rows.length;
    return { layer, cells: rows.map((count, expert) => {
      const ratio = mean > 0 ? count / mean : 1;
      return { ratio, title: "expert " + expert + ": " + count + " tokens, " +
        ratio.toFixed(2) + " times the mean" };
    }) };
  });
}

// Of at most 100 steps, evenly chosen.
function lanesOfSteps(run) {
  const all = run.steps.filter((s) => s.experts && s.experts.layers);
  const every = Math.ceil(all.length / 100);
  const steps = all.filter((_, i) => i % every === 0);
  return all[0].experts.layers.map((layer, i) => ({
    layer,
    cells: steps.map((s) => ({ ratio: s.experts.max_over_mean[i],
      title: "step " + s.step + ": the busiest expert " +
        s.experts.max_over_mean[i].toFixed(2) + " times the mean" })),
  }));
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
      dead + " experts were not chosen, and the busiest of a layer " +
      Math.max(...last.experts.max_over_mean).toFixed(2) + " times the mean.");
    addHeatMap(page, lanesOfExperts(each.layers));
    add(page, "p", "The busiest expert of each layer over the run, from the " +
      "first step to the last:");
    addHeatMap(page, lanesOfSteps(runs[index]));
  });
}
