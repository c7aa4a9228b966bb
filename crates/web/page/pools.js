// The screen Pools: tree of vdevs, errors, scrubs, and what can be done to them.

import { lengthOf, scaled } from "./format.js";
import { briefly, h, table, timeOf, value, view } from "./api.js";
import { actionButton, openAction, readOnly, refusing } from "./act.js";
import { openCreate } from "./create.js";
import { openNewDevice, openRemove, openWork, poolButtons } from "./vdevs.js";

export async function load() {
  const [status, sizes] = await Promise.all([view("pools"), view("sizes")]);
  return { status, sizes, time: status.time };
}

// The scan of a pool in words; `now` is the server's time in milliseconds.
export function scanText(scan, now) {
  if (!scan) return "no scrub yet";
  const what = scan.function === "RESILVER" ? "resilver" : "scrub";
  const percent = scan.to_examine > 0 ? Math.min(100, (100 * scan.issued) / scan.to_examine) : 100;
  const errors = `${scan.errors} errors`;
  if (scan.state === "FINISHED") {
    return `${what} ended ${timeOf(scan.end_time)} after ${lengthOf(scan.end_time - scan.start_time)}, ${scaled(scan.processed, "bytes")} repaired, ${errors}`;
  }
  if (scan.state === "CANCELED") return `${what} stopped ${timeOf(scan.end_time)}`;
  const part = `${what} ${percent.toFixed(1)} % of ${scaled(scan.to_examine, "bytes")}, ${errors}`;
  if (scan.scrub_pause) return `${part}; paused`;
  const ran = now / 1000 - scan.start_time - (scan.scrub_spent_paused ?? 0);
  if (scan.issued <= 0 || ran < 1) return `${part}; the time left is not known yet`;
  return `${part}; ${lengthOf(((scan.to_examine - scan.issued) * ran) / scan.issued)} left at the rate so far`;
}

const isRunning = (scan) => scan?.state === "SCANNING" && !scan.scrub_pause;

// The vdevs of a tree in order, with their depth.
export function flat(vdevs, depth = 0, parent = undefined) {
  return Object.values(vdevs ?? {}).flatMap((vdev) => [
    { vdev, depth, parent },
    ...flat(vdev.vdevs, depth + 1, vdev),
  ]);
}

const GROUPS = [["dedup", "dedup"], ["special", "special"], ["logs", "logs"], ["l2cache", "cache"], ["spares", "spares"]];

function deviceActions(pool, vdev, parent) {
  const name = vdev.name;
  const of = (text, what, role, action, more = {}) => actionButton(text, `${what} ${name} of ${pool}`, role,
    () => openAction({ title: `${what}: ${name}`, build: () => action, run: what, ...more }));
  const isOut = vdev.state === "OFFLINE" || vdev.state === "FAULTED" || vdev.state === "REMOVED" || vdev.state === "UNAVAIL";
  const isSide = parent && (parent.vdev_type === "mirror" || parent.vdev_type === "replacing" || parent.vdev_type === "spare");
  return h("span", { class: "actions" },
    isOut ? of("Online", "Put into service", "administer", { do: "online", pool, device: name })
      : of("Offline", "Take out of service", "administer", { do: "offline", pool, device: name }),
    actionButton("Replace …", `Replace ${name} of ${pool}`, "administer", () => openNewDevice(pool, name, "replace")),
    (isSide || parent?.vdev_type === "root") && actionButton("Attach …", `Attach a device to ${name} of ${pool}`, "administer", () => openNewDevice(pool, name, "attach")),
    isSide && of("Detach …", "Detach", "administer", { do: "detach", pool, device: name }, { danger: true }),
    parent?.vdev_type === "root" && actionButton("Remove …", `Remove ${name} from ${pool}`, "administer", () => openRemove(pool, name)),
    actionButton("Trim …", `Trim ${name} of ${pool}`, "operate", () => openWork("trim", pool, name)),
    of("Clear", "Clear the errors of", "operate", { do: "clear", pool, device: name }));
}

