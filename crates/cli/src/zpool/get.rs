//! `zpool get`: properties of pools.

use super::target;
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::json::{self, Numbers};
use crate::options::{PoolDirs, PoolJsonOptions};
use crate::reading::{FoundPools, PoolReader, Reached, refused};
use crate::table::{Align, Table};
use clap::Parser;
use serde_json::{Map, Value};
use weir_admin::{OpenPool, PoolPropertiesQuery, PoolPropertiesRow, PoolQuery, PoolStatus, Row, VdevPropertiesQuery};
use weir_pool::properties::{self, PoolProperty};

/// Show properties of pools or of vdevs.
#[derive(Debug, Parser)]
#[command(
    name = "zpool get",
    override_usage = "zpool get [-Hp] [-j [--json-int] [--json-pool-key-guid]] [-o FIELD[,…]] [-R ROOT] [-d DIR]… all|PROPERTY[,…] [POOL]…\n       zpool get [-Hp] [-j [--json-int]] [-o FIELD[,…]] [-d DIR]… all|PROPERTY[,…] POOL root|all-vdevs|VDEV…"
)]
pub struct GetArgs {
    /// No header; columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Print exact numbers
    #[arg(short)]
    parsable: bool,
    #[command(flatten)]
    json: PoolJsonOptions,
    /// Columns: name, property, value, source
    #[arg(short = 'o', value_name = "FIELD,…", default_value = "name,property,value,source")]
    fields: String,
    /// Value to show as altroot
    #[arg(short = 'R', value_name = "ROOT")]
    altroot: Option<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// "all" or properties separated by commas, then pools, default: all pools; or a pool and its vdevs
    #[arg(value_name = "PROPERTY POOL")]
    words: Vec<String>,
}
const FIELDS: [&str; 4] = ["name", "property", "value", "source"];

/// Runs the command.
pub fn run(call: &Call, args: &GetArgs) -> Result<u8, Failure> {
    let numbers = args.json.numbers::<GetArgs>()?;
    let Some((wanted, names)) = args.words.split_first() else {
        return Err(GetArgs::misused("missing property argument"));
    };
    let fields = fields(&args.fields)?;
    let reader = PoolReader::new(call, &args.places.dirs)?;
    if let [pool, vdevs @ ..] = names
        && !vdevs.is_empty()
        && !reader.are_pools(names)?
    {
        return of_vdevs(call, args, (&reader, pool, vdevs), wanted, &fields);
    }
    let is_known = |name: &str| properties::is_known(name);
    let wanted = wanted_names(wanted, properties::full_name, is_known)?;
    let query = PoolQuery::PoolProperties(PoolPropertiesQuery {
        properties: wanted,
        altroot: args.altroot.clone(),
        vdevs: false,
    });
    let mut found = reader.find(names)?;
    let parsable = args.parsable || args.json.output.json_int;
    let mut pools = Map::new();
    let mut table = PropertyTable::new(args, &fields);
    for pool in found.pools.clone() {
        let mut take = |row| {
            if let Row::PoolProperties(row) = row {
                let mut item = header_of(&row, numbers);
                item.insert("properties".into(), object(&row.properties, parsable, numbers));
                pools.insert(args.json.key(&row.name, row.guid), Value::Object(item));
                table.add(&row.name, &row.properties);
            }
        };
        if let Reached::Refused(refusal) = reader.read_found(&mut found, &pool, &query, &mut take)? {
            return Err(refused(refusal));
        }
    }
    table.print(call, "pools", pools);
    Ok(found.close(call))
}

/// The operands; those that are paths of vdevs, as seen from the caller's folder, as their GUIDs.
fn by_guid(
    call: &Call,
    reader: &PoolReader<'_>,
    found: &mut FoundPools,
    pool: &OpenPool,
    vdevs: &[String],
) -> Result<Vec<String>, Failure> {
    let mut paths: Vec<(String, u64)> = Vec::new();
    if vdevs.iter().any(|vdev| vdev.contains('/')) {
        let query = VdevPropertiesQuery { vdevs: vec!["all-vdevs".into()], properties: Some(vec!["path".into()]) };
        let mut take = |row| {
            if let Row::VdevProperties(vdev) = row {
                paths.extend(vdev.properties.iter().map(|path| (path.value.text(true), vdev.guid)));
            }
        };
        // If it is refused, so is the query that follows, which says why.
        reader.read_found(found, pool, &PoolQuery::VdevProperties(query), &mut take)?;
    }
    let guid = |vdev: &String| {
        let names = target::names_of(call, vdev);
        let found = names.iter().find_map(|name| paths.iter().find(|(path, _)| path == name));
        found.map_or_else(|| vdev.clone(), |(_, guid)| guid.to_string())
    };
    Ok(vdevs.iter().map(guid).collect())
}

