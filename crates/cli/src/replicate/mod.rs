//! `weir replicate`: datasets and their snapshots to another pool, of this machine or another one.
//!
//! ```text
//!   side   `zfs list`, `get` on both sides ─► steps: the newest common snapshot, by GUID ─► transfer
//!                                                                            `zfs send` ─► `zfs receive -s`
//! ```
//!
//! Both sides are called by their commands, so that the other one may be a Weir or an OpenZFS. A stream that was interrupted goes on
//! at the next run. A bookmark at the source stands for the last snapshot that the target has, so that this may be destroyed. On
//! the target, nothing is destroyed but snapshots that replications took, unless `-F` is given.

pub mod progress;
mod renames;
mod side;
mod steps;
mod target_lock;
mod transfer;

use crate::args::{CommandLine, Stop};
use crate::command_target::now;
use crate::failure::Failure;
use crate::size;
use crate::snapshot_names::{name_at, time_of};
use crate::units::human_bytes;
use clap::Parser;
use progress::Progress;
use renames::Replicas;
use serde_json::{Value, json};
use side::{DatasetState, Side};
use steps::{Refused, Step, common, plan};
use target_lock::TargetLock;
use transfer::{TransferOptions, transfer};

/// Bring datasets and their snapshots to another pool, incrementally.
///
/// A snapshot of the source is taken, and the target gets it with all snapshots since the newest one that both have. TARGET is a
/// dataset of this machine, or HOST:DATASET, which is reached through ssh. An interrupted run is continued by the next.
#[derive(Debug, Parser)]
#[command(
    name = "weir replicate",
    override_usage = "weir replicate [-rnvFj] [--name NAME] [--no-snapshot] [--keep-source N] [--keep-target N] [--limit RATE] [--through COMMAND] [--target-zfs COMMAND] SOURCE TARGET\n       weir replicate --lag [-rj] [--through COMMAND] [--target-zfs COMMAND] SOURCE TARGET\n       weir replicate --switch [options] SOURCE TARGET"
)]
pub struct ReplicateArgs {
    /// Replicate also all datasets below
    #[arg(short)]
    recursive: bool,
    /// Send nothing: only show what would be sent
    #[arg(short = 'n')]
    dry_run: bool,
    /// Show progress on standard error
    #[arg(short)]
    verbose: bool,
    /// Discard what the target has since the last common snapshot
    #[arg(short = 'F')]
    force: bool,
    /// Print JSON
    #[arg(short)]
    json: bool,
    /// Name that begins those of the snapshots and bookmarks; give each target another one
    #[arg(long, value_name = "NAME", default_value = "replicate")]
    name: String,
    /// Take no snapshot: send up to the newest one
    #[arg(long)]
    no_snapshot: bool,
    /// Number of this command's snapshots that stay at the source [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    keep_source: Option<u32>,
    /// Number of this command's snapshots that stay at the target [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    keep_target: Option<u32>,
    /// Maximum bytes per second, for example 20M
    #[arg(long, value_name = "RATE")]
    limit: Option<String>,
    /// Command that runs its last argument as a shell does, on the machine of the target [default: ssh -o BatchMode=yes]
    #[arg(long, value_name = "COMMAND")]
    through: Option<String>,
    /// The command zfs on the machine of the target; "zfs" for OpenZFS
    #[arg(long, value_name = "COMMAND", default_value = "weir zfs")]
    target_zfs: String,
    /// Show how far the target is behind: what is lost if the source is lost now
    #[arg(long, conflicts_with_all = ["dry_run", "force"])]
    lag: bool,
    /// Make the source read-only, replicate, and make the target writable: their roles change
    #[arg(long, conflicts_with_all = ["dry_run", "lag", "no_snapshot"])]
    switch: bool,
    /// Do nothing if the target has a snapshot of this time or a later one, in seconds since 1970
    #[arg(long, value_name = "TIME", hide = true)]
    due: Option<u64>,
    /// Say the progress on standard output as the daemon reads it
    #[arg(long, hide = true)]
    progress: bool,
    /// Dataset of this machine
    #[arg(value_name = "SOURCE")]
    source: String,
    /// POOL/DATASET or HOST:POOL/DATASET
    #[arg(value_name = "TARGET")]
    target: String,
}