// What can be done to a vdev of several devices.
function vdevActions(pool, vdev) {
  const { name } = vdev;
  return h("span", { class: "actions" },
    vdev.vdev_type === "raidz" && actionButton("Expand …", `Expand ${name} of ${pool}`, "administer", () => openNewDevice(pool, name, "expand")),
    vdev.vdev_type === "mirror" && actionButton("Remove …", `Remove ${name} from ${pool}`, "administer", () => openRemove(pool, name)));
}

// A device of a class beside the data, such as a spare.
const otherActions = (pool, vdev) => h("span", { class: "actions" },
  actionButton("Remove …", `Remove ${vdev.name} from ${pool}`, "administer", () => openRemove(pool, vdev.name)));

const STATE_CLASSES = { ONLINE: "good", DEGRADED: "warning", AVAIL: "good", INUSE: "active", OFFLINE: "warning" };
export const stateMark = (state) => h("span", { class: `mark ${STATE_CLASSES[state] ?? "critical"}` }, state ?? "?");

function tree(pool, name) {
  const rows = flat(pool.vdevs).map(({ vdev, depth, parent }) => ({ vdev, depth, parent }));
  for (const [key, label] of GROUPS) {
    if (!pool[key]) continue;
    rows.push({ vdev: { name: label }, depth: 0 });
    rows.push(...flat(pool[key], 1).map((row) => ({ ...row, isOther: true })));
  }
  const number = (count) => (count === undefined ? "" : String(count));
  const cells = ({ vdev, depth, parent, isOther }) => {
    const isLeaf = !vdev.vdevs && vdev.vdev_type !== undefined;
    const label = h("span", { class: briefly(vdev.name, `depth-${Math.min(depth, 4)}`) }, vdev.name);
    return [label, vdev.state ? stateMark(vdev.state) : "", number(vdev.read_errors), number(vdev.write_errors), number(vdev.checksum_errors),
      number(vdev.slow_ios), actionsOf({ vdev, depth, parent, isOther, isLeaf })];
  };
  const actionsOf = ({ vdev, depth, parent, isOther, isLeaf }) => {
    if (!isOther) return isLeaf ? deviceActions(name, vdev, parent) : parent ? vdevActions(name, vdev) : "";
    return depth === 1 && vdev.vdev_type ? otherActions(name, vdev) : "";
  };
  const numbers = ["Read", "Write", "Checksum", "Slow"].map((text) => ({ name: text, number: true }));
  return table(`Devices of ${name}`, [{ name: "Device" }, { name: "State" }, ...numbers, { name: "Actions", hidden: true }], rows.map(cells));
}

// A pool that was imported read-only is exported, and nothing else is done to it.
function card(pool, size, now) {
  const why = readOnly(size.properties);
  return refusing(why, () => cardOf(pool, size, now, why));
}

