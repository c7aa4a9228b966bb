// A graph of series over time: legend, canvas, a cursor, and its files.

import { csv, lengthOf, scaled } from "./format.js";
import { dataOf, linesOf, nearest, summaryOf } from "./series.js";
import { COLOURS, button, element, prepare, savePng, saveText, timeText } from "./dom.js";

// Room for the greatest value above, and for times below.
const TOP = 16;
const BOTTOM = 15;

// A limit is drawn if it is at most this many times the greatest value; a higher one would flatten the line to nothing. Its value
// is in the legend in any case.
const LIMIT_FACTOR = 4;

export class Graph {
  // `view` has names, points, span, step, pool; the last time, if it is not that of the last point; and the time of the cursor and
  // the chosen range, if there are any. `changed` is called after the graph has changed cursor or range.
  constructor(definition, view, parent, changed) {
    this.definition = definition;
    this.view = view;
    this.figure = element("figure", undefined, parent);
    const { figure } = this;
    const caption = element("figcaption", undefined, figure);
    element("b", definition.title, caption);
    this.labels = definition.series.map(([, name], n) => {
      const label = element("span", undefined, caption);
      element("i", undefined, label).style.background = this.colour(n);
      label.append(name + " ");
      return element("span", "", label);
    });
    this.note = element("span", "", caption);
    this.canvas = element("canvas", undefined, figure);
    this.canvas.setAttribute("role", "img");
    // Until it is drawn.
    this.canvas.setAttribute("aria-label", definition.title);
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

  // Moving the pointer moves the cursor of all graphs; drawing it along chooses a range, whose means the legends have then.
  followPointer(changed) {
    const { canvas, view } = this;
    const timeAt = (event) => this.end() - (1 - event.offsetX / canvas.clientWidth) * 1000 * view.span;
    let from;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      from = timeAt(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      view.cursor = timeAt(event);
      if (from !== undefined) this.choose(from, view.cursor);
      changed();
    });
    canvas.addEventListener("pointerup", () => (from = undefined));
    canvas.addEventListener("pointercancel", () => (from = undefined));
    canvas.addEventListener("pointerleave", () => {
      view.cursor = undefined;
      changed();
    });
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1, Escape: 0 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      const before = view.cursor ?? this.end();
      const moved = before + moves[event.key] * Math.max(1000 * view.step, 10 * view.span);
      if (event.key === "Escape") {
        view.cursor = view.range = this.anchor = undefined;
      } else {
        view.cursor = Math.min(this.end(), Math.max(this.end() - 1000 * view.span, moved));
        this.anchor = event.shiftKey ? this.anchor ?? before : undefined;
        if (event.shiftKey) this.choose(this.anchor, view.cursor);
      }
      changed();
    });
  }

  // Chooses the range between two times; none if they are less than two points apart.
  choose(one, other) {
    const [from, to] = [Math.min(one, other), Math.max(one, other)];
    const { view } = this;
    const first = Math.max(from, this.end() - 1000 * view.span), last = Math.min(to, this.end());
    view.range = last - first >= 2000 * view.step ? { from: first, to: last } : undefined;
  }

  // Time at the right edge.
  end() {
    const { points, last } = this.view;
    return last ?? (points.length ? points[points.length - 1].time : Date.now());
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
      const text = this.valueText(data, n, shown);
      if (this.labels[n].textContent !== text) this.labels[n].textContent = text;
      return `${name} ${text}`;
    });
    const at = view.cursor === undefined || shown < 0 ? "" : `, at ${timeText(data.times[shown], view.span)}`;
    const note = dipsText(this.dips());
    if (this.note.textContent !== note) this.note.textContent = note;
    const time = view.range ? `, ${rangeText(view.range, view.span)}` : at;
    canvas.setAttribute("aria-label", `${definition.title}${time}: ${texts.join(", ")}${note && `; ${note}`}`);
  }

  // Dips of the graph that repeat; undefined if there are none.
  dips() {
    const found = this.view.dips[this.definition.dips];
    return found?.period_ms ? found : undefined;
  }

  // Value of a series at a point; if a range is chosen, over that.
  valueText(data, n, at) {
    const { range } = this.view;
    const { unit } = this.definition;
    if (!range) return scaled(data.columns[n][at], unit);
    const { what, value } = summaryOf(data, n, range, unit);
    return what + scaled(value, unit);
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
    if (view.range) {
      context.globalAlpha = 0.15;
      context.fillRect(x(view.range.from), TOP, x(view.range.to) - x(view.range.from), floor - TOP);
      context.globalAlpha = 1;
    }
    if (isLimitShown) {
      context.setLineDash([6, 4]);
      limit.forEach(trace);
      context.setLineDash([]);
    }
    // A mark below each dip that repeats.
    for (const { middle_ms } of this.dips()?.dips ?? []) {
      const at = x(middle_ms);
      if (at < 0) continue;
      context.setLineDash([2, 3]);
      context.strokeRect(at, TOP, 0, floor - TOP);
      context.setLineDash([]);
      context.beginPath();
      context.moveTo(at, floor - 7);
      context.lineTo(at - 4, floor);
      context.lineTo(at + 4, floor);
      context.fill();
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
      text: `${name} ${this.valueText(data, n, last)}`,
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

// Dips that repeat, in words; empty if there are none.
export function dipsText(found) {
  if (!found) return "";
  const seconds = found.period_ms / 1000;
  return `dips every ${seconds < 100 ? `${seconds.toFixed(1)} s` : lengthOf(seconds)}: ${found.dips.length} in this time`;
}

// A range of time, and its length.
export function rangeText({ from, to }, span) {
  return `${timeText(from, span)} to ${timeText(to, span)} (${lengthOf((to - from) / 1000)})`;
}

// The times at the edges.
export function paintTimes(context, end, span, width, height) {
  context.fillText(timeText(end - 1000 * span, span), 2, height - 3);
  const text = timeText(end, span);
  context.fillText(text, width - context.measureText(text).width - 2, height - 3);
}
