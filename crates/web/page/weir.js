// The page: asks for the history once, then follows the live stream. All text from the server is set as text, never as HTML.

const byId = (id) => document.getElementById(id);
const TABLE_ROWS = 50;
// Colours that differ for most colour-blind people (Okabe and Ito).
const COLOURS = ["#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#999999", "#e69f00"];

// Graphs: title, unit, stacked or not, and the series of the API with their captions.
const GRAPHS = [
  { title: "Bytes answered, by source", unit: "bytes/s", stacked: true, series: [["read.arc_demand", "ARC"], ["read.arc_prefetched", "ARC, prefetched"], ["read.dirty_data", "dirty data"], ["read.holes", "holes"], ["read.disk", "disks"]] },
  { title: "Bytes written by clients", unit: "bytes/s", series: [["written", "written"]] },
  { title: "Bytes written to devices, by cause", unit: "bytes/s", stacked: true, series: [["devices.written.data", "data"], ["devices.written.metadata", "metadata"], ["devices.written.intent_log", "intent log"], ["devices.written.labels", "labels"], ["devices.written.repair", "repair"], ["devices.written.removal", "removal"]] },
  { title: "Bytes read from devices", unit: "bytes/s", series: [["devices.read", "read"]] },
  { title: "Latency of reads and writes (upper bounds)", unit: "s", series: [["read_latency.p50", "reads, median"], ["read_latency.p99", "reads, 99 %"], ["write_latency.p50", "writes, median"], ["write_latency.p99", "writes, 99 %"]] },
  { title: "ARC", unit: "1/s", stacked: true, series: [["arc.hits", "hits"], ["arc.misses", "misses"]] },
  { title: "Size of the ARC", unit: "bytes", series: [["arc.size", "size"]] },
  { title: "Not yet on stable storage", unit: "bytes", series: [["txg.dirty", "dirty"], ["txg.unstable", "acknowledged and not stable"]] },
];

let series = [];   // names, in the order of the API's values
let points = [];   // { time, values }
let span = 300;    // seconds that are shown
let step = 1;      // seconds between two points
let pool = "";
let paused = false;

function scaled(value, unit) {
  if (unit === "s") {
    if (value === 0) return "0 s";
    for (const [name, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]]) {
      if (value >= size) return (value / size).toPrecision(3) + " " + name;
    }
  }
  if (unit === "1/s") return value >= 1e4 ? (value / 1e3).toFixed(1) + " k/s" : value.toFixed(0) + "/s";
  const suffix = unit === "bytes/s" ? "/s" : "";
  let n = value;
  for (const name of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return (name === "B" ? n.toFixed(0) : n.toPrecision(3)) + " " + name + suffix;
    n /= 1024;
  }
  return n.toPrecision(3) + " TiB" + suffix;
}

function element(name, text, parent) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

function makeGraphs() {
  for (const graph of GRAPHS) {
    const figure = element("figure", undefined, byId("graphs"));
    const caption = element("figcaption", undefined, figure);
    element("b", graph.title, caption);
    graph.values = graph.series.map(([, name], n) => {
      const label = element("span", undefined, caption);
      element("i", undefined, label).style.background = COLOURS[n % COLOURS.length];
      label.append(name + " ");
      return element("span", "", label);
    });
    graph.canvas = element("canvas", undefined, figure);
    graph.canvas.setAttribute("role", "img");
  }
}

function draw(graph) {
  const { canvas } = graph;
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const columns = graph.series.map(([name]) => series.indexOf(name));
  const end = points.length ? points[points.length - 1].time : Date.now();
  const x = (time) => width - (end - time) / 1000 / span * width;
  const shown = points.filter((point) => x(point.time) >= 0);
  // A point of the screen has at most one point of the data: of those that fall together, the last. A line ends where points are
  // missing: nothing was measured there, which is not zero.
  const lines = columns.map(() => []);
  let last = -1, before;
  for (const point of shown) {
    const at = Math.floor(x(point.time));
    const starts = before === undefined || point.time - before > 2500 * step;
    let sum = 0;
    columns.forEach((column, n) => {
      const value = point.values[column] ?? 0;
      sum = graph.stacked ? sum + value : value;
      if (starts) lines[n].push([]);
      const run = lines[n][lines[n].length - 1];
      if (at === last) run.pop();
      run.push([x(point.time), sum]);
    });
    last = at;
    before = point.time;
  }
  const top = Math.max(...lines.flat(2).map(([, value]) => value), 0) || 1;
  const y = (value) => height - value / top * (height - 16);
  for (let n = lines.length - 1; n >= 0; n--) {
    context.strokeStyle = context.fillStyle = COLOURS[n % COLOURS.length];
    context.lineWidth = 1.5;
    for (const run of lines[n]) {
      context.beginPath();
      run.forEach(([at, value], i) => (i ? context.lineTo(at, y(value)) : context.moveTo(at, y(value))));
      // A point alone is visible, too.
      if (run.length === 1) context.lineTo(run[0][0] + 1, y(run[0][1]));
      context.stroke();
      if (!graph.stacked) continue;
      context.lineTo(run[run.length - 1][0], height);
      context.lineTo(run[0][0], height);
      context.fill();
    }
  }
  context.fillStyle = getComputedStyle(document.body).color;
  context.font = "12px system-ui, sans-serif";
  context.fillText(scaled(top, graph.unit), 2, 12);
  const now = shown[shown.length - 1];
  const texts = graph.series.map(([, name], n) => {
    const text = now ? scaled(now.values[columns[n]] ?? 0, graph.unit) : "–";
    graph.values[n].textContent = text;
    return `${name} ${text}`;
  });
  canvas.setAttribute("aria-label", `${graph.title}: ${texts.join(", ")}`);
}

