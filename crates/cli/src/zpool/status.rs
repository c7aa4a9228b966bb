//! `zpool status`: state of pools and their vdevs, scans, and files with errors.
//!
//! What is wrong with a pool is decided in [`super::advice`].

use super::advice::{self, OpenErrors, PoolFacts, Problem};
use super::dedup;
use super::get::header;
use super::l2arc;
use super::opened::OpenedPools;
use super::repeat::Repetition;
use super::tree::{self, NameStyle, VdevRow};
use super::vdevs::{self, Style};
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::colors::{Colors, of_state};
use crate::failure::Failure;
use crate::json;
use crate::options::{PoolDirs, PoolJsonOptions};
use crate::units::{date_and_time, human};
use clap::Parser;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;
use weir_admin::spare_state;
use weir_blocks::FailMode;
use weir_dsl::props::human_size;
use weir_engine::create::DEFAULT_FEATURES;
use weir_format::features::{FEATURES, VERSION_FEATURES};
use weir_machine::Request;
use weir_pool::assemble::state;
use weir_pool::aux_devices::{Extra, cache_state};
use weir_pool::dedup::DedupTables;
use weir_pool::errlog::Errors;
use weir_pool::initialize_trim::{LeafActivity, LeafActivityState, LeafProgress};
use weir_pool::scan_status::{Checkpoint, Expansion, Removal, Scan, Stage};
use weir_pool::status::VdevState;
use weir_pool::{Class, Pool, PoolError, VdevConfig};

/// Show health, vdevs, error counters and scans of pools.
#[derive(Debug, Parser)]
#[command(
    name = "zpool status",
    override_usage = "zpool status [-DegiLpPstvx] [-T d|u] [-j [--json-flat-vdevs] [--json-int] [--json-pool-key-guid]] [-d DIR]… [POOL]… [INTERVAL [COUNT]]"
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
const CLASSES: [(Class, &str); 3] = [(Class::Dedup, "dedup"), (Class::Special, "special"), (Class::Log, "logs")];

/// Runs the command.
pub fn run(call: &Call, args: &StatusArgs) -> Result<u8, Failure> {
    let mut pools = args.words.clone();
    let repetition = Repetition::take::<StatusArgs>(args.time.as_deref(), &mut pools)?;
    repetition.run(call, |is_first| {
        if !is_first {
            outln!(call, "");
        }
        report(call, args, &pools)
    })
}

/// Prints one report.
fn report(call: &Call, args: &StatusArgs, pools: &[String]) -> Result<u8, Failure> {
    if args.json_flat_vdevs && !args.json.output.json {
        return Err(StatusArgs::misused("'--json-flat-vdevs' only works with '-j'"));
    }
    let style = Style { numbers: args.json.numbers::<StatusArgs>()?, parsable: args.parsable };
    let machine = call.machine()?;
    let mut opened = OpenedPools::open(call, &args.places, pools)?;
    let mut found = Map::new();
    let mut texts = Vec::new();
    opened.each(|pool| {
        let report = machine.block_on(Report::gather(pool, args.dedup > 0))?;
        if args.unhealthy && report.problem.is_none_or(|problem| !problem.is_unhealthy()) {
            if !pools.is_empty() {
                texts.push(format!("pool '{}' is healthy\n", pool.name()));
            }
            return Ok(());
        }
        let key = args.json.key(pool.name(), pool.config.guid);
        found.insert(key, Value::Object(report.json(pool, args, style)));
        texts.push(report.text(pool, args, Colors(call.caller.colors)));
        Ok(())
    });
    for pool in opened.unopened(call)? {
        found.insert(args.json.key(&pool.name, pool.guid), Value::Object(pool.json()));
        texts.push(pool.text(Colors(call.caller.colors)));
    }
    if args.json.output.json {
        let mut answer = json::frame("zpool status");
        answer.insert("pools".into(), Value::Object(found));
        json::print(call, answer);
    } else if !texts.is_empty() {
        call.print(format_args!("{}", texts.join("\n")));
    } else if opened.failures.is_empty() {
        outln!(call, "{}", if args.unhealthy { "all pools are healthy" } else { "no pools available" });
    }
    Ok(opened.close(call))
}

