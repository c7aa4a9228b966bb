// The page: asks for the history once, then follows the live stream.

import { byId, get } from "./dom.js";
import { quantile, scaled } from "./format.js";
import { Graph, rangeText } from "./graph.js";
import { HeatMap, TITLE as HEAT_MAP } from "./heat.js";
import { Breakdown, TITLE as BREAKDOWN } from "./breakdown.js";
import { FlowGraph, TITLE as FLOW } from "./flow.js";
import { continued, resolutionFor } from "./series.js";
import { isOverview, start } from "./screens.js";
import { Table } from "./tables.js";
import * as why from "./why.js";
import { Worksheet, linkOf, linked } from "./worksheet.js";

// Graphs: title, unit, stacked or not, and the series of the API with their captions. With `limit`, the last series is a limit;
// with `per`, the values are divided by that series.
const GRAPHS = [
  { id: "answered", title: "Bytes answered, by source", unit: "bytes/s", stacked: true, dips: "read", series: [["read.arc_demand", "ARC"], ["read.arc_prefetched", "ARC, prefetched"], ["read.dirty_data", "dirty data"], ["read.holes", "holes"], ["read.disk", "disks"], ["read.intent_log", "intent log"], ["read.l2arc", "L2ARC"]] },
  { id: "written", title: "Bytes written by clients", unit: "bytes/s", dips: "written", series: [["written", "written"]] },
  { id: "causes", title: "Bytes written to devices, by cause", unit: "bytes/s", stacked: true, series: [["devices.written.data", "data"], ["devices.written.metadata", "metadata"], ["devices.written.intent_log", "intent log"], ["devices.written.labels", "labels"], ["devices.written.repair", "repair"], ["devices.written.removal", "removal"]] },
  { id: "amplification", title: "Amplification: bytes written to devices for each byte that clients wrote, in the 60 s before", unit: "", stacked: true, per: "written", series: [["devices.written.data.first_copy", "data"], ["devices.written.data.copies", "copies of data"], ["devices.written.data.parity", "parity of data"], ["devices.written.data.padding", "padding of data"], ["devices.written.metadata", "metadata"], ["devices.written.intent_log", "intent log"], ["devices.written.labels", "labels"]] },
  { id: "device_reads", title: "Bytes read from devices", unit: "bytes/s", series: [["devices.read", "read"]] },
  { id: "network", title: "Network beside devices: bytes of the interfaces of clients, with headers; data of clients; devices", unit: "bytes/s", series: [["net.sent", "sent"], ["net.payload_sent", "data answered"], ["devices.read", "read from devices"], ["net.received", "received"], ["net.payload_received", "data written"], ["devices.written", "written to devices"]] },
  { id: "latency", title: "Latency of reads and writes (upper bounds)", unit: "s", series: [["read_latency.p50", "reads, median"], ["read_latency.p99", "reads, 99 %"], ["write_latency.p50", "writes, median"], ["write_latency.p99", "writes, 99 %"]] },
  { id: "stages", title: "Requests in progress, by what they wait for", unit: "", stacked: true, limit: true, series: [["stage.admission", "admission"], ["stage.throttle", "throttle"], ["stage.locks", "locks"], ["stage.cache", "cache"], ["stage.queue", "queue"], ["stage.device", "device"], ["stage.compute", "compute"], ["stage.log_commit", "log commit"], ["stage.txg_sync", "txg sync"], ["requests.time", "all, from begin to end"]] },
  { id: "processors", title: "Processors at work for this program", unit: "", series: [["process.processors", "processors"]] },
  { id: "txg", title: "Transaction groups: dirty bytes, and the limit at which writers wait", unit: "bytes", limit: true, series: [["txg.dirty", "dirty"], ["txg.dirty_max", "limit"]] },
  { id: "durability", title: "Durability: bytes acknowledged and not stable, which a power failure would lose", unit: "bytes", series: [["txg.unstable", "not stable"]] },
  { id: "arc", title: "ARC: blocks used recently (MRU) and frequently (MFU)", unit: "bytes", stacked: true, limit: true, series: [["arc.mru.data", "MRU data"], ["arc.mru.metadata", "MRU metadata"], ["arc.mfu.data", "MFU data"], ["arc.mfu.metadata", "MFU metadata"], ["arc.max", "limit"]] },
  { id: "arc_reads", title: "ARC: reads, by result", unit: "1/s", stacked: true, series: [["arc.hits", "hits"], ["arc.misses", "misses"]] },
  { id: "ghosts", title: "ARC: ghost hits, misses of blocks that were evicted not long before", unit: "1/s", stacked: true, series: [["arc.mru_ghost_hits", "MRU"], ["arc.mfu_ghost_hits", "MFU"]] },
];
// The heat map follows this number of graphs.
const GRAPHS_BEFORE_HEAT_MAP = 7;
// Seconds between two looks for dips that repeat.
const DIPS_SECONDS = 10;

