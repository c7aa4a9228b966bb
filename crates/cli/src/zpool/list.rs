//! `zpool list`: one line for each pool, with `-v` one for each of its vdevs as well.

use super::get::{header_of, object};
use super::list_vdevs::{VdevLines, json_rows};
use super::repeat::Repetition;
use super::tree::NameStyle;
use super::unopened::UnopenedPool;
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::json;
use crate::options::{PoolDirs, PoolJsonOptions};
use crate::reading::{PoolReader, Reached};
use crate::table::{Align, Table};
use clap::Parser;
use serde_json::{Map, Value};
use weir_admin::{PoolPropertiesQuery, PoolPropertiesRow, PoolQuery, Row};
use weir_pool::properties::{self, PoolProperty};
use weir_pool::status::VdevState;

/// List pools with their sizes and health.
#[derive(Debug, Parser)]
#[command(
    name = "zpool list",
    override_usage = "zpool list [-gHLPpv] [-j [--json-int] [--json-pool-key-guid]] [-o PROPERTY[,…]] [-T d|u] [-R ROOT] [-d DIR]…\n       [POOL]… [INTERVAL [COUNT]]"
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
    names: NameStyle,
    /// Print the time of each report: d as a date, u in seconds since 1970
    #[arg(short = 'T', value_name = "d|u")]
    time: Option<String>,
    #[command(flatten)]
    json: PoolJsonOptions,
    /// Properties to list, separated by commas
    #[arg(short = 'o', value_name = "PROPERTY,…", default_value = DEFAULT)]
    properties: String,
    /// Value to show as altroot
    #[arg(short = 'R', value_name = "ROOT")]
    altroot: Option<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools, default: all; then seconds between two reports, and number of reports
    #[arg(value_name = "POOL")]
    words: Vec<String>,
}
const DEFAULT: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

/// Runs the command.
pub fn run(call: &Call, args: &ListArgs) -> Result<u8, Failure> {
    args.json.numbers::<ListArgs>()?;
    let columns = columns(&args.properties)?;
    let mut pools = args.words.clone();
    let repetition = Repetition::take::<ListArgs>(args.time.as_deref(), &mut pools)?;
    let reader = PoolReader::new(call, &args.places.dirs)?;
    repetition.run(call, |is_first| report(call, args, (&reader, &pools), &columns, is_first || args.verbose))
}

/// Prints one report.
fn report(
    call: &Call,
    args: &ListArgs,
    (reader, pools): (&PoolReader<'_>, &[String]),
    columns: &[String],
    header: bool,
) -> Result<u8, Failure> {
    let numbers = args.json.numbers::<ListArgs>()?;
    let parsable = args.parsable || args.json.output.json_int;
    let lines = VdevLines { columns, parsable, scripted: args.scripted, names: args.names };
    let query = PoolPropertiesQuery { properties: None, altroot: args.altroot.clone(), vdevs: args.verbose };
    let query = PoolQuery::PoolProperties(query);
    let mut found = reader.find(pools)?;
    let is_none = found.is_empty();
    let titles = columns.iter().map(|c| (title(c), align(c)));
    let mut table = Table::new(titles, args.scripted);
    let mut objects = Map::new();
    let mut shown = 0;
    for pool in found.pools.clone() {
        let mut of_pool = None;
        let mut vdevs = Vec::new();
        let mut take = |row| match row {
            Row::PoolProperties(row) => of_pool = Some(row),
            Row::VdevSpace(row) => vdevs.push(row),
            // Rows of other queries do not occur.
            _ => {}
        };
        let reached = reader.read_found(&mut found, &pool, &query, &mut take)?;
        if let Reached::Unopened(why) = &reached
            && let Some(unopened) = UnopenedPool::describe(call, &found.places, pool.guid, why)?
        {
            // As in OpenZFS, a pool that cannot be opened is no error of the list.
            found.show_unopened();
            table.row(columns.iter().map(|column| unopened_cell(&unopened, column)).collect());
            shown += 1;
        }
        shown += usize::from(!matches!(reached, Reached::Unopened(_)));
        if let Reached::Refused(refusal) = &reached {
            found.unread(&pool, &refusal.why);
        }
        let Some(of_pool) = of_pool else { continue };
        table.row(columns.iter().map(|column| cell(&of_pool, column, parsable)).collect());
        if reached != Reached::End {
            continue;
        }
        let all = &of_pool.properties;
        let chosen: Vec<PoolProperty> =
            columns.iter().filter_map(|c| all.iter().find(|p| p.name == *c).cloned()).collect();
        let mut item = header_of(&of_pool, numbers);
        item.insert("properties".into(), object(&chosen, parsable, numbers));
        let rows = lines.all(&vdevs);
        if args.verbose && args.json.output.json {
            json_rows(&rows, columns, numbers, &mut item);
        }
        rows.into_iter().for_each(|row| table.row(row.cells));
        objects.insert(args.json.key(&of_pool.name, of_pool.guid), Value::Object(item));
    }
    if args.json.output.json {
        let mut answer = json::frame("zpool list");
        answer.insert("pools".into(), Value::Object(objects));
        json::print(call, answer);
    } else if is_none {
        // Scripts get an empty list.
        if !args.scripted {
            outln!(call, "no pools available");
        }
    } else if shown > 0 {
        let text = table.text();
        let text = if header || args.scripted { &text } else { text.split_once('\n').map_or("", |(_, rest)| rest) };
        call.print(format_args!("{text}"));
    }
    Ok(found.close(call))
}

/// The value of a column of a pool that cannot be opened.
fn unopened_cell(pool: &UnopenedPool, column: &str) -> String {
    match column {
        "name" => pool.name.clone(),
        "guid" => pool.guid.to_string(),
        "health" => pool.health().to_string(),
        _ => "-".to_owned(),
    }
}

/// The value of a column of a pool.
fn cell(pool: &PoolPropertiesRow, column: &str, parsable: bool) -> String {
    match pool.properties.iter().find(|property| property.name == *column) {
        // The devices are healthy, but no host uses the pool.
        Some(property) if column == "health" && pool.exported => match property.value.text(parsable) {
            health if health == VdevState::Online.to_string() => "EXPORTED".to_owned(),
            health => health,
        },
        Some(property) => property.value.text(parsable),
        None if column == "name" => pool.name.clone(),
        None => "-".to_owned(),
    }
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
