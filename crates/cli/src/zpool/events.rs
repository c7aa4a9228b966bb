//! `zpool events`: events of pools since a process has opened them.
//!
//! Events are in the memory of the process that has the pool open ([`weir_engine::events`]), which this command asks
//! for them. A pool that no process has open has no events.

use super::opened::{ask, holders, served};
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::json::{self, Numbers};
use crate::options::{JsonOptions, PoolDirs};
use crate::zdb::date;
use clap::Parser;
use serde_json::{Map, Value};
use std::time::Duration;
use weir_engine::{Event, Events};
use weir_format::{NvList, NvPair, NvValue};

/// Show the events of a pool since a process opened it.
#[derive(Debug, Parser)]
#[command(
    name = "zpool events",
    override_usage = "zpool events [-vHf | -j [--json-int]] [-d DIR]… [POOL]\n       zpool events -c [-d DIR]…"
)]
pub struct EventsArgs {
    /// Show the payload of each event
    #[arg(short)]
    verbose: bool,
    /// No header; columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Wait for further events and show them
    #[arg(short)]
    follow: bool,
    /// Clear all events
    #[arg(short)]
    clear: bool,
    #[command(flatten)]
    json: JsonOptions,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool; default: all pools that a process has open
    #[arg(value_name = "POOL")]
    words: Vec<String>,
}

/// Interval at which `-f` looks for new events.
const LOOK: Duration = Duration::from_millis(200);
/// Columns by which names are set off, and lists in lists again.
const INDENT: usize = 8;

impl EventsArgs {
    /// Whether an option changes the text of the events or follows them.
    fn changes_output(&self) -> bool {
        self.verbose || self.scripted || self.follow
    }
}

/// Runs the command. The process that has the pool open prints its events; another process sends it the command.
pub fn run(call: &Call, args: &EventsArgs) -> Result<u8, Failure> {
    let names = &args.words;
    if names.len() > 1 {
        return Err(EventsArgs::misused("too many arguments"));
    }
    let shows = !names.is_empty() || args.changes_output() || args.json.json;
    if args.clear && shows {
        return Err(EventsArgs::misused("invalid options combined with -c"));
    }
    if args.json.json && args.changes_output() {
        return Err(EventsArgs::misused("-j does not go together with -v, -H and -f"));
    }
    if call.process().is_some() {
        let pools = served(call, names.first())?;
        if args.follow && pools.len() > 1 {
            return Err(Failure::failed("several pools are open: name the pool whose events to follow"));
        }
        pools.iter().try_for_each(|pool| of_served_pool(call, args, &pool.engine.events).map(drop))?;
        return Ok(0);
    }
    let why = "events are in the memory of the process that has (weir serve, mount, demo), and end with it; \
               'zpool history -i' shows what is on disk";
    let holders = holders(call, &args.places, names.first(), why)?;
    if args.follow && holders.len() > 1 {
        return Err(Failure::failed("several processes have pools open: name the pool whose events to follow"));
    }
    ask(call, &holders)
}

/// Shows or clears the events of the pool that this process has open.
fn of_served_pool(call: &Call, args: &EventsArgs, events: &Events) -> Result<u8, Failure> {
    if args.clear {
        outln!(call, "cleared {} events", events.clear());
        return Ok(0);
    }
    if args.json.json {
        let numbers = args.json.numbers::<EventsArgs>()?;
        let all = events.after(0).events.iter().map(|event| object(&event.list, numbers)).collect();
        let mut answer = json::frame("zpool events");
        answer.insert("events".into(), Value::Array(all));
        json::print(call, answer);
        return Ok(0);
    }
    if !args.scripted {
        outln!(call, "{:<30} CLASS", "TIME");
    }
    let machine = call.machine()?;
    machine.block_on(async {
        let mut last = 0;
        loop {
            let news = events.after(last);
            for (n, event) in news.events.iter().enumerate() {
                let missed = if n == 0 { news.missed } else { 0 };
                show(call, args, event, missed.saturating_add(event.dropped));
                last = event.eid;
                call.wait_for_output().await;
            }
            if !args.follow || news.ended || call.is_gone() {
                return Ok(0);
            }
            machine.clock.sleep(LOOK).await;
        }
    })
}

fn show(call: &Call, args: &EventsArgs, event: &Event, dropped: u64) {
    if dropped > 0 {
        outln!(call, "dropped {dropped} events");
    }
    let gap = if args.scripted { '\t' } else { ' ' };
    outln!(call, "{}{gap}{}", time(event.time), event.class);
    if args.verbose {
        call.print(format_args!("{}\n", payload(&event.list, INDENT)));
    }
}

/// `Nov 21 2026 07:45:39.000000001`, in UTC.
fn time((seconds, nanos): (i64, i64)) -> String {
    let date = date(u64::try_from(seconds).unwrap_or(0));
    let part = |range: std::ops::Range<usize>| date.get(range).unwrap_or_default();
    format!("{} {} {}.{nanos:09}", part(4..10), part(20..24), part(11..19))
}

