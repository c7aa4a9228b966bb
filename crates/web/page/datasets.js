// The screen Datasets: table of file systems and volumes; of the chosen one its properties and snapshots.

import { scaled } from "./format.js";
import { briefly, h, table, timeOf, value, view } from "./api.js";
import { actionButton, openAction, readOnly, refusing } from "./act.js";
import { jobOf } from "./alerts.js";
import { openReceive, openSave } from "./streams.js";

// Name in the address: #datasets:NAME.
export const chosen = () => {
  const [, ...rest] = location.hash.slice(1).split(":");
  const name = rest.join(":");
  try {
    return name ? decodeURIComponent(name) : undefined;
  } catch {
    return undefined;
  }
};
export const addressOf = (name) => `#datasets:${encodeURIComponent(name)}`;

export async function load() {
  const [all, sizes] = await Promise.all([view("datasets"), view("sizes")]);
  const name = chosen();
  const why = readOnly(sizes.answer?.pools?.[name?.split("/")[0]]?.properties);
  if (!name || !all.answer?.datasets?.[name]) return { all, name };
  const [snapshots, properties] = await Promise.all([view("snapshots", name), view("properties", name)]);
  return { all, name, why, snapshots, properties };
}

const bytes = (found) => (typeof found === "number" ? scaled(found, "bytes") : found ?? "–");
const shown = (found) => (found === undefined || found === null || found === "" ? "–" : String(found));

function list(all, name) {
  const columns = [{ name: "Dataset" }, { name: "Used", number: true }, { name: "Available", number: true }, { name: "Referenced", number: true },
    { name: "In snapshots", number: true }, { name: "Ratio", number: true }, { name: "Quota", number: true }, { name: "Mount point" }, { name: "Key" }];
  const rows = Object.values(all).map((one) => {
    const depth = Math.min(one.name.split("/").length - 1, 4);
    const label = depth === 0 ? one.name : one.name.split("/").slice(depth).join("/");
    const link = h("a", { href: addressOf(one.name), class: briefly(label, `depth-${depth}`), "data-key": `link ${one.name}`,
      "aria-current": one.name === name ? "true" : undefined }, label);
    if (depth > 0) link.setAttribute("aria-label", one.name);
    const quota = value(one, "quota");
    const isVolume = value(one, "type") === "volume" || one.type === "VOLUME";
    return [h("span", {}, link, isVolume ? h("span", { class: "note" }, ` volume of ${bytes(value(one, "volsize"))}`) : ""),
      bytes(value(one, "used")), bytes(value(one, "available")), bytes(value(one, "referenced")), bytes(value(one, "usedbysnapshots")),
      shown(value(one, "compressratio")), quota ? bytes(quota) : "–", isVolume ? "–" : shown(value(one, "mountpoint")),
      value(one, "encryption") === "off" ? "–" : shown(value(one, "keystatus"))];
  });
  return table("Datasets", columns, rows);
}

function openSnapshot(name) {
  const stamp = new Date().toISOString().slice(0, 16).replace(/[-:]/g, "").replace("T", "-");
  openAction({
    title: `Snapshot of ${name}`,
    run: "Take the snapshot",
    fields: [{ name: "label", label: "Name of the snapshot", value: `manual-${stamp}` }, { name: "recursive", label: "Also of all datasets below (-r)", type: "checkbox" }],
    build: ({ label, recursive }) => ({ do: "snapshot", snapshot: `${name}@${label}`, recursive }),
  });
}

