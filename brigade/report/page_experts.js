// How the routers of a model with experts divide tokens: each expert of each
// layer over the run's steps, and each layer's busiest one. That of the worst
// layer is among the curves.

// Between no row and twice the mean, and beyond.
function heatOf(ratio) {
  const alpha = Math.min(1, Math.abs(ratio - 1)).toFixed(3);
  return ratio < 1 ? "rgba(43,123,186," + alpha + ")"
    : "rgba(217,98,43," + alpha + ")";
}

// lanes: [{layer, rows, title}]: rows of ratios, and what one at x, y is.
function addHeatMap(parent, lanes) {
  const box = add(add(parent, "div", undefined, "wide"), "div", undefined,
    "heat");
  for (const { layer, rows, title } of lanes) {
    const line = add(box, "div", undefined, "lane");
    line.dataset.layer = layer;
    add(line, "span", "layer " + layer, "lane-name");
    const picture = add(line, "canvas", undefined, "cells");
    picture.width = rows[0].length;
    picture.height = rows.length;
    const row_px = Math.max(1, Math.min(16, Math.floor(96 / rows.length)));
    picture.style.height = row_px * rows.length + "px";
    const pen = picture.getContext("2d");
    rows.forEach((row, y) => row.forEach((ratio, x) => {
      pen.fillStyle = heatOf(ratio);
      pen.fillRect(x, y, 1, 1);
    }));
    const cell = (offset, shown, cells) =>
      Math.max(0, Math.min(cells - 1, Math.floor(offset / shown * cells)));
    picture.addEventListener("mousemove", (event) => {
      picture.title = "layer " + layer + ", " + title(
        cell(event.offsetX, picture.clientWidth, picture.width),
        cell(event.offsetY, picture.clientHeight, picture.height));
    });
  }
}

// A row per expert, a column per step.
function lanesOfExperts(steps) {
  return steps[0].experts.layers.map((layer, i) => {
    const columns = steps.map((s) => s.experts.tokens_per_expert[i]);
    const means = columns.map(
      (counts) => counts.reduce((a, b) => a + b) / counts.length);
    const ratio = (x, y) => means[x] > 0 ? columns[x][y] / means[x] : 1;
    return { layer,
      rows: columns[0].map((_, y) => columns.map((_, x) => ratio(x, y))),
      title: (x, y) => "step " + steps[x].step + ", expert " + y + ": " +
        columns[x][y] + " tokens, " + ratio(x, y).toFixed(2) +
        " times the mean" };
  });
}

// A column for each of at most 100 steps, evenly chosen.
function lanesOfBusiest(all) {
  const every = Math.ceil(all.length / 100);
  const steps = all.filter((_, i) => (all.length - 1 - i) % every === 0);
  return steps[0].experts.layers.map((layer, i) => ({
    layer,
    rows: [steps.map((s) => s.experts.max_over_mean[i])],
    title: (x) => "step " + steps[x].step + ": the busiest expert " +
      steps[x].experts.max_over_mean[i].toFixed(2) + " times the mean",
  }));
}

function showExperts(page) {
  const found = runs.map(
    (run) => run.steps.filter((s) => s.experts && s.experts.layers));
  if (!found.some((steps) => steps.length)) return;
  add(page, "h2", "Tokens of each expert");
  add(page, "p", "Steps from left to right, a layer's experts from top to " +
    "bottom: without colour one has the mean of its layer, blue less (full: " +
    "none), orange more (full: twice the mean or above).");
  found.forEach((steps, index) => {
    if (!steps.length) return;
    titleOf(page, runs[index], index);
    const last = steps[steps.length - 1];
    const dead = last.experts.dead.reduce((a, b) => a + b);
    // report_page.cpp says which steps keep them.
    const noted = steps.filter((s) => s.experts.tokens_per_expert);
    add(page, "p", "Steps " + steps[0].step + " to " + last.step + ", " +
      noted.length + " of them with each expert; in the last one " +
      dead + " experts were not chosen, and the busiest of a layer " +
      Math.max(...last.experts.max_over_mean).toFixed(2) + " times the mean.");
    if (noted.length) addHeatMap(page, lanesOfExperts(noted));
    add(page, "p", "The busiest expert of each layer:");
    addHeatMap(page, lanesOfBusiest(steps));
  });
}
