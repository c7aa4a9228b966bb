//! `zpool status`.

use super::list::{json_frame, selected};
use super::tree;
use crate::args::Spec;
use crate::failure::Failure;
use crate::json::{self, Numbers};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use weir_blocks::vdev::LeafHealth;
use weir_format::NvList;
use weir_format::dsl::{ScanPhys, pool as names};
use weir_machine::{Machine, Request};
use weir_pool::status::VdevState;
use weir_pool::{Class, Pool, VdevConfig, VdevKind};

const SPEC: Spec = Spec {
    command: "zpool status",
    letters: "d:jJvxPLgtsDp",
    long: &[("json", 'j'), ("json-int", 'J')],
    usage: "zpool status [-x] [-j [--json-int]] [-d DIR]… [POOL]…",
};

/// Runs the command.
pub fn run(line: Vec<OsString>) -> Result<u8, Failure> {
    let args = SPEC.parse(line)?;
    let machine = Machine::production()?;
    let numbers = if args.has('J') { Numbers::Integers } else { Numbers::Text };
    let mut answer = Map::new();
    let mut shown = 0;
    let pools = selected(&machine, &args, 0)?;
    for pool in &pools {
        let facts = machine.block_on(Facts::gather(pool))?;
        if args.has('x') && pool.state == VdevState::Online && facts.errors == 0 {
            continue;
        }
        shown += 1;
        if args.has('j') {
            answer.insert(pool.name().to_owned(), Json::Object(facts.json(pool, numbers)));
        } else {
            print!("{}", facts.text(pool));
        }
    }
    if args.has('j') {
        let mut frame = json::frame("zpool status");
        frame.insert("pools".into(), Json::Object(answer));
        json::print(frame);
    } else if pools.is_empty() {
        println!("no pools available");
    } else if shown == 0 {
        println!("all pools are healthy");
    }
    Ok(0)
}

/// What is shown besides the tree.
struct Facts {
    scan: Option<ScanPhys>,
    /// Blocks in the error logs.
    errors: u64,
    checkpoint: bool,
    spares: Vec<VdevConfig>,
    caches: Vec<VdevConfig>,
    health: BTreeMap<u64, LeafHealth>,
}

impl Facts {
    async fn gather(pool: &Pool) -> Result<Self, Failure> {
        let rq = &Request::internal("status");
        let failed = |e: weir_objects::ObjectError| Failure::failed(format!("{}: {e}", pool.name()));
        let mos = &pool.mos;
        let words = mos.named_words(rq, names::SCAN).await.map_err(failed)?;
        let head_log = pool.features.count("com.delphix:head_errlog").unwrap_or(0) > 0;
        let mut errors = 0;
        for name in [names::ERRLOG_LAST, names::ERRLOG_SCRUB] {
            let Some(id) = mos.named(rq, name).await.map_err(failed)? else { continue };
            let entries = mos.numbers(rq, id).await.map_err(failed)?;
            for inner in entries.values() {
                errors += match head_log {
                    true => mos.numbers(rq, weir_format::ObjectId(*inner)).await.map_err(failed)?.len() as u64,
                    false => 1,
                };
            }
        }
        Ok(Facts {
            scan: words.and_then(|w| ScanPhys::from_words(&w)).filter(|s| s.func != 0),
            errors,
            checkpoint: mos.named_words(rq, names::CHECKPOINT).await.map_err(failed)?.is_some(),
            spares: aux(pool, names::SPARES, "spares").await.map_err(failed)?,
            caches: aux(pool, names::L2CACHE, "l2cache").await.map_err(failed)?,
            health: pool.blocks.tree().health().into_iter().map(|h| (h.guid, h)).collect(),
        })
    }

