// The screen Disks: devices of the open pools and free ones: model, serial number, health by SMART, errors, and what can be done.

import { get } from "./dom.js";
import { scaled } from "./format.js";
import { h, table, view } from "./api.js";
import { actionButton, openAction, readOnly, refusing } from "./act.js";
import { flat, stateMark } from "./pools.js";
import { openNewDevice, openWork } from "./vdevs.js";

export async function load() {
  const [status, sizes, disks] = await Promise.all([view("pools"), view("sizes"), get("/api/v1/admin/disks").then(({ body }) => body)]);
  const refused = Object.fromEntries(Object.entries(sizes.answer?.pools ?? {}).map(([name, size]) => [name, readOnly(size.properties)]));
  return { status, disks, refused };
}

// Devices of pools by path: pool, name, and the row of zpool status.
export function usesOf(pools) {
  const uses = new Map();
  for (const pool of pools) {
    const all = [...flat(pool.vdevs), ...["dedup", "special", "logs", "l2cache", "spares"].flatMap((group) => flat(pool[group]))];
    for (const { vdev } of all) {
      if (vdev.path) uses.set(vdev.path, { pool: pool.name, vdev });
    }
  }
  return uses;
}

function health({ smart, smart_problem: problem }) {
  if (!smart) return h("span", { class: "note wrap" }, problem ?? "–");
  const hasPassed = smart.passed;
  const mark = h("span", { class: `mark ${hasPassed === null ? "" : hasPassed ? "good" : "critical"}` }, hasPassed === null ? "not said" : hasPassed ? "passed" : "failed");
  return h("span", {}, mark, smart.findings.length > 0 && h("span", { class: "problem" }, ` ${smart.findings.join("; ")}`));
}

const openWipe = (path) => openAction({
  title: `Wipe the labels of ${path}`,
  run: "Wipe",
  danger: true,
  fields: [{ name: "force", label: "Also if its pool was not exported (-f)", type: "checkbox" }],
  build: ({ force }) => ({ do: "wipe", device: path, force }),
});

export function show({ status, disks, refused }) {
  const pools = Object.values(status.answer?.pools ?? {});
  const uses = usesOf(pools);
  const columns = [{ name: "Device" }, { name: "Pool" }, { name: "State" }, { name: "Model and serial number" }, { name: "Size", number: true },
    { name: "Kind" }, { name: "SMART" }, { name: "Temperature", number: true }, { name: "Powered on", number: true },
    { name: "Read, write, checksum errors", number: true }, { name: "Slow", number: true }, { name: "Actions", hidden: true }];
  const rows = disks.map((disk) => {
    const use = uses.get(disk.path);
    const { vdev, pool } = use ?? {};
    const device = vdev?.name;
    const actions = use ? refusing(refused[pool], () => [
      actionButton("Clear", `Clear the errors of ${device} of ${pool}`, "operate", () => openAction({ title: `Clear the errors of ${device}`, run: "Clear", build: () => ({ do: "clear", pool, device }) })),
      actionButton("Replace …", `Replace ${device} of ${pool}`, "administer", () => openNewDevice(pool, device, "replace")),
      actionButton("Trim …", `Trim ${device} of ${pool}`, "operate", () => openWork("trim", pool, device)),
      actionButton("Initialize …", `Initialize ${device} of ${pool}`, "administer", () => openWork("initialize", pool, device)),
    ]) : actionButton("Wipe …", `Wipe the labels of ${disk.path}`, "administer", () => openWipe(disk.path));
    const kind = disk.rotates === null ? "file" : disk.rotates ? "hard disk" : "SSD";
    return [disk.path, use ? pool : h("span", { class: "note" }, disk.contents), vdev?.state ? stateMark(vdev.state) : "–",
      [disk.model, disk.serial].filter(Boolean).join(", ") || "–", scaled(disk.size_bytes, "bytes"), kind, health(disk),
      disk.smart?.celsius == null ? "–" : `${disk.smart.celsius} °C`, disk.smart?.power_on_hours == null ? "–" : `${disk.smart.power_on_hours} h`,
      vdev ? `${vdev.read_errors ?? 0}, ${vdev.write_errors ?? 0}, ${vdev.checksum_errors ?? 0}` : "–", vdev?.slow_ios === undefined ? "–" : String(vdev.slow_ios),
      h("span", { class: "actions" }, actions)];
  });
  return [
    status.error && h("pre", { class: "problem" }, status.error),
    disks.length === 0 ? h("p", { class: "empty" }, "No device: no pool is open, and no block device is free.") : table("Disks", columns, rows),
    h("p", { class: "note" }, "SMART is read by smartctl (package smartmontools), at most every five minutes, and not from disks that are spun down."),
  ];
}
