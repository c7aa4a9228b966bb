// The screen Alerts and jobs: what is wrong, who was informed, and scheduled work with its last runs.

import { h, table, timeOf, view } from "./api.js";
import { actionButton, openAction } from "./act.js";

export async function load() {
  return { status: await view("status") };
}

function alertRow(alert) {
  const { name } = alert;
  const open = (what, run, fields, build) => openAction({ title: `${what}: ${name}`, run, fields, build });
  const state = [alert.acknowledged && "acknowledged", alert.muted_until && `muted until ${timeOf(alert.muted_until)}`].filter(Boolean).join(", ") || "open";
  return [h("span", { class: `mark ${alert.severity === "critical" ? "critical" : "warning"}` }, alert.severity), name, h("span", { class: "value" }, alert.text), timeOf(alert.since), state,
    h("span", { class: "actions" },
      !alert.acknowledged && actionButton("Acknowledge", `Acknowledge ${name}`, "operate",
        () => open("No more reminders", "Acknowledge", [], () => ({ do: "acknowledge", alert: name }))),
      alert.muted_until ? actionButton("Unmute", `Unmute ${name}`, "operate", () => open("Send again", "Unmute", [], () => ({ do: "mute", alert: name, hours: 0 })))
        : actionButton("Mute …", `Mute ${name}`, "operate", () => open("Send nothing about it", "Mute",
          [{ name: "hours", label: "Hours", value: "24" }], ({ hours }) => ({ do: "mute", alert: name, hours: Number.parseInt(hours, 10) || 0 }))))];
}

// What a job does, in words.
export function workOf(job) {
  if (job.replicate) return `replication of ${job.replicate} to ${job.to}`;
  if (job.snapshot) return `snapshots of ${job.snapshot.join(", ")}${job.recursive ? " and below" : ""}, keep ${job.keep}`;
  return `scrub of ${(job.scrub ?? []).join(", ")}`;
}

const resultOf = (run) => (run.problem === undefined ? h("span", {}, h("span", { class: "mark good" }, "done"), " ", run.done)
  : h("span", {}, h("span", { class: "mark critical" }, "failed"), " ", run.problem));

function jobs(all) {
  const rows = Object.entries(all).map(([name, job]) => {
    const [last] = job.runs;
    return [name, workOf(job), job.schedule, job.next ? timeOf(job.next) : "–", last ? timeOf(last.began) : "–",
      h("span", { class: "value" }, job.running ? h("span", { class: "mark active" }, "running") : last ? resultOf(last) : "nothing done since the daemon was started"),
      job.runs.length > 1 && h("details", { "data-key": `runs ${name}` }, h("summary", {}, `${job.runs.length} runs`),
        h("ul", {}, job.runs.map((run) => h("li", {}, `${timeOf(run.began)}: `, resultOf(run)))))];
  });
  return table("Jobs", ["Job", "Work", "Schedule", "Next run", "Last run", "Result", "Earlier runs"].map((name) => ({ name })), rows);
}

export function show({ status }) {
  const { alerts: all = {}, jobs: scheduled = {} } = status.answer ?? {};
  const alerts = all.alerts ?? [], receivers = all.receivers ?? [], history = all.history ?? [];
  const columns = (...names) => names.map((name) => ({ name }));
  return [
    status.error && h("pre", { class: "problem" }, status.error),
    h("section", {}, h("h2", {}, "Alerts"), alerts.length === 0 ? h("p", { class: "empty" }, "No alert.")
      : table("Alerts", [...columns("Severity", "Alert", "Text", "Since", "State"), { name: "Actions", hidden: true }], alerts.map(alertRow))),
    h("section", {}, h("h2", {}, "Jobs"), Object.keys(scheduled).length === 0
      ? h("p", { class: "empty" }, "No job. [[jobs]] tables of weir.toml schedule snapshots, scrubs and replications.") : jobs(scheduled)),
    h("section", {}, h("h2", {}, "Receivers of alerts"), receivers.length === 0
      ? h("p", { class: "empty" }, "No receiver. [[alerts.send]] tables of weir.toml name programs, web addresses and mail.")
      : table("Receivers", columns("Receiver", "Waiting", "Last delivery"), receivers.map((one) => [one.name, String(one.waiting),
        one.problem ? h("span", { class: "problem" }, one.problem) : "no failure"]))),
    history.length > 0 && h("details", { "data-key": "history" }, h("summary", {}, "Earlier events"),
      table("Earlier events", columns("Time", "Event", "Alert"), history.map((one) => [timeOf(one.time), one.event, one.name]))),
  ];
}
