//! `zpool status`: state of pools and their vdevs, scans, and files with errors.
//!
//! The process that has a pool open reads its state ([`weir_admin::StatusQuery`]); here it becomes text or JSON.

use super::dedup;
use super::get::header;
use super::repeat::Repetition;
use super::status_text::StatusText;
use super::tree::NameStyle;
use super::unopened::UnopenedPool;
use super::vdev_scripts::{self, DeviceKey, Scripts};
use super::vdevs::{self, Style};
use crate::args::CommandLine;
use crate::call::{Call, errln, outln};
use crate::colors::Colors;
use crate::failure::Failure;
use crate::json;
use crate::options::{PoolDirs, PoolJsonOptions};
use crate::reading::{PoolReader, Reached};
use crate::units::human_time_ns;
use clap::Parser;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use weir_admin::{
    ErrorScrubStatus, PoolQuery, PoolStatus, RebuildStatus, Row, ScanStage, StatusQuery, VdevGroup, VdevStatus,
};

/// Show health, vdevs, error counters and scans of pools.
#[derive(Debug, Parser)]
#[command(
    name = "zpool status",
    override_usage = "zpool status [-DegiLpPstvx] [-c [SCRIPT[,…]]] [-T d|u] [-j [--json-flat-vdevs] [--json-int] [--json-pool-key-guid]] [-d DIR]… [POOL]… [INTERVAL [COUNT]]"
)]
pub struct StatusArgs {
    /// List the files with errors
    #[arg(short)]
    verbose: bool,
    /// Show the number of slow I/Os
    #[arg(short)]
    slow: bool,
    /// Show unhealthy pools only
    #[arg(short = 'x')]
    unhealthy: bool,
    /// Show unhealthy vdevs only
    #[arg(short = 'e')]
    unhealthy_vdevs: bool,
    /// Run scripts for each device, and show what they print as columns; without a name, list the scripts
    #[arg(short = 'c', value_name = "SCRIPT,…", num_args = 0..=1, default_missing_value = "")]
    scripts: Option<String>,
    #[command(flatten)]
    names: NameStyle,
    /// Show how far devices are initialized
    #[arg(short = 'i')]
    initialized: bool,
    /// Show how far devices are trimmed
    #[arg(short = 't')]
    trimmed: bool,
    /// Print the time of each report: d as a date, u in seconds since 1970
    #[arg(short = 'T', value_name = "d|u")]
    time: Option<String>,
    /// Show the entries of the dedup tables by their numbers of references
    #[arg(short = 'D', action = clap::ArgAction::Count)]
    dedup: u8,
    /// With -j: list all vdevs by name, not below one another
    #[arg(long)]
    json_flat_vdevs: bool,
    /// Print exact numbers
    #[arg(short)]
    parsable: bool,
    #[command(flatten)]
    json: PoolJsonOptions,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools, default: all; then seconds between two reports, and number of reports
    #[arg(value_name = "POOL")]
    words: Vec<String>,
}
/// Groups of vdevs that are beside the ordinary ones, with their keys in JSON.
const GROUPS: [(VdevGroup, &str); 3] =
    [(VdevGroup::Dedup, "dedup"), (VdevGroup::Special, "special"), (VdevGroup::Log, "logs")];

/// Runs the command.
pub fn run(call: &Call, args: &StatusArgs) -> Result<u8, Failure> {
    let mut pools = args.words.clone();
    let repetition = Repetition::take::<StatusArgs>(args.time.as_deref(), &mut pools)?;
    if args.json_flat_vdevs && !args.json.output.json {
        return Err(StatusArgs::misused("'--json-flat-vdevs' only works with '-j'"));
    }
    if args.scripts.is_some() && args.json.output.json {
        return Err(StatusArgs::misused("what scripts print (-c) is no part of the JSON output (-j)"));
    }
    if args.scripts.as_deref() == Some("") {
        vdev_scripts::list(call, "status");
        return Ok(0);
    }
    let scripts = args.scripts.as_deref().map(|given| Scripts::find(call, given)).transpose()?;
    let style = Style { numbers: args.json.numbers::<StatusArgs>()?, parsable: args.parsable };
    let reader = PoolReader::new(call, &args.places.dirs)?;
    repetition.run(call, |is_first| {
        if !is_first {
            outln!(call, "");
        }
        report(call, args, (style, scripts.as_ref()), (&reader, &pools))
    })
}