/// Time left of a removal that is not shown any more, in hours.
const MAX_LEFT_HOURS: u64 = 30 * 24;

struct Report {
    problem: Option<Problem>,
    scan: Option<Scan>,
    removal: Option<Removal>,
    expansion: Option<Expansion>,
    checkpoint: Option<Checkpoint>,
    freeing_bytes: u64,
    errors: Errors,
    error_lines: Vec<String>,
    spares: Vec<VdevConfig>,
    caches: Vec<VdevConfig>,
    open_errors: OpenErrors,
    /// By the kind of pass, and the leaf.
    leaf_activities: Vec<(LeafActivity, BTreeMap<u64, LeafProgress>)>,
    /// The dedup tables, if they are wanted.
    dedup: Option<DedupTables>,
}

/// The problem of an open pool, as `zpool status -x` decides; `None` if it is healthy.
///
/// # Errors
/// If the pool cannot be read.
pub async fn problem_of(pool: &Pool) -> Result<Option<Problem>, Failure> {
    Ok(Report::gather(pool, false).await?.problem.filter(|problem| problem.is_unhealthy()))
}

impl Report {
    async fn gather(pool: &Pool, with_dedup: bool) -> Result<Self, Failure> {
        let rq = &Request::internal("status");
        let errors = weir_pool::errlog::errors(pool, rq).await?;
        let scan = weir_pool::scan_status::last_scan(pool, rq).await?;
        let spares = weir_pool::aux_devices::extras(pool, rq, Extra::Spare).await?;
        let caches = weir_pool::aux_devices::extras(pool, rq, Extra::Cache).await?;
        let open_errors = OpenErrors::of(&pool.machine, &pool.tree, &pool.states);
        let lacks_features = pool.config.list.get_str("compatibility").is_none_or(|c| c == "off")
            && FEATURES.iter().any(|f| DEFAULT_FEATURES.contains(&f.name) && pool.features.count(f.guid).is_none());
        let mut leaf_activities = Vec::new();
        for kind in LeafActivity::ALL {
            leaf_activities.push((kind, weir_pool::initialize_trim::of_pool(rq, pool, kind).await?));
        }
        let dedup = match with_dedup {
            true => {
                let tables = weir_pool::dedup::dedup_tables(rq, &pool.mos, &pool.tree.children).await;
                Some(tables.map_err(PoolError::from)?)
            }
            false => None,
        };
        let facts = PoolFacts {
            // A log that cannot be read may have errors.
            errors: errors.count.max(u64::from(errors.lost.is_some())),
            resilvers: scan.is_some_and(|scan| scan.resilver && scan.stage == Stage::Running && !scan.paused),
            fails_requests: pool.blocks.tree().suspension().mode() == FailMode::Continue,
            unopened: open_errors.kinds(),
            lacks_cache: caches.iter().any(|cache| cache_state(pool, cache).0 == VdevState::Unavail),
            lacks_spare: spares.iter().any(|spare| spare_state(pool, spare) == "UNAVAIL"),
            lacks_features,
            has_old_version: pool.uberblock.version < VERSION_FEATURES,
        };
        Ok(Report {
            problem: advice::of_open(pool, &facts),
            scan,
            removal: weir_pool::scan_status::last_removal(pool, rq).await?,
            expansion: weir_pool::scan_status::last_expansion(pool, rq).await?,
            checkpoint: weir_pool::scan_status::checkpoint(pool, rq).await?,
            freeing_bytes: weir_pool::properties::freeing_bytes(rq, pool).await?,
            error_lines: weir_pool::errlog::error_lines(pool, rq, &errors).await,
            errors,
            spares,
            caches,
            open_errors,
            leaf_activities,
            dedup,
        })
    }