function cardOf(pool, size, now, why) {
  const name = pool.name;
  const total = value(size, "size") ?? 0, used = value(size, "allocated") ?? 0;
  const scan = pool.scan_stats;
  const scrub = (text, what, step) => actionButton(text, `${what} of ${name}`, "operate",
    () => openAction({ title: `${what}: ${name}`, run: what, build: () => ({ do: "scrub", pool: name, step }) }));
  const simple = (text, what, role, action, fields) => actionButton(text, `${what} ${name}`, role,
    () => openAction({ title: `${what}: ${name}`, fields, run: what, danger: true, build: (values) => ({ ...action, ...values }) }));
  const force = [{ name: "force", label: "Also if clients use it (-f)", type: "checkbox" }];
  return h("article", { class: "card", "aria-label": `Pool ${name}` },
    h("header", {}, h("h2", {}, name), stateMark(pool.state),
      h("meter", { min: 0, max: 100, low: 80, high: 90, optimum: 0, value: total ? (100 * used) / total : 0, "aria-label": `Allocated space of ${name}` }),
      h("span", {}, `${scaled(used, "bytes")} of ${scaled(total, "bytes")} allocated, ${value(size, "fragmentation") ?? "–"} % fragmented`)),
    why && h("p", { class: "note" }, `Nothing on it can be changed: ${why}. Export it, and import it again without readonly=on to change it.`),
    pool.status && h("p", {}, pool.status),
    pool.action && h("p", { class: "advice" }, pool.action),
    h("p", { class: "scan" }, scanText(scan, now), scan?.state === "SCANNING" && scan.to_examine > 0 &&
      h("progress", { max: scan.to_examine, value: Math.min(scan.issued, scan.to_examine), "aria-label": `Progress on ${name}` })),
    pool.error_count > 0 && h("p", { class: "problem" }, `${pool.error_count} blocks could not be read: zpool status -v ${name} lists the files`),
    h("p", { class: "buttons" },
      isRunning(scan) && scan.function === "SCRUB" ? [scrub("Pause", "Pause the scrub", "pause"), scrub("Stop", "Stop the scrub", "stop")]
        : scrub(scan?.scrub_pause ? "Continue scrub" : "Scrub", scan?.scrub_pause ? "Continue the scrub" : "Scrub", "start"),
      actionButton("Clear errors", `Clear the errors of ${name}`, "operate",
        () => openAction({ title: `Clear the errors of ${name}`, run: "Clear", build: () => ({ do: "clear", pool: name }) })),
      poolButtons(pool),
      refusing(undefined, () => simple("Export …", "Export", "administer", { do: "export", pool: name }, force)),
      simple("Destroy …", "Destroy the pool", "administer", { do: "destroy_pool", pool: name }, force)),
    tree(pool, name));
}

// Pools that a search found: names and GUIDs in the text of `zpool import`.
export function importable(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const [, key, rest] = /^\s*(pool|id|state):\s*(.*)$/.exec(line) ?? [];
    if (key === "pool") found.push({ pool: rest });
    else if (key && found.length) found[found.length - 1][key] = rest;
  }
  return found.filter((one) => one.id);
}

function openImport() {
  const list = h("pre", { tabindex: "0" }, "Press “Search”.");
  const chosen = h("select", { id: "import-pool", name: "import-pool" });
  const search = async () => {
    list.textContent = "Searching …";
    const place = document.getElementById("field-directory").value.trim();
    try {
      const { text } = await view("import", place || undefined);
      list.textContent = text.trimEnd();
      chosen.replaceChildren(...importable(text).map((one) => h("option", { value: one.id }, `${one.pool} (${one.id}, ${one.state})`)));
    } catch (error) {
      list.textContent = error.message;
      chosen.replaceChildren();
    }
    dialog.changed();
  };
  const dialog = openAction({
    title: "Import a pool",
    run: "Import",
    fields: [
      { name: "directory", label: "Directory or device to search", placeholder: "all block devices", hint: "An absolute path; empty for all block devices." },
      { name: "force", label: "Also if another host used it last (-f)", type: "checkbox" },
    ],
    body: [h("p", { class: "buttons" }, h("button", { type: "button", id: "import-search", click: search }, "Search")), list,
      h("div", { class: "field" }, h("label", { for: "import-pool" }, "Pool"), chosen)],
    build: ({ directory, force }) => ({ do: "import", pool: chosen.value, ...(directory ? { directory } : {}), force }),
  });
}

export function show({ status, sizes, time }) {
  const pools = Object.values(status.answer?.pools ?? {});
  const size = (name) => sizes.answer?.pools?.[name] ?? {};
  return [
    h("div", { class: "bar" },
      actionButton("Create a pool …", "Create a pool", "administer", openCreate),
      actionButton("Import a pool …", "Import a pool", "administer", openImport)),
    status.error && h("pre", { class: "problem" }, status.error),
    pools.length === 0 && h("p", { class: "empty" }, "No pool is open. Create one of devices of this machine, or import one."),
    pools.map((pool) => card(pool, size(pool.name), time || Date.now())),
  ];
}
