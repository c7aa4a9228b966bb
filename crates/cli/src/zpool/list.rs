//! `zpool list`: one line for each pool, with `-v` one for each of its vdevs as well.

use super::get::{all, header, object};
use super::opened::OpenedPools;
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::json;
use crate::options::{JsonOptions, PoolDirs};
use crate::table::{Align, Table};
use crate::units::human;
use clap::Parser;
use serde_json::{Map, Value};
use weir_pool::assemble::state;
use weir_pool::properties::{self, PoolProperty};
use weir_pool::status::VdevState;
use weir_pool::{Class, Pool, VdevConfig, capacity};

/// List pools with their sizes and health.
#[derive(Debug, Parser)]
#[command(
    name = "zpool list",
    override_usage = "zpool list [-Hpv] [-j [--json-int]] [-o PROPERTY[,…]] [-R ROOT] [-d DIR]… [POOL]…"
)]
pub struct ListArgs {
    /// No header; columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Print exact numbers
    #[arg(short)]
    parsable: bool,
    /// List also the vdevs of each pool
    #[arg(short)]
    verbose: bool,
    #[command(flatten)]
    json: JsonOptions,
    /// Properties to list, separated by commas
    #[arg(short = 'o', value_name = "PROPERTY,…", default_value = DEFAULT)]
    properties: String,
    /// Value to show as altroot
    #[arg(short = 'R', value_name = "ROOT")]
    altroot: Option<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools; default: all
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}
const DEFAULT: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

/// Runs the command.
pub fn run(call: &Call, args: &ListArgs) -> Result<u8, Failure> {
    let numbers = args.json.numbers::<ListArgs>()?;
    let columns = columns(&args.properties)?;
    let machine = call.machine()?;
    let mut opened = OpenedPools::open(call, &args.places, &args.pools)?;
    let parsable = args.parsable || args.json.json_int;
    let titles = columns.iter().map(|c| (title(c), align(c)));
    let mut table = Table::new(titles, args.scripted);
    let mut found = Map::new();
    opened.each(|pool| {
        let all = machine.block_on(all(pool, args.altroot.as_deref()))?;
        let chosen: Vec<PoolProperty> =
            columns.iter().filter_map(|c| all.iter().find(|p| p.name == *c).cloned()).collect();
        let mut item = header(pool, true, numbers);
        item.insert("properties".into(), object(&chosen, parsable, numbers));
        found.insert(pool.name().to_owned(), Value::Object(item));
        let is_exported = pool.label.state == state::EXPORTED;
        let value = |name: &String| match all.iter().find(|p| p.name == *name) {
            // The devices are healthy, but no host uses the pool.
            Some(property) if name == "health" && is_exported => match property.value.text(parsable) {
                health if health == VdevState::Online.to_string() => "EXPORTED".to_owned(),
                health => health,
            },
            Some(property) => property.value.text(parsable),
            None if name == "name" => pool.name().to_owned(),
            None => "-".to_owned(),
        };
        table.row(columns.iter().map(value).collect());
        if args.verbose {
            vdev_rows(pool, &columns, parsable, &mut table);
        }
        Ok(())
    });
    if args.json.json {
        let mut answer = json::frame("zpool list");
        answer.insert("pools".into(), Value::Object(found));
        json::print(call, answer);
    } else if opened.pools.is_empty() && opened.failures.is_empty() {
        // Scripts get an empty list.
        if !args.scripted {
            outln!(call, "no pools available");
        }
    } else if !opened.pools.is_empty() {
        call.print(format_args!("{}", table.text()));
    }
    Ok(opened.close(call))
}

fn columns(text: &str) -> Result<Vec<String>, Failure> {
    let names: Vec<String> = match text {
        "all" => std::iter::once("name").chain(properties::NAMES.iter().copied()).map(str::to_owned).collect(),
        _ => text.split(',').map(|n| properties::full_name(n).to_owned()).collect(),
    };
    match names.iter().find(|n| !properties::is_known(n)) {
        Some(name) => Err(ListArgs::misused(&format!("invalid property '{name}'"))),
        None => Ok(names),
    }
}

fn title(name: &str) -> String {
    match name {
        "allocated" => "ALLOC".into(),
        "checkpoint" => "CKPOINT".into(),
        "expandsize" => "EXPANDSZ".into(),
        "fragmentation" => "FRAG".into(),
        "capacity" => "CAP".into(),
        "dedupratio" => "DEDUP".into(),
        "readonly" => "RDONLY".into(),
        "autoreplace" => "REPLACE".into(),
        "listsnapshots" => "LISTSNAPS".into(),
        other => other.to_uppercase(),
    }
}

fn align(name: &str) -> Align {
    let numbers = ["size", "allocated", "free", "checkpoint", "expandsize", "fragmentation", "capacity", "dedupratio"];
    if numbers.contains(&name) { Align::Right } else { Align::Left }
}

/// A row for each vdev: top-level vdevs with their space, the others with their state.
fn vdev_rows(pool: &Pool, columns: &[String], parsable: bool, table: &mut Table) {
    for (class, heading) in
        [(Class::Normal, ""), (Class::Dedup, "dedup"), (Class::Special, "special"), (Class::Log, "logs")]
    {
        let all = || pool.tree.children.iter().zip(&pool.space.vdevs);
        let members = || all().filter(|(top, _)| top.class == class && top.is_concrete());
        if members().next().is_some() && !heading.is_empty() {
            table.row(columns.iter().map(|c| if c == "name" { heading.into() } else { dash(c) }).collect());
        }
        for (top, space) in members() {
            let size = space.space_bytes();
            let allocated = space.allocated_bytes();
            let number = |n: u64| if parsable { n.to_string() } else { human(n) };
            let cell = |column: &String| match column.as_str() {
                "size" => number(size),
                "allocated" => number(allocated),
                "free" => number(size.saturating_sub(allocated)),
                "capacity" => {
                    let percent = 100.0 * allocated as f64 / (size.max(1)) as f64;
                    if parsable { format!("{}", percent as u64) } else { format!("{percent:.2}%") }
                }
                "fragmentation" => match capacity::vdev_fragmentation(space) {
                    Some(percent) => format!("{percent}{}", if parsable { "" } else { "%" }),
                    None => "-".into(),
                },
                "expandsize" => match properties::expandable_bytes_of(pool, top) {
                    0 => "-".into(),
                    bytes => number(bytes),
                },
                other => cell_of(pool, top, 2, other),
            };
            table.row(columns.iter().map(cell).collect());
            below(pool, top, 4, columns, table);
        }
    }
}

fn below(pool: &Pool, vdev: &VdevConfig, indent: usize, columns: &[String], table: &mut Table) {
    for child in &vdev.children {
        table.row(columns.iter().map(|c| cell_of(pool, child, indent, c)).collect());
        below(pool, child, indent + 2, columns, table);
    }
}

fn cell_of(pool: &Pool, vdev: &VdevConfig, indent: usize, column: &str) -> String {
    match column {
        "name" => format!("{}{}", " ".repeat(indent), vdev.name()),
        "health" => pool.states.get(&vdev.guid).copied().unwrap_or(VdevState::Unavail).to_string(),
        other => dash(other),
    }
}

fn dash(column: &str) -> String {
    if column == "altroot" { String::new() } else { "-".into() }
}
