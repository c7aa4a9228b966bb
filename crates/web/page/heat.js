// The latency heat map: requests by time and latency, the more requests, the stronger the colour. It is made of the history's counts,
// which the seconds of the live stream continue.

import { csv, lengthOf, scaled } from "./format.js";
import { button, element, prepare, savePng, saveText } from "./dom.js";
import { paintTimes } from "./graph.js";

export const TITLE = "Latency of requests: heat map";
// Points that are kept.
const KEPT = 3600;
// The first and the last class of the history, which have all below and above.
const FIRST = 11;
const LAST = 32;
const TOP = 4;
const BOTTOM = 15;
// Requests that are shown, by the name of the choice.
const CHOICES = {
  "reads and writes": (row) => row.operation === "read" || row.operation === "write",
  reads: (row) => row.operation === "read",
  writes: (row) => row.operation === "write",
  "all operations": () => true,
};

// Counts by class of latency of the rows that are wanted. Work of the pool itself is not among them.
export function countsOf(operations, isWanted) {
  const sums = [];
  for (const row of operations) {
    if (row.protocol === "internal" || !isWanted(row)) continue;
    row.latency.forEach((count, n) => (sums[n] = (sums[n] ?? 0) + count));
  }
  return Array.from(sums, (count) => count ?? 0);
}

// Counts with the classes that the history has.
export function clipped(counts) {
  const out = [];
  counts.forEach((count, n) => {
    const to = Math.min(LAST, Math.max(FIRST, n));
    out[to] = (out[to] ?? 0) + count;
  });
  return Array.from(out, (count) => count ?? 0);
}

// Points of the history's answer: times with the counts of each choice. Points whose counts are not known are left out.
export function pointsOf({ seconds, bounds_ns, time_ms, reads, writes, others }) {
  const first = Math.round(Math.log2(bounds_ns[0])) - 1;
  const sum = (...parts) => [...Array(first).fill(0), ...parts[0].map((_, n) => parts.reduce((all, part) => all + part[n], 0))];
  return time_ms.map((time, n) => {
    if (!reads[n]) return undefined;
    const of = {
      "reads and writes": sum(reads[n], writes[n]),
      reads: sum(reads[n]),
      writes: sum(writes[n]),
      "all operations": sum(reads[n], writes[n], others[n]),
    };
    return { time, length: 1000 * seconds, of };
  }).filter(Boolean);
}

// Cells of the map: for each whole place, the counts by class. `seconds` are { time, counts }.
export function cellsOf(seconds, placeOf) {
  const cells = new Map();
  for (const { time, counts } of seconds) {
    const place = Math.floor(placeOf(time));
    if (place < 0 || counts.length === 0) continue;
    const column = cells.get(place) ?? [];
    counts.forEach((count, n) => (column[n] = (column[n] ?? 0) + count));
    cells.set(place, column);
  }
  return cells;
}

export class HeatMap {
  constructor(view, parent) {
    this.view = view;
    this.forget();
    this.figure = element("figure", undefined, parent);
    const { figure } = this;
    const caption = element("figcaption", undefined, figure);
    element("b", TITLE, caption);
    const label = element("label", "Of ", caption);
    this.choice = element("select", undefined, label);
    this.choice.append(...Object.keys(CHOICES).map((name) => new Option(name, name)));
    this.choice.addEventListener("change", () => this.draw());
    this.scale = element("span", "", caption);
    this.canvas = element("canvas", undefined, figure);
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", TITLE);
    const files = element("p", undefined, figure);
    files.className = "files";
    button("PNG", `Save as PNG: ${TITLE}`, files, () => this.savePng());
    button("CSV", `Save as CSV: ${TITLE}`, files, () => this.saveCsv());
  }

  // Begins again: another pool is shown.
  forget() {
    this.seconds = [];
  }

  // Continues with the points of the history from `from` on.
  restore(answer, from) {
    const found = pointsOf(answer);
    const last = found.length ? found[found.length - 1].time : -1;
    const kept = this.seconds.filter(({ time }) => time < from), live = this.seconds.filter(({ time }) => time >= from && time > last);
    this.seconds = [...kept, ...found, ...live].slice(-KEPT);
  }