/// Number of times that a snapshot is tried again under a later name.
const MAX_SNAPSHOT_TRIES: u32 = 10;

/// A dataset and its replica.
struct Pair {
    source: Side,
    target: Side,
    /// Whether a dry run would give another name to the dataset that has the target's.
    is_vacated: bool,
}

impl Pair {
    /// State of the target.
    fn there(&self) -> Result<DatasetState, Failure> {
        if self.is_vacated { Ok(DatasetState::default()) } else { self.target.state() }
    }
}

/// Result for one dataset.
struct Outcome {
    source: String,
    target: String,
    /// Snapshot that the target has now.
    snapshot: String,
    /// Bytes of the streams.
    bytes: u64,
    /// Steps that were not carried out, of a dry run.
    planned: Vec<String>,
    /// Failures that leave the replica whole.
    notes: Vec<String>,
}

/// Checks the arguments of a command line.
///
/// # Errors
/// The first that is wrong, and why.
pub fn check(words: &[String]) -> Result<(), String> {
    let line: Vec<_> = words.iter().map(Into::into).collect();
    let checked = match ReplicateArgs::parse_line(&line) {
        Ok(args) => args.checked().map(drop).map_err(|failure| failure.line),
        Err(Stop::Misuse(failure)) => Err(failure.line),
        Err(Stop::Text(text)) => Err(text),
    };
    // The usage that may follow is that of the command line.
    checked.map_err(|why| why.lines().next().unwrap_or_default().to_owned())
}

impl ReplicateArgs {
    /// Checks the values; returns both sides, and the limit in bytes per second.
    fn checked(&self) -> Result<(Pair, Option<u64>), Failure> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(is_allowed) {
            return Err(ReplicateArgs::misused("--name takes 1 to 64 letters, digits, '-', '_' and '.'"));
        }
        if self.source.is_empty() || self.source.starts_with('-') || self.source.contains(['@', '#', ':']) {
            return Err(ReplicateArgs::misused(&format!("'{}' is no dataset of this machine", self.source)));
        }
        let limit = match &self.limit {
            None => None,
            Some(text) => Some(size::parse(text).filter(|bytes| *bytes >= 1024).ok_or_else(|| {
                ReplicateArgs::misused(&format!(
                    "--limit takes bytes per second, at least 1K, such as 20M, not '{text}'"
                ))
            })?),
        };
        let top = Pair {
            source: Side::here(&self.source)?,
            target: Side::of(&self.target, self.through.as_deref(), &self.target_zfs)?,
            is_vacated: false,
        };
        if top.source.shown() == top.target.shown() {
            return Err(Failure::failed("source and target are the same dataset"));
        }
        if top.target.is_here() && top.target.dataset.starts_with(&format!("{}/", self.source)) {
            return Err(Failure::failed(format!(
                "the target {} is inside the source {}: name one outside of it",
                self.target, self.source
            )));
        }
        Ok((top, limit))
    }
}

