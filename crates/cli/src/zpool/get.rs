//! `zpool get`: properties of pools.

use super::opened::OpenedPools;
use super::vdev_properties;
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::json::{self, Numbers};
use crate::options::{JsonOptions, PoolDirs};
use crate::table::{Align, Table};
use clap::Parser;
use serde_json::{Map, Value};
use weir_machine::Request;
use weir_pool::Pool;
use weir_pool::properties::{self, PoolProperty};

/// Show properties of pools.
#[derive(Debug, Parser)]
#[command(
    name = "zpool get",
    override_usage = "zpool get [-Hp] [-j [--json-int]] [-o FIELD[,…]] [-R ROOT] [-d DIR]… all|PROPERTY[,…] [POOL]…\n       zpool get [-H] [-o FIELD[,…]] [-d DIR]… PROPERTY[,…] POOL VDEV…"
)]
pub struct GetArgs {
    /// No header; columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Print exact numbers
    #[arg(short)]
    parsable: bool,
    #[command(flatten)]
    json: JsonOptions,
    /// Columns: name, property, value, source
    #[arg(short = 'o', value_name = "FIELD,…", default_value = "name,property,value,source")]
    fields: String,
    /// Value to show as altroot
    #[arg(short = 'R', value_name = "ROOT")]
    altroot: Option<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// "all" or properties separated by commas, then pools; default: all pools
    #[arg(value_name = "PROPERTY POOL")]
    words: Vec<String>,
}
const FIELDS: [&str; 4] = ["name", "property", "value", "source"];

/// Runs the command.
pub fn run(call: &Call, args: &GetArgs) -> Result<u8, Failure> {
    let numbers = args.json.numbers::<GetArgs>()?;
    let Some((wanted, pools)) = args.words.split_first() else {
        return Err(GetArgs::misused("missing property argument"));
    };
    let fields = fields(&args.fields)?;
    if let [pool, vdevs @ ..] = pools
        && wanted.split(',').all(vdev_properties::is_known)
    {
        if vdevs.is_empty() || args.json.json {
            return Err(GetArgs::misused(&format!("'{wanted}' is of vdevs: name some after the pool, without -j")));
        }
        return of_vdevs(call, args, wanted, (pool, vdevs), &fields);
    }
    let wanted = wanted_names(wanted)?;
    let machine = call.machine()?;
    let opened = OpenedPools::open(call, &args.places, pools)?;
    let mut found = Vec::new();
    for pool in &opened.pools {
        let all = machine.block_on(all(pool, args.altroot.as_deref()))?;
        found.push((pool, choose(all, wanted.as_deref())));
    }
    if args.json.json {
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
        let mut table = Table::new(columns, args.scripted);
        for (pool, properties) in &found {
            for property in properties {
                let cell = |field: &&str| match *field {
                    "name" => pool.name().to_owned(),
                    "property" => property.name.clone(),
                    "value" => property.value.text(args.parsable),
                    _ => property.origin.text().to_owned(),
                };
                table.row(fields.iter().map(cell).collect());
            }
        }
        call.print(format_args!("{}", table.text()));
    }
    Ok(opened.close(call))
}

/// Shows properties of vdevs.
fn of_vdevs(
    call: &Call,
    args: &GetArgs,
    wanted: &str,
    (pool, vdevs): (&String, &[String]),
    fields: &[&str],
) -> Result<u8, Failure> {
    let machine = call.machine()?;
    let mut opened = OpenedPools::open(call, &args.places, std::slice::from_ref(pool))?;
    let columns = fields.iter().map(|f| (f.to_uppercase(), Align::Left));
    let mut table = Table::new(columns, args.scripted);
    opened.each(|pool| {
        for vdev in vdevs {
            let properties = machine.block_on(vdev_properties::get(pool, vdev))?;
            let is_wanted = |name: &str| wanted.split(',').any(|other| other == name);
            for (name, value, source) in properties.iter().filter(|(name, ..)| is_wanted(name)) {
                let cell = |field: &&str| match *field {
                    "name" => vdev.clone(),
                    "property" => (*name).to_owned(),
                    "value" => value.clone(),
                    _ => (*source).to_owned(),
                };
                table.row(fields.iter().map(cell).collect());
            }
        }
        Ok(())
    });
    call.print(format_args!("{}", table.text()));
    Ok(opened.close(call))
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
        found.ok_or_else(|| GetArgs::misused(&format!("invalid field '{name}' (there are {})", FIELDS.join(", "))))
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
    out.insert("state".into(), pool.health().into());
    for (name, n) in [
        ("pool_guid", pool.config.guid),
        ("txg", pool.uberblock.txg.0),
        // Versions that Weir supports: pools with feature flags, file systems of version 5.
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
