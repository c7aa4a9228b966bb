// The screens: which one is shown, its data, and the lights that each of them has.

import { byId, get } from "./dom.js";
import { h } from "./api.js";
import { afterActions, may, me } from "./act.js";
import * as pools from "./pools.js";
import * as disks from "./disks.js";
import * as datasets from "./datasets.js";
import * as shares from "./shares.js";
import * as alerts from "./alerts.js";
import * as system from "./system.js";

const SCREENS = { overview: undefined, pools, disks, datasets, shares, alerts, system };
// Milliseconds between two looks.
const INTERVAL = 5000;
const STATES = { good: "in order", active: "running", warning: "warning", critical: "critical", unknown: "not known" };

let shown = "overview";
// Data of the last look, as text: a screen whose data did not change is left alone.
let last = "";
let asked = 0;
// Name of the dataset whose details were shown last.
let chosen;

export const isOverview = () => shown === "overview";

function showLights({ lights, alerts: count }) {
  const list = byId("lights");
  const items = lights.map(({ name, state, text }) => h("li", { class: `light ${state}`, "data-light": name },
    h("b", {}, name), h("span", { class: "hidden-text" }, ` ${STATES[state]}: `), h("span", { class: "text" }, text)));
  const texts = (of) => [...of].map((item) => item.className + item.textContent).join("\n");
  if (texts(list.children) !== texts(items)) list.replaceChildren(...items);
  const badge = byId("alert-count");
  badge.hidden = count === 0;
  badge.textContent = count === 1 ? "1 alert" : `${count} alerts`;
}

async function lookAtLights() {
  try {
    showLights((await get("/api/v1/admin/lights")).body);
  } catch {
    // The line of the state says that the server does not answer.
  }
}

// Reads the data of the screen and shows it, with the focus where it was.
export async function look() {
  const screen = SCREENS[shown];
  if (!screen) return;
  const place = byId(`screen-${shown}`);
  const question = ++asked;
  if (!place.hasChildNodes()) place.replaceChildren(h("p", { class: "note" }, "Loading …"));
  let data;
  try {
    data = await screen.load();
  } catch (error) {
    if (question !== asked) return;
    last = "";
    place.replaceChildren(h("p", { role: "alert", class: "problem" }, `This screen has no data: ${error.message}`));
    return;
  }
  const text = JSON.stringify([shown, data, me.role], (key, found) => (key === "time" || key === "txg" ? undefined : found));
  if (question !== asked || (text === last && place.hasChildNodes())) return;
  last = text;
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const open = new Set([...place.querySelectorAll("details[open]")].map((one) => one.dataset.key));
  const scrolled = [...place.querySelectorAll("[data-scroll]")].map((one) => [one.dataset.scroll, one.scrollTop]);
  place.replaceChildren(...[screen.show(data)].flat(Infinity).filter(Boolean));
  place.querySelectorAll("details").forEach((one) => (one.open = one.open || open.has(one.dataset.key)));
  for (const [key, top] of scrolled) {
    const one = [...place.querySelectorAll("[data-scroll]")].find((found) => found.dataset.scroll === key);
    if (one) one.scrollTop = top;
  }
  // The details of what was just chosen may be far below the list.
  const heading = place.querySelector("[data-chosen]");
  const isNew = heading && heading.dataset.chosen !== chosen;
  chosen = heading?.dataset.chosen;
  if (isNew) {
    heading.focus({ preventScroll: true });
    heading.scrollIntoView();
  } else if (focused) [...place.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
}

function choose() {
  const name = location.hash.slice(1).split(":")[0];
  if (name === "main") return;
  shown = name in SCREENS ? name : "overview";
  for (const other of Object.keys(SCREENS)) byId(`screen-${other}`).hidden = other !== shown;
  for (const link of byId("screens").children) {
    if (link.hash === `#${shown}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  last = "";
  document.title = `Weir: ${byId("screens").querySelector("[aria-current]")?.firstChild.textContent.trim()}`;
  look();
}

// `drawn` is called when the overview is shown.
export async function start(drawn) {
  afterActions(() => {
    last = "";
    look();
    lookAtLights();
  });
  window.addEventListener("hashchange", () => {
    choose();
    if (isOverview()) drawn();
  });
  Object.assign(me, (await get("/api/v1/admin/me")).body);
  document.documentElement.dataset.role = may("view") ? me.role : "none";
  choose();
  lookAtLights();
  setInterval(() => {
    if (document.hidden) return;
    lookAtLights();
    if (!byId("action").open) look();
  }, INTERVAL);
}
