// The screen System: version, limits, services, the log, the audit log, and how tokens are made.

import { get } from "./dom.js";
import { lengthOf, scaled } from "./format.js";
import { h, table, timeOf, view } from "./api.js";
import { may, me } from "./act.js";

export async function load() {
  const [status, log, audit] = await Promise.all([view("status"), get("/api/v1/admin/log").then(({ body }) => body),
    may("administer") ? get("/api/v1/admin/audit").then(({ body }) => body) : undefined]);
  // The uptime changes with each look, and is no reason to draw the screen again.
  const { uptime_s: uptime, ...answer } = status.answer ?? {};
  return { answer, error: status.error, since: uptime === undefined ? undefined : Math.round(((status.time || Date.now()) / 1000 - uptime) / 60) * 60, log, audit };
}

export function show({ answer, error, since, log, audit }) {
  const { version, pid, limits = {}, history = {}, http, protocols = {} } = answer;
  const facts = [
    ["Version", version && `weir ${version}, process ${pid}`],
    ["Running since", since && `${timeOf(since)} (${lengthOf(Date.now() / 1000 - since)})`],
    ["ARC, at most", limits.arc_max_bytes && scaled(limits.arc_max_bytes, "bytes")],
    ["Dirty data, at most", limits.dirty_max_bytes && scaled(limits.dirty_max_bytes, "bytes")],
    ["Memory of the machine", limits.memory_bytes && scaled(limits.memory_bytes, "bytes")],
    ["History", history.memory_bytes !== undefined && `${scaled(history.memory_bytes, "bytes")} in memory${history.disk_bytes === undefined ? "" : `, ${scaled(history.disk_bytes, "bytes")} on disk, at most ${scaled(history.disk_max_bytes, "bytes")}`}`],
    ["Page, API and metrics", http && `${http.address}; token in ${http.token_file}`],
    ["Token of this page", `${me.name}, role ${me.role}`],
  ].filter(([, text]) => text);
  const services = Object.entries(protocols).map(([name, one]) => [name, one.address, one.problem ? h("span", { class: "problem" }, one.problem) : one.listening === false ? "starts with the first share" : "listening"]);
  const columns = (...names) => names.map((name) => ({ name }));
  return [
    error && h("pre", { class: "problem" }, error),
    h("section", {}, h("h2", {}, "Process"), h("dl", {}, facts.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]))),
    services.length > 0 && h("section", {}, h("h2", {}, "Services"), table("Services", columns("Protocol", "Address", "State"), services)),
    h("section", {}, h("h2", {}, "Log"), log.length === 0 ? h("p", { class: "empty" }, "No line yet.")
      : h("pre", { class: "log", tabindex: "0", "data-scroll": "log", "aria-label": "Last lines of the log, the newest first" }, [...log].reverse().join("\n"))),
    audit && h("section", {}, h("h2", {}, "Audit log"), audit.length === 0 ? h("p", { class: "empty" }, "No action of a page yet.")
      : table("Audit log", columns("Time", "Token", "Role", "Client", "Command", "Result"),
        audit.map((line) => [timeOf(line.time), line.token, line.role, line.client, h("code", {}, line.command), h("span", { class: "value" }, line.result)]))),
    h("section", {}, h("h2", {}, "Tokens"),
      h("p", {}, "A token of its own for each person, with the role view, operate or administer, is made and revoked on the command line:"),
      h("pre", { tabindex: "0" }, "weir daemon token add NAME --role operate\nweir daemon token list\nweir daemon token revoke NAME")),
  ];
}
