// Flow of bytes: a Sankey diagram of the last seconds, from clients to devices. The width of a band is bytes per second.
//
// Reads go from client, dataset and protocol to the source that answered them, and from the disks to each device. Writes go from
// client, dataset and protocol into the pool, and from it, by cause, to each device. The server counts the bytes of each band. Where it
// does not count two columns together, such as protocols and causes, one node between them joins all.

import { csv, scaled } from "./format.js";
import { COLOURS, button, element, prepare, savePng, saveText } from "./dom.js";

export const TITLE = "Flow of bytes from clients to devices";
// Nodes of a column; further ones are joined.
const MAX_NODES = 7;
const KEPT_SECONDS = 60;
// Bands below this rate, in bytes per second, are not drawn.
const LEAST = 1;
const NODE_WIDTH = 9;
const GAP = 26;
const TOP = 18;
const COLUMNS = {
  reads: ["client", "dataset", "protocol", "source", "device"],
  writes: ["client", "dataset", "protocol", "", "cause", "", "device"],
};
const SOURCES = ["arc demand", "arc prefetched", "dirty data", "holes", "disk", "intent log", "l2arc"];
const CAUSES = ["data", "copies of data", "parity of data", "padding of data", "metadata", "intent log", "labels", "repair", "removal"];

const nameOf = (text) => text || "–";
const causeOf = ({ content, redundancy }) => (content === "data" && redundancy !== "first copy" ? `${redundancy} of data` : content);

// Sums of { from, to, bytes } by their ends.
class Bands {
  constructor() {
    this.sums = new Map();
  }

  add(column, from, to, bytes) {
    if (!bytes) return;
    const key = JSON.stringify([column, from, to]);
    this.sums.set(key, (this.sums.get(key) ?? 0) + bytes);
  }

  list(seconds) {
    return [...this.sums].map(([key, bytes]) => {
      const [column, from, to] = JSON.parse(key);
      return { column, from, to, rate: bytes / seconds };
    }).filter(({ rate }) => rate >= LEAST);
  }
}

// Bands of these intervals: { column, from, to, rate }, from a node of the column to one of the next. The pool's own requests are
// no client's; what they read from devices is part of the bytes that the devices read.
export function bandsOf(intervals, direction) {
  const bands = new Bands();
  const isRead = direction === "reads";
  const seconds = intervals.reduce((sum, interval) => sum + interval.seconds, 0) || 1;
  for (const { clients, operations, written, leaves } of intervals) {
    for (const row of clients) {
      if (row.protocol === "internal") continue;
      const bytes = isRead ? row.read_bytes : row.written_bytes;
      bands.add(0, nameOf(row.client), nameOf(row.dataset), bytes);
      bands.add(1, nameOf(row.dataset), row.protocol, bytes);
      if (!isRead) bands.add(2, row.protocol, "pool", bytes);
    }
    if (isRead) {
      for (const row of operations) {
        if (row.protocol === "internal") continue;
        for (const [source, bytes] of Object.entries(row.read_bytes)) bands.add(2, row.protocol, source, bytes);
      }
      for (const leaf of leaves) bands.add(3, "disk", leaf.name, leaf.read_bytes);
    } else {
      for (const row of written) {
        bands.add(3, "pool", causeOf(row), row.bytes);
        bands.add(4, causeOf(row), "devices", row.bytes);
      }
      for (const leaf of leaves) bands.add(5, "devices", leaf.name, leaf.write_bytes);
    }
  }
  return bands.list(seconds);
}

// Joins the smallest nodes of each column, so that no column has more than `most`.
export function joined(bands, columns, most) {
  const names = Array.from({ length: columns }, () => new Map());
  const count = (column, name, rate, side) => {
    const sums = names[column].get(name) ?? { left: 0, right: 0 };
    sums[side] += rate;
    names[column].set(name, sums);
  };
  for (const { column, from, to, rate } of bands) {
    count(column, from, rate, "right");
    count(column + 1, to, rate, "left");
  }
  const size = ({ left, right }) => Math.max(left, right);
  const kept = names.map((all) => {
    const order = [...all].sort((a, b) => size(b[1]) - size(a[1])).map(([name]) => name);
    return order.length <= most ? undefined : { of: new Set(order.slice(0, most - 1)), rest: `${order.length - most + 1} others` };
  });
  const place = (column, name) => (!kept[column] || kept[column].of.has(name) ? name : kept[column].rest);
  const sums = new Bands();
  for (const { column, from, to, rate } of bands) sums.add(column, place(column, from), place(column + 1, to), rate);
  return sums.list(1);
}

