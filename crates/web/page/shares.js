// The screen Shares and clients: what is served, to whom, and lines to paste on a client.

import { lengthOf, scaled } from "./format.js";
import { h, table, view } from "./api.js";
import { actionButton, openAction } from "./act.js";

export async function load() {
  const [status, datasets] = await Promise.all([view("status"), view("datasets")]);
  return { status, names: Object.values(datasets.answer?.datasets ?? {}).map((one) => [one.name, one.type]) };
}

// A word for a shell.
export const quoted = (text) => (/^[A-Za-z0-9_\-./@:=,+%#]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// Host and port of an address of the server; HOST for one that does not name the machine.
export function placeOf(address) {
  const [, host, port] = /^(.*):(\d+)$/.exec(address ?? "") ?? [undefined, "", ""];
  return { host: ["0.0.0.0", "[::]", ""].includes(host) ? "HOST" : host, port };
}

// The line that a client runs to use a share; undefined if there is none.
export function pasteLine({ protocol, name }, address) {
  const { host, port } = placeOf(address);
  if (protocol === "nfs3") return `mount -t nfs -o vers=3,tcp,port=${port},mountport=${port},mountproto=tcp ${quoted(`${host}:${name}`)} /mnt`;
  if (protocol === "smb") return `mount -t cifs -o port=${port},username=NAME ${quoted(`//${host}/${name}`)} /mnt`;
  if (protocol === "nbd") return `nbd-client -N ${quoted(name)} ${host} ${port}`;
  if (protocol === "iscsi") {
    const target = name.split(/[ ,]/)[0];
    return `iscsiadm -m discovery -t st -p ${host}:${port} && iscsiadm -m node -T ${quoted(target)} -p ${host}:${port} --login`;
  }
  return undefined;
}

function openShare(names) {
  const options = [["sharenfs", "NFS: file systems"], ["sharesmb", "SMB: file systems"], ["weir:nbd", "NBD: volumes"], ["weir:iscsi", "iSCSI: volumes"]];
  openAction({
    title: "Share a dataset",
    run: "Set",
    fields: [
      { name: "dataset", label: "Dataset", type: "select", options: names.map(([name, type]) => [name, `${name} (${type === "VOLUME" ? "volume" : "file system"})`]) },
      { name: "property", label: "Protocol", type: "select", options },
      { name: "value", label: "Value", value: "on", hint: "on, off, or options such as rw=@192.0.2.0/24 or on,ro" },
    ],
    build: ({ dataset, property, value }) => ({ do: "set", dataset, property, value }),
  });
}

export function show({ status, names }) {
  const answer = status.answer ?? {};
  const protocols = answer.protocols ?? {};
  const shares = Object.values(answer.pools ?? {}).flatMap((pool) => pool.shares ?? []);
  const rows = shares.map((share) => {
    const line = share.served ? pasteLine(share, protocols[share.protocol]?.address) : undefined;
    const copy = line && h("button", { type: "button", "aria-label": `Copy the line for ${share.dataset}`, "data-key": `copy ${share.protocol} ${share.dataset}`,
      click: (event) => navigator.clipboard?.writeText(line).then(() => (event.target.textContent = "Copied"), () => {}) }, "Copy");
    return [share.dataset, share.protocol, share.name || "–",
      h("span", { class: `mark ${share.served ? "good" : "warning"}` }, share.served ? "served" : "not served"),
      [share.problems.map((why) => h("p", { class: "problem" }, why)), copy, copy && " ", line && h("code", { class: "paste" }, line)]];
  });
  const clients = Object.entries(protocols).flatMap(([protocol, { clients: all }]) => (all ?? []).map((client) => [
    client.peer, protocol, client.uses, client.connected_s === undefined ? "–" : lengthOf(client.connected_s),
    client.received_bytes === undefined ? "–" : scaled(client.received_bytes, "bytes"), client.sent_bytes === undefined ? "–" : scaled(client.sent_bytes, "bytes")]));
  const servers = Object.entries(protocols).map(([protocol, one]) => [protocol, one.address,
    one.problem ? h("span", { class: "problem" }, one.problem) : `${(one.clients ?? []).length} connections`]);
  return [
    h("div", { class: "bar" }, names.length > 0 && actionButton("Share a dataset …", "Share a dataset", "administer", () => openShare(names))),
    status.error && h("pre", { class: "problem" }, status.error),
    h("section", {}, h("h2", {}, "Shares"), rows.length === 0
      ? h("p", { class: "empty" }, "Nothing is shared. The properties sharenfs, sharesmb, weir:nbd and weir:iscsi of datasets share them.")
      : table("Shares", ["Dataset", "Protocol", "Name", "State", "On a client"].map((name) => ({ name })), rows)),
    h("section", {}, h("h2", {}, "Clients"), clients.length === 0 ? h("p", { class: "empty" }, "No client is connected.")
      : table("Clients", [{ name: "Client" }, { name: "Protocol" }, { name: "Uses" }, { name: "Connected", number: true }, { name: "Received", number: true }, { name: "Sent", number: true }], clients)),
    h("section", {}, h("h2", {}, "Servers"), table("Servers", [{ name: "Protocol" }, { name: "Address" }, { name: "State" }], servers)),
  ];
}