/// Runs the command.
pub fn run(args: &ReplicateArgs) -> Result<u8, Failure> {
    let (top, limit) = args.checked()?;
    if args.lag {
        return lag(args, &top);
    }
    if let Some(due) = args.due
        && common(&top.source.state()?, &top.target.state()?).is_some_and(|(here, _)| here.creation >= due)
    {
        return Ok(0);
    }
    let _lock = if args.dry_run { None } else { Some(TargetLock::of(&args.target)?) };
    if args.switch {
        if !args.recursive && top.source.descendants()?.len() > 1 {
            let source = &args.source;
            return Err(Failure::failed(format!(
                "{source} has datasets below it, which could then be written on neither side: use -r"
            )));
        }
        top.source.run(&["set", "readonly=on", &top.source.dataset])?;
    }
    let taken = match args.no_snapshot || args.dry_run {
        true => None,
        false => Some(take_snapshot(args, &top.source)?),
    };
    let options = TransferOptions { limit, verbose: args.verbose, progress: args.progress };
    let mut failed = 0;
    let mut results = Vec::new();
    let mut renamed = Vec::new();
    let mut replicas = if args.recursive { Some(Replicas::list(&top.source, &top.target)?) } else { None };
    let pairs = pairs(args, &top)?;
    let datasets = pairs.len();
    for (number, mut pair) in (1..).zip(pairs) {
        let mut is_sent = false;
        let placed = replicas.as_mut().map_or(Ok(()), |replicas| follow(args, &top, &mut pair, replicas, &mut renamed));
        if placed.is_err() {
            // Further names would follow from a rename that was not made.
            replicas = None;
        }
        let mut progress = Progress {
            source: pair.source.shown(),
            target: pair.target.shown(),
            number,
            datasets,
            ..Progress::default()
        };
        match placed.and_then(|()| replicate(args, &pair, (options, &mut progress), &mut is_sent)) {
            Ok(outcome) => results.push(shown(args, &outcome)),
            Err(failure) => {
                eprintln!("{failure}");
                if let Some(taken) = &taken {
                    withdraw(&pair, taken, is_sent);
                }
                failed += 1;
            }
        }
    }
    if args.switch && failed == 0 {
        // Those below have been made read-only when they were received.
        let inherit: &[&str] = if args.recursive { &["inherit", "-r"] } else { &["inherit"] };
        top.target.run(&[inherit, &["readonly", &top.target.dataset]].concat())?;
    }
    if args.json {
        let answer = json!({"replicated": results, "renamed": renamed, "failed": failed});
        println!("{}", serde_json::to_string_pretty(&answer).unwrap_or_default());
    }
    Ok(u8::from(failed > 0))
}

/// Takes the snapshot, and returns its name with `@`. If another run took one within this second, it waits for the next one: what
/// was written meanwhile would be missing in the other's.
#[allow(clippy::disallowed_methods, reason = "a real process, in real time")]
fn take_snapshot(args: &ReplicateArgs, source: &Side) -> Result<String, Failure> {
    let mut tries = 0;
    loop {
        let taken = format!("@{}", name_at(&args.name, now().sec).map_err(Failure::failed)?);
        let name = format!("{}{taken}", source.dataset);
        let words: &[&str] = if args.recursive { &["snapshot", "-r", &name] } else { &["snapshot", &name] };
        match source.run(words) {
            Err(failure) if tries < MAX_SNAPSHOT_TRIES && failure.line.contains("already exists") => {
                tries += 1;
                std::thread::sleep(std::time::Duration::from_millis(500));
            }
            done => return done.map(|_| taken),
        }
    }
}

/// Destroys the snapshot that a failed run took, so that runs which fail again and again leave none. It stays if the target has it,
/// or has a part of a stream that the next run continues; after a stream was sent (`is_sent`), the target is asked for that.
fn withdraw(pair: &Pair, taken: &str, is_sent: bool) {
    let may_need = |there: &DatasetState| there.token.is_some() || there.points.iter().any(|point| point.name == taken);
    if is_sent && pair.target.state().as_ref().map_or(true, may_need) {
        return;
    }
    let name = format!("{}{taken}", pair.source.dataset);
    if let Err(failure) = pair.source.run(&["destroy", &name]) {
        eprintln!("{name} stays: {failure}");
    }
}

/// The dataset, and with `-r` those below it, each with its replica.
fn pairs(args: &ReplicateArgs, top: &Pair) -> Result<Vec<Pair>, Failure> {
    let names = if args.recursive { top.source.descendants()? } else { vec![args.source.clone()] };
    let pair = |name: String| {
        let rest = name.strip_prefix(args.source.as_str()).unwrap_or_default();
        let target = top.target.with(format!("{}{rest}", top.target.dataset));
        Pair { source: top.source.with(name.clone()), target, is_vacated: false }
    };
    Ok(names.into_iter().map(pair).collect())
}