    fn text(&self, pool: &Pool) -> String {
        let mut out = format!("  pool: {}\n state: {}\n", pool.name(), pool.state);
        if let Some((status, action)) = self.advice(pool) {
            out.push_str(&format!("status: {status}\naction: {action}\n"));
        }
        if let Some(scan) = &self.scan {
            out.push_str(&format!("  scan: {}\n", scan_text(scan)));
        }
        if self.checkpoint {
            let bytes = crate::units::human(pool.capacity.checkpoint_bytes);
            out.push_str(&format!("checkpoint: there is one, it keeps {bytes}\n"));
        }
        let mut lines = tree::lines(pool.name(), pool.state, &pool.tree, &pool.states);
        let cells = |guid: u64| self.counters(guid).map(|n| n.to_string()).to_vec();
        for (heading, vdevs, state) in [("cache", &self.caches, "ONLINE"), ("spares", &self.spares, "AVAIL")] {
            if !vdevs.is_empty() {
                lines.push(tree::Line::heading(heading));
            }
            lines.extend(vdevs.iter().map(|v| {
                let there = pool.aux.contains_key(&v.guid);
                tree::Line::aux(v.name(), if there { state } else { "UNAVAIL" })
            }));
        }
        out.push_str(&format!("config:\n\n{}\n", tree::text(&lines, &["READ", "WRITE", "CKSUM"], cells)));
        match self.errors {
            0 => out.push_str("errors: No known data errors\n\n"),
            n => out.push_str(&format!("errors: {n} data errors are in the pool's error log\n\n")),
        }
        out
    }

    /// Read, write and checksum errors since the pool was opened.
    fn counters(&self, guid: u64) -> [u64; 3] {
        self.health.get(&guid).map_or([0; 3], |h| [h.counts.read_errors, 0, h.counts.checksum_errors])
    }

    fn advice(&self, pool: &Pool) -> Option<(&'static str, &'static str)> {
        let offline = pool.states.values().any(|s| *s == VdevState::Offline);
        if self.errors > 0 {
            Some((
                "Some data cannot be read: its blocks are damaged in every copy.",
                "Restore the files in question; 'weir zdb -bcc' lists what cannot be read.",
            ))
        } else if pool.state == VdevState::Degraded && offline {
            Some(("A device was taken offline. Redundancy stands in for it.", "Bring it online or replace it."))
        } else if pool.state == VdevState::Degraded {
            Some(("Devices are missing. Redundancy stands in for them.", "Bring the devices back or replace them."))
        } else {
            None
        }
    }

    fn json(&self, pool: &Pool, numbers: Numbers) -> Map<String, Json> {
        let mut out = json_frame(pool, numbers);
        out.remove("type");
        if let Some((status, action)) = self.advice(pool) {
            out.insert("status".into(), json!(status));
            out.insert("action".into(), json!(action));
        }
        if let Some(scan) = &self.scan {
            out.insert("scan_stats".into(), scan_json(scan, numbers));
        }
        let mut root = self.vdev_json(pool, &pool.tree, numbers);
        root.insert("name".into(), json!(pool.name()));
        root.insert("state".into(), json!(pool.state.to_string()));
        root.insert("vdevs".into(), self.class_json(pool, Class::Normal, numbers));
        out.insert("vdevs".into(), json!({ pool.name(): Json::Object(root) }));
        for (class, key) in [(Class::Dedup, "dedup"), (Class::Special, "special"), (Class::Log, "logs")] {
            if pool.tree.children.iter().any(|v| v.class == class && v.is_concrete()) {
                out.insert(key.into(), self.class_json(pool, class, numbers));
            }
        }
        for (key, vdevs, state) in [("l2cache", &self.caches, "ONLINE"), ("spares", &self.spares, "AVAIL")] {
            if vdevs.is_empty() {
                continue;
            }
            let mut inner = Map::new();
            for v in vdevs {
                let there = if pool.aux.contains_key(&v.guid) { state } else { "UNAVAIL" };
                let class = if key == "spares" { "spare" } else { key };
                let guid = json::number(v.guid, numbers);
                let one = json!({ "name": v.name(), "vdev_type": kind_name(v.kind), "guid": guid, "path": v.path, "class": class, "state": there });
                inner.insert(v.name(), one);
            }
            out.insert(key.into(), Json::Object(inner));
        }
        out.insert("error_count".into(), json::number(self.errors, numbers));
        out
    }

    fn class_json(&self, pool: &Pool, class: Class, numbers: Numbers) -> Json {
        let tops = pool.tree.children.iter().filter(|v| v.class == class && v.is_concrete());
        Json::Object(tops.map(|v| (v.name(), Json::Object(self.vdev_json(pool, v, numbers)))).collect())
    }

