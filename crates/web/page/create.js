// Creation of a pool: devices are chosen, and each layout that they allow is shown with its usable space.

import { get } from "./dom.js";
import { scaled } from "./format.js";
import { h } from "./api.js";
import { openAction, say } from "./act.js";

const LAYOUTS = [["stripe", "stripe", 1, 1], ["mirror", "mirror", 2, 4], ["raidz1", "RAID-Z1", 3, 12], ["raidz2", "RAID-Z2", 4, 16], ["raidz3", "RAID-Z3", 5, 20]];
// A device can be used for one of these.
const USES = [["", "not used"], ["data", "data"], ["log", "log"], ["cache", "cache"], ["special", "special"], ["spare", "hot spare"]];

// Layouts that use this number of devices whole: kind, devices of a vdev, vdevs.
export function layoutsOf(count) {
  const out = [];
  for (const [kind, , least, most] of LAYOUTS) {
    for (let disks = least; disks <= Math.min(most, count); disks++) {
      if (count % disks === 0) out.push({ kind, disks, vdevs: count / disks });
    }
  }
  return out;
}

// Rule of thumb, said as one: random reads are served by each disk of mirrors, and by each vdev of RAID-Z.
export function ruleOf({ kind, disks, vdevs }) {
  const readers = kind.startsWith("raidz") ? vdevs : vdevs * disks;
  return `random reads of about ${readers} disk${readers === 1 ? "" : "s"}`;
}

// The vdevs of an action: the data devices in groups, then the others by their use.
export function vdevsOf(uses, layout) {
  const of = (use) => uses.filter(([, other]) => other === use).map(([path]) => path);
  const data = of("data");
  const out = [];
  if (layout) {
    for (let n = 0; n < data.length; n += layout.disks) out.push({ kind: layout.kind, devices: data.slice(n, n + layout.disks) });
  }
  const [logs, special] = [of("log"), of("special")];
  if (logs.length) out.push({ kind: logs.length > 1 ? "log_mirror" : "log", devices: logs });
  if (special.length) out.push({ kind: special.length > 1 ? "special_mirror" : "special", devices: special });
  if (of("cache").length) out.push({ kind: "cache", devices: of("cache") });
  if (of("spare").length) out.push({ kind: "spare", devices: of("spare") });
  return out;
}