/// Renames at the target what has another name at the source now, before `pair` is replicated. A dry run renames nothing, and reads
/// the replica under the name that it has.
fn follow(
    args: &ReplicateArgs,
    top: &Pair,
    pair: &mut Pair,
    replicas: &mut Replicas,
    renamed: &mut Vec<Value>,
) -> Result<(), Failure> {
    let below = pair.source.dataset.strip_prefix(top.source.dataset.as_str()).unwrap_or_default();
    let at = |name: &str| top.target.with(format!("{}{name}", top.target.dataset));
    for rename in replicas.place(below) {
        let (from, to) = (at(&rename.from), at(&rename.to));
        if !args.dry_run {
            from.run(&["rename", &from.dataset, &to.dataset])?;
        }
        if !args.json {
            let verb = if args.dry_run { "would be renamed" } else { "was renamed" };
            println!("{} {verb} {}", from.shown(), to.dataset);
        }
        renamed.push(json!({"from": from.shown(), "to": to.shown()}));
    }
    if args.dry_run {
        let listed = replicas.listed_name(below);
        pair.is_vacated = listed.is_none();
        pair.target = at(listed.unwrap_or(below));
    }
    Ok(())
}

/// Prints the outcome, or returns it for the JSON.
fn shown(args: &ReplicateArgs, outcome: &Outcome) -> Value {
    let Outcome { source, target, snapshot, bytes, planned, notes } = outcome;
    if !args.json {
        match args.dry_run {
            true if planned.is_empty() => println!("{source}: {target} has {snapshot} already"),
            true => planned.iter().for_each(|step| println!("{source}: would send {step} to {target}")),
            false => println!("{source}: {target} has {snapshot}; {} sent", human_bytes(*bytes)),
        }
    }
    notes.iter().for_each(|note| eprintln!("{source}: {note}"));
    json!({"source": source, "target": target, "snapshot": snapshot, "bytes": bytes, "planned": planned, "notes": notes})
}

/// Brings one dataset to the newest snapshot of its source. Sets `is_sent` before a new stream is sent.
fn replicate(
    args: &ReplicateArgs,
    pair: &Pair,
    (options, progress): (TransferOptions, &mut Progress),
    is_sent: &mut bool,
) -> Result<Outcome, Failure> {
    let Pair { source, target, .. } = pair;
    let mut notes = Vec::new();
    let mut there = pair.there()?;
    if let Some(token) = there.token.clone().filter(|_| !args.dry_run) {
        // Of a stream that cannot be continued, sending says why.
        let expected = source.run(&["send", "-nP", "-t", &token]).ok().and_then(|text| size_of(&text));
        progress.estimated_bytes = expected;
        match transfer(
            (source, &["send", "-t", &token]),
            (target, &["receive", "-s", "-u", &target.dataset]),
            (expected, progress),
            options,
        ) {
            Ok(sent) => progress.sent_bytes += sent,
            // The snapshot is gone, or the stream was changed: it begins anew.
            Err(failure) if failure.line.contains(": zfs send:") => {
                target.run(&["receive", "-A", &target.dataset])?;
                notes.push(format!("the interrupted stream could not be continued, and was begun anew: {failure}"));
            }
            Err(failure) => return Err(failure),
        }
        there = target.state()?;
    }
    let here = source.state()?;
    let steps = plan(&here, &there, args.force).map_err(|why| refusal(pair, &why))?;
    let last = steps.last().map(|step| step.to().to_owned());
    let newest = here.newest().map(|point| point.name.clone()).unwrap_or_default();
    let snapshot = last.unwrap_or(newest);
    let mut planned = Vec::new();
    let estimates = steps.iter().map(|step| estimate(source, &here, step)).collect::<Result<Vec<_>, _>>()?;
    progress.estimated_bytes = estimates.iter().copied().sum::<Option<u64>>().map(|all| progress.sent_bytes + all);
    for (step, estimate) in steps.iter().zip(estimates) {
        if args.dry_run {
            let size = estimate.map(|bytes| format!(", about {}", human_bytes(bytes))).unwrap_or_default();
            planned.push(format!("{}{size}", step.arguments(&source.dataset).join(" ")));
            continue;
        }
        *is_sent = true;
        progress.snapshot = step.to().to_owned();
        progress.sent_bytes += send(args, pair, &here, step, (estimate, progress, options))?;
    }
    let bytes = progress.sent_bytes;
    if !args.dry_run {
        verify(pair, &snapshot)?;
        bookmark(args, source, &here, &snapshot, &mut notes);
        retain(args.keep_source, &args.name, source, &snapshot, &mut notes);
        retain(args.keep_target, &args.name, target, &snapshot, &mut notes);
    }
    Ok(Outcome { source: source.shown(), target: target.shown(), snapshot, bytes, planned, notes })
}