// What the graphs show: names of the series, in the order of the API's values; points; seconds that are shown; seconds between two
// points; the pool; the time of the cursor; the range whose means are shown; the last time, if an earlier one than now is shown.
const view = { names: [], points: [], span: 300, step: 1, pool: "", cursor: undefined, range: undefined, last: undefined, dips: {} };
let paused = false;
// What the last link that was opened asks for.
let wanted = linked("");
// Milliseconds by which the server's clock is ahead of this one.
let ahead = 0;
// Number of the last request for the history: an answer to an earlier one is of another pool or span.
let asked = 0;
// Time of the server at which newer points of a coarser step can be asked for.
let due = 0;
// Time of the server at which dips are asked for again.
let dipsDue = 0;

const ask = (subject) => why.ask(view.pool, subject);
const clients = new Table("clients", ask);
const files = new Table("files", ask);
const operations = new Table("operations", ask);
// The figures: { id, title, graph }.
const shown = [];
let heatMap, flow, breakdown, worksheet;

function makeGraphs() {
  const place = byId("graphs");
  const make = (definition) => {
    const graph = new Graph(definition, view, place, drawSoon);
    shown.push({ id: definition.id, title: definition.title, graph });
  };
  flow = new FlowGraph(view, byId("flow"));
  shown.push({ id: "flow", title: FLOW, graph: flow });
  GRAPHS.slice(0, GRAPHS_BEFORE_HEAT_MAP).forEach(make);
  heatMap = new HeatMap(view, place);
  shown.push({ id: "heat", title: HEAT_MAP, graph: heatMap });
  breakdown = new Breakdown(view, place);
  shown.push({ id: "breakdown", title: BREAKDOWN, graph: breakdown });
  GRAPHS.slice(GRAPHS_BEFORE_HEAT_MAP).forEach(make);
  worksheet = new Worksheet(byId("worksheets"), shown, () => {
    shown.forEach(({ id, graph }) => (graph.figure.hidden = !worksheet.isShown(id)));
    showLink();
    drawSoon();
  });
}

let willDraw = false;
// Figures that wait to be drawn. Their work is spread over frames, so that none of them is late.
const waiting = new Set();
// Time of a frame, in milliseconds, after which the rest waits for the next.
const DRAW_MS = 8;

function drawSoon() {
  // One that waits already keeps its place.
  shown.forEach((one) => waiting.add(one));
  if (willDraw) return;
  willDraw = true;
  requestAnimationFrame(drawSome);
}

function drawSome() {
  willDraw = false;
  // What is not shown has no width.
  if (!isOverview()) return waiting.clear();
  showRange();
  const began = performance.now();
  for (const one of waiting) {
    waiting.delete(one);
    if (worksheet.isShown(one.id)) one.graph.draw();
    if (performance.now() - began > DRAW_MS) break;
  }
  if (waiting.size === 0) return;
  willDraw = true;
  requestAnimationFrame(drawSome);
}