    fn json(&self, pool: &Pool, args: &StatusArgs, style: Style) -> Map<String, Value> {
        let mut out = header(pool, style.numbers);
        if let Some(problem) = self.problem {
            out.insert("status".into(), problem.status().into());
            out.insert("action".into(), problem.action().into());
            problem.id().into_iter().for_each(|id| drop(out.insert("msgid".into(), id.into())));
            problem.page().into_iter().for_each(|page| drop(out.insert("moreinfo".into(), page.into())));
        }
        if let Some(why) = &pool.suspended {
            out.insert("suspended".into(), why.as_str().into());
        }
        let lost = pool.lost();
        if !lost.is_empty() {
            out.insert("lost".into(), lost.into());
        }
        self.activity(pool, style, &mut out);
        out.insert("vdevs".into(), Value::Object(vdevs::root(pool, style)));
        for (class, name) in CLASSES {
            let members = vdevs::of_class(pool, class, style);
            if !members.is_empty() {
                out.insert(name.into(), Value::Object(members));
            }
        }
        let object = |all: Vec<(String, Map<String, Value>)>| {
            Value::Object(all.into_iter().map(|(name, item)| (name, Value::Object(item))).collect())
        };
        if !self.caches.is_empty() {
            out.insert("l2cache".into(), object(self.caches.iter().map(|c| vdevs::cache(pool, c, style)).collect()));
        }
        if !self.spares.is_empty() {
            out.insert("spares".into(), object(self.spares.iter().map(|s| vdevs::spare(pool, s, style)).collect()));
        }
        if args.json_flat_vdevs {
            vdevs::flatten(&mut out);
        }
        if let Some(tables) = &self.dedup {
            out.insert("dedup_stats".into(), Value::Object(dedup::json(tables, style)));
        }
        out.insert("error_count".into(), style.number(self.errors.count));
        if !self.error_lines.is_empty() {
            out.insert("errlist".into(), self.error_lines.clone().into());
        }
        out
    }

    fn activity(&self, pool: &Pool, style: Style, out: &mut Map<String, Value>) {
        let number = |n| style.number(n);
        let kind = |vdev: u64| pool.tree.children.iter().find(|t| t.id == vdev).map(type_word);
        let mut put = |name: &str, fields: Vec<(&str, Value)>| {
            let fields: Map<String, Value> = fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
            out.insert(name.to_owned(), Value::Object(fields));
        };
        if let Some(s) = self.scan {
            put(
                "scan_stats",
                vec![
                    ("function", if s.resilver { "RESILVER" } else { "SCRUB" }.into()),
                    ("state", s.stage.name().into()),
                    ("start_time", number(s.start_s)),
                    ("end_time", number(s.end_s)),
                    ("to_examine", style.size(s.to_examine)),
                    ("examined", style.size(s.examined)),
                    ("skipped", style.size(s.skipped)),
                    ("processed", style.size(s.processed)),
                    ("errors", number(s.errors)),
                    ("bytes_per_scan", number(0)),
                    ("pass_start", number(s.start_s)),
                    ("scrub_pause", number(u64::from(s.paused))),
                    ("scrub_spent_paused", number(0)),
                    ("issued_bytes_per_scan", number(0)),
                    ("issued", style.size(s.examined.saturating_sub(s.skipped))),
                ],
            );
        }
        if let Some(r) = self.removal {
            put(
                "removal_stats",
                vec![
                    ("name", kind(r.vdev).unwrap_or_else(|| "indirect".into()).into()),
                    ("state", r.stage.name().into()),
                    ("removing_vdev", number(r.vdev)),
                    ("start_time", number(r.start_s)),
                    ("end_time", number(r.end_s)),
                    ("to_copy", style.size(r.to_copy)),
                    ("copied", style.size(r.copied)),
                    ("mapping_memory", style.size(r.mapping_memory)),
                ],
            );
        }
        if let Some(c) = self.checkpoint {
            put(
                "checkpoint_stats",
                vec![("state", "EXISTS".into()), ("start_time", number(c.taken_s)), ("space", style.size(c.bytes))],
            );
        }
        if let Some(e) = self.expansion {
            put(
                "raidz_expand_stats",
                vec![
                    ("name", kind(e.vdev).unwrap_or_default().into()),
                    ("state", e.stage.name().into()),
                    ("expanding_vdev", number(e.vdev)),
                    ("start_time", number(e.start_s)),
                    ("end_time", number(e.end_s)),
                    ("to_reflow", style.size(e.to_reflow)),
                    ("reflowed", style.size(e.reflowed)),
                    ("waiting_for_resilver", number(0)),
                ],
            );
        }
    }