/// Options of `zfs send`: an encrypted dataset is sent as it is, so that the target needs no key.
fn send_options(here: &DatasetState) -> &'static str {
    if here.encrypted { "-w" } else { "-Lec" }
}

/// Estimated size of a stream, in bytes.
fn estimate(source: &Side, here: &DatasetState, step: &Step) -> Result<Option<u64>, Failure> {
    let arguments = step.arguments(&source.dataset);
    let words: Vec<&str> =
        ["send", "-nP", send_options(here)].into_iter().chain(arguments.iter().map(String::as_str)).collect();
    Ok(size_of(&source.run(&words)?))
}

/// The size that `zfs send -nP` printed.
fn size_of(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("size")?.trim().parse().ok())
}

fn send(
    args: &ReplicateArgs,
    pair: &Pair,
    here: &DatasetState,
    step: &Step,
    (estimate, progress, options): (Option<u64>, &Progress, TransferOptions),
) -> Result<u64, Failure> {
    let arguments = step.arguments(&pair.source.dataset);
    let mut send = vec!["send", send_options(here)];
    send.extend(arguments.iter().map(String::as_str));
    let mut receive = vec!["receive", "-s", "-u"];
    match step {
        // Nothing but replications writes to the replica. Without -F, a dataset that came into being meanwhile is left alone.
        Step::Full { .. } => receive.extend(["-o", "readonly=on"]),
        Step::Since { .. } if args.force => receive.push("-F"),
        Step::Since { .. } => {}
    }
    receive.push(&pair.target.dataset);
    transfer((&pair.source, &send), (&pair.target, &receive), (estimate, progress), options)
}

/// Checks that both sides have the snapshot, and that it is the same one.
fn verify(pair: &Pair, snapshot: &str) -> Result<(), Failure> {
    let guid =
        |side: &Side| side.run(&["get", "-H", "-p", "-o", "value", "guid", &format!("{}{snapshot}", side.dataset)]);
    let here = guid(&pair.source)?;
    let there = guid(&pair.target)?;
    if here.trim() == there.trim() && !here.trim().is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!("{}{snapshot} is not the snapshot of the source", pair.target.shown())))
}

/// Marks the replicated snapshot at the source, and removes the older marks.
fn bookmark(args: &ReplicateArgs, source: &Side, here: &DatasetState, snapshot: &str, notes: &mut Vec<String>) {
    let Some(point) = here.points.iter().find(|point| point.name == *snapshot) else { return };
    let marked = here.points.iter().any(|mark| !mark.is_snapshot() && mark.guid == point.guid);
    let own = |mark: &&side::Point| {
        let name = mark.name.strip_prefix('#');
        mark.guid != point.guid && name.is_some_and(|name| time_of(&args.name, name).is_some())
    };
    if !marked {
        // A snapshot of this command and its bookmark have one name. The time of creation can be a second later.
        let own_name = snapshot.strip_prefix('@').filter(|name| time_of(&args.name, name).is_some()).map(str::to_owned);
        let Some(name) = own_name.or_else(|| name_at(&args.name, point.creation.cast_signed()).ok()) else { return };
        let [from, to] = [format!("{}{snapshot}", source.dataset), format!("{}#{name}", source.dataset)];
        if let Err(failure) = source.run(&["bookmark", &from, &to]) {
            notes.push(format!("no bookmark: {failure}"));
            return;
        }
    }
    for old in here.points.iter().filter(|mark| !mark.is_snapshot()).filter(own) {
        let name = format!("{}{}", source.dataset, old.name);
        if let Err(failure) = source.run(&["destroy", &name]) {
            notes.push(format!("{name} stays: {failure}"));
        }
    }
}

