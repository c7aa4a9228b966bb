// The panel that says what limits: the answer of `weir why`, which the server makes.

import { byId, element, get } from "./dom.js";
import { scaled } from "./format.js";

// Number of the last question: an answer that comes after another question was asked is not shown.
let last = 0;

// A figure of a finding: its name ends with its unit.
export function figure(name, value) {
  const [, what, unit] = /^(.*)_(percent|bytes|ns)$/.exec(name) ?? [undefined, name, ""];
  const texts = { percent: () => `${value} %`, bytes: () => scaled(value, "bytes"), ns: () => scaled(value / 1e9, "s") };
  return [what.replaceAll("_", " "), (texts[unit] ?? (() => String(value)))()];
}

// What was asked, for the heading.
function named(pool, subject) {
  return subject === undefined ? `pool ${pool}` : subject;
}

function show(diagnosis, parent) {
  element("p", diagnosis.limit, parent);
  if (diagnosis.sources) element("p", diagnosis.sources, parent);
  const list = element("ol", undefined, parent);
  for (const found of diagnosis.findings) {
    const item = element("li", undefined, list);
    element("p", found.sentence, item);
    element("p", found.advice, item).className = "advice";
    const more = element("details", undefined, item);
    element("summary", `Figures: ${found.cause.replaceAll("_", " ")}`, more);
    const figures = element("dl", undefined, more);
    for (const [name, value] of Object.entries(found.figures)) {
      const [what, text] = figure(name, value);
      element("dt", what, figures);
      element("dd", text, figures);
    }
  }
  if (diagnosis.findings.length === 0) list.remove();
}

// Asks what limits a pool, or a dataset or a client of it, and shows the answer.
export async function ask(pool, subject) {
  const question = ++last;
  const panel = byId("why"), heading = byId("why-heading"), answer = byId("why-answer");
  panel.hidden = false;
  heading.textContent = `What limits ${named(pool, subject)}`;
  answer.replaceChildren(element("p", "Reading the counters of the last five minutes …"));
  heading.focus();
  byId("why-again").onclick = () => ask(pool, subject);
  const query = new URLSearchParams(subject === undefined ? { pool } : { pool, subject });
  let parts;
  try {
    const { body } = await get(`/api/v1/why?${query}`);
    parts = body.diagnoses.map((diagnosis) => {
      const part = document.createElement("div");
      show(diagnosis, part);
      return part;
    });
  } catch (error) {
    parts = [element("p", `No answer: ${error.message ?? error}`)];
  }
  if (question === last) answer.replaceChildren(...parts);
}

export function close() {
  last++;
  byId("why").hidden = true;
  byId("ask").focus();
}
