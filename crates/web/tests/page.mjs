// Tests of the page's modules that need no browser. `cargo test -p weir-web` runs them with node if there is one.

import assert from "node:assert/strict";
import test from "node:test";
import { csv, fileName, lengthOf, quantile, scaled } from "../page/format.js";
import { continued, dataOf, linesOf, nearest, resolutionFor, summaryOf } from "../page/series.js";

const points = (...values) => values.map((value, n) => ({ time: 1000 * (n + 1), values: [].concat(value) }));
const graph = { series: [["a", "A"], ["b", "B"]] };
const x = (time) => time / 1000;

test("what is not known is a gap and not zero", () => {
  // The first points are of a version without the series b.
  const data = dataOf(graph, ["a", "b"], points([1, null], [2, null], [3, 5], [4, 6]), 1);
  assert.deepEqual(data.columns, [[1, 2, 3, 4], [null, null, 5, 6]]);
  assert.deepEqual(linesOf(data, x, 1, false), [[[[1, 1], [2, 2], [3, 3], [4, 4]]], [[[3, 5], [4, 6]]]]);
  assert.deepEqual(linesOf(data, x, 1, true)[1], [[[3, 8], [4, 10]]]);
  // A limit is no part of the sum.
  assert.deepEqual(linesOf(data, x, 1, true, true)[1], [[[3, 5], [4, 6]]]);
  // A series that the server does not have.
  assert.deepEqual(dataOf(graph, ["a"], points([1]), 1).columns, [[1], [null]]);
});

test("a line ends where points are missing", () => {
  const some = [...points([1, 1], [2, 2]), { time: 9000, values: [3, 3] }];
  const [line] = linesOf(dataOf(graph, ["a", "b"], some, 1), x, 1, false);
  assert.deepEqual(line, [[[1, 1], [2, 2]], [[9, 3]]]);
});

test("of points that fall together a peak is kept, and of stacked ones the sum", () => {
  const data = dataOf(graph, ["a", "b"], points([1, 10], [7, 0], [1, 2], [0, 0]), 1);
  const half = (time) => (time - 1000) / 2000;
  assert.deepEqual(linesOf(data, half, 1, false)[0], [[[0.5, 7], [1.5, 1]]]);
  assert.deepEqual(linesOf(data, half, 1, true)[1], [[[0.5, 9], [1.5, 1.5]]]);
});

test("amplification is of the bytes of the time before, and unknown while clients write little", () => {
  const MIB = 1 << 20;
  const per = { series: [["d", "D"]], per: "w" };
  // Clients write for two seconds; the devices write after it.
  const values = [[MIB, 0], [MIB, 0], [0, 6 * MIB], ...Array(70).fill([0, 0])];
  const { columns: [ratio] } = dataOf(per, ["w", "d"], points(...values), 1);
  assert.deepEqual(ratio.slice(0, 4), [0, 0, 3, 3]);
  assert.deepEqual([ratio[59], ratio[60], ratio[61], ratio[72]], [3, 6, null, null]);
  assert.deepEqual(dataOf(per, ["w", "d"], points([100, 5000]), 1).columns, [[null]]);
  assert.deepEqual(dataOf(per, ["w", "d"], points([MIB, null]), 1).columns, [[null]]);
  // Nothing is summed over a gap.
  const gap = [...points([MIB, MIB]), { time: 9000, values: [0, 5] }];
  assert.deepEqual(dataOf(per, ["w", "d"], gap, 1).columns, [[1, null]]);
  // Without one of the parts, the sum is not known.
  const parts = { series: [["d", "D"], ["m", "M"]], per: "w" };
  assert.deepEqual(dataOf(parts, ["w", "d", "m"], points([MIB, MIB, null]), 1).columns, [[null], [null]]);
  // A point of a coarse step is longer than the time.
  assert.deepEqual(dataOf(per, ["w", "d"], [{ time: 1.8e6, values: [MIB, 2 * MIB] }], 1800).columns, [[2]]);
});

