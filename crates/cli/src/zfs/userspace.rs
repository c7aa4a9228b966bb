//! `zfs userspace`, `groupspace` and `projectspace`: space and objects of each user, group or project, and its quotas.

use super::identity;
use super::sort::{SortField, SortFields};
use super::target::{pool_of, words};
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::DatasetDirs;
use crate::table::{Align, Table};
use clap::{Args, Parser};
use weir_dsl::{Account, QuotaKind, QuotaPrincipal};
use weir_format::znode::Fuid;
use weir_machine::Request;
use weir_pool::{OpenOptions, PoolError};

/// Options and operand of the three commands.
#[derive(Args, Debug)]
pub struct AccountOptions {
    /// Print numeric ids instead of names
    #[arg(short = 'n')]
    numeric: bool,
    /// Accepted, has no effect: identities of SMB are shown as numbers
    #[arg(short = 'i')]
    _sids: bool,
    /// No header; columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Print exact numbers
    #[arg(short)]
    parsable: bool,
    /// Columns: type, name, used, quota, objused, objquota
    #[arg(short = 'o', value_name = "FIELD,…", default_value = "type,name,used,quota,objused,objquota")]
    fields: String,
    #[command(flatten)]
    sort: SortFields,
    /// Types: posixuser, smbuser, posixgroup, smbgroup, or all; default: the POSIX and SMB ones of the command
    #[arg(short = 't', value_name = "TYPE,…")]
    types: Option<String>,
    #[command(flatten)]
    places: DatasetDirs,
    /// File system or snapshot
    #[arg(value_name = "DATASET")]
    words: Vec<String>,
}

/// Show space, objects and quotas of the users in a file system or snapshot.
#[derive(Debug, Parser)]
#[command(
    name = "zfs userspace",
    override_usage = "zfs userspace [-Hinp] [-o FIELD,…] [-s FIELD]… [-S FIELD]… [-t TYPE,…] [--dir DIR]… FILESYSTEM|SNAPSHOT"
)]
pub struct UserspaceArgs {
    #[command(flatten)]
    options: AccountOptions,
}

/// Show space, objects and quotas of the groups in a file system or snapshot.
#[derive(Debug, Parser)]
#[command(
    name = "zfs groupspace",
    override_usage = "zfs groupspace [-Hinp] [-o FIELD,…] [-s FIELD]… [-S FIELD]… [-t TYPE,…] [--dir DIR]… FILESYSTEM|SNAPSHOT"
)]
pub struct GroupspaceArgs {
    #[command(flatten)]
    options: AccountOptions,
}

/// Show space, objects and quotas of the projects in a file system or snapshot.
#[derive(Debug, Parser)]
#[command(
    name = "zfs projectspace",
    override_usage = "zfs projectspace [-Hinp] [-o FIELD,…] [-s FIELD]… [-S FIELD]… [-t TYPE,…] [--dir DIR]… FILESYSTEM|SNAPSHOT"
)]
pub struct ProjectspaceArgs {
    #[command(flatten)]
    options: AccountOptions,
}

/// Runs `zfs userspace`.
pub fn of_users(call: &Call, args: &UserspaceArgs) -> Result<u8, Failure> {
    run::<UserspaceArgs>(call, QuotaPrincipal::User, &args.options)
}

/// Runs `zfs groupspace`.
pub fn of_groups(call: &Call, args: &GroupspaceArgs) -> Result<u8, Failure> {
    run::<GroupspaceArgs>(call, QuotaPrincipal::Group, &args.options)
}

/// Runs `zfs projectspace`.
pub fn of_projects(call: &Call, args: &ProjectspaceArgs) -> Result<u8, Failure> {
    run::<ProjectspaceArgs>(call, QuotaPrincipal::Project, &args.options)
}

const FIELDS: [&str; 6] = ["type", "name", "used", "quota", "objused", "objquota"];

/// A row of the table.
struct Row {
    id: Fuid,
    name: String,
    account: Account,
}