// The line about the chosen range, and about a time that is not now.
function showRange() {
  const { range, last, span } = view;
  byId("range").hidden = !range && last === undefined;
  byId("range-zoom").hidden = byId("range-clear").hidden = !range;
  byId("range-live").hidden = last === undefined;
  const parts = [];
  if (last !== undefined) parts.push(`Shown: ${rangeText({ from: last - 1000 * span, to: last }, span)}.`);
  if (range) parts.push(`Chosen: ${rangeText(range, span)}; the legends have its means, and of latencies the greatest.`);
  const text = parts.join(" ");
  if (byId("range-text").textContent !== text) byId("range-text").textContent = text;
}

// Puts pool, time and graphs into the address, which can be given to others.
function showLink() {
  if (!isOverview()) return;
  const from = view.last === undefined ? undefined : view.last - 1000 * view.span;
  const words = linkOf({ pool: view.pool || wanted.pool, span: view.span, from, to: view.last, graphs: worksheet?.ids() });
  history.replaceState(undefined, "", `#overview:${words}`);
}

// Shows what a link asks for. Without a pool of its own it is about the pool that is shown.
function followLink() {
  if (!location.hash.startsWith("#overview:")) return;
  wanted = linked(location.hash.slice("#overview:".length));
  const span = [...byId("span").options].find((option) => Number(option.value.split(":")[1]) === wanted.span);
  if (span) {
    byId("span").value = span.value;
    view.span = wanted.span;
  }
  view.last = wanted.to;
  if (wanted.to !== undefined) view.span = (wanted.to - wanted.from) / 1000;
  const pool = [...byId("pool").options].find((option) => option.value === wanted.pool);
  if (pool) byId("pool").value = pool.value;
  if (pool && pool.value !== view.pool) setPool(pool.value);
  else if (view.pool) begin();
  worksheet.show(wanted.graphs);
}

// Shows a time that is over.
function zoom(from, to) {
  view.last = to;
  view.span = (to - from) / 1000;
  begin();
}

function showTables(interval) {
  const rate = (count) => count / interval.seconds;
  const bytes = (count) => scaled(rate(count), "bytes/s");
  const busiest = (rows) => [...rows].sort((a, b) => b.requests - a.requests);
  const client = ({ client, protocol }) => (protocol === "internal" || client === "" || client === "other" ? client || "–" : { name: client });
  const dataset = ({ dataset }) => (dataset === "" || dataset.startsWith("objset ") ? dataset || "–" : { name: dataset });
  clients.fill(busiest(interval.clients).map((row) => ({
    key: JSON.stringify([row.client, row.protocol, row.dataset]),
    cells: [row.protocol === "internal" && !row.client ? "(pool)" : client(row), row.protocol, dataset(row),
      rate(row.requests).toFixed(0), bytes(row.read_bytes), bytes(row.written_bytes), bytes(row.device_bytes)],
  })));
  files.fill(interval.files.rows.map((row) => ({
    key: JSON.stringify([row.client, row.protocol, row.objset, row.object]),
    cells: [client(row), row.protocol, dataset(row), row.path ?? `object ${row.object}`, rate(row.counted.requests).toFixed(0),
      bytes(row.counted.read_bytes), bytes(row.counted.written_bytes), row.error_bytes ? bytes(row.error_bytes) : "–"],
  })));
  const { unlisted } = interval.files;
  byId("unlisted").textContent = unlisted.requests === 0 ? "All files that were read or written are listed." :
    `Other files: ${rate(unlisted.requests).toFixed(0)} requests/s, ${bytes(unlisted.read_bytes)} read, ${bytes(unlisted.written_bytes)} written.`;
  const time = (seconds) => scaled(seconds, "s");
  operations.fill(busiest(interval.operations).map((row) => {
    const [stage, ns] = Object.entries(row.stage_ns).reduce((most, one) => (one[1] > most[1] ? one : most), ["", 0]);
    return {
      key: JSON.stringify([row.protocol, row.operation]),
      cells: [row.protocol, row.operation, rate(row.requests).toFixed(0),
        bytes(Object.values(row.read_bytes).reduce((sum, n) => sum + n, 0)), bytes(row.written_bytes),
        time(quantile(row.latency, 0.5)), time(quantile(row.latency, 0.99)),
        stage ? `${stage} ${scaled(ns / row.requests / 1e9, "s")}` : "–"],
    };
  }));
  const { arc, txg, space } = interval;
  const hits = arc.demand_hits + arc.prefetch_hits + arc.joined, reads = hits + arc.misses;
  const out = interval.leaves.filter((leaf) => !leaf.in_service).map((leaf) => leaf.name);
  byId("summary").textContent = `${interval.pool}: ${scaled(space.allocated_bytes, "bytes")} of ${scaled(space.size_bytes, "bytes")} allocated; ` +
    `ARC hits ${reads ? (100 * hits / reads).toFixed(1) + " %" : "–"}; dirty ${scaled(txg.dirty_bytes, "bytes")} of ${scaled(txg.dirty_max_bytes, "bytes")}; ` +
    (out.length ? `devices out of service: ${out.join(", ")}` : `all ${interval.leaves.length} devices in service`);
}

