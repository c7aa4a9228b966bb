//! `zpool get`: properties of pools.

use super::opened::{OpenedPools, words};
use crate::args::{Args, Spec};
use crate::call::Call;
use crate::failure::Failure;
use crate::json::{self, Numbers};
use crate::table::{Align, Table};
use serde_json::{Map, Value};
use std::ffi::OsString;
use weir_machine::Request;
use weir_pool::Pool;
use weir_pool::properties::{self, PoolProperty};

const SPEC: Spec = Spec {
    command: "zpool get",
    letters: "Hpjo:d:R:I",
    long: &[("json", 'j'), ("json-int", 'I')],
    usage: "zpool get [-Hp] [-j [--json-int]] [-o FIELD[,…]] [-R ROOT] [-d DIR]… all | PROPERTY[,…] [POOL]…",
};
const FIELDS: [&str; 4] = ["name", "property", "value", "source"];

/// Runs the command.
pub fn run(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = SPEC.parse(line)?;
    let numbers = numbers(&args, &SPEC)?;
    let words = words(&args);
    let Some((wanted, pools)) = words.split_first() else { return Err(SPEC.misused("missing property argument")) };
    let wanted = wanted_names(wanted)?;
    let fields = fields(args.value('o').as_deref().unwrap_or("name,property,value,source"))?;
    let machine = call.machine()?;
    let opened = OpenedPools::open(call, &args, pools)?;
    let mut found = Vec::new();
    for pool in &opened.pools {
        let all = machine.block_on(all(pool, args.value('R').as_deref()))?;
        found.push((pool, choose(all, wanted.as_deref())));
    }
    if args.has('j') {
        let mut pools = Map::new();
        for (pool, properties) in &found {
            let mut item = header(pool, true, numbers);
            item.insert("properties".into(), object(properties, true, numbers));
            pools.insert(pool.name().to_owned(), Value::Object(item));
        }
        let mut answer = json::frame("zpool get");
        answer.insert("pools".into(), Value::Object(pools));
        json::print(call, answer);
    } else {
        let columns = fields.iter().map(|f| (f.to_uppercase(), Align::Left));
        let mut table = Table::new(columns, args.has('H'));
        for (pool, properties) in &found {
            for property in properties {
                let cell = |field: &&str| match *field {
                    "name" => pool.name().to_owned(),
                    "property" => property.name.clone(),
                    "value" => property.value.text(args.has('p')),
                    _ => property.origin.text().to_owned(),
                };
                table.row(fields.iter().map(cell).collect());
            }
        }
        call.print(format_args!("{}", table.text()));
    }
    Ok(opened.close(call))
}

/// How numbers appear in JSON.
pub fn numbers(args: &Args, spec: &Spec) -> Result<Numbers, Failure> {
    match (args.has('j'), args.has('I')) {
        (false, true) => Err(spec.misused("'--json-int' only works with '-j'")),
        (_, true) => Ok(Numbers::Integers),
        _ => Ok(Numbers::Text),
    }
}

/// All properties of a pool, its name first.
pub async fn all(pool: &Pool, altroot: Option<&str>) -> Result<Vec<PoolProperty>, Failure> {
    let rq = &Request::internal("get");
    Ok(properties::properties(rq, pool, altroot).await?)
}

/// Full names of the properties asked for; `None` for all.
fn wanted_names(text: &str) -> Result<Option<Vec<String>>, Failure> {
    if text == "all" {
        return Ok(None);
    }
    let names: Vec<String> = text.split(',').map(|n| properties::full_name(n).to_owned()).collect();
    match names.iter().find(|n| !properties::is_known(n)) {
        Some(name) => Err(Failure::usage(format!(
            "bad property list: invalid property '{name}'\n'zpool get all' shows those that there are"
        ))),
        None => Ok(Some(names)),
    }
}

fn choose(all: Vec<PoolProperty>, wanted: Option<&[String]>) -> Vec<PoolProperty> {
    let Some(wanted) = wanted else { return all };
    wanted.iter().filter_map(|name| all.iter().find(|p| p.name == *name).cloned()).collect()
}

fn fields(text: &str) -> Result<Vec<&'static str>, Failure> {
    if text == "all" {
        return Ok(FIELDS.to_vec());
    }
    let field = |name: &str| {
        let found = FIELDS.iter().find(|f| **f == name).copied();
        found.ok_or_else(|| SPEC.misused(&format!("invalid field '{name}' (there are {})", FIELDS.join(", "))))
    };
    text.split(',').map(field).collect()
}

/// Common fields of every JSON output about a pool.
pub fn header(pool: &Pool, typed: bool, numbers: Numbers) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("name".into(), pool.name().into());
    if typed {
        out.insert("type".into(), "POOL".into());
    }
    out.insert("state".into(), pool.state.to_string().into());
    for (name, n) in [
        ("pool_guid", pool.config.guid),
        ("txg", pool.uberblock.txg.0),
        // What this program knows: pools with features, file systems of version 5.
        ("spa_version", weir_format::features::VERSION_FEATURES),
        ("zpl_version", 5),
    ] {
        out.insert(name.into(), json::number(n, numbers));
    }
    out
}

/// Properties as JSON.
pub fn object(properties: &[PoolProperty], parsable: bool, numbers: Numbers) -> Value {
    let entry = |p: &PoolProperty| (p.name.clone(), json::property(&p.value.text(parsable), p.origin.text(), numbers));
    Value::Object(properties.iter().map(entry).collect())
}
