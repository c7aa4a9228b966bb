//! `zfs list`.

use super::select::{Selection, SelectionOptions, UsualTypes, json_frame, shown};
use super::sort::SortFields;
use crate::call::{Call, errln, outln};
use crate::failure::Failure;
use crate::json::{self, Numbers};
use crate::table::{Align, Table};
use clap::Parser;
use serde_json::{Map, Value as Json};
use std::cmp::Ordering;
use weir_admin::DatasetRow;
use weir_dsl::props::{Shape, Value, column_title, native_named};

/// List datasets with properties.
#[derive(Debug, Parser)]
#[command(
    name = "zfs list",
    override_usage = "zfs list [-r|-d DEPTH] [-Hp] [-j [--json-int]] [-o PROPERTY,…] [-s PROPERTY]… [-S PROPERTY]… [-t TYPE,…]\n       [-R ROOT] [--dir DIR]… [DATASET]…"
)]
pub struct ListArgs {
    /// No header; columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Print exact numbers
    #[arg(short)]
    parsable: bool,
    /// Properties to list, separated by commas; space: the columns of space accounting
    #[arg(short = 'o', value_name = "PROPERTY,…", default_value = "name,used,available,referenced,mountpoint")]
    columns: String,
    #[command(flatten)]
    sort: SortFields,
    #[command(flatten)]
    selection: SelectionOptions,
    /// Datasets; default: all
    #[arg(value_name = "DATASET")]
    names: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &ListArgs) -> Result<u8, Failure> {
    let columns = columns(args)?;
    let sort = sort_keys(args)?;
    let selection = Selection::new::<ListArgs>(call, &args.selection, &args.names, UsualTypes::Datasets)?;
    let keys: Vec<String> = sort.iter().map(|(name, _)| name.clone()).collect();
    let mut found = selection.read(Some(&columns), &keys)?;
    for (name, why) in &found.unread {
        errln!(call, "cannot open '{name}': {why}");
    }
    found.datasets.sort_by(|a, b| order(a, b, &sort));
    if args.selection.json.json {
        print_json(call, &found.datasets, &columns, args);
    } else {
        print_table(call, &found.datasets, &columns, args, found.code);
    }
    Ok(found.code)
}

fn columns(args: &ListArgs) -> Result<Vec<String>, Failure> {
    let given = &args.columns;
    let space =
        ["name", "available", "used", "usedbysnapshots", "usedbydataset", "usedbyrefreservation", "usedbychildren"];
    let mut out = Vec::new();
    for name in named(given)? {
        if name == "space" {
            out.extend(space.map(str::to_owned));
        } else {
            out.push(known(name)?);
        }
    }
    Ok(out)
}

/// The names of a list of properties.
///
/// # Errors
/// If one is empty.
pub fn named(list: &str) -> Result<impl Iterator<Item = &str>, Failure> {
    if list.split(',').any(str::is_empty) {
        return Err(Failure::usage("bad property list: no properties specified"));
    }
    Ok(list.split(','))
}

/// The full name of a property.
fn known(name: &str) -> Result<String, Failure> {
    match native_named(name) {
        Some(native) => Ok(native.prop.name().to_owned()),
        None if name == "name" || name.contains(':') || name.contains('@') => Ok(name.to_owned()),
        None => Err(Failure::usage(format!("bad property list: invalid property '{name}'"))),
    }
}

/// Sort columns in their order, and whether they descend.
fn sort_keys(args: &ListArgs) -> Result<Vec<(String, bool)>, Failure> {
    args.sort.0.iter().map(|field| Ok((known(&field.name)?, field.descends))).collect()
}

fn order(a: &DatasetRow, b: &DatasetRow, sort: &[(String, bool)]) -> Ordering {
    for (index, (_, descending)) in sort.iter().enumerate() {
        let value = |row: &DatasetRow| {
            let property = row.sort_keys.get(index)?.as_ref()?;
            // Properties whose values have names, such as `compression`, sort by the name (OpenZFS: `zfs_prop_is_string`).
            let is_named = native_named(&property.name).is_some_and(|native| matches!(native.shape, Shape::Index(_)));
            Some(if is_named { Value::Text(property.text(true)) } else { property.value.clone() })
        };
        // Datasets without the property come last in both orders.
        let ordering = match (value(a), value(b)) {
            (None, None) => Ordering::Equal,
            (None, _) => return Ordering::Greater,
            (_, None) => return Ordering::Less,
            (Some(Value::Number(x)), Some(Value::Number(y))) => x.cmp(&y),
            (Some(Value::Text(x)), Some(Value::Text(y))) => x.cmp(&y),
            (Some(Value::Number(_)), Some(Value::Text(_))) => Ordering::Less,
            (Some(Value::Text(_)), Some(Value::Number(_))) => Ordering::Greater,
        };
        let ordering = if *descending { ordering.reverse() } else { ordering };
        if ordering != Ordering::Equal {
            return ordering;
        }
    }
    Ordering::Equal
}

fn print_table(call: &Call, rows: &[DatasetRow], columns: &[String], args: &ListArgs, code: u8) {
    let numbers = |name: &str| {
        !matches!(name, "name" | "mountpoint" | "type" | "origin" | "clones" | "creation") && !name.contains(':')
    };
    let heads = columns.iter().map(|c| {
        let align = if numbers(c) { Align::Right } else { Align::Left };
        (if c.contains(':') { c.to_uppercase() } else { column_title(c) }, align)
    });
    let mut table = Table::new(heads, args.scripted);
    for row in rows {
        table.row(row.properties.iter().map(|c| shown(c.as_ref(), args.parsable)).collect());
    }
    if rows.is_empty() {
        // What failed has been said.
        if !args.scripted && code == 0 {
            outln!(call, "no datasets available");
        }
        return;
    }
    call.print(format_args!("{}", table.text()));
}

fn print_json(call: &Call, rows: &[DatasetRow], columns: &[String], args: &ListArgs) {
    let numbers = if args.selection.json.json_int { Numbers::Integers } else { Numbers::Text };
    let mut datasets = Map::new();
    for row in rows {
        let mut frame = json_frame(row, numbers);
        let mut properties = Map::new();
        for (name, property) in columns.iter().zip(&row.properties).filter(|(n, _)| *n != "name") {
            let source = property.as_ref().map_or_else(|| "-".into(), |p| p.source.text());
            let value = shown(property.as_ref(), args.parsable || args.selection.json.json_int);
            properties.insert(name.clone(), json::property(&value, &source, numbers));
        }
        frame.insert("properties".into(), Json::Object(properties));
        datasets.insert(row.name.clone(), Json::Object(frame));
    }
    let mut answer = json::frame("zfs list");
    answer.insert("datasets".into(), Json::Object(datasets));
    json::print(call, answer);
}
