//! `zpool events`: events of pools since a process has opened them.
//!
//! Events are in the memory of the process that has the pool open ([`weir_engine::events`]), which this command asks
//! for them. A pool that no process has open has no events.

use super::holder::PoolHolder;
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::json::{self, Numbers};
use crate::options::{JsonOptions, PoolDirs};
use crate::reading::refused;
use crate::times;
use clap::Parser;
use serde_json::{Map, Value};
use weir_admin::{
    Action, EventField, EventRow, EventValue, EventsQuery, OpenPool, Outcome, PoolQuery, RefusalKind, Row,
};

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

/// Columns by which names are set off, and lists in lists again.
const INDENT: usize = 8;

impl EventsArgs {
    /// Whether an option changes the text of the events or follows them.
    fn changes_output(&self) -> bool {
        self.verbose || self.scripted || self.follow
    }
}

/// Runs the command.
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
    let why = "events are in the memory of the process that has (weir daemon, serve, mount, demo), and end with it; \
               'zpool history -i' shows what is on disk";
    let holders = match call.process() {
        Some(_) => vec![PoolHolder::Own],
        None => PoolHolder::find(call, &args.places, names.first(), why)?,
    };
    if args.follow && holders.len() > 1 {
        return Err(Failure::failed("several processes have pools open: name the pool whose events to follow"));
    }
    for holder in &holders {
        let pools = holder.pools(call, names.first())?;
        if args.follow && pools.len() > 1 {
            return Err(Failure::failed("several pools are open: name the pool whose events to follow"));
        }
        for pool in &pools {
            of_pool(call, args, holder, pool)?;
        }
    }
    Ok(0)
}

/// Shows or clears the events of a pool.
fn of_pool(call: &Call, args: &EventsArgs, holder: &PoolHolder, pool: &OpenPool) -> Result<(), Failure> {
    if args.clear {
        let cleared = holder.send(call, pool, Action::ClearEvents)?.map_err(refused)?;
        if let Outcome::ClearedEvents { count } = cleared {
            outln!(call, "cleared {count} events");
        }
        return Ok(());
    }
    let query = PoolQuery::Events(EventsQuery { follow: args.follow });
    if args.json.json {
        let numbers = args.json.numbers::<EventsArgs>()?;
        let mut all = Vec::new();
        let mut take = |row| {
            if let Row::Event(event) = row {
                all.push(object(&event.fields, numbers));
            }
        };
        holder.query(call, pool, query, &mut take)?.map_err(refused)?;
        let mut answer = json::frame("zpool events");
        answer.insert("events".into(), Value::Array(all));
        json::print(call, answer);
        return Ok(());
    }
    if args.follow {
        // The holder is known, and each event is printed at once.
        call.begin();
    }
    if !args.scripted {
        outln!(call, "{:<30} CLASS", "TIME");
    }
    let mut take = |row| {
        if let Row::Event(event) = row {
            show(call, args, &event);
        }
    };
    match holder.query(call, pool, query, &mut take)? {
        // The client of this process has gone away.
        Err(refusal) if refusal.kind == RefusalKind::Stopped => Ok(()),
        answer => answer.map_err(refused),
    }
}

fn show(call: &Call, args: &EventsArgs, event: &EventRow) {
    if event.dropped > 0 {
        outln!(call, "dropped {} events", event.dropped);
    }
    let gap = if args.scripted { '\t' } else { ' ' };
    outln!(call, "{}{gap}{}", time(event.time_s, event.time_ns), event.class);
    if args.verbose {
        call.print(format_args!("{}\n", payload(&event.fields, INDENT)));
    }
}

/// `Nov 21 2026 07:45:39.000000001`.
fn time(seconds: i64, nanos: i64) -> String {
    format!("{}.{nanos:09}", times::event(u64::try_from(seconds).unwrap_or(0)))
}

