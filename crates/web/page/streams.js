// Streams of snapshots as files: one is saved by the browser as it arrives, one is sent from a file of this machine.

import { h } from "./api.js";
import { openAction, say } from "./act.js";
import { lengthOf, scaled } from "./format.js";

const FORMS = [["plain", "for any pool"], ["as_stored", "as stored: large and compressed blocks as they are (-Lec)"],
  ["raw", "raw: encrypted blocks as they are, the key is not needed (-w)"]];

// The address of the stream of an action `send`, with the confirmation of its dry run.
export function addressOfStream({ do: _, ...action }, confirmation) {
  const given = Object.entries({ ...action, confirmation }).filter(([, value]) => value !== undefined && value !== false);
  return `/api/v1/admin/send?${new URLSearchParams(given)}`;
}

// `earlier` has the names of the snapshots before this one, the newest first.
export function openSave(snapshot, earlier) {
  openAction({
    title: `Save the stream of ${snapshot} as a file`,
    run: "Save",
    fields: [
      { name: "from", label: "Contents", type: "select", options: [["", "the whole snapshot"], ...earlier.map((name) => [name, `the changes since ${name}`])] },
      { name: "form", label: "Blocks", type: "select", options: FORMS },
      { name: "recursive", label: "Also all datasets below, with their snapshots and properties (-R)", type: "checkbox" },
    ],
    body: h("p", { class: "note" }, "The dry run shows the estimated size. weir zfs receive, OpenZFS, and “Receive …” of this page make a dataset of the file."),
    build: ({ from, form, recursive }) => ({ do: "send", snapshot, ...(from ? { from } : {}), recursive, raw: form === "raw", as_stored: form === "as_stored" }),
    finish: async (action, confirmation) => {
      const link = h("a", { href: addressOfStream(action, confirmation), download: "" });
      document.body.append(link);
      link.click();
      link.remove();
      say(`The browser saves the stream of ${snapshot}. If it says that this failed, the file is no whole stream; the audit log has the reason`);
    },
  });
}

// Sends a file; `progress` is called with the bytes that were sent. Fails with the whole text of the refusal.
function upload(path, file, progress, signal) {
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    // No other site can send this header.
    request.setRequestHeader("X-Weir-Request", "1");
    request.upload.addEventListener("progress", ({ loaded }) => progress(loaded));
    const answer = () => {
      try {
        return JSON.parse(request.responseText);
      } catch {
        return undefined;
      }
    };
    request.addEventListener("load", () => (request.status === 200 ? done(answer()) : failed(new Error(answer()?.error ?? `the server answered ${request.status}`))));
    request.addEventListener("error", () => failed(new Error("The connection ended before the stream did. If the server refused it, the audit log has the reason.")));
    request.addEventListener("abort", () => failed(new Error("The upload was canceled. What was not received whole is destroyed.")));
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}

export function openReceive(parent) {
  const shown = h("p", { id: "upload-progress", role: "status", hidden: true });
  openAction({
    title: `Receive a stream from a file below ${parent}`,
    run: "Receive",
    fields: [
      { name: "file", label: "File", type: "file", hint: "A stream as “Save …” of a snapshot and zfs send make it." },
      { name: "label", label: `Name of the dataset, after ${parent}/`, hint: "A new one; or, for changes since a snapshot, the dataset that has this snapshot and has not been changed since." },
      { name: "no_mount", label: "Leave it unmounted (-u)", type: "checkbox" },
    ],
    body: shown,
    build: ({ label, no_mount }) => ({ do: "receive", dataset: `${parent}/${label}`, no_mount }),
    finish: async ({ dataset, no_mount }, _, { file }, signal) => {
      if (!file) throw new Error("No file is chosen.");
      const query = new URLSearchParams({ dataset, no_mount: String(no_mount) });
      const began = performance.now();
      const bar = h("progress", { max: String(file.size), "aria-label": `Sent of ${file.name}` });
      const text = h("span", {});
      shown.replaceChildren(bar, text);
      shown.hidden = false;
      const progress = (sent) => {
        bar.value = sent;
        const seconds = (performance.now() - began) / 1000;
        const left = sent > 0 && seconds > 1 ? `, ${lengthOf((file.size - sent) * seconds / sent)} left` : "";
        text.textContent = ` ${scaled(sent, "bytes")} of ${scaled(file.size, "bytes")}${left}`;
      };
      progress(0);
      try {
        const done = await upload(`/api/v1/admin/receive?${query}`, file, progress, signal);
        say(`Done: ${done.command}, ${scaled(done.bytes, "bytes")}`, done.output);
      } finally {
        shown.hidden = true;
      }
    },
  });
}
