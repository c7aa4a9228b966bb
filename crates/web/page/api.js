// Requests of the administration, and elements made of data. All text from the server is set as text.

import { get } from "./dom.js";

// The answer of a command that reads: { answer, text, error, command }, and the time of the server.
export async function view(what, name) {
  const query = name === undefined ? "" : `?${new URLSearchParams({ name })}`;
  const { body, time } = await get(`/api/v1/admin/view/${what}${query}`);
  return { ...body, time };
}

// Asks for something that is done or tried. Fails with the whole text of the refusal. No other site can send this header.
export async function post(path, body) {
  const answer = await fetch(`/api/v1/admin/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Weir-Request": "1" },
    body: JSON.stringify(body),
  });
  const found = await answer.json().catch(() => undefined);
  if (answer.ok) return found;
  throw new Error(found?.error ?? `the server answered ${answer.status}`);
}

// An element with attributes and children; a text is a child. Attributes that are functions are handlers of events.
export function h(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === false || value === null) continue;
    if (typeof value === "function") made.addEventListener(key, value);
    else if (key in made && typeof made[key] === "boolean") made[key] = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return made;
}

// Length of a text beyond which it is wrapped.
export const LONG = 32;

// A text that does not widen a table: a long one is wrapped anywhere.
export const brief = (text) => (typeof text === "string" && text.length > LONG ? h("span", { class: "long" }, text) : text);

// The classes of an element with a text, as `brief` has them.
export const briefly = (text, classes = "") => [classes, text.length > LONG && "long"].filter(Boolean).join(" ") || undefined;

// A table: columns are { name, number, hidden }, rows are lists of cells, which are texts or elements.
export function table(label, columns, rows) {
  const isNumber = (n) => columns[n]?.number;
  const head = columns.map(({ name }, n) => h("th", { scope: "col", class: isNumber(n) ? "number" : undefined }, columns[n].hidden ? h("span", { class: "hidden-text" }, name) : name));
  const cells = (row) => row.map((cell, n) => h("td", { class: isNumber(n) ? "number" : undefined }, isNumber(n) ? cell : brief(cell)));
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label },
    h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows.map((row) => h("tr", {}, cells(row))))));
}

// Value of a property in an answer of -j.
export const value = (object, property) => object.properties?.[property]?.value;

// A time in seconds since 1970, or as the server writes it, in the browser's time zone.
export function timeOf(text) {
  const time = typeof text === "number" ? text * 1000 : Date.parse(text);
  if (!Number.isFinite(time)) return "–";
  const parts = { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  return new Intl.DateTimeFormat("en", parts).format(time);
}