// Reads the history of the span; with `more`, only what is newer than the points that there are.
async function loadHistory(more) {
  const request = ++asked;
  if (!view.pool) return;
  const now = Date.now() + ahead;
  const isLive = view.last === undefined;
  let resolution, from;
  if (isLive) {
    const [name, span, step] = byId("span").value.split(":");
    resolution = name;
    view.span = Number(span);
    view.step = Number(step);
    from = now - 1000 * view.span;
  } else {
    from = view.last - 1000 * view.span;
    ({ resolution, step: view.step } = resolutionFor(from, view.last, now));
  }
  const length = 1000 * view.step;
  const last = isLive && more && view.points.length ? view.points[view.points.length - 1].time : undefined;
  // The last step may have been incomplete. A point has the time of its end.
  if (last !== undefined) from = Math.floor((last - 1) / length) * length + 1;
  const query = new URLSearchParams({ resolution, step: view.step, from: Math.floor(from) });
  if (!isLive) query.set("to", String(Math.ceil(view.last)));
  const path = `/api/v1/pools/${encodeURIComponent(view.pool)}`;
  const [{ body, time }, latency] = await Promise.all([get(`${path}/history?${query}`), get(`${path}/latency?${query}`)]);
  if (request !== asked) return;
  heatMap.restore(latency.body, from);
  // A pool that was opened a moment ago has no points of a coarse resolution yet.
  due = (time || Date.now() + ahead) + (view.points.length || body.time_ms.length ? length : 5000);
  const found = body.time_ms.map((at, n) => ({ time: at, values: body.values.map((column) => column[n]) }));
  view.points = continued(last === undefined ? view.points.filter((point) => point.time >= from) : view.points, found, from);
  forgetOld();
  drawSoon();
}

// Reads the dips of the time that is shown, and whether they repeat.
async function loadDips() {
  const { pool, points, span, step, last } = view;
  if (!pool || points.length === 0) return;
  const end = last ?? points[points.length - 1].time;
  const resolution = last === undefined ? byId("span").value.split(":")[0] : resolutionFor(end - 1000 * span, end, Date.now() + ahead).resolution;
  const query = new URLSearchParams({ resolution, step, from: Math.floor(end - 1000 * span), to: Math.ceil(end) });
  const { body } = await get(`/api/v1/pools/${encodeURIComponent(pool)}/dips?${query}`);
  if (pool !== view.pool || span !== view.span || last !== view.last) return;
  view.dips = Object.fromEntries(body.map((one) => [one.series, one]));
  drawSoon();
}

