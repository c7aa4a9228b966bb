// What changes the vdevs of a pool: more of them, fewer, a wider RAID-Z, a split; and work on the free space of devices.

import { get } from "./dom.js";
import { scaled } from "./format.js";
import { h } from "./api.js";
import { actionButton, openAction } from "./act.js";

const KINDS = [["stripe", "single devices"], ["mirror", "mirror"], ["raidz1", "RAID-Z1"], ["raidz2", "RAID-Z2"], ["raidz3", "RAID-Z3"],
  ["log", "log, single devices"], ["log_mirror", "log, mirror"], ["cache", "cache"], ["special", "special, single devices"],
  ["special_mirror", "special, mirror"], ["spare", "hot spares"]];

// Devices that no open pool has.
export const freeDevices = async () => {
  const { body } = await get("/api/v1/admin/devices").catch(() => ({ body: [] }));
  return body.filter((one) => !one.in_use);
};

// The paths in a text, which are separated by spaces, commas or lines.
export const pathsOf = (text) => text.split(/[\s,]+/).filter(Boolean);

export async function openAdd(pool) {
  const free = await freeDevices();
  const boxes = free.map((one) => [one.path, h("input", { type: "checkbox", id: `add-${one.path}`, "data-path": one.path })]);
  const list = boxes.map(([path, box], n) => h("div", { class: "field checkbox" }, box,
    h("label", { for: `add-${path}` }, `${path} (${scaled(free[n].size_bytes, "bytes")}, ${free[n].contents})`)));
  openAction({
    title: `Add a vdev to ${pool}`,
    run: "Add",
    danger: true,
    fields: [
      { name: "kind", label: "Kind", type: "select", options: KINDS },
      { name: "more", label: free.length > 0 ? "Other devices or files" : "Devices or files", placeholder: "/dev/… /dev/…", hint: "Absolute paths with spaces between. What is on the devices is overwritten. A vdev of data cannot always be removed again." },
      { name: "force", label: "Also devices that hold data, and vdevs of another redundancy (-f)", type: "checkbox" },
    ],
    body: [h("h3", {}, "Devices"), list.length ? list : h("p", { class: "empty" }, "No free device was found. Files and other devices are added by their paths.")],
    build: ({ kind, more, force }) => {
      const devices = [...boxes.filter(([, box]) => box.checked).map(([path]) => path), ...pathsOf(more)];
      return { do: "add_vdevs", pool, vdevs: [{ kind, devices }], force };
    },
  });
}

// Replaces a device, makes a mirror of one, or makes a RAID-Z vdev wider.
export async function openNewDevice(pool, device, what) {
  const free = await freeDevices();
  const texts = {
    replace: [`Replace ${device}`, "Replace"],
    attach: [`Attach a device to ${device}`, "Attach"],
    expand: [`Expand ${device} by a device`, "Expand"],
  }[what];
  const fields = [
    free.length > 0 && { name: "known", label: "New device", type: "select", options: [
      ...free.map((one) => [one.path, `${one.path} (${scaled(one.size_bytes, "bytes")}, ${one.contents})`]), ["", "another path"]] },
    { name: "path", label: free.length > 0 ? "Other path" : "New device", placeholder: "/dev/…", hint: "An absolute path. What is on this device is overwritten." },
    { name: "force", label: "Also if it holds data (-f)", type: "checkbox" },
  ].filter(Boolean);
  openAction({
    title: texts[0],
    fields,
    danger: true,
    run: texts[1],
    body: what === "expand" && h("p", { class: "note" }, "Data that was written before keeps its ratio of data and parity until it is written again. An expansion is not undone."),
    build: ({ known, path, force }) => ({ do: what === "replace" ? "replace" : "attach", pool, device, new_device: path || known || "", force }),
  });
}

export const openRemove = (pool, device) => openAction({
  title: `Remove ${device} from ${pool}`,
  run: "Remove",
  danger: true,
  body: h("p", { class: "note" }, "Data of the vdev moves to the others, while the pool serves. Vdevs of a pool with RAID-Z or dRAID cannot be removed, except log, cache and spare devices."),
  build: () => ({ do: "remove", pool, device }),
});

// Trim or initialize: all devices of a pool, or one.
export function openWork(what, pool, device) {
  const title = `${what === "trim" ? "Trim" : "Initialize"} ${device ?? pool}`;
  openAction({
    title,
    run: "Do it",
    fields: [{ name: "step", label: "Step", type: "select", options: [["start", "start or continue"], ["suspend", "suspend"], ["cancel", "cancel"]] }],
    body: h("p", { class: "note" }, what === "trim" ? "Discards the free space, so that an SSD or a sparse file need not keep it."
      : "Writes to all free space once. Thin storage is allocated by it."),
    build: ({ step }) => ({ do: what, pool, ...(device ? { device } : {}), step }),
  });
}

// Further actions on a pool.
export function poolButtons(pool) {
  const { name } = pool;
  const plain = (text, title, action, more = {}) => actionButton(text, `${title} ${name}`, "administer",
    () => openAction({ title: `${title} ${name}`, run: title.split(" ")[0], build: (values) => ({ ...action, ...values }), ...more }));
  const hasMirror = Object.values(pool.vdevs ?? {}).flatMap((root) => Object.values(root.vdevs ?? {})).some((vdev) => vdev.vdev_type === "mirror");
  const isRemoving = pool.removal_stats?.state === "SCANNING" || pool.removal_stats?.state === "ACTIVE";
  return [
    actionButton("Add a vdev …", `Add a vdev to ${name}`, "administer", () => openAdd(name)),
    isRemoving && plain("Stop removal", "Stop the removal of", { do: "stop_removal", pool: name }),
    hasMirror && plain("Split …", "Split", { do: "split", pool: name }, { danger: true, fields: [{ name: "name", label: "Name of the new pool", hint: "It gets the last device of each mirror, and is left exported." }] }),
    actionButton("Trim …", `Trim ${name}`, "operate", () => openWork("trim", name)),
    actionButton("Initialize …", `Initialize ${name}`, "administer", () => openWork("initialize", name)),
    pool.checkpoint_stats ? plain("Discard checkpoint …", "Discard the checkpoint of", { do: "discard_checkpoint", pool: name }, { danger: true })
      : plain("Checkpoint", "Checkpoint", { do: "checkpoint", pool: name }, { body: h("p", { class: "note" }, "Keeps this state: an import with --rewind-to-checkpoint goes back to it. Until it is discarded, no space is freed, and vdevs stay as they are.") }),
    plain("Upgrade …", "Upgrade", { do: "upgrade", pool: name }, { danger: true, body: h("p", { class: "note" }, "Enables all features. Software that lacks one can then not write, or not open, the pool.") }),
  ];
}