    fn vdev_json(&self, pool: &Pool, vdev: &VdevConfig, numbers: Numbers) -> Map<String, Json> {
        let mut out = Map::new();
        let state = pool.states.get(&vdev.guid).copied().unwrap_or(VdevState::Unavail);
        let number = |n: u64| json::number(n, numbers);
        out.insert("name".into(), json!(vdev.name()));
        out.insert("vdev_type".into(), json!(kind_name(vdev.kind)));
        out.insert("guid".into(), number(vdev.guid));
        if let Some(path) = &vdev.path {
            out.insert("path".into(), json!(path));
        }
        out.insert("class".into(), json!(vdev.class.name()));
        out.insert("state".into(), json!(state.to_string()));
        let top = pool.tree.children.iter().position(|t| t.guid == vdev.guid);
        if let Some(space) = top.and_then(|i| pool.space.vdevs.get(i)) {
            out.insert("alloc_space".into(), number(space.map_bytes()));
            out.insert("total_space".into(), number(space.space_bytes()));
        }
        if let Some(device) = pool.devices.get(&vdev.guid) {
            out.insert("phys_space".into(), number(device.disk.geometry().size_bytes));
        }
        let [read, write, checksum] = self.counters(vdev.guid);
        for (name, n) in [("read_errors", read), ("write_errors", write), ("checksum_errors", checksum)] {
            out.insert(name.into(), number(n));
        }
        if !vdev.children.is_empty() && vdev.kind != VdevKind::Root {
            let children = vdev.children.iter().map(|c| (c.name(), Json::Object(self.vdev_json(pool, c, numbers))));
            out.insert("vdevs".into(), Json::Object(children.collect()));
        }
        out
    }
}

fn kind_name(kind: VdevKind) -> &'static str {
    match kind {
        VdevKind::Root => "root",
        VdevKind::Disk => "disk",
        VdevKind::File => "file",
        VdevKind::Mirror => "mirror",
        VdevKind::Replacing => "replacing",
        VdevKind::Spare => "spare",
        VdevKind::Raidz { .. } => "raidz",
        VdevKind::Draid { .. } => "draid",
        VdevKind::DraidSpare => "dspare",
        VdevKind::Indirect => "indirect",
        VdevKind::Hole => "hole",
        VdevKind::Missing => "missing",
    }
}

/// Hot spares or cache devices, as the MOS lists them.
async fn aux(pool: &Pool, object: &str, key: &str) -> Result<Vec<VdevConfig>, weir_objects::ObjectError> {
    let rq = &Request::internal("status");
    let Some(id) = pool.mos.named(rq, object).await? else { return Ok(Vec::new()) };
    let list: NvList = pool.mos.list(rq, id).await?;
    let all = list.get_list_array(key).unwrap_or_default();
    Ok(all.iter().filter_map(|v| VdevConfig::parse(v).ok()).collect())
}

fn scan_words(scan: &ScanPhys) -> (&'static str, &'static str) {
    let function = if scan.func == 2 { "resilver" } else { "scrub" };
    let state = match scan.state {
        1 => "in progress",
        2 => "finished",
        3 => "canceled",
        _ => "none",
    };
    (function, state)
}

fn scan_text(scan: &ScanPhys) -> String {
    let (function, state) = scan_words(scan);
    let when = crate::zdb::text::date(if scan.state == 1 { scan.start_time_s } else { scan.end_time_s });
    let done = crate::units::human_bytes(scan.processed_bytes);
    let verb = if function == "scrub" { "repaired" } else { "rewrote" };
    format!("{function} {state}, {verb} {done}, with {} errors, {when}", scan.errors)
}

fn scan_json(scan: &ScanPhys, numbers: Numbers) -> Json {
    let (function, state) = scan_words(scan);
    let number = |n: u64| json::number(n, numbers);
    json!({
        "function": function.to_uppercase(),
        "state": state.to_uppercase(),
        "start_time": number(scan.start_time_s),
        "end_time": number(scan.end_time_s),
        "to_examine": number(scan.to_examine_bytes),
        "examined": number(scan.examined_bytes),
        "skipped": number(scan.skipped_bytes),
        "processed": number(scan.processed_bytes),
        "errors": number(scan.errors),
    })
}