// Order of the nodes of a column: sources and causes always have the same one, so that they keep their places.
function orderOf(name) {
  const at = [...SOURCES, ...CAUSES].indexOf(name);
  return at < 0 ? -1 : at;
}

// Places of nodes and bands in an area: nodes { column, name, x, y, height, left, right }, with the bytes per second of both
// sides, and bands { x, y, height, toX, toY, … }. A node is as high as its wider side.
export function layoutOf(bands, columns, width, height) {
  const nodes = new Map();
  const node = (column, name) => {
    const key = JSON.stringify([column, name]);
    if (!nodes.has(key)) nodes.set(key, { column, name, left: 0, right: 0 });
    return nodes.get(key);
  };
  for (const { column, from, to, rate } of bands) {
    node(column, from).right += rate;
    node(column + 1, to).left += rate;
  }
  const all = [...nodes.values()];
  const inColumns = Array.from({ length: columns }, (_, n) => all.filter(({ column }) => column === n)
    .sort((a, b) => orderOf(a.name) - orderOf(b.name) || (a.name < b.name ? -1 : 1)));
  // The scale is that of the column that needs the most room.
  const room = (column) => height - TOP - GAP * column.length;
  const sum = (column) => column.reduce((total, one) => total + Math.max(one.left, one.right), 0);
  const scale = Math.min(...inColumns.filter((column) => column.length).map((column) => Math.max(8, room(column)) / sum(column)));
  const step = columns > 1 ? (width - NODE_WIDTH) / (columns - 1) : 0;
  inColumns.forEach((column, n) => {
    let y = TOP;
    for (const one of column) {
      Object.assign(one, { x: n * step, y, height: Math.max(1, Math.max(one.left, one.right) * scale), leftUsed: 0, rightUsed: 0 });
      y += one.height + GAP;
    }
  });
  const byPlace = [...bands].sort((a, b) => node(a.column, a.from).y - node(b.column, b.from).y || node(a.column + 1, a.to).y - node(b.column + 1, b.to).y);
  const placed = byPlace.map((band) => {
    const from = node(band.column, band.from), to = node(band.column + 1, band.to);
    const thick = band.rate * scale;
    const made = { ...band, x: from.x + NODE_WIDTH, y: from.y + from.rightUsed, toX: to.x, toY: to.y + to.leftUsed, height: thick };
    from.rightUsed += thick;
    to.leftUsed += thick;
    return made;
  });
  return { nodes: all, bands: placed };
}

const rateText = (rate) => scaled(rate, "bytes/s");

// Text of a node: both sides if they differ by more than a hundredth. The table has the whole path of a device.
export function textOf({ name: whole, left, right }) {
  const name = whole.startsWith("/") ? whole.slice(whole.lastIndexOf("/") + 1) : whole;
  const most = Math.max(left, right);
  const isOne = left === 0 || right === 0 || Math.abs(left - right) <= most / 100;
  return isOne ? `${name} ${rateText(most)}` : `${name} ${rateText(left)} → ${rateText(right)}`;
}

function colourOf(direction, { column, from, to }) {
  const list = direction === "reads" ? SOURCES : CAUSES;
  const at = Math.max(list.indexOf(to), list.indexOf(from));
  return at < 0 || (direction === "reads" && column < 2) ? "#7a8794" : COLOURS[at % COLOURS.length];
}

export class FlowGraph {
  constructor(view, parent) {
    this.view = view;
    this.intervals = [];
    this.figure = element("figure", undefined, parent);
    const { figure } = this;
    figure.className = "flow";
    const caption = element("figcaption", undefined, figure);
    element("b", TITLE, caption);
    const select = (label, values) => {
      const made = element("select", undefined, element("label", `${label} `, caption));
      made.append(...values.map((value) => new Option(value, value)));
      made.addEventListener("change", () => this.draw());
      return made;
    };
    this.direction = select("Of", ["reads", "writes"]);
    this.seconds = select("Mean of the last", ["10 s", "1 s", "60 s"]);
    this.note = element("span", "", caption);
    const wide = element("div", undefined, figure);
    wide.className = "wide";
    // On a narrow screen it is scrolled, with the keyboard too.
    wide.tabIndex = 0;
    wide.setAttribute("role", "group");
    wide.setAttribute("aria-label", TITLE);
    this.canvas = element("canvas", undefined, wide);
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", TITLE);
    const details = element("details", undefined, figure);
    element("summary", "As a table", details);
    const table = element("table", undefined, details);
    const head = element("tr", undefined, element("thead", undefined, table));
    for (const name of ["From", "To", "Bytes/s"]) element("th", name, head).scope = "col";
    this.body = element("tbody", undefined, table);
    this.details = details;
    details.addEventListener("toggle", () => this.draw());
    const files = element("p", undefined, figure);
    files.className = "files";
    button("PNG", `Save as PNG: ${TITLE}`, files, () => this.savePng());
    button("CSV", `Save as CSV: ${TITLE}`, files, () => this.saveCsv());
  }

