// The breakdown: bytes or requests of the last minutes by client, dataset, file, protocol or operation, as stacked areas. A name in the
// list highlights its area. It is made of the live stream, since the page was opened.
//
// Of files, the server lists those with the most bytes; what it counted for none of them is in the sum of all others. A listed file
// may have a part of it, at most its error.

import { csv, scaled } from "./format.js";
import { COLOURS, button, element, prepare, savePng, saveText } from "./dom.js";
import { paintTimes } from "./graph.js";
import { linesOf } from "./series.js";

export const TITLE = "Breakdown by client, dataset, file, protocol or operation";
export const OTHERS = "all others";
// Seconds that are kept, names of a second that are kept, and names that are shown.
const KEPT = 300;
const MAX_NAMES = 50;
const MAX_TEXTS = 10000;
const MAX_SHOWN = COLOURS.length - 1;
const TOP = 16;
const BOTTOM = 15;
const sum = (counts) => Object.values(counts).reduce((all, n) => all + n, 0);
const clientOf = (row) => (row.protocol === "internal" ? "(pool)" : row.client || "–");
// A file in a text: by its number until the server has found its path.
export const fileOf = (row) => `${row.dataset || "–"}${row.path === "(volume)" ? "" : `: ${row.path ?? `object ${row.object}`}`}`;
// What the parts are: the rows of an interval, and the name of a row. Of files, the name in the sums is that of the object, and the
// third function makes the text.
const PARTS = {
  client: ["clients", clientOf],
  "client and dataset": ["clients", (row) => (row.protocol === "internal" ? "(pool)" : `${row.client || "–"} · ${row.dataset || "–"}`)],
  dataset: ["clients", (row) => row.dataset || "(pool)"],
  file: ["files", (row) => `${row.objset}:${row.object}`, fileOf],
  "client and file": ["files", (row) => `${row.protocol}:${row.client}:${row.objset}:${row.object}`, (row) => `${clientOf(row)} · ${fileOf(row)}`],
  protocol: ["operations", (row) => row.protocol],
  operation: ["operations", (row) => row.operation],
};
const rowsOf = (interval, rows) => (rows === "files" ? interval.files.rows.map((row) => ({ ...row, ...row.counted })) : interval[rows]);
// What is counted: the unit, and the count of a row.
const COUNTS = {
  "bytes read": ["bytes/s", (row) => (typeof row.read_bytes === "number" ? row.read_bytes : sum(row.read_bytes))],
  "bytes written": ["bytes/s", (row) => row.written_bytes],
  requests: ["1/s", (row) => row.requests],
};

// Rates of an interval by name, the greatest first; those beyond the fiftieth are joined.
export function ratesOf(interval, part, count) {
  const [rows, nameOf] = PARTS[part];
  const [, of] = COUNTS[count];
  const sums = new Map();
  for (const row of rowsOf(interval, rows)) sums.set(nameOf(row), (sums.get(nameOf(row)) ?? 0) + of(row) / interval.seconds);
  const all = [...sums].filter(([, rate]) => rate > 0).sort((one, other) => other[1] - one[1]);
  const unlisted = rows === "files" ? of(interval.files.unlisted) / interval.seconds : 0;
  const rest = all.slice(MAX_NAMES).reduce((total, [, rate]) => total + rate, unlisted);
  return rest > 0 ? [...all.slice(0, MAX_NAMES), [OTHERS, rest]] : all;
}

// Texts of the names in the sums of an interval that are no texts.
export function textsOf(interval, part) {
  const [rows, nameOf, textOf] = PARTS[part];
  return textOf ? rowsOf(interval, rows).map((row) => [nameOf(row), textOf(row)]) : [];
}

// Times and columns of the names with the greatest sums, and of all others.
export function columnsOf(seconds) {
  const sums = new Map();
  for (const { rates } of seconds) for (const [name, rate] of rates) sums.set(name, (sums.get(name) ?? 0) + rate);
  const names = [...sums].sort((one, other) => other[1] - one[1]).map(([name]) => name).filter((name) => name !== OTHERS);
  const shown = names.slice(0, MAX_SHOWN);
  if (names.length > shown.length || sums.has(OTHERS)) shown.push(OTHERS);
  const columns = shown.map(() => []);
  for (const { rates } of seconds) {
    const of = new Map();
    for (const [name, rate] of rates) {
      const place = shown.includes(name) ? name : OTHERS;
      of.set(place, (of.get(place) ?? 0) + rate);
    }
    shown.forEach((name, n) => columns[n].push(of.get(name) ?? 0));
  }
  return { names: shown, times: seconds.map(({ time }) => time), columns };
}

export class Breakdown {
  constructor(view, parent) {
    this.view = view;
    this.figure = element("figure", undefined, parent);
    const caption = element("figcaption", undefined, this.figure);
    element("b", TITLE, caption);
    const select = (label, values) => {
      const made = element("select", undefined, element("label", `${label} `, caption));
      made.append(...Object.keys(values).map((value) => new Option(value, value)));
      made.addEventListener("change", () => this.draw());
      return made;
    };
    this.part = select("By", PARTS);
    this.count = select("Of", COUNTS);
    this.list = element("div", undefined, this.figure);
    this.list.className = "breakdown";
    this.note = element("p", "", this.figure);
    this.note.className = "note";
    this.canvas = element("canvas", undefined, this.figure);
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", TITLE);
    const files = element("p", undefined, this.figure);
    files.className = "files";
    button("PNG", `Save as PNG: ${TITLE}`, files, () => this.savePng());
    button("CSV", `Save as CSV: ${TITLE}`, files, () => this.saveCsv());
    this.forget();
  }