test("newer points take the place of an incomplete step", () => {
  const old = points(1, 2, 3, 4);
  const newer = [{ time: 3000, values: [30] }];
  const values = continued(old, newer, 2500).map((point) => [point.time, point.values[0]]);
  assert.deepEqual(values, [[1000, 1], [2000, 2], [3000, 30], [4000, 4]]);
  assert.deepEqual(continued([], newer, 0), newer);
  assert.deepEqual(continued(old, [], 0), old);
  assert.equal(nearest([1000, 2000, 9000], 5000), 1);
  assert.equal(nearest([], 5000), -1);
});

test("numbers have units", () => {
  const texts = [[0, "s"], [0.0025, "s"], [12, "s"], [5, "1/s"], [12345, "1/s"], [1023, "bytes"], [1 << 20, "bytes/s"], [2000 * 2 ** 40, "bytes"], [1.5, ""]];
  assert.deepEqual(texts.map(([n, unit]) => scaled(n, unit)),
    ["0 s", "2.50 ms", "12.0 s", "5/s", "12.3 k/s", "1023 B", "1.00 MiB/s", "2000 TiB", "1.50"]);
  assert.equal(scaled(null, "s"), "–");
  assert.equal(scaled(1000 * 1024, "bytes"), "1000 KiB");
  assert.equal(quantile([0, 0, 98, 1, 0, 1], 0.99), 16e-9);
  assert.equal(quantile([], 0.5), undefined);
});

test("files have fields and names that programs read", () => {
  assert.equal(csv(["time", 'a "b", c'], [[1, null], [2, 0.5]]), 'time,"a ""b"", c"\r\n1,\r\n2,0.5\r\n');
  assert.equal(fileName(["weir", "../tank", "ARC: reads, by result"], "csv"), "weir-..-tank-ARC-reads-by-result.csv");
});

// The modules of the page that make elements, with as much of a document as they need.
const heat = await import("../page/heat.js");
const why = await import("../page/why.js");
const breakdown = await import("../page/breakdown.js");
const graphs = await import("../page/graph.js");

test("the heat map counts requests by time and class", () => {
  const row = (protocol, operation, latency) => ({ protocol, operation, latency });
  const rows = [row("nbd", "read", [0, 2, 1]), row("nfs3", "read", [1]), row("nbd", "write", [0, 9]), row("internal", "read", [5])];
  const counts = heat.countsOf(rows, ({ operation }) => operation === "read");
  assert.deepEqual(counts, [1, 2, 1]);
  const cells = heat.cellsOf([{ time: 1000, counts }, { time: 1400, counts: [0, 3] }, { time: 2000, counts: [] }, { time: -5000, counts }], x);
  assert.deepEqual([...cells], [[1, [1, 5, 1]]]);
});

test("the history's counts continue the classes of the live stream", () => {
  const answer = { seconds: 10, bounds_ns: [4096, 8192], time_ms: [10_000, 20_000], reads: [null, [1, 2, 3]], writes: [null, [4, 0, 0]], others: [null, [0, 0, 7]] };
  const [point] = heat.pointsOf(answer);
  assert.equal(heat.pointsOf(answer).length, 1);
  assert.deepEqual([point.time, point.length, point.of.reads.slice(10)], [20_000, 10_000, [0, 1, 2, 3]]);
  assert.deepEqual([point.of["reads and writes"].slice(11), point.of["all operations"].slice(11)], [[5, 2, 3], [5, 2, 10]]);
  assert.deepEqual(heat.clipped([1, ...Array(10).fill(0), 2, 3]).slice(10), [0, 3, 3]);
  assert.equal(heat.clipped([...Array(40).fill(0), 5])[32], 5);
});

