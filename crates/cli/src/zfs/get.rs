//! `zfs get`.

use super::list::named;
use super::property_list;
use super::select::{Selection, SelectionOptions, UsualTypes, json_frame, shown};
use crate::args::CommandLine;
use crate::call::{Call, errln};
use crate::failure::Failure;
use crate::json::{self, Numbers};
use crate::table::{Align, Table};
use clap::Parser;
use serde_json::{Map, Value as Json};
use weir_admin::DatasetRow;
use weir_dsl::props::{Property, native_named};

/// Show properties of datasets.
#[derive(Debug, Parser)]
#[command(
    name = "zfs get",
    override_usage = "zfs get [-r|-d DEPTH] [-Hp] [-j [--json-int]] [-o all|FIELD,…] [-s SOURCE,…] [-t TYPE,…] [--altroot ROOT] [--dir DIR]…\n       all|PROPERTY,… [DATASET]…"
)]
pub struct GetArgs {
    /// No header; columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Print exact numbers
    #[arg(short)]
    parsable: bool,
    /// Columns: all, or name, property, value, received, source
    #[arg(short = 'o', value_name = "FIELD,…", default_value = "name,property,value,source")]
    fields: String,
    /// Show only properties from these sources: local, default, inherited, temporary, received, none
    #[arg(short, value_name = "SOURCE,…")]
    sources: Option<String>,
    #[command(flatten)]
    selection: SelectionOptions,
    /// "all" or properties separated by commas, then datasets; default: all datasets
    #[arg(value_name = "PROPERTY DATASET")]
    words: Vec<String>,
}

/// Fields of a line.
const FIELDS: [&str; 5] = ["name", "property", "value", "received", "source"];
const SOURCES: [&str; 6] = ["local", "default", "inherited", "temporary", "received", "none"];

/// Runs the command.
pub fn run(call: &Call, args: &GetArgs) -> Result<u8, Failure> {
    let Some((wanted, names)) = args.words.split_first() else {
        return Err(property_list::after(GetArgs::misused("missing property argument")));
    };
    let wanted = wanted_properties(wanted)?;
    let fields = fields(args)?;
    let sources = sources(args)?;
    let selection = Selection::new::<GetArgs>(call, &args.selection, names, UsualTypes::All)?;
    let found = selection.read(wanted.as_deref(), &[])?;
    for (name, why) in &found.unread {
        errln!(call, "{name}: {why}");
    }
    let shows_absent = sources.iter().any(|source| source == "none");
    let is_shown = |property: &Property| sources.iter().any(|source| source == property.source.word());
    let lines: Vec<Line> = found
        .datasets
        .into_iter()
        .map(|dataset| {
            let mut properties = properties(&dataset, wanted.as_deref());
            // One that the dataset does not have is from no source.
            properties.retain(|(_, property)| property.as_ref().map_or(shows_absent, is_shown));
            (dataset, properties)
        })
        .collect();
    if args.selection.json.json {
        print_json(call, &lines, args);
    } else {
        print_table(call, &lines, &fields, args);
    }
    Ok(found.code)
}

/// `None` for all.
fn wanted_properties(given: &str) -> Result<Option<Vec<String>>, Failure> {
    if given == "all" {
        return Ok(None);
    }
    let mut out = Vec::new();
    for name in named(given)? {
        match native_named(name) {
            Some(native) => out.push(native.prop.name().to_owned()),
            None if name.contains(':') || name.contains('@') || name == "name" => out.push(name.to_owned()),
            None => return Err(Failure::usage(format!("bad property list: invalid property '{name}'"))),
        }
    }
    Ok(Some(out))
}

fn fields(args: &GetArgs) -> Result<Vec<String>, Failure> {
    let given = &args.fields;
    if given == "all" {
        return Ok(FIELDS.map(str::to_owned).to_vec());
    }
    let fields: Vec<String> = given.split(',').map(str::to_owned).collect();
    match fields.iter().find(|f| !FIELDS.contains(&f.as_str())) {
        Some(bad) => Err(GetArgs::misused(&format!("invalid column name '{bad}'"))),
        None => Ok(fields),
    }
}

fn sources(args: &GetArgs) -> Result<Vec<String>, Failure> {
    let Some(given) = &args.sources else { return Ok(SOURCES.map(str::to_owned).to_vec()) };
    let sources: Vec<String> = given.split(',').map(str::to_owned).collect();
    match sources.iter().find(|s| !SOURCES.contains(&s.as_str())) {
        Some(bad) => Err(GetArgs::misused(&format!("invalid source '{bad}'"))),
        None => Ok(sources),
    }
}

/// A dataset, and the properties to show by the names that the command line has for them.
type Line = (DatasetRow, Vec<(String, Option<Property>)>);

/// The properties of a dataset by name; of `all`, only those that it has.
fn properties(dataset: &DatasetRow, wanted: Option<&[String]>) -> Vec<(String, Option<Property>)> {
    let found = dataset.properties.iter().cloned();
    match wanted {
        None => found.flatten().map(|property| (property.name.clone(), Some(property))).collect(),
        Some(wanted) => wanted.iter().cloned().zip(found).collect(),
    }
}

fn print_table(call: &Call, lines: &[Line], fields: &[String], args: &GetArgs) {
    let heads = fields.iter().map(|f| (f.to_uppercase(), Align::Left));
    let mut table = Table::new(heads, args.scripted);
    for (of, found) in lines {
        for (name, property) in found {
            let cell = |field: &String| match field.as_str() {
                "name" => of.name.clone(),
                "property" => name.clone(),
                "value" => shown(property.as_ref(), args.parsable),
                "source" => property.as_ref().map_or_else(|| "-".into(), |p| p.source.text()),
                _ => property.as_ref().and_then(|p| p.received_text(args.parsable)).unwrap_or_else(|| "-".into()),
            };
            table.row(fields.iter().map(cell).collect());
        }
    }
    if table.is_empty() && !args.scripted {
        return;
    }
    call.print(format_args!("{}", table.text()));
}

fn print_json(call: &Call, lines: &[Line], args: &GetArgs) {
    let numbers = if args.selection.json.json_int { Numbers::Integers } else { Numbers::Text };
    let mut datasets = Map::new();
    for (of, found) in lines {
        let mut frame = json_frame(of, numbers);
        let mut properties = Map::new();
        for (name, property) in found {
            let source = property.as_ref().map_or_else(|| "-".into(), |p| p.source.text());
            let text = shown(property.as_ref(), args.parsable || args.selection.json.json_int);
            properties.insert(name.clone(), json::property(&text, &source, numbers));
        }
        frame.insert("properties".into(), Json::Object(properties));
        datasets.insert(of.name.clone(), Json::Object(frame));
    }
    let mut answer = json::frame("zfs get");
    answer.insert("datasets".into(), Json::Object(datasets));
    json::print(call, answer);
}