/// Destroys the oldest snapshots that this command took beyond `keep`, never the one that both sides have.
fn retain(keep: Option<u32>, name: &str, side: &Side, snapshot: &str, notes: &mut Vec<String>) {
    let Some(keep) = keep else { return };
    let state = match side.state() {
        Ok(state) => state,
        Err(failure) => return notes.push(failure.to_string()),
    };
    let is_own = |point: &&side::Point| point.name.strip_prefix('@').is_some_and(|own| time_of(name, own).is_some());
    let own: Vec<_> = state.points.iter().filter(is_own).collect();
    let beyond = own.len().saturating_sub(keep as usize);
    for old in own.into_iter().take(beyond).filter(|point| point.name != snapshot) {
        let name = format!("{}{}", side.dataset, old.name);
        if let Err(failure) = side.run(&["destroy", &name]) {
            notes.push(format!("{name} stays: {failure}"));
        }
    }
}

fn refusal(pair: &Pair, why: &Refused) -> Failure {
    let (source, target) = (pair.source.shown(), pair.target.shown());
    Failure::failed(match why {
        Refused::NothingToSend => format!("{source}: there is no snapshot to send"),
        Refused::NoSnapshots => {
            format!("{target} exists and has no snapshot: name another target, or destroy this one and begin anew")
        }
        Refused::NothingInCommon => format!(
            "{target} has no snapshot in common with {source}: name another target, or destroy this one and begin anew"
        ),
        Refused::Diverged { common, first } => format!(
            "{target} has diverged since {common}: {first} is not at the source; -F goes back to {common} and destroys \
             what came after"
        ),
    })
}

/// Shows how far the targets are behind.
fn lag(args: &ReplicateArgs, top: &Pair) -> Result<u8, Failure> {
    let time = now().sec.max(0).cast_unsigned();
    let mut all = Vec::new();
    for Pair { source, target, .. } in pairs(args, top)? {
        let here = source.state()?;
        let there = target.state()?;
        let Some((base, _)) = common(&here, &there) else {
            all.push(json!({"source": source.shown(), "target": target.shown(), "snapshot": null}));
            if !args.json {
                println!("{}: {} has nothing of it", source.shown(), target.shown());
            }
            continue;
        };
        // A bookmark has no written property: what was written since is not known.
        let property = format!("written{}", base.name);
        let written = match base.is_snapshot() {
            true => source.run(&["get", "-H", "-p", "-o", "value", &property, &source.dataset])?.trim().parse().ok(),
            false => None,
        };
        let seconds = time.saturating_sub(base.creation);
        if !args.json {
            let written = written.map_or_else(|| "an unknown number of bytes".to_owned(), human_bytes);
            println!(
                "{}: {} has {}; what came after would be lost: {seconds} s, {written}",
                source.shown(),
                target.shown(),
                base.name
            );
        }
        all.push(json!({
            "source": source.shown(), "target": target.shown(), "snapshot": base.name,
            "lag_seconds": seconds, "lag_bytes": written,
        }));
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&json!({"lag": all})).unwrap_or_default());
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_dataset_is_replicated_into_itself() {
        let checked = |line: &str| check(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        for line in ["tank/docs tank/docs/in", "-r tank tank/backup", "tank/docs tank/docs"] {
            assert!(checked(line).is_err(), "{line}");
        }
        for line in ["tank/docs tank/docs2", "-r tank/docs tank/backup", "tank/docs nas:tank/docs/in"] {
            assert_eq!(checked(line), Ok(()), "{line}");
        }
    }
}