test("a breakdown has the greatest names, and the sum of all", () => {
  const row = (client, read_bytes, protocol = "nbd") => ({ client, protocol, dataset: "tank/v", read_bytes, written_bytes: 0, requests: 1 });
  const clients = [row("a", 20), row("b", 600), row("a", 40), row("", 5, "internal"), row("c", 0)];
  const interval = { seconds: 2, clients, operations: [{ protocol: "nbd", operation: "read", read_bytes: { disk: 600, holes: 60 }, requests: 4 }] };
  assert.deepEqual(breakdown.ratesOf(interval, "client", "bytes read"), [["b", 300], ["a", 30], ["(pool)", 2.5]]);
  assert.deepEqual(breakdown.ratesOf(interval, "operation", "bytes read"), [["read", 330]]);
  const many = Array.from({ length: 12 }, (_, n) => [`c${n}`, 12 - n]);
  const { names, times, columns } = breakdown.columnsOf([{ time: 1, rates: many }, { time: 2, rates: [["c0", 1]] }]);
  assert.deepEqual([names.length, names[0], names[8], times], [9, "c0", breakdown.OTHERS, [1, 2]]);
  assert.deepEqual([columns[0], columns[8]], [[12, 1], [10, 0]]);
});

test("a breakdown by file has what is in no row, and a file its path as soon as it is known", () => {
  const row = (client, object, read, path) => ({ client, protocol: "nfs3", dataset: "tank/home", objset: 54, object, path, entry: object, counted: { requests: 1, read_bytes: read, written_bytes: 0 }, error_bytes: 8 });
  const interval = { seconds: 2, files: { rows: [row("a", 7, 60, "/film"), row("b", 7, 20, null), row("b", 8, 10, null)], unlisted: { requests: 3, read_bytes: 8, written_bytes: 0 } } };
  assert.deepEqual(breakdown.ratesOf(interval, "file", "bytes read"), [["54:7", 40], ["54:8", 5], [breakdown.OTHERS, 4]]);
  assert.deepEqual(breakdown.ratesOf(interval, "client and file", "requests").length, 4);
  const texts = new Map(breakdown.textsOf(interval, "client and file"));
  assert.deepEqual([...texts.values()], ["a · tank/home: /film", "b · tank/home: object 7", "b · tank/home: object 8"]);
  assert.equal(breakdown.fileOf({ dataset: "tank/vol", object: 1, path: "(volume)" }), "tank/vol");
  assert.deepEqual(breakdown.textsOf(interval, "file")[0], ["54:7", "tank/home: /film"]);
});

test("dips that repeat are said with their time", () => {
  assert.equal(graphs.dipsText(undefined), "");
  assert.equal(graphs.dipsText({ period_ms: 6040, dips: [1, 2, 3, 4, 5] }), "dips every 6.0 s: 5 in this time");
  assert.equal(graphs.dipsText({ period_ms: 2_100_000, dips: [1, 2, 3, 4, 5] }), "dips every 35 min 0 s: 5 in this time");
});

test("figures are shown with their units", () => {
  assert.deepEqual(why.figure("log_commit_percent", 42.5), ["log commit", "42.5 %"]);
  assert.deepEqual(why.figure("mean_log_commit_ns", 2.5e6), ["mean log commit", "2.50 ms"]);
  assert.deepEqual(why.figure("log_bytes", 4096), ["log", "4.00 KiB"]);
  assert.deepEqual(why.figure("requests", 7), ["requests", "7"]);
});

// The modules of the administration.
const pools = await import("../page/pools.js");
const create = await import("../page/create.js");
const shares = await import("../page/shares.js");
const disks = await import("../page/disks.js");
const vdevs = await import("../page/vdevs.js");
const { jobOf, progressText, workOf } = await import("../page/alerts.js");

test("a scan has the time left at its rate so far, and says what is not known", () => {
  const scan = { function: "SCRUB", state: "SCANNING", start_time: 1000, to_examine: 400, issued: 100, errors: 0, scrub_pause: 0 };
  assert.match(pools.scanText(scan, 1_100_000), /^scrub 25\.0 % of 400 B, 0 errors; 5 min 0 s left at the rate so far$/);
  assert.match(pools.scanText({ ...scan, scrub_pause: 1090 }, 1_100_000), /; paused$/);
  assert.match(pools.scanText({ ...scan, issued: 0 }, 1_100_000), /; the time left is not known yet$/);
  assert.match(pools.scanText({ ...scan, function: "RESILVER", state: "FINISHED", end_time: 1060, processed: 2048 }, 0), /^resilver ended .* after 1 min 0 s, 2\.00 KiB repaired, 0 errors$/);
  assert.equal(pools.scanText(undefined, 0), "no scrub yet");
});

