// A graph of series over time: legend, canvas, a cursor, and its files.

import { csv, scaled } from "./format.js";
import { dataOf, linesOf, nearest } from "./series.js";
import { COLOURS, button, element, prepare, savePng, saveText, timeText } from "./dom.js";

// Room for the greatest value above, and for times below.
const TOP = 16;
const BOTTOM = 15;

// A limit is drawn if it is at most this many times the greatest value; a higher one would flatten the line to nothing. Its value
// is in the legend in any case.
const LIMIT_FACTOR = 4;

export class Graph {
  // `view` has names, points, span, step, pool, and the time of the cursor, if there is one; `changed` is called after the graph
  // has moved the cursor.
  constructor(definition, view, parent, changed) {
    this.definition = definition;
    this.view = view;
    const figure = element("figure", undefined, parent);
    const caption = element("figcaption", undefined, figure);
    element("b", definition.title, caption);
    this.labels = definition.series.map(([, name], n) => {
      const label = element("span", undefined, caption);
      element("i", undefined, label).style.background = this.colour(n);
      label.append(name + " ");
      return element("span", "", label);
    });
    this.canvas = element("canvas", undefined, figure);
    this.canvas.setAttribute("role", "img");
    this.canvas.tabIndex = 0;
    const files = element("p", undefined, figure);
    files.className = "files";
    button("PNG", `Save as PNG: ${definition.title}`, files, () => this.savePng());
    button("CSV", `Save as CSV: ${definition.title}`, files, () => this.saveCsv());
    this.followPointer(changed);
  }

  // The last series is a limit if the graph has one.
  isLimit(n) {
    return this.definition.limit && n === this.definition.series.length - 1;
  }

  colour(n) {
    return this.isLimit(n) ? "currentColor" : COLOURS[n % COLOURS.length];
  }

  followPointer(changed) {
    const { canvas, view } = this;
    canvas.addEventListener("pointermove", (event) => {
      view.cursor = this.end() - (1 - event.offsetX / canvas.clientWidth) * 1000 * view.span;
      changed();
    });
    canvas.addEventListener("pointerleave", () => {
      view.cursor = undefined;
      changed();
    });
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1, Escape: 0 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      const moved = (view.cursor ?? this.end()) + moves[event.key] * Math.max(1000 * view.step, 10 * view.span);
      view.cursor = event.key === "Escape" ? undefined : Math.min(this.end(), Math.max(this.end() - 1000 * view.span, moved));
      changed();
    });
  }

  // Time at the right edge.
  end() {
    const { points } = this.view;
    return points.length ? points[points.length - 1].time : Date.now();
  }

  data() {
    const { names, points, step } = this.view;
    return dataOf(this.definition, names, points, step);
  }

  draw() {
    const { canvas, view, definition } = this;
    const { context, width, height } = prepare(canvas, canvas.clientWidth, canvas.clientHeight, window.devicePixelRatio || 1);
    const data = this.data();
    this.paint(context, data, width, height, getComputedStyle(canvas).color);
    const shown = view.cursor === undefined ? data.times.length - 1 : nearest(data.times, view.cursor);
    const texts = definition.series.map(([, name], n) => {
      const text = scaled(data.columns[n][shown], definition.unit);
      if (this.labels[n].textContent !== text) this.labels[n].textContent = text;
      return `${name} ${text}`;
    });
    const time = view.cursor === undefined || shown < 0 ? "" : `, at ${timeText(data.times[shown], view.span)}`;
    canvas.setAttribute("aria-label", `${definition.title}${time}: ${texts.join(", ")}`);
  }

  paint(context, data, width, height, colour) {
    const { view, definition } = this;
    const end = this.end();
    const x = (time) => width - (end - time) / 1000 / view.span * width;
    const lines = linesOf(data, x, view.step, definition.stacked, definition.limit);
    const limit = definition.limit ? lines.pop() : [];
    const greatest = (of) => of.flat(1).reduce((most, [, value]) => Math.max(most, value), 0);
    const most = lines.reduce((sum, line) => Math.max(sum, greatest(line)), 0);
    const ceiling = greatest(limit);
    const isLimitShown = ceiling > 0 && ceiling <= LIMIT_FACTOR * most;
    const top = Math.max(most, isLimitShown ? ceiling : 0) || 1;
    const floor = height - BOTTOM;
    const y = (value) => floor - value / top * (floor - TOP);
    const trace = (run) => {
      context.beginPath();
      run.forEach(([at, value], i) => (i ? context.lineTo(at, y(value)) : context.moveTo(at, y(value))));
      // A point alone is visible, too.
      if (run.length === 1) context.lineTo(run[0][0] + 1, y(run[0][1]));
      context.stroke();
    };
    context.lineWidth = 1.5;
    for (let n = lines.length - 1; n >= 0; n--) {
      context.strokeStyle = context.fillStyle = COLOURS[n % COLOURS.length];
      for (const run of lines[n]) {
        trace(run);
        if (!definition.stacked) continue;
        context.lineTo(run[run.length - 1][0], floor);
        context.lineTo(run[0][0], floor);
        context.fill();
      }
    }
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1;
    if (isLimitShown) {
      context.setLineDash([6, 4]);
      limit.forEach(trace);
      context.setLineDash([]);
    }
    context.font = "12px system-ui, sans-serif";
    context.fillText(most || ceiling ? scaled(top, definition.unit) : lines.flat().length ? "0" : "nothing is known of this time", 2, 12);
    paintTimes(context, end, view.span, width, height);
    if (view.cursor !== undefined) context.fillRect(Math.round(x(view.cursor)), 0, 1, floor);
  }

  savePng() {
    const data = this.data();
    const last = data.times.length - 1;
    const legend = this.definition.series.map(([, name], n) => ({
      colour: this.colour(n),
      text: `${name} ${scaled(data.columns[n][last], this.definition.unit)}`,
    }));
    const paint = (context, width, height, colour) => this.paint(context, data, width, height, colour);
    savePng(this.canvas, this.definition.title, this.view.pool, legend, paint);
  }

  saveCsv() {
    const { definition, view } = this;
    const { times, columns } = this.data();
    const unit = definition.per ? `per byte of ${definition.per}` : definition.unit;
    const head = ["time", "time_ms", ...definition.series.map(([name]) => `${name} (${unit})`)];
    const rows = times.map((time, n) => [new Date(time).toISOString(), time, ...columns.map((column) => column[n])]);
    saveText(csv(head, rows), [view.pool, definition.title], "csv");
  }
}

// The times at the edges.
export function paintTimes(context, end, span, width, height) {
  context.fillText(timeText(end - 1000 * span, span), 2, height - 3);
  const text = timeText(end, span);
  context.fillText(text, width - context.measureText(text).width - 2, height - 3);
}