/// Runs the command `C`.
fn run<C: CommandLine>(call: &Call, who: QuotaPrincipal, args: &AccountOptions) -> Result<u8, Failure> {
    let names = words::<C>(&args.words, 1..=1, "missing dataset argument")?;
    let Some(of) = names.first() else { return Err(C::misused("missing dataset argument")) };
    let fields = fields::<C>(&args.fields)?;
    let is_shown = shows::<C>(args.types.as_deref(), who)?;
    let machine = call.machine()?;
    let search = crate::pools::search(call, &args.places.dirs)?;
    let pool = crate::pools::open(call, &OpenOptions::new(search, pool_of(of)))?;
    let found = machine.block_on(async {
        let rq = Request::internal("userspace");
        let files = pool.file_system(&rq, of).await?;
        let accounts = files.objects().accounting().bound_accounts(&rq, who).await.map_err(PoolError::from)?;
        Ok::<_, PoolError>((accounts, files.objects().accounting().counts_objects()))
    });
    let (found, counts_objects) =
        found.map_err(|why| Failure::failed(format!("cannot get used/quota for {of}: {why}")))?;
    let known = identity::names(who);
    let row = |(id, account): (Fuid, Account)| Row { id, name: identity::name(id, args.numeric, &known), account };
    let mut rows: Vec<Row> = found.into_iter().filter(|(id, _)| is_shown(id.domain() != 0)).map(row).collect();
    sort::<C>(&args.sort, &mut rows)?;
    let align = |field: &str| if field == "type" { Align::Left } else { Align::Right };
    let mut table = Table::new(fields.iter().map(|f| (f.to_uppercase(), align(f))), args.scripted);
    for row in &rows {
        let text = |field: &String| match field.as_str() {
            "objused" | "objquota" if !counts_objects => "-".to_owned(),
            field => cell(who, row, field, args.parsable),
        };
        table.row(fields.iter().map(text).collect());
    }
    call.print(format_args!("{}", table.text()));
    Ok(0)
}

/// Whether POSIX identities and those of SMB are shown (`-t`).
fn shows<C: CommandLine>(types: Option<&str>, who: QuotaPrincipal) -> Result<impl Fn(bool) -> bool, Failure> {
    const TYPES: [&str; 5] = ["posixgroup", "posixuser", "smbgroup", "smbuser", "all"];
    let types: Vec<&str> = types.unwrap_or("all").split(',').collect();
    if let Some(unknown) = types.iter().find(|name| !TYPES.contains(name)) {
        return Err(C::misused(&format!("invalid type '{unknown}' for -t option")));
    }
    let kind = if who == QuotaPrincipal::Group { "group" } else { "user" };
    let has = |realm: &str| {
        let is_it = |name: &&str| *name == "all" || name.strip_prefix(realm) == Some(kind);
        who == QuotaPrincipal::Project || types.iter().any(is_it)
    };
    let posix = has("posix");
    let smb = has("smb");
    Ok(move |is_smb: bool| if is_smb { smb } else { posix })
}

fn fields<C: CommandLine>(given: &str) -> Result<Vec<String>, Failure> {
    let fields: Vec<String> = given.split(',').map(str::to_owned).collect();
    match fields.iter().find(|f| !FIELDS.contains(&f.as_str())) {
        Some(bad) => Err(C::misused(&format!("invalid type '{bad}' for -o option"))),
        None => Ok(fields),
    }
}

fn key(row: &Row, field: &str) -> (u64, String) {
    match field {
        "used" => (row.account.used_bytes, String::new()),
        "quota" => (row.account.quota_bytes, String::new()),
        "objused" => (row.account.used_objects, String::new()),
        "objquota" => (row.account.quota_objects, String::new()),
        "name" => (if row.name.parse::<u64>().is_ok() { row.id.0 } else { u64::MAX }, row.name.clone()),
        _ => (0, String::new()),
    }
}

/// Sorts by the fields of `-s` and `-S`, then by name.
fn sort<C: CommandLine>(by: &SortFields, rows: &mut [Row]) -> Result<(), Failure> {
    if let Some(unknown) = by.0.iter().find(|field| !FIELDS.contains(&field.name.as_str())) {
        return Err(C::misused(&format!("invalid field '{}' to sort by", unknown.name)));
    }
    rows.sort_by(|a, b| {
        for SortField { name, descends } in &by.0 {
            let order = key(a, name).cmp(&key(b, name));
            if order.is_ne() {
                return if *descends { order.reverse() } else { order };
            }
        }
        key(a, "name").cmp(&key(b, "name"))
    });
    Ok(())
}

fn cell(who: QuotaPrincipal, row: &Row, field: &str, exact: bool) -> String {
    let account = &row.account;
    match field {
        "type" => match who {
            QuotaPrincipal::User => "POSIX User".to_owned(),
            QuotaPrincipal::Group => "POSIX Group".to_owned(),
            QuotaPrincipal::Project => "Project".to_owned(),
        },
        "name" => row.name.clone(),
        "used" => identity::text(account.used_bytes, QuotaKind::Bytes, false, exact),
        "quota" => identity::text(account.quota_bytes, QuotaKind::Bytes, true, exact),
        "objused" => identity::text(account.used_objects, QuotaKind::Objects, false, exact),
        _ => identity::text(account.quota_objects, QuotaKind::Objects, true, exact),
    }
}
