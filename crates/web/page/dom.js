// Parts of the page that its modules share. All text from the server is set as text, never as HTML.

import { fileName } from "./format.js";

// Colours that differ for most colour-blind people (Okabe and Ito).
export const COLOURS = ["#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#999999", "#e69f00", "#f0e442", "#8c6bb1"];

export const byId = (id) => document.getElementById(id);

export function element(name, text, parent) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

export function button(text, label, parent, work) {
  const made = element("button", text, parent);
  made.type = "button";
  if (label) {
    made.setAttribute("aria-label", label);
    made.title = label;
  }
  made.addEventListener("click", work);
  return made;
}

// A time of the day; for a span of more than a day, the day as well.
export function timeText(time, span) {
  const parts = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (span <= 3600) parts.second = "2-digit";
  if (span >= 86400) Object.assign(parts, { month: "short", day: "numeric" });
  return new Intl.DateTimeFormat("en", parts).format(time);
}

// A canvas of this size, empty, in units of CSS pixels.
export function prepare(canvas, width, height, ratio) {
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

function save(blob, parts, ending) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = fileName(["weir", ...parts], ending);
  link.click();
  // The browser has begun to read it then.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function saveText(text, parts, ending) {
  save(new Blob([text], { type: "text/csv" }), parts, ending);
}

// Saves a picture with title, legend and the graph that `paint` draws, in the colours of the page. `legend` is a list of
// { colour, text }.
export function savePng(like, title, pool, legend, paint) {
  const width = Math.max(like.clientWidth, 480);
  const height = like.clientHeight;
  const { color, backgroundColor } = getComputedStyle(document.body);
  const canvas = document.createElement("canvas");
  const measure = canvas.getContext("2d");
  measure.font = "12px system-ui, sans-serif";
  // Lines of the legend.
  const rows = [[]];
  let used = 0;
  for (const { colour, text } of legend) {
    const needed = measure.measureText(text).width + 30;
    if (used + needed > width && used > 0) {
      rows.push([]);
      used = 0;
    }
    rows[rows.length - 1].push({ colour, text, at: used });
    used += needed;
  }
  const above = 22 + 17 * rows.length;
  const { context } = prepare(canvas, width + 20, above + height + 20, 2);
  context.fillStyle = backgroundColor;
  context.fillRect(0, 0, width + 20, above + height + 20);
  context.translate(10, 10);
  context.fillStyle = color;
  context.font = "bold 13px system-ui, sans-serif";
  context.fillText(`${pool}: ${title}`, 0, 12);
  context.font = "12px system-ui, sans-serif";
  rows.forEach((row, n) => row.forEach(({ colour, text, at }) => {
    context.fillStyle = colour === "currentColor" ? color : colour;
    context.fillRect(at, 21 + 17 * n, 10, 10);
    context.fillStyle = color;
    context.fillText(text, at + 14, 30 + 17 * n);
  }));
  context.translate(0, above);
  paint(context, width, height, color);
  canvas.toBlob((blob) => save(blob, [pool, title], "png"));
}

// The answer to a request, as JSON, and the time of the server.
export async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) {
    if (answer.status === 401) throw new Error("the token is missing or wrong: open the address that the server printed");
    const problem = await answer.json().catch(() => undefined);
    throw new Error(problem?.error ?? `${path.split("?")[0]}: ${answer.status}`);
  }
  return { body: await answer.json(), time: Date.parse(answer.headers.get("date") ?? "") };
}