/// Prints one report.
fn report(
    call: &Call,
    args: &StatusArgs,
    (style, scripts): (Style, Option<&Scripts>),
    (reader, pools): (&PoolReader<'_>, &[String]),
) -> Result<u8, Failure> {
    let colors = Colors(call.caller.colors);
    let is_json = args.json.output.json;
    let query = StatusQuery { damaged: args.verbose || is_json, dedup: args.dedup > 0 };
    let query = PoolQuery::Status(query);
    let mut found = reader.find(pools)?;
    let is_none = found.is_empty();
    let mut objects = Map::new();
    let mut texts = Vec::new();
    let mut unopened = Vec::new();
    for pool in found.pools.clone() {
        let mut status = None;
        let mut damaged = Vec::new();
        let mut take = |row| match row {
            Row::PoolStatus(row) => status = Some(row),
            Row::Damaged { place } => damaged.push(place),
            // A warning about a device that is missing is in the state, and other rows do not occur.
            _ => {}
        };
        match reader.read_found(&mut found, &pool, &query, &mut take)? {
            Reached::Unopened(why) => unopened.push((pool.guid, why)),
            Reached::Refused(refusal) => found.unread(&pool, &refusal.why),
            Reached::End => {}
        }
        let Some(status) = status else { continue };
        if args.unhealthy && status.problem.is_none_or(|problem| !problem.is_unhealthy()) {
            if !pools.is_empty() {
                texts.push(format!("pool '{}' is healthy\n", status.name));
            }
        } else if is_json {
            let key = args.json.key(&status.name, status.guid);
            objects.insert(key, Value::Object(json_of(&status, &damaged, args, style)));
        } else {
            let columns = scripts.map(|scripts| scripts.run(&devices(&status))).unwrap_or_default();
            texts.push(args.text().of(&status, &damaged, &columns, colors));
        }
    }
    for (guid, why) in &unopened {
        let Some(pool) = UnopenedPool::describe(call, &found.places, *guid, why)? else { continue };
        objects.insert(args.json.key(&pool.name, pool.guid), Value::Object(pool.json()));
        texts.push(pool.text(colors));
    }
    if is_json {
        let mut answer = json::frame("zpool status");
        answer.insert("pools".into(), Value::Object(objects));
        json::print(call, answer);
    } else if !texts.is_empty() {
        call.print(format_args!("{}", texts.join("\n")));
    } else if !found.has_failed() {
        match args.unhealthy && !is_none {
            true => outln!(call, "all pools are healthy"),
            // On standard error, as by OpenZFS: programs that look for healthy pools find none.
            false => errln!(call, "no pools available"),
        }
    }
    Ok(found.close(call))
}

/// The devices of a pool, with its cache devices and hot spares.
fn devices(pool: &PoolStatus) -> BTreeSet<DeviceKey> {
    fn walk<'a>(vdev: &'a VdevStatus, out: &mut Vec<&'a str>) {
        out.extend(vdev.path.as_deref().filter(|_| vdev.is_leaf));
        vdev.children.iter().for_each(|child| walk(child, out));
    }
    let mut paths = Vec::new();
    walk(&pool.root, &mut paths);
    paths.extend(pool.caches.iter().chain(&pool.spares).filter_map(|aux| aux.path.as_deref()));
    paths.into_iter().map(|path| (pool.name.clone(), path.to_owned())).collect()
}

impl StatusArgs {
    fn text(&self) -> StatusText {
        StatusText {
            verbose: self.verbose,
            slow: self.slow,
            unhealthy_vdevs: self.unhealthy_vdevs,
            names: self.names,
            initialized: self.initialized,
            trimmed: self.trimmed,
            parsable: self.parsable,
        }
    }
}