    fn text(&self, pool: &Pool, args: &StatusArgs, colors: Colors) -> String {
        let health = pool.health();
        let health = colors.paint(of_state(&health), &health);
        let mut out = format!("  pool: {}\n state: {health}\n", pool.name());
        if let Some(problem) = self.problem {
            out.push_str(&advice::wrapped("status", &problem.status()));
            out.push_str(&advice::wrapped("action", problem.action()));
            problem.page().into_iter().for_each(|page| out.push_str(&format!("   see: {page}\n")));
        }
        if self.problem.is_none() && pool.label.state == state::EXPORTED {
            out.push_str("status: The pool is exported: no host uses it.\n");
            out.push_str(&format!("action: Import it with 'zpool import {}'.\n", pool.name()));
        }
        if let Some(why) = &pool.suspended {
            out.push_str(&format!("   why: {why}\n"));
        }
        pool.lost().iter().for_each(|line| out.push_str(&format!("  lost: {line}\n")));
        out.push_str(&self.activity_text(pool));
        out.push_str("config:\n\n");
        out.push_str(&self.tree_text(pool, args, colors));
        self.dedup.iter().for_each(|tables| out.push_str(&dedup::text(tables, args.parsable)));
        out.push('\n');
        if let Some(error) = &self.errors.lost {
            out.push_str(&format!("errors: Part of the list is unavailable: {error}\n"));
        }
        match (self.errors.count, args.verbose) {
            (0, _) if self.errors.lost.is_some() => {}
            (0, _) => out.push_str("errors: No known data errors\n"),
            (n, false) => out.push_str(&format!("errors: {n} data errors, use '-v' for a list\n")),
            (_, true) => {
                out.push_str("errors: Permanent errors have been detected in these files:\n\n");
                self.error_lines.iter().for_each(|line| out.push_str(&format!("        {line}\n")));
            }
        }
        colors.labels(&out)
    }

    /// Adds to the rows of devices how far these are initialized and trimmed; without options, what goes on.
    fn note_leaf_activities(&self, pool: &Pool, args: &StatusArgs, rows: &mut [VdevRow]) {
        for (kind, leaf_activities) in &self.leaf_activities {
            let (is_wanted, going_on) = match kind {
                LeafActivity::Initialize => (args.initialized, "(initializing)"),
                LeafActivity::Trim => (args.trimmed, "(trimming)"),
            };
            for row in rows.iter_mut() {
                let Some(progress) = leaf_activities.get(&row.guid) else { continue };
                let is_of = |top: &&VdevConfig| top.leaves().iter().any(|leaf| leaf.guid == row.guid);
                let top = pool.tree.children.iter().zip(&pool.space.vdevs).find(|(top, _)| is_of(top));
                let percent = top.map_or(0, |(top, space)| weir_pool::initialize_trim::percent(top, space, progress));
                let note = match (is_wanted, progress.state) {
                    (true, _) => leaf_activity_text(*kind, progress, percent),
                    (false, LeafActivityState::Active) => going_on.to_owned(),
                    (false, _) => continue,
                };
                row.note = if row.note.is_empty() { note } else { format!("{}  {note}", row.note) };
            }
        }
    }

    fn resilvers(&self) -> bool {
        self.scan.is_some_and(|scan| scan.resilver && scan.stage == Stage::Running)
    }