  // Begins again: another pool is shown.
  forget() {
    this.intervals = [];
  }

  add(interval) {
    this.intervals.push(interval);
    if (this.intervals.length > KEPT_SECONDS) this.intervals.shift();
  }

  bands() {
    const direction = this.direction.value;
    const intervals = this.intervals.slice(-Number.parseInt(this.seconds.value, 10));
    return joined(bandsOf(intervals, direction), COLUMNS[direction].length, MAX_NODES);
  }

  draw() {
    const { canvas } = this;
    const bands = this.bands();
    const { context, width, height } = prepare(canvas, canvas.clientWidth, canvas.clientHeight, window.devicePixelRatio || 1);
    this.paint(context, width, height, getComputedStyle(canvas).color, bands);
    const text = this.summary(bands);
    if (this.note.textContent !== text) this.note.textContent = text;
    canvas.setAttribute("aria-label", `${TITLE}, ${this.direction.value}: ${text}`);
    if (!this.details.open) return;
    const rows = bands.map(({ from, to, rate }) => [from, to, rateText(rate)]);
    this.body.replaceChildren(...rows.map((cells) => {
      const row = document.createElement("tr");
      cells.forEach((cell) => element("td", cell, row));
      return row;
    }));
  }

  // Bytes of clients and of devices, in words.
  summary(bands) {
    const isRead = this.direction.value === "reads";
    const sum = (column) => bands.filter((band) => band.column === column).reduce((total, { rate }) => total + rate, 0);
    const clients = sum(0), devices = sum(isRead ? 3 : 5);
    if (!clients && !devices) return isRead ? "nothing is read" : "nothing is written";
    return isRead ? `${rateText(clients)} answered, ${rateText(devices)} read from devices`
      : `${rateText(clients)} written by clients, ${rateText(devices)} written to devices`;
  }

  paint(context, width, height, colour, bands) {
    const direction = this.direction.value;
    const titles = COLUMNS[direction];
    const { nodes, bands: placed } = layoutOf(bands, titles.length, width, height);
    context.font = "12px system-ui, sans-serif";
    for (const band of placed) {
      const { x, y, toX, toY } = band;
      const middle = (x + toX) / 2;
      const thick = Math.max(1, band.height);
      context.fillStyle = colourOf(direction, band);
      context.globalAlpha = 0.45;
      context.beginPath();
      context.moveTo(x, y);
      context.bezierCurveTo(middle, y, middle, toY, toX, toY);
      context.lineTo(toX, toY + thick);
      context.bezierCurveTo(middle, toY + thick, middle, y + thick, x, y + thick);
      context.fill();
    }
    context.globalAlpha = 1;
    context.fillStyle = colour;
    const last = titles.length - 1;
    const step = width / last;
    titles.forEach((title, n) => {
      const used = context.measureText(title).width;
      context.globalAlpha = 0.7;
      context.fillText(title, n === last ? width - used : n * (width - NODE_WIDTH) / last, 11);
    });
    context.globalAlpha = 1;
    for (const one of nodes) {
      context.fillRect(one.x, one.y, NODE_WIDTH, one.height);
      const text = fitting(context, textOf(one), step - 8);
      const used = context.measureText(text).width;
      context.fillText(text, one.column === last ? width - used : one.x, one.y + one.height + 13);
    }
    if (nodes.length === 0) context.fillText("no bytes in this time", 2, 40);
  }

  savePng() {
    const bands = this.bands();
    const legend = [{ colour: "#7a8794", text: `${this.direction.value}, mean of the last ${this.seconds.value}: ${this.summary(bands)}` }];
    savePng(this.canvas, TITLE, this.view.pool, legend, (context, width, height, colour) => this.paint(context, width, height, colour, bands));
  }

  saveCsv() {
    const titles = COLUMNS[this.direction.value];
    const rows = this.bands().map(({ column, from, to, rate }) => [titles[column], from, titles[column + 1], to, rate]);
    saveText(csv(["column", "from", "to column", "to", "bytes/s"], rows), [this.view.pool, TITLE, this.direction.value], "csv");
  }
}

// The text, with its middle left out if it is wider than there is room.
function fitting(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  for (let keep = text.length - 2; keep > 4; keep--) {
    const shorter = `${text.slice(0, Math.ceil(keep / 2))}…${text.slice(-Math.floor(keep / 2))}`;
    if (context.measureText(shorter).width <= room) return shorter;
  }
  return "…";
}