  // Begins again: another pool is shown.
  forget() {
    this.seconds = [];
    this.texts = new Map();
    this.chosen = undefined;
  }

  add(interval) {
    const { time_ms: time } = interval;
    const rates = {};
    for (const part of Object.keys(PARTS)) for (const count of Object.keys(COUNTS)) rates[`${part}/${count}`] = ratesOf(interval, part, count);
    const error = interval.files.rows.reduce((most, row) => Math.max(most, row.error_bytes), 0);
    this.seconds.push({ time, rates, error });
    if (this.seconds.length > KEPT) this.seconds.shift();
    // Names that are in no second any more are forgotten from time to time.
    if (this.texts.size > MAX_TEXTS) this.texts.clear();
    for (const part of Object.keys(PARTS)) for (const [name, text] of textsOf(interval, part)) this.texts.set(name, text);
  }

  textOf(name) {
    return this.texts.get(name) ?? name;
  }

  // What a file may have had in a second beside what is shown.
  errorText() {
    if (PARTS[this.part.value][0] !== "files") return "";
    const most = this.seconds.reduce((all, { error }) => Math.max(all, error), 0);
    if (most === 0) return "Each byte is at its file.";
    return `In one second, a file of a client may have up to ${scaled(most, "bytes")} of “${OTHERS}”.`;
  }

  data() {
    const key = `${this.part.value}/${this.count.value}`;
    return columnsOf(this.seconds.map(({ time, rates }) => ({ time, rates: rates[key] })));
  }

  unit() {
    return COUNTS[this.count.value][0];
  }

  // Mean of the seconds that are kept.
  mean(column) {
    return scaled(column.reduce((all, rate) => all + rate, 0) / Math.max(1, column.length), this.unit());
  }

  draw() {
    const { canvas } = this;
    const { context, width, height } = prepare(canvas, canvas.clientWidth, canvas.clientHeight, window.devicePixelRatio || 1);
    const data = this.data();
    if (!data.names.includes(this.chosen)) this.chosen = undefined;
    this.paint(context, data, width, height, getComputedStyle(canvas).color);
    this.showList(data);
    const texts = data.names.map((name, n) => `${this.textOf(name)} ${this.mean(data.columns[n])}`);
    this.note.textContent = this.errorText();
    canvas.setAttribute("aria-label", `${TITLE}, ${this.count.value} by ${this.part.value}: ${texts.join(", ") || "nothing"}`);
  }

  // Buttons are kept and changed in place, so that a click meets the name that it was aimed at.
  showList({ names, columns }) {
    const old = new Map([...this.list.children].map((one) => [one.dataset.name, one]));
    names.forEach((name, n) => {
      let one = old.get(name);
      if (!one) {
        one = button("", `Bring out ${this.textOf(name)}`, this.list, () => {
          this.chosen = this.chosen === name ? undefined : name;
          this.draw();
        });
        one.dataset.name = name;
        element("i", undefined, one);
        element("span", "", one);
      }
      old.delete(name);
      one.firstElementChild.style.background = COLOURS[n];
      const text = `${this.textOf(name)} ${this.mean(columns[n])}`;
      if (one.lastElementChild.textContent !== text) one.lastElementChild.textContent = text;
      one.setAttribute("aria-label", `${text}, bring out`);
      one.setAttribute("aria-pressed", String(this.chosen === name));
    });
    old.forEach((one) => one.remove());
  }

  paint(context, data, width, height, colour) {
    const end = data.times.length ? data.times[data.times.length - 1] : Date.now();
    const x = (time) => width - (end - time) / 1000 / KEPT * width;
    const lines = linesOf(data, x, 1, true, false);
    const most = lines.flat(2).reduce((all, [, value]) => Math.max(all, value), 0);
    const floor = height - BOTTOM;
    const y = (value) => floor - value / (most || 1) * (floor - TOP);
    for (let n = lines.length - 1; n >= 0; n--) {
      context.fillStyle = COLOURS[n];
      for (const run of lines[n]) {
        context.beginPath();
        context.moveTo(run[0][0], floor);
        run.forEach(([at, value]) => context.lineTo(at, y(value)));
        context.lineTo(run[run.length - 1][0] + 1, y(run[run.length - 1][1]));
        context.lineTo(run[run.length - 1][0] + 1, floor);
        // What is below another area is covered by it.
        context.fill();
      }
    }
    if (this.chosen !== undefined) {
      const n = data.names.indexOf(this.chosen);
      context.strokeStyle = colour;
      context.lineWidth = 2.5;
      for (const line of [lines[n], lines[n - 1] ?? []]) {
        for (const run of line) {
          context.beginPath();
          run.forEach(([at, value], i) => (i ? context.lineTo(at, y(value)) : context.moveTo(at, y(value))));
          context.stroke();
        }
      }
    }
    context.fillStyle = colour;
    context.font = "12px system-ui, sans-serif";
    context.fillText(most ? scaled(most, this.unit()) : "nothing since the page was opened", 2, 12);
    paintTimes(context, end, KEPT, width, height);
  }

  savePng() {
    const data = this.data();
    const legend = data.names.map((name, n) => ({ colour: COLOURS[n], text: `${this.textOf(name)} ${this.mean(data.columns[n])}` }));
    savePng(this.canvas, TITLE, this.view.pool, legend, (context, width, height, colour) => this.paint(context, data, width, height, colour));
  }

  saveCsv() {
    const { names, times, columns } = this.data();
    const head = ["time", "time_ms", ...names.map((name) => `${this.textOf(name)} (${this.unit()})`)];
    const rows = times.map((time, n) => [new Date(time).toISOString(), time, ...columns.map((column) => column[n])]);
    saveText(csv(head, rows), [this.view.pool, TITLE, this.part.value, this.count.value], "csv");
  }
}