function openCreateBelow(name) {
  openAction({
    title: `New dataset below ${name}`,
    run: "Create",
    fields: [
      { name: "label", label: `Name, after ${name}/` },
      { name: "kind", label: "Kind", type: "select", options: [["fs", "file system"], ["volume", "volume (block device)"]] },
      { name: "size", label: "Size of a volume", placeholder: "10G", when: ({ kind }) => kind === "volume" },
      { name: "sparse", label: "A volume reserves no space (-s)", type: "checkbox", when: ({ kind }) => kind === "volume" },
      { name: "compression", label: "Compression", type: "select", options: [["", "inherited"], ["on", "on"], ["zstd", "zstd"], ["off", "off"]] },
      { name: "record", label: "recordsize (file system) or volblocksize (volume)", placeholder: "inherited" },
      { name: "quota", label: "Quota of a file system", placeholder: "none", when: ({ kind }) => kind === "fs" },
      { name: "encryption", label: "Encryption", type: "select", options: [["", "as the dataset above"], ["on", "on, with a passphrase of its own"]] },
      { name: "secret", label: "Passphrase, at least 8 characters", type: "secret", when: ({ encryption }) => encryption === "on" },
      { name: "again", label: "The passphrase again", type: "secret", when: ({ encryption }) => encryption === "on" },
    ],
    build: ({ label, kind, size, sparse, compression, record, quota, encryption }) => {
      const isVolume = kind === "volume";
      const properties = [["compression", compression], [isVolume ? "volblocksize" : "recordsize", record], ["quota", isVolume ? "" : quota],
        ["encryption", encryption], ["keyformat", encryption && "passphrase"]];
      return {
        do: "create_dataset",
        name: `${name}/${label}`,
        ...(isVolume ? { volume_size: size, sparse } : {}),
        properties: properties.filter(([, text]) => text).map(([property, text]) => ({ property, value: text })),
      };
    },
  });
}

// Sends a dataset to another one or another host: a job of `weir replicate`, which begins at once, and again by its schedule. The screen
// Alerts and jobs has its runs.
function openSend(name) {
  openAction({
    title: `Send ${name} to another dataset or host`,
    run: "Send",
    fields: [
      { name: "target", label: "Target", placeholder: "DATASET, or HOST:DATASET", hint: "It gets all snapshots. Alerts and jobs has the progress, and removes the job." },
      { name: "name", label: "Name of the job", value: `send-${name.split("/").pop()}`, hint: "It begins the names of the snapshots." },
      { name: "schedule", label: "Again", value: "daily 02:30", hint: "hourly, every 15 min, daily 02:30, weekly sun 03:00, monthly 1 03:00" },
      { name: "recursive", label: "Also all datasets below (-r)", type: "checkbox" },
      { name: "limit", label: "Bytes per second, at most", placeholder: "no limit" },
    ],
    build: (values) => jobOf({ ...values, work: "replicate", source: name }, false),
  });
}

function openDestroy(name, title) {
  openAction({
    title: title ?? `Destroy ${name}`,
    run: "Destroy",
    danger: true,
    fields: [
      { name: "recursive", label: name.includes("@") ? "Also the snapshots of these names of all datasets below (-r)" : "Also its snapshots and all datasets below (-r)", type: "checkbox" },
      { name: "dependents", label: "Also clones elsewhere (-R)", type: "checkbox" },
    ],
    build: (values) => ({ do: "destroy", name, ...values }),
  });
}

function openSet(name, property, present) {
  openAction({
    title: property ? `Set ${property} of ${name}` : `Set a property of ${name}`,
    run: "Set",
    fields: [
      !property && { name: "property", label: "Property", placeholder: "compression, or module:name" },
      { name: "value", label: "Value", value: present },
    ].filter(Boolean),
    build: ({ property: other, value: text }) => ({ do: "set", dataset: name, property: property ?? other, value: text }),
  });
}

// Actions on the key of an encryption root.
function keyButtons(name, one) {
  if (value(one, "encryption") === "off" || value(one, "encryption") === undefined) return [];
  const root = value(one, "encryptionroot");
  if (root !== name) return h("span", { class: "note" }, "its key is that of ", h("a", { href: addressOf(root) }, root));
  const passphrase = [{ name: "secret", label: "Passphrase or hexadecimal key", type: "secret", hint: "If keylocation is a file, the key is read from it, and this stays empty." }];
  const fresh = [{ name: "secret", label: "New passphrase, at least 8 characters", type: "secret" }, { name: "again", label: "The new passphrase again", type: "secret" }];
  const open = (title, run, action, fields) => () => openAction({ title: `${title} ${name}`, run, fields, build: () => ({ do: action, dataset: name }) });
  return value(one, "keystatus") === "available" ? [
    actionButton("Unload key", `Unload the key of ${name}`, "administer", open("Unload the key of", "Unload", "unload_key", [])),
    actionButton("Change key …", `Change the key of ${name}`, "administer", open("Change the key of", "Change", "change_key", fresh)),
  ] : actionButton("Load key …", `Load the key of ${name}`, "administer", open("Load the key of", "Load", "load_key", passphrase));
}