  add(interval) {
    const of = Object.entries(CHOICES).map(([name, isWanted]) => [name, clipped(countsOf(interval.operations, isWanted))]);
    this.seconds.push({ time: interval.time_ms, length: 1000 * interval.seconds, of: Object.fromEntries(of) });
    if (this.seconds.length > KEPT) this.seconds.shift();
  }

  shown() {
    const name = this.choice.value;
    const seconds = this.seconds.map((second) => ({ time: second.time, length: second.length, counts: second.of[name] }));
    const { span, last } = this.view;
    const end = last ?? (seconds.length ? seconds[seconds.length - 1].time : Date.now());
    return { seconds: seconds.filter(({ time }) => time > end - 1000 * span && time <= end), end, span };
  }

  draw() {
    const { canvas } = this;
    const { context, width, height } = prepare(canvas, canvas.clientWidth, canvas.clientHeight, window.devicePixelRatio || 1);
    this.paint(context, width, height, getComputedStyle(canvas).color);
    const { seconds } = this.shown();
    const total = seconds.reduce((sum, { counts }) => sum + counts.reduce((all, count) => all + count, 0), 0);
    const text = `${total} requests in ${lengthOf(seconds.reduce((sum, { length }) => sum + length, 0) / 1000)}`;
    if (this.scale.textContent !== text) this.scale.textContent = text;
    canvas.setAttribute("aria-label", `${TITLE}, ${this.choice.value}: ${text}`);
  }

  paint(context, width, height, colour) {
    const { seconds, end, span } = this.shown();
    // Columns are counted from the right edge. One has a point of the history, or those that share a point of the screen.
    const wide = Math.max(1, width * this.view.step / span);
    const cells = cellsOf(seconds, (time) => Math.round((end - time) / 1000 / span * width / wide));
    const columns = [...cells.values()];
    const used = columns.flatMap((column) => Object.keys(column).map(Number).filter((n) => column[n] > 0));
    context.fillStyle = context.strokeStyle = colour;
    context.font = "12px system-ui, sans-serif";
    paintTimes(context, end, span, width, height);
    if (used.length === 0) {
      context.fillText("no requests", 2, 14);
      return;
    }
    // A few classes beyond those that are used, so that the picture does not move with each outlier.
    const low = Math.max(0, Math.min(...used) - 1);
    const high = Math.max(...used, low + 8) + 1;
    const size = (height - TOP - BOTTOM) / (high - low);
    const most = columns.reduce((greatest, column) => Math.max(greatest, ...column.map((count) => count ?? 0)), 1);
    context.fillStyle = "#2f7fd6";
    for (const [place, column] of cells) {
      const right = Math.round(width - place * wide), left = Math.round(width - (place + 1) * wide);
      column.forEach((count, n) => {
        if (!count) return;
        context.globalAlpha = 0.15 + 0.85 * Math.log1p(count) / Math.log1p(most);
        const above = Math.round(TOP + (high - 1 - n) * size), below = Math.round(TOP + (high - n) * size);
        context.fillRect(left, above, right - left, below - above);
      });
    }
    context.globalAlpha = 1;
    context.fillStyle = colour;
    const apart = Math.ceil(26 / size);
    for (let n = low + 1; n < high; n += apart) {
      context.fillText(scaled(2 ** n / 1e9, "s"), 2, TOP + (high - n) * size + 4);
    }
  }

  savePng() {
    const legend = [{ colour: "#2f7fd6", text: `${this.choice.value}; a row is a power of two, the shade is the logarithm of the count` }];
    savePng(this.canvas, TITLE, this.view.pool, legend, (...to) => this.paint(...to));
  }

  saveCsv() {
    const { seconds } = this.shown();
    const classes = seconds.reduce((most, { counts }) => Math.max(most, counts.length), 0);
    const head = ["time", "time_ms", ...Array.from({ length: classes }, (_, n) => `requests below ${2 ** (n + 1)} ns`)];
    const rows = seconds.map(({ time, counts }) => [
      new Date(time).toISOString(), time, ...Array.from({ length: classes }, (_, n) => counts[n] ?? 0)]);
    saveText(csv(head, rows), [this.view.pool, TITLE, this.choice.value], "csv");
  }
}
