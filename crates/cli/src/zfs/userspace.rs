//! `zfs userspace`, `groupspace` and `projectspace`: space and objects of each user, group or project, and its quotas.

use super::identity;
use super::sort::{SortField, SortFields};
use super::target::{pool_of, words};
use crate::args::CommandLine;
use crate::call::{Call, errln};
use crate::failure::Failure;
use crate::options::DatasetDirs;
use crate::reading::PoolReader;
use crate::table::{Align, Table};
use clap::{Args, Parser};
use weir_admin::{PoolQuery, Row, UserspaceQuery, UserspaceRow};
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_format::znode::Fuid;

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

/// A line of the table.
struct Line {
    name: String,
    account: UserspaceRow,
}

/// Runs the command `C`.
fn run<C: CommandLine>(call: &Call, who: QuotaPrincipal, args: &AccountOptions) -> Result<u8, Failure> {
    let names = words::<C>(&args.words, 1..=1, "missing dataset argument")?;
    let Some(of) = names.first() else { return Err(C::misused("missing dataset argument")) };
    let fields = fields::<C>(&args.fields)?;
    let is_shown = shows::<C>(args.types.as_deref(), who)?;
    let known = identity::names(who);
    let mut lines = Vec::new();
    for account in accounts(call, args, of, who)? {
        let id = Fuid(account.fuid);
        if is_shown(id.domain() != 0) {
            lines.push(Line { name: identity::name(id, args.numeric, &known), account });
        }
    }
    sort::<C>(&args.sort, &mut lines)?;
    let align = |field: &str| if field == "type" { Align::Left } else { Align::Right };
    let mut table = Table::new(fields.iter().map(|f| (f.to_uppercase(), align(f))), args.scripted);
    for line in &lines {
        table.row(fields.iter().map(|field| cell(who, line, field, args.parsable)).collect());
    }
    call.print(format_args!("{}", table.text()));
    Ok(0)
}

/// Reads the accounts of a dataset from its pool.
fn accounts(call: &Call, args: &AccountOptions, of: &str, who: QuotaPrincipal) -> Result<Vec<UserspaceRow>, Failure> {
    let mut accounts = Vec::new();
    let mut take = |row| match row {
        Row::Userspace(account) => accounts.push(account),
        Row::Warning { name, why } => errln!(call, "{name}: {why}"),
        // Rows of other queries do not occur.
        _ => {}
    };
    let query = PoolQuery::Userspace(UserspaceQuery { dataset: of.to_owned(), principal: who });
    let answer = PoolReader::new(call, &args.places.dirs)?.read(pool_of(of), query, &mut take)?;
    answer.map_err(|refusal| Failure::failed(format!("cannot get used/quota for {of}: {}", refusal.why)))?;
    Ok(accounts)
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

fn key(line: &Line, field: &str) -> (u64, String) {
    let account = &line.account;
    match field {
        "used" => (account.used_bytes, String::new()),
        "quota" => (account.quota_bytes, String::new()),
        "objused" => (account.used_objects.unwrap_or(0), String::new()),
        "objquota" => (account.quota_objects, String::new()),
        "name" => (if line.name.parse::<u64>().is_ok() { account.fuid } else { u64::MAX }, line.name.clone()),
        _ => (0, String::new()),
    }
}

/// Sorts by the fields of `-s` and `-S`, then by name.
fn sort<C: CommandLine>(by: &SortFields, lines: &mut [Line]) -> Result<(), Failure> {
    if let Some(unknown) = by.0.iter().find(|field| !FIELDS.contains(&field.name.as_str())) {
        return Err(C::misused(&format!("invalid field '{}' to sort by", unknown.name)));
    }
    lines.sort_by(|a, b| {
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

fn cell(who: QuotaPrincipal, line: &Line, field: &str, exact: bool) -> String {
    let account = &line.account;
    match (field, account.used_objects) {
        ("type", _) => match who {
            QuotaPrincipal::User => "POSIX User".to_owned(),
            QuotaPrincipal::Group => "POSIX Group".to_owned(),
            QuotaPrincipal::Project => "Project".to_owned(),
        },
        ("name", _) => line.name.clone(),
        ("used", _) => identity::text(account.used_bytes, QuotaKind::Bytes, false, exact),
        ("quota", _) => identity::text(account.quota_bytes, QuotaKind::Bytes, true, exact),
        // The file system counts no objects.
        (_, None) => "-".to_owned(),
        ("objused", Some(used_objects)) => identity::text(used_objects, QuotaKind::Objects, false, exact),
        (_, Some(_)) => identity::text(account.quota_objects, QuotaKind::Objects, true, exact),
    }
}