function openRename(name) {
  openAction({
    title: `Rename ${name}`,
    run: "Rename",
    fields: [{ name: "new_name", label: "New name, whole", value: name }],
    build: (values) => ({ do: "rename", name, ...values }),
  });
}

// Mounts or unmounts a file system.
function mountButton(name, one) {
  const isMounted = value(one, "mounted");
  if (isMounted !== "yes" && isMounted !== "no") return undefined;
  return isMounted === "yes" ? actionButton("Unmount", `Unmount ${name}`, "administer", () => openAction({
    title: `Unmount ${name}`, run: "Unmount", fields: [{ name: "force", label: "Also if it is in use (-f)", type: "checkbox" }], build: (values) => ({ do: "unmount", dataset: name, ...values }),
  })) : actionButton("Mount", `Mount ${name}`, "administer", () => openAction({ title: `Mount ${name}`, run: "Mount", build: () => ({ do: "mount", dataset: name }) }));
}

function properties(name, answer) {
  const found = answer.answer?.datasets?.[name]?.properties ?? {};
  const rows = Object.entries(found).map(([property, { value: text, source }]) => {
    const kind = source?.type ?? "NONE";
    const from = { NONE: "–", DEFAULT: "default", LOCAL: "local", RECEIVED: "received", TEMPORARY: "temporary" }[kind] ?? `inherited from ${source?.data}`;
    const isSettable = kind !== "NONE";
    return [property, h("span", { class: "value" }, shown(text)), from, isSettable && h("span", { class: "actions" },
      actionButton("Set …", `Set ${property} of ${name}`, "administer", () => openSet(name, property, text)),
      (kind === "LOCAL" || kind === "RECEIVED") && actionButton("Inherit", `Inherit ${property} of ${name}`, "administer",
        () => openAction({ title: `Inherit ${property} of ${name}`, run: "Inherit", build: () => ({ do: "inherit", dataset: name, property }) })))];
  });
  return [
    h("p", { class: "buttons" }, actionButton("Set a property …", `Set any property of ${name}`, "administer", () => openSet(name))),
    answer.error && h("pre", { class: "problem" }, answer.error),
    table(`Properties of ${name}`, [{ name: "Property" }, { name: "Value" }, { name: "Source" }, { name: "Actions", hidden: true }], rows),
  ];
}

function openHold(snapshot, what) {
  openAction({
    title: `${what === "hold" ? "Hold" : "Release"} ${snapshot}`,
    run: what === "hold" ? "Hold" : "Release",
    fields: [{ name: "tag", label: "Tag", value: "keep", hint: "A held snapshot is not destroyed. weir zfs holds lists the tags." }],
    build: (values) => ({ do: what, snapshot, ...values }),
  });
}