function forgetOld() {
  const { points } = view;
  if (view.last !== undefined) return;
  const first = points.length ? points[points.length - 1].time - 1000 * view.span : 0;
  // A range that is over is not shown any more.
  if (view.range && view.range.from < first) view.range = undefined;
  while (points.length && points[0].time < first) points.shift();
}

// Begins again with another pool or span.
function begin() {
  view.points = [];
  view.dips = {};
  view.cursor = view.range = undefined;
  heatMap.forget();
  showLink();
  drawSoon();
  loadHistory(false).then(loadDips).catch(report);
}

// Shows the time up to now.
function showNow() {
  view.last = undefined;
  view.span = Number(byId("span").value.split(":")[1]);
  begin();
}

function setPool(name) {
  if (name === view.pool) return;
  view.pool = name;
  flow.forget();
  breakdown.forget();
  clients.clear();
  files.clear();
  operations.clear();
  byId("ask").disabled = !name;
  begin();
}

function showPools(names) {
  const select = byId("pool");
  if (names.join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    const chosen = view.pool || wanted.pool;
    if (names.includes(chosen)) select.value = chosen;
    else if (chosen && select.value) report(`Pool '${chosen}' is not open here; this is '${select.value}'.`);
  }
  setPool(select.value);
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
    if (lost && !paused) loadHistory(false).catch(report);
    lost = false;
  };
  live.onerror = () => {
    lost = true;
    byId("state").textContent = "not connected: trying again";
  };
  live.onmessage = (message) => {
    const intervals = JSON.parse(message.data);
    showPools(intervals.map((interval) => interval.pool));
    const interval = intervals.find((interval) => interval.pool === view.pool);
    if (!interval) return;
    breakdown.add(interval);
    if (paused) return;
    flow.add(interval);
    showTables(interval);
    // An earlier time has no new points.
    if (view.last !== undefined) return drawSoon();
    if (interval.time_ms >= dipsDue) {
      dipsDue = interval.time_ms + 1000 * DIPS_SECONDS;
      loadDips().catch(report);
    }
    if (view.step === 1) {
      view.points.push({ time: interval.time_ms, values: interval.values });
      heatMap.add(interval);
    } else if (interval.time_ms >= due) {
      due = interval.time_ms + (view.points.length ? 1000 * view.step : 5000);
      loadHistory(true).catch(report);
    }
    forgetOld();
    drawSoon();
  };
}

byId("pool").addEventListener("change", (event) => setPool(event.target.value));
byId("span").addEventListener("change", showNow);
byId("range-zoom").addEventListener("click", () => view.range && zoom(view.range.from, view.range.to));
byId("range-clear").addEventListener("click", () => {
  view.range = undefined;
  drawSoon();
});
byId("range-live").addEventListener("click", showNow);
byId("pause").addEventListener("click", (event) => {
  paused = !paused;
  event.target.setAttribute("aria-pressed", String(paused));
  event.target.textContent = paused ? "Continue" : "Pause";
  if (!paused) loadHistory(false).catch(report);
});
byId("ask").addEventListener("click", () => ask(undefined));
byId("why-close").addEventListener("click", why.close);
byId("why").addEventListener("keydown", (event) => {
  if (event.key === "Escape") why.close();
});
window.addEventListener("resize", drawSoon);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSoon);

makeGraphs();
followLink();
window.addEventListener("hashchange", followLink);
start(drawSoon).catch(report);
try {
  const { body, time } = await get("/api/v1/series");
  // A difference of less than some seconds is that of the header, which has whole seconds.
  ahead = Math.abs(time - Date.now()) > 5000 ? time - Date.now() : 0;
  view.names = body.map((one) => one.name);
  showPools((await get("/api/v1/pools")).body);
  follow();
} catch (error) {
  report(error);
}