/// Shows properties of vdevs.
fn of_vdevs(
    call: &Call,
    args: &GetArgs,
    (reader, pool, vdevs): (&PoolReader<'_>, &String, &[String]),
    wanted: &str,
    fields: &[&str],
) -> Result<u8, Failure> {
    let numbers = args.json.numbers::<GetArgs>()?;
    let wanted = wanted_names(wanted, weir_pool::vdev_properties::full_name, weir_pool::vdev_properties::is_known)?;
    let of_all = wanted.is_none();
    let mut found = reader.find(std::slice::from_ref(pool))?;
    let parsable = args.parsable || args.json.output.json_int;
    let mut items = Map::new();
    let mut table = PropertyTable::new(args, fields);
    for pool in found.pools.clone() {
        let mut take = |row| {
            if let Row::VdevProperties(mut vdev) = row {
                // The name is the first column.
                vdev.properties.retain(|property| !of_all || property.name != "name");
                let mut item = Map::new();
                item.insert("name".into(), vdev.name.clone().into());
                item.insert("vdev_type".into(), vdev.kind.into());
                item.insert("guid".into(), json::number(vdev.guid, numbers));
                item.insert("properties".into(), object(&vdev.properties, parsable, numbers));
                let name = if vdev.is_root { "root-0".to_owned() } else { vdev.name };
                table.add(&name, &vdev.properties);
                items.insert(name, Value::Object(item));
            }
        };
        let vdevs = by_guid(call, reader, &mut found, &pool, vdevs)?;
        let query = PoolQuery::VdevProperties(VdevPropertiesQuery { vdevs, properties: wanted.clone() });
        if let Reached::Refused(refusal) = reader.read_found(&mut found, &pool, &query, &mut take)? {
            let of = |operand| format!("cannot get properties of '{operand}' in '{}': ", pool.name);
            let doing = refusal.names.first().map(of).unwrap_or_default();
            found.unread(&pool, &format!("{doing}{}", refusal.why));
        }
    }
    table.print(call, "vdevs", items);
    Ok(found.close(call))
}

/// Properties as text.
struct PropertyTable<'a> {
    args: &'a GetArgs,
    fields: &'a [&'a str],
    table: Table,
}

impl<'a> PropertyTable<'a> {
    fn new(args: &'a GetArgs, fields: &'a [&'a str]) -> Self {
        let columns = fields.iter().map(|f| (f.to_uppercase(), Align::Left));
        PropertyTable { args, fields, table: Table::new(columns, args.scripted) }
    }

    /// Adds the properties of a pool or vdev.
    fn add(&mut self, name: &str, properties: &[PoolProperty]) {
        for property in properties {
            let cell = |field: &&str| match *field {
                "name" => name.to_owned(),
                "property" => property.name.clone(),
                "value" => property.value.text(self.args.parsable),
                _ => property.origin.text().to_owned(),
            };
            self.table.row(self.fields.iter().map(cell).collect());
        }
    }

    /// Prints the table, or the objects as JSON.
    fn print(self, call: &Call, key: &str, objects: Map<String, Value>) {
        if self.args.json.output.json {
            let mut answer = json::frame("zpool get");
            answer.insert(key.to_owned(), Value::Object(objects));
            json::print(call, answer);
        } else if !self.table.is_empty() {
            call.print(format_args!("{}", self.table.text()));
        }
    }
}

/// Full names of the properties asked for; `None` for all.
fn wanted_names(
    text: &str,
    full_name: impl Fn(&str) -> &str,
    is_known: impl Fn(&str) -> bool,
) -> Result<Option<Vec<String>>, Failure> {
    if text == "all" {
        return Ok(None);
    }
    let names: Vec<String> = text.split(',').map(|name| full_name(name).to_owned()).collect();
    match names.iter().find(|name| !is_known(name)) {
        Some(name) => Err(Failure::usage(format!(
            "bad property list: invalid property '{name}'\n'zpool get all' shows those that there are"
        ))),
        None => Ok(Some(names)),
    }
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

/// Common fields of the JSON output of `zpool status`.
pub fn header(pool: &PoolStatus, numbers: Numbers) -> Map<String, Value> {
    identity(None, &pool.name, pool.health.clone(), [pool.guid, pool.txg], numbers)
}

/// Common fields of the JSON output of `zpool get` and `zpool list`.
pub fn header_of(pool: &PoolPropertiesRow, numbers: Numbers) -> Map<String, Value> {
    identity(Some("POOL"), &pool.name, pool.health.clone(), [pool.guid, pool.txg], numbers)
}

/// Name, type, health, GUID, txg and versions of a pool.
fn identity(
    kind: Option<&str>,
    name: &str,
    health: String,
    [guid, txg]: [u64; 2],
    numbers: Numbers,
) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("name".into(), name.into());
    if let Some(kind) = kind {
        out.insert("type".into(), kind.into());
    }
    out.insert("state".into(), health.into());
    for (name, n) in [
        ("pool_guid", guid),
        ("txg", txg),
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