export async function openCreate() {
  let devices = [];
  try {
    devices = (await get("/api/v1/admin/devices")).body;
  } catch (error) {
    say(error.message);
  }
  const uses = new Map();
  let layout, isChosen = false, spaces = new Map(), dialog, asked = 0;
  const list = h("tbody", {});
  const layouts = h("div", { id: "layouts", role: "radiogroup", "aria-label": "Layout" });
  const path = h("input", { type: "text", id: "more-device", autocomplete: "off", spellcheck: "false", placeholder: "/path" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });

  const draw = () => {
    list.replaceChildren(...devices.map((device) => {
      const select = h("select", { "aria-label": `Use of ${device.path}`, disabled: device.in_use,
        change: () => { uses.set(device.path, select.value); arrange(); } },
        USES.map(([key, text]) => h("option", { value: key }, text)));
      select.value = uses.get(device.path) ?? "";
      return h("tr", {}, h("td", {}, select), h("td", {}, device.path), h("td", { class: "number" }, scaled(device.size_bytes, "bytes")),
        h("td", {}, device.in_use ? "in use" : device.contents));
    }));
  };
  const add = async () => {
    problem.hidden = true;
    try {
      const { body } = await get(`/api/v1/admin/devices?${new URLSearchParams({ path: path.value.trim() })}`);
      devices = [...devices.filter((device) => !body.some((other) => other.path === device.path)), ...body];
      body.filter((device) => !device.in_use && device.size_bytes > 0).forEach((device) => uses.set(device.path, "data"));
      path.value = "";
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.message;
    }
    draw();
    arrange();
  };
  // Shows the layouts of the data devices, with the space of each.
  const arrange = async () => {
    const question = ++asked;
    const data = devices.filter((device) => uses.get(device.path) === "data");
    const least = Math.min(...data.map((device) => device.size_bytes));
    const possible = layoutsOf(data.length);
    const found = await Promise.all(possible.map(async (one) => {
      const query = new URLSearchParams({ kind: one.kind, disks: one.disks, vdevs: one.vdevs, disk_bytes: least });
      return get(`/api/v1/admin/capacity?${query}`).then(({ body }) => body, (error) => ({ error: error.message }));
    }));
    if (question !== asked) return;
    spaces = new Map(possible.map((one, n) => [one, found[n]]));
    // The layout that was chosen stays, if it is possible; else one that survives the loss of a disk is proposed.
    const same = (one) => isChosen && one.kind === layout.kind && one.disks === layout.disks;
    const kinds = ["raidz2", "mirror", "raidz1", "stripe"];
    layout = possible.find(same) ?? kinds.map((kind) => possible.find((one) => one.kind === kind)).find(Boolean);
    drawLayouts(least);
    dialog.changed();
  };
  const drawLayouts = (least) => {
    const name = (kind) => LAYOUTS.find(([key]) => key === kind)[1];
    const rows = [...spaces].map(([one, space], n) => {
      const input = h("input", { type: "radio", name: "layout", id: `layout-${n}`, value: String(n), change: () => { layout = one; isChosen = true; dialog.changed(); } });
      input.checked = one === layout;
      const groups = one.kind === "stripe" ? `${one.vdevs} single` : `${one.vdevs} × ${name(one.kind)} of ${one.disks}`;
      const text = space.error ?? `${scaled(space.usable_bytes, "bytes")} usable of ${scaled(space.raw_bytes, "bytes")}`;
      const loss = space.error ? "" : space.redundancy === 0 ? "no disk may fail" : `${space.redundancy} of each vdev may fail`;
      return h("tr", { "data-layout": `${one.kind}-${one.disks}`, "data-usable": space.usable_bytes },
        h("td", {}, input), h("td", {}, h("label", { for: `layout-${n}` }, groups)), h("td", {}, text), h("td", {}, loss), h("td", { class: "note wrap" }, `rule of thumb: ${ruleOf(one)}`));
    });
    layouts.replaceChildren(rows.length === 0 ? h("p", { class: "empty" }, "Choose devices for data to see the layouts that they allow.")
      : h("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Layouts" }, h("table", { "aria-label": "Layouts" }, h("tbody", {}, rows))),
    ...(rows.length === 0 ? [] : [h("p", { class: "note" }, `Usable space is what zfs list shows of the empty pool (USED and AVAIL), by the arithmetic of the engine for sectors of 4 KiB and devices of ${scaled(least, "bytes")}, the smallest one.`)]));
  };
  draw();
  drawLayouts(0);
  dialog = openAction({
    title: "Create a pool",
    run: "Create",
    danger: true,
    fields: [
      { name: "name", label: "Name of the pool" },
      { name: "compression", label: "Compression", type: "select", options: [["on", "on (lz4)"], ["zstd", "zstd"], ["off", "off"]] },
      { name: "atime", label: "Record access times (atime)", type: "checkbox", value: false },
      { name: "force", label: "Also devices that hold data, and vdevs of different redundancy (-f)", type: "checkbox" },
    ],
    body: [
      h("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Devices" }, h("table", { "aria-label": "Devices" },
        h("thead", {}, h("tr", {}, ["Use", "Device", "Size", "Contents"].map((text) => h("th", { scope: "col", class: text === "Size" ? "number" : undefined }, text)))), list)),
      devices.length === 0 && h("p", { class: "empty" }, "No block device was found. Files and other devices are added by their paths."),
      h("div", { class: "field" }, h("label", { for: "more-device" }, "Another device or file"), path,
        h("button", { type: "button", id: "add-device", click: add }, "Add")),
      problem,
      h("h3", {}, "Layout"),
      layouts,
    ],
    build: ({ name, compression, atime, force }) => ({
      do: "create_pool",
      name,
      force,
      properties: [{ property: "ashift", value: "12" }],
      root_properties: [{ property: "compression", value: compression }, { property: "atime", value: atime ? "on" : "off" }],
      vdevs: vdevsOf([...uses], layout),
    }),
  });
}
