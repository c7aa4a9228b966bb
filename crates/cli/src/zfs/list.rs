//! `zfs list`.

use super::select::{Selected, Selection, json_frame, properties};
use crate::args::{Args, Spec};
use crate::call::{Call, errln, outln};
use crate::failure::Failure;
use crate::json::{self, Numbers};
use crate::table::{Align, Table};
use serde_json::{Map, Value as Json};
use std::cmp::Ordering;
use std::ffi::OsString;
use weir_dsl::props::{Property, Value, column_title, native_named};
use weir_machine::Request;

const SPEC: Spec = Spec {
    command: "zfs list",
    letters: "Hprjo:s:S:t:d:D:K:R:J",
    long: &[("json", 'j'), ("json-int", 'J'), ("dir", 'D'), ("key", 'K')],
    usage: "zfs list [-r|-d DEPTH] [-Hp] [-j [--json-int]] [-o PROPERTY,…] [-s PROPERTY]… [-S PROPERTY]… [-t TYPE,…] [-R ROOT] [-d DIR]… [DATASET]…",
};

/// A line of the list: the dataset, the columns, and what it is sorted by.
struct Row {
    of: Selected,
    cells: Vec<Option<Property>>,
    keys: Vec<Option<Property>>,
}

/// Runs the command.
pub fn run(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = SPEC.parse(line)?;
    let columns = columns(&args)?;
    let sort = sort_keys(&args)?;
    let selection = Selection::new(call, &SPEC, &args, 0)?;
    let machine = call.machine()?;
    let mut rows = Vec::new();
    let keys: Vec<String> = sort.iter().map(|(name, _)| name.clone()).collect();
    for (pool, selected) in selection.open(call)? {
        let rq = Request::internal("list");
        let facts = selection.facts(&pool);
        for of in selected {
            match machine.block_on(async {
                let cells = properties(&rq, &pool, &of, &columns, &facts).await?;
                let keys =
                    if keys.is_empty() { Vec::new() } else { properties(&rq, &pool, &of, &keys, &facts).await? };
                Ok::<_, weir_pool::PoolError>((cells, keys))
            }) {
                Ok((cells, keys)) => rows.push(Row { of, cells, keys }),
                Err(error) => errln!(call, "{}: {error}", of.name()),
            }
        }
    }
    rows.sort_by(|a, b| order(a, b, &sort));
    if args.has('j') {
        print_json(call, &rows, &columns, &args);
    } else {
        print_table(call, &rows, &columns, &args);
    }
    Ok(0)
}

fn columns(args: &Args) -> Result<Vec<String>, Failure> {
    let given = args.value('o').unwrap_or_else(|| "name,used,available,referenced,mountpoint".into());
    let space =
        ["name", "available", "used", "usedbysnapshots", "usedbydataset", "usedbyrefreservation", "usedbychildren"];
    let mut out = Vec::new();
    for name in given.split(',').filter(|n| !n.is_empty()) {
        if name == "space" {
            out.extend(space.map(str::to_owned));
        } else {
            out.push(known(name)?);
        }
    }
    Ok(out)
}

/// The full name of a property.
fn known(name: &str) -> Result<String, Failure> {
    match native_named(name) {
        Some(native) => Ok(native.name.to_owned()),
        None if name == "name" || name.contains(':') || name.contains('@') => Ok(name.to_owned()),
        None => Err(Failure::usage(format!("bad property list: invalid property '{name}'"))),
    }
}

/// Sort columns in their order, and whether they descend.
fn sort_keys(args: &Args) -> Result<Vec<(String, bool)>, Failure> {
    let mut out = Vec::new();
    for (letter, value) in args.in_order() {
        if let ('s' | 'S', Some(value)) = (letter, value) {
            out.push((known(&value.to_string_lossy())?, letter == 'S'));
        }
    }
    Ok(out)
}

fn order(a: &Row, b: &Row, sort: &[(String, bool)]) -> Ordering {
    for (index, (_, descending)) in sort.iter().enumerate() {
        let value = |row: &Row| row.keys.get(index).cloned().flatten().map(|p| p.value);
        // What has no such property comes last either way.
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

fn cell(property: Option<&Property>, exact: bool) -> String {
    property.map_or_else(|| "-".to_owned(), |p| p.text(exact))
}

fn print_table(call: &Call, rows: &[Row], columns: &[String], args: &Args) {
    let numbers = |name: &str| {
        !matches!(name, "name" | "mountpoint" | "type" | "origin" | "clones" | "creation") && !name.contains(':')
    };
    let heads = columns.iter().map(|c| {
        let align = if numbers(c) { Align::Right } else { Align::Left };
        (if c.contains(':') { c.to_uppercase() } else { column_title(c) }, align)
    });
    let mut table = Table::new(heads, args.has('H'));
    for row in rows {
        table.row(row.cells.iter().map(|c| cell(c.as_ref(), args.has('p'))).collect());
    }
    if rows.is_empty() && !args.has('H') {
        outln!(call, "no datasets available");
        return;
    }
    call.print(format_args!("{}", table.text()));
}

fn print_json(call: &Call, rows: &[Row], columns: &[String], args: &Args) {
    let numbers = if args.has('J') { Numbers::Integers } else { Numbers::Text };
    let mut datasets = Map::new();
    for row in rows {
        let mut frame = json_frame(&row.of, numbers);
        let mut properties = Map::new();
        for (name, property) in columns.iter().zip(&row.cells).filter(|(n, _)| *n != "name") {
            let source = property.as_ref().map_or_else(|| "-".into(), |p| p.source.text());
            let value = cell(property.as_ref(), args.has('p') || args.has('J'));
            properties.insert(name.clone(), json::property(&value, &source, numbers));
        }
        frame.insert("properties".into(), Json::Object(properties));
        datasets.insert(row.of.name().to_owned(), Json::Object(frame));
    }
    let mut answer = json::frame("zfs list");
    answer.insert("datasets".into(), Json::Object(datasets));
    json::print(call, answer);
}
