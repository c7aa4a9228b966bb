//! `zpool list` and `zpool get`.

use crate::args::{Args, Spec};
use crate::failure::Failure;
use crate::json::{self, Numbers};
use crate::pools;
use crate::table::{Align, Table};
use serde_json::{Map, Value as Json, json};
use std::ffi::OsString;
use weir_machine::{Machine, Request};
use weir_pool::properties::{self, PoolProperty, full_name, is_known};
use weir_pool::{OpenOptions, Pool};

const LIST: Spec = Spec {
    command: "zpool list",
    letters: "Hpo:d:jJvgLP",
    long: &[("json", 'j'), ("json-int", 'J')],
    usage: "zpool list [-Hp] [-j [--json-int]] [-o PROPERTY,…] [-d DIR]… [POOL]…",
};
const GET: Spec = Spec {
    command: "zpool get",
    letters: "Hpo:d:jJ",
    long: &[("json", 'j'), ("json-int", 'J')],
    usage: "zpool get [-Hp] [-j [--json-int]] [-o all|FIELD,…] [-d DIR]… all|PROPERTY,… [POOL]…",
};
const COLUMNS: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

/// The pools named, or all.
pub fn selected(machine: &Machine, args: &Args, skip: usize) -> Result<Vec<Pool>, Failure> {
    let search = pools::search_paths(args.values('d'))?;
    let mut names: Vec<String> = args.words.iter().skip(skip).map(|w| w.to_string_lossy().into_owned()).collect();
    let there = pools::names(machine, &search)?;
    for name in &names {
        if !there.contains(name) && name.parse::<u64>().is_err() {
            return Err(Failure::failed(format!("cannot open '{name}': no such pool")));
        }
    }
    if names.is_empty() {
        names = there;
    }
    names.into_iter().map(|name| pools::open(machine, &OpenOptions::new(search.clone(), name))).collect()
}

/// A pool's frame in the JSON answer.
pub fn json_frame(pool: &Pool, numbers: Numbers) -> Map<String, Json> {
    let mut out = Map::new();
    out.insert("name".into(), json!(pool.name()));
    out.insert("type".into(), json!("POOL"));
    out.insert("state".into(), json!(pool.state.to_string()));
    out.insert("pool_guid".into(), json::number(pool.config.guid, numbers));
    out.insert("txg".into(), json::number(pool.uberblock.txg.0, numbers));
    out.insert("spa_version".into(), json::number(pool.config.version, numbers));
    out.insert("zpl_version".into(), json::number(5, numbers));
    out
}

/// The columns of `zpool list`, by the property's name.
fn title(name: &str) -> String {
    match name {
        "allocated" => "ALLOC".into(),
        "checkpoint" => "CKPOINT".into(),
        "expandsize" => "EXPANDSZ".into(),
        "fragmentation" => "FRAG".into(),
        "capacity" => "CAP".into(),
        "dedupratio" => "DEDUP".into(),
        other => other.to_uppercase(),
    }
}

fn wanted(given: &str) -> Result<Vec<String>, Failure> {
    let names: Vec<String> = given.split(',').map(|n| full_name(n).to_owned()).collect();
    match names.iter().find(|n| *n != "name" && !is_known(n)) {
        Some(bad) => Err(Failure::usage(format!("bad property list: invalid property '{bad}'"))),
        None => Ok(names),
    }
}

fn gathered(machine: &Machine, pool: &Pool) -> Result<Vec<PoolProperty>, Failure> {
    Ok(machine.block_on(properties::properties(&Request::internal("get"), pool, None))?)
}

fn numbers(args: &Args) -> Numbers {
    if args.has('J') { Numbers::Integers } else { Numbers::Text }
}

/// `zpool list`.
pub fn list(line: Vec<OsString>) -> Result<u8, Failure> {
    let args = LIST.parse(line)?;
    let columns = wanted(&args.value('o').unwrap_or_else(|| COLUMNS.into()))?;
    let machine = Machine::production()?;
    let left = |c: &str| matches!(c, "name" | "health" | "altroot" | "comment" | "version");
    let heads = columns.iter().map(|c| (title(c), if left(c) { Align::Left } else { Align::Right }));
    let mut table = Table::new(heads, args.has('H'));
    let mut answer = Map::new();
    for pool in selected(&machine, &args, 0)? {
        let all = gathered(&machine, &pool)?;
        let find = |name: &String| all.iter().find(|p| p.name == *name);
        let exact = args.has('p') || args.has('J');
        let cell = |name: &String| match name.as_str() {
            "name" => pool.name().to_owned(),
            _ => find(name).map_or_else(|| "-".into(), |p| p.value.text(exact)),
        };
        let mut inner = Map::new();
        for name in columns.iter().filter(|n| *n != "name") {
            let source = find(name).map_or("-", |p| p.origin.text());
            inner.insert(name.clone(), json::property(&cell(name), source, numbers(&args)));
        }
        table.row(columns.iter().map(cell).collect());
        let mut frame = json_frame(&pool, numbers(&args));
        frame.insert("properties".into(), Json::Object(inner));
        answer.insert(pool.name().to_owned(), Json::Object(frame));
    }
    finish("zpool list", &args, &table, answer, "no pools available");
    Ok(0)
}

fn finish(command: &str, args: &Args, table: &Table, pools: Map<String, Json>, none: &str) {
    if args.has('j') {
        let mut answer = json::frame(command);
        answer.insert("pools".into(), Json::Object(pools));
        json::print(answer);
    } else if table.is_empty() && !args.has('H') {
        println!("{none}");
    } else {
        print!("{}", table.text());
    }
}

/// `zpool get`.
pub fn get(line: Vec<OsString>) -> Result<u8, Failure> {
    let args = GET.parse(line)?;
    let Some(given) = args.word(0) else { return Err(GET.misused("missing property argument")) };
    let all_fields = ["name", "property", "value", "source"].map(str::to_owned).to_vec();
    let fields = match args.value('o') {
        None => all_fields,
        Some(o) if o == "all" => all_fields,
        Some(o) => o.split(',').map(str::to_owned).collect(),
    };
    if let Some(bad) = fields.iter().find(|f| !["name", "property", "value", "source"].contains(&f.as_str())) {
        return Err(GET.misused(&format!("invalid column name '{bad}'")));
    }
    let wanted = if given == "all" { None } else { Some(wanted(&given)?) };
    let machine = Machine::production()?;
    let mut table = Table::new(fields.iter().map(|f| (f.to_uppercase(), Align::Left)), args.has('H'));
    let mut answer = Map::new();
    for pool in selected(&machine, &args, 1)? {
        let all = gathered(&machine, &pool)?;
        let shown: Vec<&PoolProperty> = match &wanted {
            None => all.iter().collect(),
            Some(names) => names.iter().filter_map(|n| all.iter().find(|p| p.name == *n)).collect(),
        };
        let mut inner = Map::new();
        for p in shown {
            let value = p.value.text(args.has('p') || args.has('J'));
            let cell = |field: &String| match field.as_str() {
                "name" => pool.name().to_owned(),
                "property" => p.name.clone(),
                "value" => value.clone(),
                _ => p.origin.text().to_owned(),
            };
            table.row(fields.iter().map(cell).collect());
            inner.insert(p.name.clone(), json::property(&value, p.origin.text(), numbers(&args)));
        }
        let mut frame = json_frame(&pool, numbers(&args));
        frame.insert("properties".into(), Json::Object(inner));
        answer.insert(pool.name().to_owned(), Json::Object(frame));
    }
    finish("zpool get", &args, &table, answer, "no pools available");
    Ok(0)
}