    fn activity_text(&self, pool: &Pool) -> String {
        let mut out = String::new();
        if let Some(s) = self.scan {
            let (what, did) = if s.resilver { ("resilver", "resilvered") } else { ("scrub", "scrub repaired") };
            let took = duration(s.end_s.saturating_sub(s.start_s));
            let line = match s.stage {
                Stage::Finished => {
                    let bytes = human_size(s.processed);
                    format!("{did} {bytes} in {took} with {} errors on {}", s.errors, date_and_time(s.end_s))
                }
                Stage::Canceled => format!("{what} canceled on {}", date_and_time(s.end_s)),
                Stage::Running if s.paused => format!("{what} paused, begun on {}", date_and_time(s.start_s)),
                Stage::Running => format!("{what} in progress since {}", date_and_time(s.start_s)),
            };
            out.push_str(&format!("  scan: {line}\n"));
            if s.stage == Stage::Running {
                out.push_str(&running_text(&s));
            }
        }
        if self.freeing_bytes > 0 {
            let left = human_size(self.freeing_bytes);
            out.push_str(&format!("freeing: {left} of destroyed datasets\n"));
        }
        if let Some(r) = self.removal {
            out.push_str(&removal_text(pool, &r));
        }
        if let Some(e) = self.expansion {
            let line = match e.stage {
                Stage::Running => format!("vdev {}: {} copied", e.vdev, human_size(e.reflowed)),
                _ => format!(
                    "vdev {} expanded, {} copied, on {}",
                    e.vdev,
                    human_size(e.reflowed),
                    date_and_time(e.end_s)
                ),
            };
            out.push_str(&format!("expand: {line}\n"));
        }
        if let Some(c) = self.checkpoint {
            let time = date_and_time(c.taken_s);
            let bytes = human_size(c.bytes);
            out.push_str(&format!("checkpoint: created {time}, consumes {bytes}\n"));
        }
        out
    }

    fn tree_text(&self, pool: &Pool, args: &StatusArgs, colors: Colors) -> String {
        let slow = args.slow;
        let names = args.names;
        let dtls = pool.dtls();
        let facts = tree::TreeFacts {
            states: &pool.states,
            dtls: &dtls,
            resilvers: self.resilvers(),
            open_errors: &self.open_errors,
            names,
        };
        let mut lines = tree::lines(pool.name(), pool.state, &pool.tree, &facts);
        self.note_leaf_activities(pool, args, &mut lines);
        let line = |v: &VdevConfig, state: &str| VdevRow { guid: v.guid, ..VdevRow::aux(v.name(), state) };
        if !self.caches.is_empty() {
            lines.push(VdevRow::heading("cache"));
        }
        lines.extend(self.caches.iter().map(|c| {
            let (state, stats) = cache_state(pool, c);
            VdevRow { note: l2arc::note(pool, stats.as_ref()), ..line(c, &state.to_string()) }
        }));
        if !self.spares.is_empty() {
            lines.push(VdevRow::heading("spares"));
        }
        lines.extend(self.spares.iter().map(|s| {
            let state = spare_state(pool, s);
            let note = if state == "INUSE" { "currently in use" } else { "" };
            VdevRow { note: note.into(), ..VdevRow::aux(s.name(), state) }
        }));
        let health = vdevs::counts(pool);
        if args.unhealthy_vdevs {
            lines = tree::unhealthy(lines, |guid| health.get(&guid).is_some_and(|counts| counts[..3] != [0; 3]));
        }
        let headings = ["READ", "WRITE", "CKSUM", "SLOW"];
        let columns = if slow { headings.len() } else { headings.len() - 1 };
        tree::text(&lines, &headings[..columns], colors, |guid| match guid {
            0 => Vec::new(),
            guid => match health.get(&guid) {
                Some(counts) => counts[..columns].iter().map(u64::to_string).collect(),
                // A vdev that is no leaf has no slow operations of its own.
                None => ["0", "0", "0", "-"][..columns].iter().map(ToString::to_string).collect(),
            },
        })
    }
}