function drawAll() {
  GRAPHS.forEach(draw);
}

// Upper bound in seconds of the latency that this share of the requests did not exceed.
function quantile(counts, share) {
  const total = counts.reduce((sum, n) => sum + (n ?? 0), 0);
  let seen = 0;
  for (let n = 0; n < counts.length && total > 0; n++) {
    seen += counts[n] ?? 0;
    if (seen >= Math.max(1, Math.ceil(total * share))) return 2 ** (n + 1) / 1e9;
  }
  return undefined;
}

function fill(id, rows) {
  const body = byId(id).tBodies[0];
  const made = rows.slice(0, TABLE_ROWS).map((cells) => {
    const row = document.createElement("tr");
    cells.forEach((cell, n) => {
      element("td", cell, row).className = byId(id).tHead.rows[0].cells[n].className;
    });
    return row;
  });
  body.replaceChildren(...made);
}

function showTables(interval) {
  const rate = (count) => count / interval.seconds;
  const bytes = (count) => scaled(rate(count), "bytes/s");
  const busiest = (rows) => [...rows].sort((a, b) => b.requests - a.requests);
  fill("clients", busiest(interval.clients).map((row) => [
    row.client || (row.protocol === "internal" ? "(pool)" : "–"), row.protocol, row.dataset || "–",
    rate(row.requests).toFixed(0), bytes(row.read_bytes), bytes(row.written_bytes), bytes(row.device_bytes)]));
  const time = (seconds) => (seconds === undefined ? "–" : scaled(seconds, "s"));
  fill("operations", busiest(interval.operations).map((row) => {
    const [stage, ns] = Object.entries(row.stage_ns).reduce((most, one) => (one[1] > most[1] ? one : most), ["", 0]);
    return [row.protocol, row.operation, rate(row.requests).toFixed(0),
      bytes(Object.values(row.read_bytes).reduce((sum, n) => sum + n, 0)), bytes(row.written_bytes),
      time(quantile(row.latency, 0.5)), time(quantile(row.latency, 0.99)),
      stage ? `${stage} ${scaled(ns / row.requests / 1e9, "s")}` : "–"];
  }));
  const { arc, txg, space } = interval;
  const hits = arc.demand_hits + arc.prefetch_hits + arc.joined, reads = hits + arc.misses;
  const out = interval.leaves.filter((leaf) => !leaf.in_service).map((leaf) => leaf.name);
  byId("summary").textContent = `${interval.pool}: ${scaled(space.allocated_bytes, "bytes")} of ${scaled(space.size_bytes, "bytes")} allocated; ` +
    `ARC hits ${reads ? (100 * hits / reads).toFixed(1) + " %" : "–"}; dirty ${scaled(txg.dirty_bytes, "bytes")} of ${scaled(txg.dirty_max_bytes, "bytes")}; ` +
    (out.length ? `devices out of service: ${out.join(", ")}` : `all ${interval.leaves.length} devices in service`);
}

async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function loadHistory() {
  const [resolution, seconds] = byId("span").value.split(":");
  span = Number(seconds);
  points = [];
  if (!pool) return;
  const from = Date.now() - 1000 * span;
  const found = await get(`/api/v1/pools/${encodeURIComponent(pool)}/history?resolution=${resolution}&from=${from}`);
  step = found.seconds;
  points = found.time_ms.map((time, n) => ({ time, values: found.values.map((column) => column[n]) }));
  drawAll();
}

function showPools(names) {
  const select = byId("pool");
  if (names.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
  select.replaceChildren(...names.map((name) => new Option(name, name)));
  if (names.includes(pool)) select.value = pool;
  if (pool !== select.value) {
    pool = select.value;
    loadHistory().catch(report);
  }
}

function report(error) {
  byId("state").textContent = String(error.message ?? error);
}

function follow() {
  const live = new EventSource("/api/v1/live");
  let lost = false;
  live.onopen = () => {
    byId("state").textContent = "";
    // The server has the points of the time without a connection, or the history from before it was started again.
    if (lost && !paused) loadHistory().catch(report);
    lost = false;
  };
  live.onerror = () => {
    lost = true;
    byId("state").textContent = "not connected: trying again";
  };
  live.onmessage = (message) => {
    const intervals = JSON.parse(message.data);
    showPools(intervals.map((interval) => interval.pool));
    const interval = intervals.find((interval) => interval.pool === pool);
    if (!interval || paused) return;
    // Coarser resolutions are asked for again once in a while.
    if (span <= 3600) points.push({ time: interval.time_ms, values: interval.values });
    else if (points.length === 0 || interval.time_ms - points[points.length - 1].time > 60_000) loadHistory().catch(report);
    while (points.length && points[0].time < interval.time_ms - 1000 * span) points.shift();
    showTables(interval);
    requestAnimationFrame(drawAll);
  };
}

byId("pool").addEventListener("change", (event) => {
  pool = event.target.value;
  loadHistory().catch(report);
});
byId("span").addEventListener("change", () => loadHistory().catch(report));
byId("pause").addEventListener("click", (event) => {
  paused = !paused;
  event.target.setAttribute("aria-pressed", String(paused));
  event.target.textContent = paused ? "Continue" : "Pause";
  if (!paused) loadHistory().catch(report);
});
window.addEventListener("resize", () => requestAnimationFrame(drawAll));

makeGraphs();
series = (await get("/api/v1/series")).map((one) => one.name);
showPools(await get("/api/v1/pools"));
follow();