/// All names and values, each on a line.
fn payload(list: &NvList, depth: usize) -> String {
    let mut out = String::new();
    for pair in list.pairs() {
        let name = pair.name_lossy();
        let front = " ".repeat(depth);
        match &pair.value {
            NvValue::List(inner) => {
                let inner = payload(inner, depth + INDENT);
                out += &format!("{front}{name} = (embedded nvlist)\n{inner}{front}(end {name})\n");
            }
            _ => out += &format!("{front}{name} = {}\n", text(pair)),
        }
    }
    out
}

/// The names of `zio_type_t` and `zio_priority_t`.
const TYPES: [&str; 7] = ["NULL", "READ", "WRITE", "FREE", "CLAIM", "FLUSH", "TRIM"];
const PRIORITIES: [&str; 5] = ["SYNC_READ", "SYNC_WRITE", "ASYNC_READ", "ASYNC_WRITE", "SCRUB"];

/// A value as `zpool events -v` shows it.
fn text(pair: &NvPair) -> String {
    let named = |names: &[&str], n: u32| match names.get(n as usize) {
        Some(name) => format!("{n:#x} [{name}]"),
        None => format!("{n:#x}"),
    };
    let words = |words: Vec<String>| words.into_iter().map(|word| word + " ").collect();
    match &pair.value {
        NvValue::Uint32(n) if pair.name == b"zio_type" => named(&TYPES, *n),
        NvValue::Uint32(n) if pair.name == b"zio_priority" => named(&PRIORITIES, *n),
        NvValue::Uint8(n) => format!("{n:#x}"),
        NvValue::Int32(n) => format!("{n:#x}"),
        NvValue::Uint32(n) => format!("{n:#x}"),
        NvValue::Int64(n) => format!("{n:#x}"),
        NvValue::Uint64(n) => format!("{n:#x}"),
        NvValue::String(bytes) => format!("\"{}\"", String::from_utf8_lossy(bytes)),
        NvValue::Int64Array(all) => words(all.iter().map(|n| format!("{n:#x}")).collect()),
        NvValue::Uint64Array(all) => words(all.iter().map(|n| format!("{n:#x}")).collect()),
        _ => "<unknown>".to_owned(),
    }
}

/// An event as JSON.
fn object(list: &NvList, numbers: Numbers) -> Value {
    let number = |n: u64| json::number(n, numbers);
    let signed = |n: i64| if numbers == Numbers::Integers { n.into() } else { Value::String(n.to_string()) };
    let value = |value: &NvValue| match value {
        NvValue::Uint8(n) => number((*n).into()),
        NvValue::Int32(n) => signed((*n).into()),
        NvValue::Uint32(n) => number((*n).into()),
        NvValue::Int64(n) => signed(*n),
        NvValue::Uint64(n) => number(*n),
        NvValue::String(bytes) => String::from_utf8_lossy(bytes).into(),
        NvValue::Int64Array(all) => all.iter().copied().map(signed).collect(),
        NvValue::Uint64Array(all) => all.iter().copied().map(number).collect(),
        NvValue::List(list) => object(list, numbers),
        _ => Value::Null,
    };
    let pairs = list.pairs().iter().map(|pair| (pair.name_lossy().into_owned(), value(&pair.value)));
    Value::Object(pairs.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_shown_as_openzfs_shows_them() {
        let mut detector = NvList::new();
        detector.set("version", NvValue::Uint8(0));
        detector.set("scheme", "zfs");
        let mut list = NvList::new();
        list.set("class", "ereport.fs.zfs.checksum");
        list.set("detector", detector);
        list.set("zio_err", 52i32);
        list.set("zio_priority", 4u32);
        list.set("zio_type", 77u32);
        list.set("zio_level", -1i64);
        list.set("zio_offset", 0x40_1000u64);
        list.set("time", NvValue::Int64Array(vec![16, 1]));
        let expected = "        class = \"ereport.fs.zfs.checksum\"
        detector = (embedded nvlist)
                version = 0x0
                scheme = \"zfs\"
        (end detector)
        zio_err = 0x34
        zio_priority = 0x4 [SCRUB]
        zio_type = 0x4d
        zio_level = 0xffffffffffffffff
        zio_offset = 0x401000
        time = 0x10 0x1 \n";
        assert_eq!(payload(&list, INDENT), expected);
        let value = object(&list, Numbers::Integers);
        assert_eq!((&value["zio_level"], &value["detector"]["scheme"]), (&(-1).into(), &"zfs".into()));
        assert_eq!(object(&list, Numbers::Text)["time"], serde_json::json!(["16", "1"]));
    }

    #[test]
    fn times_are_as_wide_as_their_heading() {
        assert_eq!(time((1_795_247_139, 7)), "Nov 21 2026 07:45:39.000000007");
        assert_eq!(time((0, 0)).len(), 30);
    }
}