/// The state of a pool as JSON.
fn json_of(pool: &PoolStatus, damaged: &[String], args: &StatusArgs, style: Style) -> Map<String, Value> {
    let mut out = header(pool, style.numbers);
    if let Some(problem) = pool.problem {
        out.insert("status".into(), problem.status().into());
        out.insert("action".into(), problem.action().into());
        problem.id().into_iter().for_each(|id| drop(out.insert("msgid".into(), id.into())));
        problem.page().into_iter().for_each(|page| drop(out.insert("moreinfo".into(), page.into())));
    }
    if let Some(why) = &pool.suspended {
        out.insert("suspended".into(), why.as_str().into());
    }
    if !pool.lost.is_empty() {
        out.insert("lost".into(), pool.lost.clone().into());
    }
    activity(pool, style, &mut out);
    out.insert("vdevs".into(), Value::Object(vdevs::root(&pool.root, style)));
    for (group, name) in GROUPS {
        let members = vdevs::of_group(&pool.root, group, style);
        if !members.is_empty() {
            out.insert(name.into(), Value::Object(members));
        }
    }
    if !pool.caches.is_empty() {
        let caches = vdevs::objects(pool.caches.iter().map(|cache| vdevs::vdev(cache, style)));
        out.insert("l2cache".into(), Value::Object(caches));
    }
    if !pool.spares.is_empty() {
        let spares = vdevs::objects(pool.spares.iter().map(|spare| vdevs::spare(spare, style)));
        out.insert("spares".into(), Value::Object(spares));
    }
    if args.json_flat_vdevs {
        vdevs::flatten(&mut out);
    }
    if let Some(tables) = &pool.dedup {
        out.insert("dedup_stats".into(), Value::Object(dedup::json(tables, style)));
    }
    out.insert("error_count".into(), style.number(pool.error_count));
    if !damaged.is_empty() {
        out.insert("errlist".into(), damaged.to_vec().into());
    }
    out
}

/// A scrub of the blocks in the error log, among the figures of the last scrub.
fn error_scrub_json(s: &ErrorScrubStatus, style: Style) -> Vec<(&'static str, Value)> {
    let state = if s.stage == ScanStage::Running { "ERRORSCRUBBING" } else { stage_name(s.stage) };
    vec![
        ("err_scrub_func", "ERRORSCRUB".into()),
        ("err_scrub_state", state.into()),
        ("err_scrub_start_time", style.number(s.start_s)),
        ("err_scrub_end_time", style.number(s.end_s)),
        ("err_scrub_examined", style.number(s.examined)),
        ("err_scrub_to_examine", style.number(s.to_examine)),
        ("err_scrub_pause", style.number(u64::from(s.paused))),
    ]
}