test("the vdevs of a tree keep their order and parents", () => {
  const tree = { tank: { name: "tank", vdevs: { m: { name: "m", vdevs: { a: { name: "a" }, b: { name: "b" } } } } } };
  assert.deepEqual(pools.flat(tree).map(({ vdev, depth, parent }) => [vdev.name, depth, parent?.name]),
    [["tank", 0, undefined], ["m", 1, "tank"], ["a", 2, "m"], ["b", 2, "m"]]);
  assert.deepEqual(pools.flat(undefined), []);
});

test("pools that can be imported are found in the text of the command", () => {
  const text = "  pool: a b\n    id: 12\n state: ONLINE\naction: import\n\n  pool: c\n    id: 3\n state: UNAVAIL\n";
  assert.deepEqual(pools.importable(text), [{ pool: "a b", id: "12", state: "ONLINE" }, { pool: "c", id: "3", state: "UNAVAIL" }]);
  assert.deepEqual(pools.importable("no pools available to import\n"), []);
});

test("layouts use all devices, and groups are in the order of the devices", () => {
  const texts = (count) => create.layoutsOf(count).map(({ kind, disks, vdevs }) => `${vdevs}x${kind}${disks}`);
  assert.deepEqual(texts(1), ["1xstripe1"]);
  assert.deepEqual(texts(4), ["4xstripe1", "2xmirror2", "1xmirror4", "1xraidz14", "1xraidz24"]);
  assert.deepEqual(texts(0), []);
  const uses = [["/a", "data"], ["/l", "log"], ["/b", "data"], ["/c", "data"], ["/m", "log"], ["/d", "data"], ["/s", "spare"], ["/x", ""]];
  assert.deepEqual(create.vdevsOf(uses, { kind: "mirror", disks: 2 }), [
    { kind: "mirror", devices: ["/a", "/b"] }, { kind: "mirror", devices: ["/c", "/d"] },
    { kind: "log_mirror", devices: ["/l", "/m"] }, { kind: "spare", devices: ["/s"] }]);
  assert.equal(create.ruleOf({ kind: "raidz2", disks: 6, vdevs: 1 }), "random reads of about 1 disk");
  assert.equal(create.ruleOf({ kind: "mirror", disks: 2, vdevs: 3 }), "random reads of about 6 disks");
});

test("lines to paste name the server and quote names", () => {
  const line = (protocol, name, address) => shares.pasteLine({ protocol, name }, address);
  assert.equal(line("nfs3", "/tank/a", "192.0.2.1:2049"), "mount -t nfs -o vers=3,tcp,port=2049,mountport=2049,mountproto=tcp 192.0.2.1:/tank/a /mnt");
  assert.equal(line("nbd", "tank/my vm", "0.0.0.0:10809"), "nbd-client -N 'tank/my vm' HOST 10809");
  assert.equal(line("other", "x", "1:2"), undefined);
  assert.equal(shares.quoted("it's; rm"), "'it'\\''s; rm'");
  assert.deepEqual(shares.placeOf("[::]:80"), { host: "HOST", port: "80" });
});

