// Events, config, ranks and environment; then the page as a whole.
function when(seconds) {
  return new Date(seconds * 1000).toISOString().replace("T", " ")
    .slice(0, 19) + " UTC";
}

function textOf(event) {
  switch (event.event) {
    case "start": return (event.step > 0 ? "goes on after step " + event.step
      : "begins") + ", " + event.layout + " on " + event.environment.host;
    case "checkpoint": return event.path;
    case "message": return event.text;
    case "end": return (event.stopped ? "stopped" : "finished") +
      " after step " + event.step;
    case "failed": return event.text;
    default: return JSON.stringify(event);
  }
}

function showEvents(page) {
  add(page, "h2", "Restarts, checkpoints, stragglers and other events");
  for (const [index, run] of runs.entries()) {
    titleOf(page, run, index);
    const starts = run.events.filter((e) => e.event === "start").length;
    const ends = run.events.filter((e) =>
      e.event === "end" || e.event === "failed").length;
    if (run.events.length)
      add(page, "p", (starts === 1 ? "Started once" : "Started " + starts +
        " times") + ", came to an end " + (ends === 1 ? "once" : ends +
        " times") + ".");
    if (run.events.length)
      table(page, "", ["time", "event", ""], run.events.map((e) =>
        [when(e.time), e.event, textOf(e)])).classList.add("events");
    if (run.failure) add(page, "pre", run.failure).classList.add("failure");
    add(page, "p", "Checkpoints: " + (run.checkpoints.length
      ? "steps " + run.checkpoints.join(", ") : "none") + ". Folder: " +
      run.path);
  }
}

function lastStart(run) {
  return [...run.events].reverse().find((e) => e.event === "start");
}

function originOf(run, key) {
  if (run.config[key] === undefined) return "";
  const start = lastStart(run);
  return start && start.origins ? start.origins[key] || "default" : "";
}

// What differs between runs first, then what somebody has set.
function showConfig(page) {
  add(page, "h2", runs.length > 1 ? "Config, and where runs differ" : "Config");
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))];
  const rows = keys.sort().map((key) => {
    const values = runs.map((run) => JSON.stringify(run.config[key]));
    const origins = runs.map((run) => originOf(run, key));
    return { key, values, origins,
      differs: values.some((value) => value !== values[0]),
      isSet: origins.some((origin) => origin && origin !== "default") };
  });
  rows.sort((a, b) => b.differs - a.differs || b.isSet - a.isSet);
  const heads = ["key"];
  for (const run of runs) heads.push(run.name, "from");
  const made = table(page, "config", heads, rows.map((row) => [row.key,
    ...row.values.flatMap((value, i) => [value === undefined ? "" : value,
      row.origins[i]])]));
  rows.forEach((row, i) => {
    if (row.differs) made.rows[i + 1].className = "differs";
  });
}

function showRanks(page) {
  for (const [index, run] of runs.entries()) {
    if (!run.ranks) continue;
    if (index === 0) add(page, "h2", "Ranks");
    titleOf(page, run, index);
    add(page, "pre", run.ranks);
  }
}

function showEnvironment(page) {
  const starts = runs.map(lastStart);
  if (!starts.some((s) => s)) return;
  add(page, "h2", "Environment");
  const facts = starts.map((s) => s ? { ...s.environment,
    "product rate per rank": (s.peak_flops / 1e9).toFixed(0) + " GFLOP/s",
    "parameters": readable(s.parameters) } : {});
  const keys = [...new Set(facts.flatMap((f) => Object.keys(f)))];
  table(page, "environment", ["", ...runs.map((run) => run.name)],
    keys.map((key) => [key, ...facts.map((f) => f[key] === undefined ? ""
      : f[key])]));
}

function show() {
  const page = document.getElementById("page");
  page.textContent = "";
  addSeconds();
  for (const section of [showFigures, showCurves, showExperts, showStepTime,
    showBuckets, showSchedule, showEvents, showConfig, showRanks, showEnvironment])
    section(page);
  page.dataset.shown = "all";
}
show();

// --live: asks again while the run goes on.
if (document.body.dataset.live) {
  let before = "";
  setInterval(async () => {
    try {
      const answer = await fetch("data.json", { cache: "no-store" });
      const text = await answer.text();
      if (!answer.ok || text === before) return;
      before = text;
      runs = JSON.parse(text);
      const at = window.scrollY;
      show();
      window.scrollTo(0, at);
      document.body.dataset.state = "live";
    } catch (error) {
      document.body.dataset.state = "the server has ended";
    }
  }, Number(document.body.dataset.live));
}
