// The screen Alerts and jobs: what is wrong, who was informed, and scheduled work with its last runs.

import { h, table, timeOf, view } from "./api.js";
import { lengthOf, scaled } from "./format.js";
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

const WORKS = [["snapshot", "take snapshots"], ["scrub", "scrub pools"], ["replicate", "replicate a dataset"]];
const namesOf = (text) => text.split(",").map((name) => name.trim()).filter(Boolean);

// The action that adds the job of these values; one that it replaces has its name.
export function jobOf({ name, work, datasets, pools, source, target, recursive, keep, keepTarget, lag, limit, schedule, zone }, replace) {
  const number = (text) => (text ? { value: Number.parseInt(text, 10) || 0 } : undefined);
  const snapshots = number(keep), atTarget = number(keepTarget);
  const made = work === "replicate" ? { replicate: { source, target, ...(limit ? { limit } : {}), ...(atTarget ? { keep_target: atTarget.value } : {}), ...(lag ? { lag_seconds: number(lag).value } : {}) } }
    : work === "scrub" ? { scrub: namesOf(pools) } : { snapshot: namesOf(datasets) };
  return { do: "add_job", name, work: made, ...(work !== "scrub" ? { recursive, ...(snapshots ? { keep: snapshots.value } : {}) } : {}),
    schedule, ...(zone ? { time_zone: zone } : {}), replace };
}

// Adds a job, or changes one.
function openJob(name, job) {
  const is = (...works) => ({ work }) => works.includes(work);
  const [snapshots, replicates] = [is("snapshot"), is("replicate")];
  openAction({
    title: name ? `Change the job ${name}` : "Add a job",
    run: name ? "Change" : "Add",
    fields: [
      !name && { name: "name", label: "Name", hint: "It begins the names of the snapshots." },
      { name: "work", label: "Work", type: "select", options: WORKS, value: job?.replicate ? "replicate" : job?.scrub ? "scrub" : "snapshot" },
      { name: "datasets", label: "Datasets", value: job?.snapshot?.join(", "), hint: "With commas between.", when: snapshots },
      { name: "pools", label: "Pools", value: job?.scrub?.join(", "), hint: "With commas between.", when: is("scrub") },
      { name: "source", label: "Dataset that is replicated", value: job?.replicate, when: replicates },
      { name: "target", label: "Target", placeholder: "DATASET, or HOST:DATASET", value: job?.to, when: replicates },
      { name: "schedule", label: "Schedule", value: job?.schedule ?? "daily 02:30", hint: "hourly, every 15 min, daily 02:30, weekly sun 03:00, monthly 1 03:00" },
      { name: "zone", label: "Time zone", placeholder: "that of the server", value: job?.time_zone },
      { name: "recursive", label: "Also of all datasets below (-r)", type: "checkbox", value: job?.recursive === true, when: is("snapshot", "replicate") },
      { name: "keep", label: "Snapshots that stay", value: job?.keep === undefined ? "" : String(job.keep), when: is("snapshot", "replicate") },
      { name: "keepTarget", label: "Snapshots that stay at the target", value: job?.keep_target === undefined ? "" : String(job.keep_target), when: replicates },
      { name: "lag", label: "Seconds that the target may be behind before an alert is sent", placeholder: "no alert", value: job?.lag_seconds === undefined ? "" : String(job.lag_seconds), when: replicates },
      { name: "limit", label: "Bytes per second, at most", placeholder: "no limit", value: job?.limit, when: replicates },
    ].filter(Boolean),
    build: (values) => jobOf({ name, ...values }, name !== undefined),
  });
}

const resultOf = (run) => (run.problem === undefined ? h("span", {}, h("span", { class: "mark good" }, "done"), " ", run.done)
  : h("span", {}, h("span", { class: "mark critical" }, "failed"), " ", run.problem));

