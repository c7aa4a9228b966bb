//! `zfs userspace`, `groupspace` and `projectspace`: what each user, group or project uses, and may use.

use super::identity;
use super::target::{pool_of, words};
use crate::args::{Args, Spec};
use crate::call::Call;
use crate::failure::Failure;
use crate::table::{Align, Table};
use std::ffi::OsString;
use weir_dsl::{Account, QuotaKind, QuotaPrincipal};
use weir_format::znode::Fuid;
use weir_machine::Request;
use weir_pool::{OpenOptions, PoolError};

const LONG: [(&str, char); 1] = [("dir", 'D')];
const LETTERS: &str = "niHpo:s:S:t:D:";
const SPECS: [Spec; 3] = [
    Spec {
        command: "zfs userspace",
        letters: LETTERS,
        long: &LONG,
        usage: "zfs userspace [-Hinp] [-o FIELD,…] [-s FIELD]… [-S FIELD]… [--dir DIR]… FILESYSTEM|SNAPSHOT",
    },
    Spec {
        command: "zfs groupspace",
        letters: LETTERS,
        long: &LONG,
        usage: "zfs groupspace [-Hinp] [-o FIELD,…] [-s FIELD]… [-S FIELD]… [--dir DIR]… FILESYSTEM|SNAPSHOT",
    },
    Spec {
        command: "zfs projectspace",
        letters: LETTERS,
        long: &LONG,
        usage: "zfs projectspace [-Hp] [-o FIELD,…] [-s FIELD]… [-S FIELD]… [--dir DIR]… FILESYSTEM|SNAPSHOT",
    },
];

const FIELDS: [&str; 6] = ["type", "name", "used", "quota", "objused", "objquota"];

/// One line.
struct Row {
    id: Fuid,
    name: String,
    account: Account,
}

/// Runs the command of users, groups or projects.
pub fn run(call: &Call, who: QuotaPrincipal, line: Vec<OsString>) -> Result<u8, Failure> {
    let [user, group, project] = &SPECS;
    let spec = match who {
        QuotaPrincipal::User => user,
        QuotaPrincipal::Group => group,
        QuotaPrincipal::Project => project,
    };
    let args = spec.parse(line)?;
    let names = words(spec, &args, 1..=1, "missing dataset argument")?;
    let Some(of) = names.first() else { return Err(spec.misused("missing dataset argument")) };
    let fields = fields(spec, &args)?;
    let machine = call.machine()?;
    let search = crate::pools::search(call, args.values('D'))?;
    let pool = crate::pools::open(call, &OpenOptions::new(search, pool_of(of)))?;
    let found = machine.block_on(async {
        let rq = Request::internal("userspace");
        let files = pool.file_system(&rq, of).await?;
        let accounts = files.objects().bound_accounts(&rq, who).await.map_err(PoolError::from)?;
        Ok::<_, PoolError>((accounts, files.objects().counts_objects()))
    });
    let (found, counts_objects) =
        found.map_err(|why| Failure::failed(format!("cannot get used/quota for {of}: {why}")))?;
    let known = identity::names(who);
    let row = |(id, account): (Fuid, Account)| Row { id, name: identity::name(id, args.has('n'), &known), account };
    let mut rows: Vec<Row> = found.into_iter().map(row).collect();
    sort(spec, &args, &mut rows)?;
    let align = |field: &str| if field == "type" { Align::Left } else { Align::Right };
    let mut table = Table::new(fields.iter().map(|f| (f.to_uppercase(), align(f))), args.has('H'));
    for row in &rows {
        let text = |field: &String| match field.as_str() {
            "objused" | "objquota" if !counts_objects => "-".to_owned(),
            field => cell(who, row, field, args.has('p')),
        };
        table.row(fields.iter().map(text).collect());
    }
    call.print(format_args!("{}", table.text()));
    Ok(0)
}

fn fields(spec: &Spec, args: &Args) -> Result<Vec<String>, Failure> {
    let given = args.value('o').unwrap_or_else(|| FIELDS.join(","));
    let fields: Vec<String> = given.split(',').map(str::to_owned).collect();
    match fields.iter().find(|f| !FIELDS.contains(&f.as_str())) {
        Some(bad) => Err(spec.misused(&format!("invalid type '{bad}' for -o option"))),
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

/// By what `-s` and `-S` say, and then by name.
fn sort(spec: &Spec, args: &Args, rows: &mut [Row]) -> Result<(), Failure> {
    let mut by: Vec<(String, bool)> = Vec::new();
    for (letter, value) in args.in_order().filter(|(letter, _)| matches!(letter, 's' | 'S')) {
        let field = value.map(|v| v.to_string_lossy().into_owned()).unwrap_or_default();
        if !FIELDS.contains(&field.as_str()) {
            return Err(spec.misused(&format!("invalid field '{field}' to sort by")));
        }
        by.push((field, letter == 'S'));
    }
    rows.sort_by(|a, b| {
        for (field, down) in &by {
            let order = key(a, field).cmp(&key(b, field));
            if order.is_ne() {
                return if *down { order.reverse() } else { order };
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