test("jobs and lengths of time are in words", () => {
  assert.equal(workOf({ snapshot: ["a", "b"], recursive: true, keep: 3 }), "snapshots of a, b and below, keep 3");
  assert.equal(workOf({ replicate: "a", to: "b" }), "replication of a to b");
  assert.equal(workOf({ scrub: ["p"] }), "scrub of p");
  assert.deepEqual([0, 59, 61, 3700, 90000].map(lengthOf), ["0 s", "59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
});

test("the values of a form are the action of a job", () => {
  const form = { name: "a", work: "snapshot", datasets: "t/a, t/b,", pools: "p", source: "s", target: "x:u", recursive: true, keep: "3", keepTarget: "", limit: "", schedule: "hourly", zone: "" };
  assert.deepEqual(jobOf(form, false), { do: "add_job", name: "a", work: { snapshot: ["t/a", "t/b"] }, recursive: true, keep: 3, schedule: "hourly", replace: false });
  assert.deepEqual(jobOf({ ...form, work: "scrub", zone: "UTC" }, true), { do: "add_job", name: "a", work: { scrub: ["p"] }, schedule: "hourly", time_zone: "UTC", replace: true });
  assert.deepEqual(jobOf({ ...form, work: "replicate", keep: "", keepTarget: "9", lag: "60", limit: "5M" }, false).work, { replicate: { source: "s", target: "x:u", limit: "5M", keep_target: 9, lag_seconds: 60 } });
});

test("disks are found in the trees of pools, and paths in a text", () => {
  const leaf = (path) => ({ name: path.slice(1), path });
  const pool = { name: "t", vdevs: { t: { name: "t", vdevs: { a: leaf("/a") } } }, spares: { s: leaf("/s") }, l2cache: { c: leaf("/c") } };
  assert.deepEqual([...disks.usesOf([pool])].map(([path, { pool: of, vdev }]) => [path, of, vdev.name]), [["/a", "t", "a"], ["/c", "t", "c"], ["/s", "t", "s"]]);
  assert.deepEqual(vdevs.pathsOf("/a  /b,/c\n"), ["/a", "/b", "/c"]);
});

const flow = await import("../page/flow.js");
const { linkOf, linked, parsed } = await import("../page/worksheet.js");

// Two seconds of two clients: 300 bytes of reads answered, of which 100 came from disks, that read 150; 80 written.
const second = {
  seconds: 1,
  clients: [
    { client: "a", dataset: "t/x", protocol: "nbd", read_bytes: 200, written_bytes: 80 },
    { client: "b", dataset: "", protocol: "nfs3", read_bytes: 100, written_bytes: 0 },
    { client: "", dataset: "", protocol: "internal", read_bytes: 999, written_bytes: 999 },
  ],
  operations: [
    { protocol: "nbd", read_bytes: { disk: 100, "arc demand": 100 } },
    { protocol: "nfs3", read_bytes: { "arc demand": 100 } },
    { protocol: "internal", read_bytes: { disk: 999 } },
  ],
  written: [{ content: "data", redundancy: "first copy", bytes: 80 }, { content: "data", redundancy: "copies", bytes: 80 }, { content: "metadata", redundancy: "first copy", bytes: 20 }],
  leaves: [{ name: "d0", read_bytes: 90, write_bytes: 90 }, { name: "d1", read_bytes: 60, write_bytes: 90 }],
};

test("the flow of bytes has each band that the server counts", () => {
  const texts = (direction, of) => flow.bandsOf(of, direction).map(({ column, from, to, rate }) => `${column} ${from}>${to} ${rate}`).sort();
  assert.deepEqual(texts("reads", [second, second]), [
    "0 a>t/x 200", "0 b>– 100", "1 t/x>nbd 200", "1 –>nfs3 100", "2 nbd>arc demand 100", "2 nbd>disk 100", "2 nfs3>arc demand 100",
    "3 disk>d0 90", "3 disk>d1 60"]);
  assert.deepEqual(texts("writes", [second]), [
    "0 a>t/x 80", "1 t/x>nbd 80", "2 nbd>pool 80", "3 pool>copies of data 80", "3 pool>data 80", "3 pool>metadata 20",
    "4 copies of data>devices 80", "4 data>devices 80", "4 metadata>devices 20", "5 devices>d0 90", "5 devices>d1 90"]);
  assert.deepEqual(texts("reads", []), []);
});

test("small nodes are joined, and no byte is lost", () => {
  const bands = Array.from({ length: 10 }, (_, n) => ({ column: 0, from: `c${n}`, to: "x", rate: 100 - n }));
  const few = flow.joined(bands, 2, 4);
  assert.deepEqual(few.map(({ from }) => from).sort(), ["7 others", "c0", "c1", "c2"]);
  const sum = (of) => of.reduce((total, { rate }) => total + rate, 0);
  assert.equal(sum(few), sum(bands));
});

test("nodes are as high as their wider side, and nothing leaves the picture", () => {
  const bands = flow.bandsOf([second], "reads");
  const { nodes, bands: placed } = flow.layoutOf(bands, 5, 900, 300);
  const disk = nodes.find(({ name }) => name === "disk");
  assert.deepEqual([disk.left, disk.right], [100, 150]);
  assert.equal(flow.textOf(disk), "disk 100 B/s → 150 B/s");
  assert.equal(flow.textOf(nodes.find(({ name }) => name === "nbd")), "nbd 200 B/s");
  assert.equal(flow.textOf({ name: "/dev/disk/by-id/x", left: 5, right: 0 }), "x 5 B/s");
  const scale = disk.height / 150;
  assert.ok(nodes.every((node) => Math.abs(node.height - Math.max(node.left, node.right) * scale) < 1e-9));
  assert.ok(nodes.every((node) => node.x >= 0 && node.x <= 900 - 9 && node.y + node.height <= 300 && node.y >= 0));
  for (const { from, to, column, y, toY, height } of placed) {
    const inside = (node, top) => top >= node.y - 1e-9 && top + height <= node.y + node.height + 1e-9;
    assert.ok(inside(nodes.find((node) => node.column === column && node.name === from), y), `${from} > ${to}`);
    assert.ok(inside(nodes.find((node) => node.column === column + 1 && node.name === to), toY), `${from} > ${to}`);
  }
  assert.deepEqual(flow.layoutOf([], 5, 900, 300), { nodes: [], bands: [] });
});

test("a link has pool, time and graphs, and a wrong one asks for nothing", () => {
  const of = { pool: "my tank", span: undefined, from: 1000, to: 61000, graphs: ["latency", "arc"] };
  assert.deepEqual(linked(linkOf(of)), of);
  assert.deepEqual(linked(linkOf({ pool: "t", span: 3600 })), { pool: "t", span: 3600, from: undefined, to: undefined, graphs: undefined });
  assert.deepEqual(linked("from=9&to=3&span=x&graphs="), { pool: undefined, span: undefined, from: undefined, to: undefined, graphs: [] });
  assert.deepEqual(parsed('{"a": ["x"], "b": 3, "c": [1]}'), { a: ["x"] });
  assert.deepEqual([parsed("{"), parsed("[]"), parsed(null), parsed("null")], [{}, {}, {}, {}]);
});

test("a range has means, of latencies the greatest, and the finest resolution that is kept", () => {
  const data = { times: [1000, 2000, 3000, 4000], columns: [[1, 2, null, 6]] };
  assert.deepEqual(summaryOf(data, 0, { from: 2000, to: 4000 }, "bytes/s"), { what: "mean ", value: 4 });
  assert.deepEqual(summaryOf(data, 0, { from: 2000, to: 4000 }, "s"), { what: "at most ", value: 6 });
  assert.deepEqual(summaryOf(data, 0, { from: 3000, to: 3500 }, "s"), { what: "", value: null });
  const now = 1e12, at = (from, to) => resolutionFor(now - 1000 * from, now - 1000 * to, now);
  assert.deepEqual(at(600, 0), { resolution: "second", step: 1 });
  assert.deepEqual(at(3500, 0), { resolution: "second", step: 5 });
  assert.deepEqual(at(7200, 6000), { resolution: "ten_seconds", step: 10 });
  assert.deepEqual(at(20 * 86400, 0), { resolution: "minute", step: 2400 });
  assert.deepEqual(at(90 * 86400, 80 * 86400), { resolution: "minute", step: 1200 });
});

test("a replication that runs has its progress in words, and says what is not known", () => {
  const progress = { source: "tank/home", number: 1, datasets: 1, sent_bytes: 100 << 20, estimated_bytes: 300 << 20, bytes_per_second: 2 << 20, seconds_left: 100 };
  assert.equal(progressText(progress), "100 MiB of about 300 MiB of tank/home; 2.00 MiB/s, 1 min 40 s left");
  assert.equal(progressText({ ...progress, number: 2, datasets: 3, estimated_bytes: null, seconds_left: null }), "100 MiB of tank/home, dataset 2 of 3; 2.00 MiB/s");
});