// A replication that runs: a bar, and its progress in words.
function runningOf({ progress }) {
  const mark = h("span", { class: "mark active" }, "running");
  if (!progress) return mark;
  const { sent_bytes: sent, estimated_bytes: all, source } = progress;
  // An estimate may be too low: the bar is full then.
  return h("span", {}, mark, all > 0 && h("progress", { max: String(all), value: String(Math.min(sent, all)), "aria-label": `Sent of ${source}` }), " ", progressText(progress));
}

// What was sent of a dataset, the rate of the last ten seconds, and the time left at it.
export function progressText({ source, number, datasets, sent_bytes: sent, estimated_bytes: all, bytes_per_second: rate, seconds_left: left }) {
  return `${scaled(sent, "bytes")}${all === null ? "" : ` of about ${scaled(all, "bytes")}`} of ${source}` +
    `${datasets > 1 ? `, dataset ${number} of ${datasets}` : ""}; ${scaled(rate, "bytes/s")}${left === null ? "" : `, ${lengthOf(left)} left`}`;
}

function jobs(all) {
  const rows = Object.entries(all).map(([name, job]) => {
    const [last] = job.runs;
    return [name, workOf(job), job.schedule, job.next ? timeOf(job.next) : "–", last ? timeOf(last.began) : "–",
      h("span", { class: "value" }, job.running ? runningOf(job) : last ? resultOf(last) : "nothing done yet"),
      h("span", { class: "actions" },
        actionButton("Run now", `Run the job ${name}`, "operate", () => openAction({ title: `Run the job ${name} now`, run: "Run", build: () => ({ do: "run_job", job: name }) })),
        job.added ? [
          actionButton("Change …", `Change the job ${name}`, "administer", () => openJob(name, job.added)),
          actionButton("Remove", `Remove the job ${name}`, "administer", () => openAction({ title: `Remove the job ${name}`, run: "Remove", build: () => ({ do: "remove_job", job: name }) })),
        ] : h("span", { class: "note" }, "of weir.toml")),
      job.runs.length > 1 && h("details", { "data-key": `runs ${name}` }, h("summary", {}, `${job.runs.length} runs`),
        h("ul", {}, job.runs.map((run) => h("li", {}, `${timeOf(run.began)}: `, resultOf(run)))))];
  });
  const columns = ["Job", "Work", "Schedule", "Next run", "Last run", "Result", "Actions", "Earlier runs"].map((name) => ({ name, hidden: name === "Actions" }));
  return table("Jobs", columns, rows);
}

export function show({ status }) {
  const { alerts: all = {}, jobs: scheduled = {} } = status.answer ?? {};
  const alerts = all.alerts ?? [], receivers = all.receivers ?? [], history = all.history ?? [];
  const columns = (...names) => names.map((name) => ({ name }));
  return [
    status.error && h("pre", { class: "problem" }, status.error),
    h("section", {}, h("h2", {}, "Alerts"), alerts.length === 0 ? h("p", { class: "empty" }, "No alert.")
      : table("Alerts", [...columns("Severity", "Alert", "Text", "Since", "State"), { name: "Actions", hidden: true }], alerts.map(alertRow))),
    h("section", {}, h("h2", {}, "Jobs"), h("p", { class: "buttons" }, actionButton("Add a job …", "Add a job", "administer", () => openJob())), Object.keys(scheduled).length === 0
      ? h("p", { class: "empty" }, "No job. Jobs schedule snapshots, scrubs and replications; [[jobs]] tables of weir.toml do so, too.") : jobs(scheduled)),
    h("section", {}, h("h2", {}, "Receivers of alerts"), receivers.length === 0
      ? h("p", { class: "empty" }, "No receiver. [[alerts.send]] tables of weir.toml name programs, web addresses and mail.")
      : table("Receivers", columns("Receiver", "Waiting", "Last delivery"), receivers.map((one) => [one.name, String(one.waiting),
        one.problem ? h("span", { class: "problem" }, one.problem) : "no failure"]))),
    history.length > 0 && h("details", { "data-key": "history" }, h("summary", {}, "Earlier events"),
      table("Earlier events", columns("Time", "Event", "Alert"), history.map((one) => [timeOf(one.time), one.event, one.name]))),
  ];
}