/// All names and values, each on a line.
fn payload(fields: &[EventField], depth: usize) -> String {
    let mut out = String::new();
    for field in fields {
        let name = &field.name;
        let front = " ".repeat(depth);
        match &field.value {
            EventValue::Fields(inner) => {
                let inner = payload(inner, depth + INDENT);
                out += &format!("{front}{name} = (embedded nvlist)\n{inner}{front}(end {name})\n");
            }
            _ => out += &format!("{front}{name} = {}\n", text(field)),
        }
    }
    out
}

/// The names of `zio_type_t` and `zio_priority_t`.
const TYPES: [&str; 7] = ["NULL", "READ", "WRITE", "FREE", "CLAIM", "FLUSH", "TRIM"];
const PRIORITIES: [&str; 5] = ["SYNC_READ", "SYNC_WRITE", "ASYNC_READ", "ASYNC_WRITE", "SCRUB"];

/// A value as `zpool events -v` shows it.
fn text(field: &EventField) -> String {
    let named = |names: &[&str], n: u32| match names.get(n as usize) {
        Some(name) => format!("{n:#x} [{name}]"),
        None => format!("{n:#x}"),
    };
    let words = |words: Vec<String>| words.into_iter().map(|word| word + " ").collect();
    match &field.value {
        EventValue::Uint32(n) if field.name == "zio_type" => named(&TYPES, *n),
        EventValue::Uint32(n) if field.name == "zio_priority" => named(&PRIORITIES, *n),
        EventValue::Uint8(n) => format!("{n:#x}"),
        EventValue::Int32(n) => format!("{n:#x}"),
        EventValue::Uint32(n) => format!("{n:#x}"),
        EventValue::Int64(n) => format!("{n:#x}"),
        EventValue::Uint64(n) => format!("{n:#x}"),
        EventValue::Text(text) => format!("\"{text}\""),
        EventValue::Int64Array(all) => words(all.iter().map(|n| format!("{n:#x}")).collect()),
        EventValue::Uint64Array(all) => words(all.iter().map(|n| format!("{n:#x}")).collect()),
        EventValue::Fields(_) | EventValue::Other => "<unknown>".to_owned(),
    }
}

/// An event as JSON.
fn object(fields: &[EventField], numbers: Numbers) -> Value {
    let number = |n: u64| json::number(n, numbers);
    let signed = |n: i64| if numbers == Numbers::Integers { n.into() } else { Value::String(n.to_string()) };
    let value = |value: &EventValue| match value {
        EventValue::Uint8(n) => number((*n).into()),
        EventValue::Int32(n) => signed((*n).into()),
        EventValue::Uint32(n) => number((*n).into()),
        EventValue::Int64(n) => signed(*n),
        EventValue::Uint64(n) => number(*n),
        EventValue::Text(text) => text.clone().into(),
        EventValue::Int64Array(all) => all.iter().copied().map(signed).collect(),
        EventValue::Uint64Array(all) => all.iter().copied().map(number).collect(),
        EventValue::Fields(fields) => object(fields, numbers),
        EventValue::Other => Value::Null,
    };
    let pairs = fields.iter().map(|field| (field.name.clone(), value(&field.value)));
    Value::Object(pairs.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_shown_as_openzfs_shows_them() {
        let field = |name: &str, value| EventField { name: name.to_owned(), value };
        let text = |text: &str| EventValue::Text(text.to_owned());
        let detector = vec![field("version", EventValue::Uint8(0)), field("scheme", text("zfs"))];
        let list = [
            field("class", text("ereport.fs.zfs.checksum")),
            field("detector", EventValue::Fields(detector)),
            field("zio_err", EventValue::Int32(52)),
            field("zio_priority", EventValue::Uint32(4)),
            field("zio_type", EventValue::Uint32(77)),
            field("zio_level", EventValue::Int64(-1)),
            field("zio_offset", EventValue::Uint64(0x40_1000)),
            field("time", EventValue::Int64Array(vec![16, 1])),
        ];
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
        assert_eq!(time(1_795_247_139, 7), "Nov 21 2026 07:45:39.000000007");
        assert_eq!(time(0, 0).len(), 30);
    }
}
