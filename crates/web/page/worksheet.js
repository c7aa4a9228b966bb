// Worksheets: which graphs the overview shows. They are kept by name in this browser, and a link has the graphs of one.

import { button, element } from "./dom.js";

const KEY = "weir.worksheets";
const MAX_NAME = 60;
const MAX_WORKSHEETS = 50;

// The worksheets of a text, by name: lists of graphs. What is no worksheet is left out.
export function parsed(text) {
  let found;
  try {
    found = JSON.parse(text ?? "{}");
  } catch {
    return {};
  }
  if (found === null || typeof found !== "object" || Array.isArray(found)) return {};
  const isWorksheet = ([name, ids]) => name.length <= MAX_NAME && Array.isArray(ids) && ids.every((id) => typeof id === "string");
  return Object.fromEntries(Object.entries(found).filter(isWorksheet).slice(0, MAX_WORKSHEETS));
}

// What a link says after "#overview:", and the reverse. `graphs` is undefined if all are shown, `from` and `to` if the time is
// that of now.
export function linkOf({ pool, span, from, to, graphs }) {
  const words = new URLSearchParams();
  if (pool) words.set("pool", pool);
  if (from !== undefined) {
    words.set("from", String(Math.round(from)));
    words.set("to", String(Math.round(to)));
  } else if (span) {
    words.set("span", String(span));
  }
  if (graphs) words.set("graphs", graphs.join("."));
  return words.toString();
}

export function linked(text) {
  const words = new URLSearchParams(text);
  const number = (name) => {
    const value = Number(words.get(name) ?? NaN);
    return Number.isFinite(value) && value > 0 ? value : undefined;
  };
  const [from, to] = [number("from"), number("to")];
  const isRange = from !== undefined && to !== undefined && from < to;
  return {
    pool: words.get("pool") ?? undefined,
    span: number("span"),
    from: isRange ? from : undefined,
    to: isRange ? to : undefined,
    graphs: words.has("graphs") ? words.get("graphs").split(".").filter(Boolean) : undefined,
  };
}

function stored() {
  try {
    return parsed(localStorage.getItem(KEY));
  } catch {
    // The browser keeps nothing for this page.
    return {};
  }
}

function store(worksheets) {
  try {
    localStorage.setItem(KEY, JSON.stringify(worksheets));
    return true;
  } catch {
    return false;
  }
}

export class Worksheet {
  // `all` are the graphs, { id, title }; `changed` is called when others are shown.
  constructor(place, all, changed) {
    this.all = all;
    this.changed = changed;
    this.shown = new Set(all.map(({ id }) => id));
    const details = element("details", undefined, place);
    details.className = "worksheet";
    element("summary", "Graphs", details);
    const bar = element("div", undefined, details);
    bar.className = "bar";
    const label = element("label", "Worksheet ", bar);
    this.names = element("select", undefined, label);
    this.names.addEventListener("change", () => this.open(this.names.value));
    const naming = element("label", "Name ", bar);
    this.name = element("input", undefined, naming);
    this.name.type = "text";
    this.name.maxLength = MAX_NAME;
    button("Save", "Save the graphs that are shown as a worksheet", bar, () => this.save());
    this.remove = button("Remove", "Remove the worksheet", bar, () => this.removeIt());
    this.note = element("span", "", bar);
    this.note.setAttribute("role", "status");
    const list = element("fieldset", undefined, details);
    element("legend", "Shown", list);
    this.boxes = all.map(({ id, title }) => {
      const one = element("label", undefined, list);
      const box = element("input", undefined, one);
      box.type = "checkbox";
      box.checked = true;
      one.append(` ${title}`);
      box.addEventListener("change", () => {
        if (box.checked) this.shown.add(id);
        else this.shown.delete(id);
        this.listNames("");
        this.changed();
      });
      return box;
    });
    this.listNames("");
  }

  isShown(id) {
    return this.shown.has(id);
  }

  // The graphs that are shown; undefined if these are all.
  ids() {
    const ids = this.all.map(({ id }) => id).filter((id) => this.shown.has(id));
    return ids.length === this.all.length ? undefined : ids;
  }

  // Shows these graphs; all if undefined.
  show(ids) {
    // A link with names that no graph has shows all.
    const known = ids?.filter((id) => this.all.some((graph) => graph.id === id));
    const isKnown = known && (known.length > 0 || ids.length === 0);
    this.shown = new Set(isKnown ? known : this.all.map(({ id }) => id));
    this.boxes.forEach((box, n) => (box.checked = this.shown.has(this.all[n].id)));
    this.changed();
  }

  listNames(chosen) {
    const names = Object.keys(stored()).sort();
    this.names.replaceChildren(new Option("all graphs", ""), ...names.map((name) => new Option(name, name)));
    if (chosen === "" && this.ids()) this.names.prepend(new Option("not saved", "\u0000", true, true));
    else this.names.value = chosen;
    this.remove.disabled = chosen === "";
  }

  open(name) {
    this.show(stored()[name]);
    this.name.value = name;
    this.listNames(name);
    this.note.textContent = "";
  }

  save() {
    const name = this.name.value.trim();
    if (!name) {
      this.note.textContent = "A worksheet needs a name.";
      this.name.focus();
      return;
    }
    const worksheets = stored();
    if (!(name in worksheets) && Object.keys(worksheets).length >= MAX_WORKSHEETS) {
      this.note.textContent = `There are ${MAX_WORKSHEETS} worksheets: remove one.`;
      return;
    }
    worksheets[name] = this.ids() ?? this.all.map(({ id }) => id);
    this.note.textContent = store(worksheets) ? `Saved in this browser as ${name}.` : "This browser keeps nothing for this page.";
    this.listNames(name);
  }

  removeIt() {
    const worksheets = stored();
    delete worksheets[this.names.value];
    store(worksheets);
    this.note.textContent = "Removed.";
    this.listNames("");
  }
}