/// How far a pass over a device has come, as OpenZFS says it (`print_status_initialize`, `print_status_trim`).
fn leaf_activity_text(kind: LeafActivity, progress: &LeafProgress, percent: u64) -> String {
    let (done, not_done) = match kind {
        LeafActivity::Initialize => ("initialized", "uninitialized"),
        LeafActivity::Trim => ("trimmed", "untrimmed"),
    };
    let how = match progress.state {
        LeafActivityState::None | LeafActivityState::Canceled => return format!("({not_done})"),
        LeafActivityState::Suspended => "suspended, started at",
        LeafActivityState::Active => "started at",
        LeafActivityState::Complete => "completed at",
    };
    format!("({percent}% {done}, {how} {})", date_and_time(progress.time_s))
}

/// The word for a vdev's type, with its parity.
fn type_word(vdev: &VdevConfig) -> String {
    let name = vdev.name();
    if vdev.is_leaf() { name } else { name.rsplit_once('-').map_or(name.clone(), |(word, _)| word.to_owned()) }
}

/// `HH:MM:SS`, days before it if there are any.
fn duration(seconds: u64) -> String {
    let clock = format!("{:02}:{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match seconds / 86_400 {
        0 => clock,
        days => format!("{days} days {clock}"),
    }
}

/// A removal, as OpenZFS says it (`print_removal_status`).
fn removal_text(pool: &Pool, r: &Removal) -> String {
    let vdev = pool.tree.children.iter().find(|top| top.id == r.vdev);
    let name = vdev.map_or_else(|| r.vdev.to_string(), |top| top.name());
    let copied = human(r.copied);
    let mut out = match r.stage {
        Stage::Finished => {
            let minutes = r.end_s.saturating_sub(r.start_s) / 60;
            let took = format!("{}h{}m", minutes / 60, minutes % 60);
            format!(
                "remove: Removal of vdev {} copied {copied} in {took}, completed on {}\n",
                r.vdev,
                date_and_time(r.end_s)
            )
        }
        Stage::Canceled => format!("remove: Removal of {name} canceled on {}\n", date_and_time(r.end_s)),
        Stage::Running => {
            let now_s = pool.machine.clock.wall().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
            let rate = (r.copied / now_s.saturating_sub(r.start_s).max(1)).max(1);
            let minutes = r.to_copy.saturating_sub(r.copied) / rate / 60;
            let left = match minutes / 60 {
                hours if hours < MAX_LEFT_HOURS => format!("{hours}h{}m to go", minutes % 60),
                _ => "(copy is slow, no estimated time)".to_owned(),
            };
            format!(
                "remove: Evacuation of {name} in progress since {}\n\t{copied} copied out of {} at {}/s, {:.2}% done, {left}\n",
                date_and_time(r.start_s),
                human(r.to_copy),
                human(rate),
                crate::units::percent(r.copied, r.to_copy)
            )
        }
    };
    if r.mapping_memory > 0 {
        out.push_str(&format!("\t{} memory used for removed device mappings\n", human(r.mapping_memory)));
    }
    out
}

/// Progress of a scrub that this process runs, and its remaining time at the speed so far.
fn running_text(s: &Scan) -> String {
    let part = crate::units::percent(s.examined, s.to_examine).min(100.0);
    let examined = human_size(s.examined);
    let all = human_size(s.to_examine);
    let left = s.to_examine.saturating_sub(s.examined);
    let known = s.active_s > 0 && s.examined > 0;
    let left_s = (u128::from(left) * u128::from(s.active_s)).checked_div(u128::from(s.examined)).unwrap_or(0) as u64;
    let left = if known { format!(", {} left while it runs", super::scrub::time(left_s)) } else { String::new() };
    let done = human_size(s.processed);
    let did = if s.resilver { "resilvered" } else { "repaired" };
    format!("\t{examined} of {all} scanned, {part:.1}%{left}\n\t{done} {did}, {} errors\n", s.errors)
}
