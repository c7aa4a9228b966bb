// Actions: a dialog with the fields of an action, the command line that does the same, the dry run of what cannot be undone, and
// the message of an error, whole.

import { byId } from "./dom.js";
import { h, post } from "./api.js";

// Role of the token, set when the page has asked for it.
export const me = { role: "view", name: "", administers: false };
const ROLES = ["view", "operate", "administer"];

export const may = (role) => me.administers && ROLES.indexOf(me.role) >= ROLES.indexOf(role);

// Milliseconds after the last key until the command line is asked for.
const PAUSE = 150;

let number = 0;
let refresh = () => {};

// Called after each action that was done.
export function afterActions(work) {
  refresh = work;
}

// Why the buttons that are made now cannot be used, if they cannot.
let refusal;

// Makes elements whose buttons cannot be used for this reason; without one, they can.
export function refusing(why, make) {
  const before = refusal;
  refusal = why;
  try {
    return make();
  } finally {
    refusal = before;
  }
}

// Why a pool of these properties is not changed, if it is not.
export const readOnly = (properties) => (properties?.readonly?.value === "on" ? "the pool was imported read-only" : undefined);

// A button for an action. Without the role for it, or for another reason, it cannot be used, and says why.
export function actionButton(text, label, role, work, key) {
  const why = may(role) ? refusal : `needs the role ${role}`;
  return h("button", {
    type: "button",
    "aria-label": label,
    title: why === undefined ? label : `${label}: ${why}`,
    "data-key": key ?? label,
    disabled: why !== undefined,
    click: work,
  }, text);
}

function fieldOf({ name, label, type, value, options, hint, placeholder, when }) {
  const id = `field-${name}`;
  const common = { id, name, "aria-describedby": hint ? `${id}-hint` : undefined };
  let input;
  if (type === "checkbox") input = h("input", { ...common, type: "checkbox" });
  else if (type === "select") input = h("select", common, options.map(([key, text]) => h("option", { value: key }, text)));
  else if (type === "file") input = h("input", { ...common, type: "file" });
  else if (type === "secret") input = h("input", { ...common, type: "password", autocomplete: "new-password" });
  else input = h("input", { ...common, type: "text", autocomplete: "off", spellcheck: "false", placeholder });
  if (type === "checkbox") input.checked = value === true;
  else if (value !== undefined) input.value = value;
  const read = () => (type === "checkbox" ? input.checked : type === "secret" ? input.value : type === "file" ? input.files[0] : input.value.trim());
  const caption = h("label", { for: id }, label);
  const row = type === "checkbox" ? [input, caption] : [caption, input];
  return { name, read, when, row: h("div", { class: `field ${type ?? "text"}` }, row, hint && h("p", { id: `${id}-hint`, class: "note" }, hint)) };
}

// Opens the dialog. `build` makes the action of the values of the fields; `body` is shown above the fields. A field `secret` is no
// part of the action: it goes with it, and into no log. A field with `when` is shown while that is true of the values. An action that is
// a download or an upload has `finish`, which does it with the action, its confirmation, the values, and a signal of the dialog's end.
export function openAction({ title, fields = [], build, danger, run = "Do it", body, finish }) {
  const dialog = byId("action");
  const made = fields.map(fieldOf);
  const values = () => Object.fromEntries(made.map(({ name, read }) => [name, read()]));
  const action = () => {
    const { secret, again, ...others } = values();
    return build(others);
  };
  const command = h("code", { id: "action-command" }, "…");
  const error = h("pre", { id: "action-error", role: "alert", hidden: true, tabindex: "0" });
  const shown = h("div", { id: "action-shown", "aria-live": "polite" });
  const act = h("button", { type: "submit", id: "action-run", class: danger ? "danger" : "main", disabled: true }, run);
  const preview = h("button", { type: "button", id: "action-preview", hidden: true }, "Show what it would do");
  let confirmation, needsConfirmation = danger === true, takesSecret = false, timer, current = "";

  const fail = (text) => {
    error.hidden = !text;
    error.textContent = text ?? "";
  };
  const ready = () => {
    preview.hidden = !needsConfirmation;
    act.disabled = needsConfirmation ? confirmation === undefined : current === "";
  };
  const forget = () => {
    confirmation = undefined;
    shown.replaceChildren();
    ready();
  };
  const describe = async () => {
    const question = ++number;
    try {
      const described = await post("command", { action: action() });
      if (question !== number) return;
      current = described.command;
      needsConfirmation = described.needs_confirmation;
      takesSecret = described.takes_secret;
      command.textContent = described.error ?? described.command;
      command.classList.toggle("wrong", described.error !== null);
    } catch (problem) {
      if (question !== number) return;
      current = "";
      command.textContent = problem.message;
      command.classList.add("wrong");
    }
    ready();
  };
  const arrange = () => {
    const now = values();
    for (const { when, row } of made) row.hidden = when !== undefined && !when(now);
  };
  const changed = () => {
    arrange();
    fail();
    forget();
    current = "";
    ready();
    clearTimeout(timer);
    timer = setTimeout(describe, PAUSE);
  };
  const busy = async (work) => {
    act.disabled = preview.disabled = true;
    dialog.setAttribute("aria-busy", "true");
    fail();
    try {
      await work();
    } catch (problem) {
      forget();
      fail(problem.message);
    }
    dialog.removeAttribute("aria-busy");
    preview.disabled = false;
    ready();
  };
  preview.addEventListener("click", () => busy(async () => {
    const dry = await post("preview", { action: action() });
    confirmation = dry.confirmation;
    shown.replaceChildren(h("h3", {}, "Nothing was done yet. This is what would be affected:"), ...dry.shown.map(({ command: line, text }) => [
      line && h("p", { class: "note" }, h("code", {}, line)),
      h("pre", { tabindex: "0" }, text.trimEnd() || "(nothing)"),
    ]).flat().filter(Boolean));
  }));
  const form = h("form", { method: "dialog", input: changed, change: changed, submit: (event) => {
    event.preventDefault();
    if (act.disabled) return;
    busy(async () => {
      const { secret, again } = values();
      if (again !== undefined && again !== secret) throw new Error("The two passphrases are not the same.");
      if (finish) {
        const closed = new AbortController();
        dialog.addEventListener("close", () => closed.abort(), { once: true });
        await finish(action(), confirmation, values(), closed.signal);
        dialog.close();
        return refresh();
      }
      const order = { ...(confirmation === undefined ? {} : { confirmation }), ...(secret && takesSecret ? { secret } : {}) };
      const done = await post("act", { action: action(), ...order });
      dialog.close();
      say(`Done: ${done.command}`, done.output);
      refresh();
    });
  } },
    h("h2", { id: "action-title" }, title),
    body,
    made.map(({ row }) => row),
    h("p", { class: "note" }, "The command line that does the same:"),
    h("p", { class: "command" }, command),
    shown,
    error,
    h("p", { class: "buttons" }, preview, act, h("button", { type: "button", id: "action-close", click: () => dialog.close() }, "Cancel")));
  dialog.replaceChildren(form);
  arrange();
  dialog.showModal();
  ready();
  describe();
  return { changed };
}

// One line about what was done, with what the command printed.
export function say(text, output) {
  const place = byId("done");
  place.hidden = false;
  place.textContent = output ? `${text}: ${output}` : text;
}