function snapshots(name, answer) {
  const found = Object.values(answer.answer?.datasets ?? {});
  if (answer.error) return h("pre", { class: "problem" }, answer.error);
  if (found.length === 0) return h("p", { class: "empty" }, "No snapshot. A snapshot takes no space until data is changed or deleted.");
  const boxes = new Map(found.map((one) => [one.name, h("input", { type: "checkbox", "aria-label": `Choose ${one.name}`, "data-key": `box ${one.name}` })]));
  const openChosen = () => {
    const names = [...boxes].filter(([, box]) => box.checked).map(([full]) => full.split("@")[1]);
    if (names.length === 0) return;
    openDestroy(`${name}@${names.join(",")}`, `Destroy ${names.length} snapshots of ${name}`);
  };
  const last = found[found.length - 1].name;
  // Of the snapshots before one, the newest first.
  const before = (at) => found.slice(0, at).map((one) => one.name).reverse();
  const rows = found.map((one, at) => [boxes.get(one.name), one.name.split("@")[1], timeOf(value(one, "creation")), bytes(value(one, "used")), bytes(value(one, "written")),
    bytes(value(one, "referenced")), String(value(one, "userrefs") ?? 0), shown(value(one, "clones")),
    h("span", { class: "actions" },
      actionButton("Roll back …", `Roll back to ${one.name}`, "administer", () => openAction({
        title: `Set ${name} back to ${one.name}`,
        run: "Roll back",
        danger: true,
        fields: [{ name: "destroy_later", label: "Destroy the later snapshots and bookmarks (-r)", type: "checkbox", value: one.name !== last }],
        build: (values) => ({ do: "rollback", snapshot: one.name, ...values }),
      })),
      actionButton("Clone …", `Clone ${one.name}`, "administer", () => openAction({
        title: `Clone of ${one.name}`,
        run: "Clone",
        fields: [{ name: "name", label: "Name of the new dataset", value: `${name}-clone` }],
        build: (values) => ({ do: "clone", snapshot: one.name, ...values }),
      })),
      refusing(undefined, () => actionButton("Save …", `Save the stream of ${one.name} as a file`, "administer", () => openSave(one.name, before(at)))),
      actionButton("Hold …", `Hold ${one.name}`, "administer", () => openHold(one.name, "hold")),
      (value(one, "userrefs") ?? 0) > 0 && actionButton("Release …", `Release ${one.name}`, "administer", () => openHold(one.name, "release")),
      actionButton("Destroy …", `Destroy ${one.name}`, "administer", () => openDestroy(one.name)))]);
  const columns = [{ name: "Choose", hidden: true }, { name: "Snapshot" }, { name: "Taken" }, { name: "Freed if destroyed alone", number: true }, { name: "Written before", number: true },
    { name: "Referenced", number: true }, { name: "Holds", number: true }, { name: "Clones" }, { name: "Actions", hidden: true }];
  return [
    h("p", { class: "buttons" }, actionButton("Destroy the chosen …", `Destroy the chosen snapshots of ${name}`, "administer", openChosen),
      h("span", { class: "note" }, "The dry run shows the space that several free together, which is more than the sum.")),
    table(`Snapshots of ${name}`, columns, rows),
  ];
}

export function show({ all, name, why, snapshots: taken, properties: found }) {
  const datasets = all.answer?.datasets ?? {};
  const detail = () => h("section", { class: "card", "aria-labelledby": "dataset-heading" },
    h("h2", { id: "dataset-heading", tabindex: "-1", "data-chosen": name }, name),
    why && h("p", { class: "note" }, `It cannot be changed: ${why}.`),
    h("p", { class: "buttons" },
      actionButton("Snapshot …", `Take a snapshot of ${name}`, "operate", () => openSnapshot(name)),
      actionButton("Create below …", `Create a dataset below ${name}`, "administer", () => openCreateBelow(name)),
      actionButton("Receive …", `Receive a stream from a file below ${name}`, "administer", () => openReceive(name)),
      actionButton("Send …", `Send ${name} to another dataset or host`, "administer", () => openSend(name)),
      name.includes("/") && actionButton("Destroy …", `Destroy ${name}`, "administer", () => openDestroy(name)),
      name.includes("/") && actionButton("Rename …", `Rename ${name}`, "administer", () => openRename(name)),
      refusing(undefined, () => mountButton(name, datasets[name])),
      refusing(undefined, () => keyButtons(name, datasets[name])),
      value(datasets[name], "origin") && value(datasets[name], "origin") !== "-" && actionButton("Promote", `Promote ${name}`, "administer",
        () => openAction({ title: `Promote ${name}`, run: "Promote", build: () => ({ do: "promote", dataset: name }) })),
      value(datasets[name], "origin") && value(datasets[name], "origin") !== "-" && h("span", { class: "note" }, `clone of ${value(datasets[name], "origin")}`)),
    h("h3", {}, "Snapshots"),
    snapshots(name, taken),
    h("details", { "data-key": "properties", open: false }, h("summary", {}, "Properties, with their sources"), properties(name, found)));
  return [
    all.error && h("pre", { class: "problem" }, all.error),
    Object.keys(datasets).length === 0 ? h("p", { class: "empty" }, "No dataset: no pool is open.") : list(datasets, name),
    name && (taken ? refusing(why, detail) : h("p", { class: "empty" }, `There is no dataset ${name}.`)),
    !name && Object.keys(datasets).length > 0 && h("p", { class: "note" }, "Choose a dataset to see its snapshots and properties."),
  ];
}
