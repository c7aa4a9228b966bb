//! `weir why`: what limits the clients of pools that processes have open.

use super::observation;
use super::open_pools;
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::remote::RemoteProcess;
use clap::Parser;
use std::time::Duration;
use weir_analytics::PoolObservation;
use weir_analytics::why::{self, Diagnosis, LAST_SECONDS, PoolNotOpen, Report};

/// Longest time to watch, in seconds.
const MAX_WATCH_SECONDS: f64 = 86_400.0;
/// Time after which a watch checks whether its client has gone.
const LOOK: Duration = Duration::from_millis(500);

/// Say what limits the clients of pools, with figures.
///
/// It reads the counters of the last five minutes, or, if the pool was opened later, those since then. It says where the bytes
/// that clients read came from, what slows them down (sync writes without a log device, the write throttle, writes smaller than
/// records, a slow device, one request in flight, a small ARC, a full or fragmented pool, a scrub, ...), and what limits most. It
/// changes nothing. For the network, see weir doctor.
#[derive(Debug, Parser)]
#[command(name = "weir why", override_usage = "weir why [-j] [-t SECONDS] [-d DIR]… [POOL | DATASET | CLIENT]")]
pub struct WhyArgs {
    /// Print JSON
    #[arg(short = 'j', long)]
    json: bool,
    /// Watch for this time from now on, instead of reading the last five minutes
    #[arg(short = 't', value_name = "SECONDS")]
    watch: Option<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool, dataset with its descendants, or client as weir top shows it; default: all pools
    #[arg(value_name = "POOL | DATASET | CLIENT")]
    subject: Option<String>,
}

impl WhyArgs {
    /// The time to watch; `None` without `-t`.
    fn watch(&self) -> Result<Option<Duration>, Failure> {
        time_to_watch(self.watch.as_deref()).map_err(|what| WhyArgs::misused(&what))
    }
}

/// The time to watch that `-t` gives, if it is given.
///
/// # Errors
/// A sentence if the text is no such time.
pub fn time_to_watch(text: Option<&str>) -> Result<Option<Duration>, String> {
    let Some(text) = text else { return Ok(None) };
    let seconds: Option<f64> = text.parse().ok();
    let valid = seconds.filter(|seconds| *seconds > 0.0 && *seconds <= MAX_WATCH_SECONDS);
    let wrong = || format!("-t takes seconds, more than 0 and at most a day, not '{text}'");
    valid.map(|seconds| Some(Duration::from_secs_f64(seconds))).ok_or_else(wrong)
}

/// Pools to diagnose, and the dataset or client of the command line.
struct Selection {
    pools: Vec<(String, RemoteProcess)>,
    subject: Option<String>,
}

/// Finds the pools.
fn select(call: &Call, args: &WhyArgs) -> Result<Selection, Failure> {
    let reason = "what it does is counted by the process that has (weir daemon, serve, mount, demo)";
    let mut open = open_pools(call, &args.places, &[], reason)?;
    let names: Vec<String> = open.iter().map(|(name, _)| name.clone()).collect();
    match why::select(args.subject.as_deref(), &names) {
        Ok(why::Selection { pools, subject }) => {
            open.retain(|(name, _)| pools.contains(name));
            Ok(Selection { pools: open, subject })
        }
        // The error says where the pool was looked for.
        Err(PoolNotOpen(pool)) => {
            let pools = open_pools(call, &args.places, &[pool], reason)?;
            Ok(Selection { pools, subject: args.subject.clone() })
        }
    }
}

/// Waits, in steps in which it notices that the client has gone. Returns whether it is still there.
///
/// # Errors
/// If the call has no machine.
pub fn wait(call: &Call, time: Duration) -> Result<bool, Failure> {
    let machine = call.machine()?;
    let due = machine.clock.now() + time;
    while machine.clock.now() < due {
        if call.is_gone() {
            return Ok(false);
        }
        machine.block_on(machine.clock.sleep(LOOK.min(due.since(machine.clock.now()))));
    }
    Ok(true)
}

/// Runs the command.
pub fn run(call: &Call, args: &WhyArgs) -> Result<u8, Failure> {
    let watch = args.watch()?;
    let Selection { pools, subject } = select(call, args)?;
    let observe = |seconds| -> Result<Vec<PoolObservation>, Failure> {
        pools.iter().map(|(name, remote)| observation(call, name, remote, seconds)).collect()
    };
    let mut before = Vec::new();
    if let Some(time) = watch {
        before = observe(0)?;
        if !wait(call, time)? {
            return Ok(0);
        }
    }
    let mut observed = observe(LAST_SECONDS)?;
    for (now, was) in observed.iter_mut().zip(before) {
        now.before = Some(was.after);
    }
    if let Some(subject) = subject.as_ref().filter(|subject| !observed.iter().any(|seen| seen.knows(subject))) {
        let unknown = format!(
            "weir why: '{subject}' is no open pool, and no dataset or client of that name had a request since the pools were \
             opened: weir top lists those that had"
        );
        return Err(Failure::failed(unknown));
    }
    let report = Report { diagnoses: observed.iter().map(|seen| seen.diagnosis(subject.as_deref())).collect() };
    if args.json {
        let text = serde_json::to_string_pretty(&report);
        outln!(call, "{}", text.map_err(|error| Failure::failed(format!("weir why: {error}")))?);
    } else {
        let texts: Vec<String> = report.diagnoses.iter().map(text).collect();
        call.print(format_args!("{}", texts.join("\n")));
    }
    Ok(0)
}

/// The diagnosis of a pool as text.
fn text(of: &Diagnosis) -> String {
    let subject = of.subject.as_ref().map(|subject| format!(", {subject}")).unwrap_or_default();
    let mut out = format!("{}{subject}: {}\n", of.pool, of.limit);
    if let Some(sources) = &of.sources {
        out.push_str(&format!("  {sources}\n"));
    }
    for (n, found) in of.findings.iter().enumerate() {
        out.push_str(&format!("\n{}. {}\n   {}\n", n + 1, found.sentence, found.advice));
    }
    out.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use weir_analytics::why::{Cause, Finding};

    #[test]
    fn a_diagnosis_is_shown_without_control_characters() {
        let found = Finding {
            cause: Cause::OneRequestInFlight,
            subject: "evil".into(),
            weight: 0.5,
            figures: BTreeMap::new(),
            sentence: "Client evil\x1b[2J has one request in flight.".into(),
            advice: "More at once.".into(),
        };
        let of = Diagnosis {
            pool: "tank".into(),
            subject: Some("tank/a".into()),
            seconds: 10.0,
            requests: 1,
            read_bytes: BTreeMap::new(),
            findings: vec![found],
            sources: Some("Clients read 4M.".into()),
            limit: "Limit.".into(),
        };
        let expected = "\
tank, tank/a: Limit.
  Clients read 4M.

1. Client evil?[2J has one request in flight.
   More at once.
";
        assert_eq!(text(&of), expected);
    }

    #[test]
    fn a_time_to_watch_is_a_number_of_seconds() {
        let of = |words: &[&str]| {
            let words: Vec<std::ffi::OsString> = words.iter().map(std::ffi::OsString::from).collect();
            WhyArgs::parse_line(&words).ok().map(|args| args.watch().map_err(|failure| failure.code))
        };
        assert_eq!(of(&[]), Some(Ok(None)));
        assert_eq!(of(&["-t", "0.5", "tank"]), Some(Ok(Some(Duration::from_millis(500)))));
        for wrong in ["0", "x", "nan", "86401"] {
            assert_eq!(of(&["-t", wrong]), Some(Err(2)), "{wrong}");
        }
    }
}