/// Scrub, removal, checkpoint and expansion as JSON.
fn activity(pool: &PoolStatus, style: Style, out: &mut Map<String, Value>) {
    let number = |n| style.number(n);
    let kind = |vdev: u64| pool.root.children.iter().find(|top| top.id == vdev).map(type_word);
    let mut put = |name: &str, fields: Vec<(&str, Value)>| {
        let fields: Map<String, Value> = fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        out.insert(name.to_owned(), Value::Object(fields));
    };
    let mut scan_stats = Vec::new();
    if let Some(s) = pool.scan {
        scan_stats.extend(vec![
            ("function", if s.resilver { "RESILVER" } else { "SCRUB" }.into()),
            ("state", stage_name(s.stage).into()),
            ("start_time", number(s.start_s)),
            ("end_time", number(s.end_s)),
            ("to_examine", style.size(s.to_examine_bytes)),
            ("examined", style.size(s.found_bytes.max(s.examined_bytes))),
            ("skipped", style.size(s.skipped_bytes)),
            ("processed", style.size(s.processed_bytes)),
            ("errors", number(s.errors)),
            ("bytes_per_scan", number(0)),
            ("pass_start", number(s.start_s)),
            // A time that is not known is not 0, which means that the scrub is not paused.
            ("scrub_pause", number(if s.paused { s.paused_s.max(1) } else { 0 })),
            ("scrub_spent_paused", number(0)),
            ("issued_bytes_per_scan", number(0)),
            ("issued", style.size(s.examined_bytes.saturating_sub(s.skipped_bytes))),
        ]);
    }
    scan_stats.extend(pool.error_scrub.into_iter().flat_map(|scrub| error_scrub_json(&scrub, style)));
    if !pool.rebuilds.is_empty() {
        let all = pool.rebuilds.iter().map(|rebuild| rebuild_json(pool, rebuild, style));
        scan_stats.push(("rebuild_stats", Value::Object(all.collect())));
    }
    if !scan_stats.is_empty() {
        put("scan_stats", scan_stats);
    }
    if let Some(r) = pool.removal {
        put(
            "removal_stats",
            vec![
                ("name", kind(r.vdev).unwrap_or_else(|| "indirect".into()).into()),
                ("state", stage_name(r.stage).into()),
                ("removing_vdev", number(r.vdev)),
                ("start_time", number(r.start_s)),
                ("end_time", number(r.end_s)),
                ("to_copy", style.size(r.to_copy_bytes)),
                ("copied", style.size(r.copied_bytes)),
                ("mapping_memory", style.size(r.mapping_memory_bytes)),
            ],
        );
    }
    if let Some(c) = pool.checkpoint {
        put(
            "checkpoint_stats",
            vec![("state", "EXISTS".into()), ("start_time", number(c.taken_s)), ("space", style.size(c.bytes))],
        );
    }
    if let Some(e) = pool.expansion {
        put(
            "raidz_expand_stats",
            vec![
                ("name", kind(e.vdev).unwrap_or_default().into()),
                ("state", stage_name(e.stage).into()),
                ("expanding_vdev", number(e.vdev)),
                ("start_time", number(e.start_s)),
                ("end_time", number(e.end_s)),
                ("to_reflow", style.size(e.to_reflow_bytes)),
                ("reflowed", style.size(e.reflowed_bytes)),
                ("waiting_for_resilver", number(0)),
            ],
        );
    }
}

/// A rebuild as JSON, under the name of its vdev.
fn rebuild_json(pool: &PoolStatus, rebuild: &RebuildStatus, style: Style) -> (String, Value) {
    let top = pool.root.children.iter().find(|top| top.id == rebuild.vdev);
    let name = top.map_or_else(|| rebuild.vdev.to_string(), |top| top.name.clone());
    let nanoseconds = rebuild.active_ms.saturating_mul(1_000_000);
    let is_exact = style.parsable || style.numbers == json::Numbers::Integers;
    let scan_time = if is_exact { style.number(nanoseconds) } else { human_time_ns(nanoseconds).into() };
    let fields = [
        ("state", rebuild.stage.name().into()),
        ("start_time", style.number(rebuild.start_s)),
        ("end_time", style.number(rebuild.end_s)),
        ("scan_time", scan_time),
        ("scanned", style.size(rebuild.scanned_bytes)),
        ("issued", style.size(rebuild.issued_bytes)),
        ("rebuilt", style.size(rebuild.rebuilt_bytes)),
        ("to_scan", style.size(rebuild.to_scan_bytes)),
        ("errors", style.number(rebuild.errors)),
    ];
    (name, Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()))
}

/// Name of a stage in JSON.
fn stage_name(stage: ScanStage) -> &'static str {
    match stage {
        ScanStage::Running => "SCANNING",
        ScanStage::Finished => "FINISHED",
        ScanStage::Canceled => "CANCELED",
    }
}

/// The word for a vdev's type, with its parity.
fn type_word(vdev: &VdevStatus) -> String {
    let name = &vdev.name;
    if vdev.is_leaf { name.clone() } else { name.rsplit_once('-').map_or(name.clone(), |(word, _)| word.to_owned()) }
}
