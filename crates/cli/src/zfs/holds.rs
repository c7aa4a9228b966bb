//! `zfs hold`, `release`, `holds`: snapshots that must not go.

use super::target::{self, PLACES, below, words};
use crate::args::{Args, Spec};
use crate::call::Call;
use crate::failure::Failure;
use crate::operations::Operation;
use crate::table::{Align, Table};
use crate::writable::dsl;
use std::ffi::OsString;
use weir_dmu::zap::Zap;
use weir_dsl::Dsl;
use weir_dsl::props::human_time;
use weir_machine::Request;
use weir_pool::{OpenOptions, PoolError};

const HOLD: Spec =
    Spec { command: "zfs hold", letters: "rD:K:", long: &PLACES, usage: "zfs hold [-r] TAG SNAPSHOT…" };
const RELEASE: Spec =
    Spec { command: "zfs release", letters: "rD:K:", long: &PLACES, usage: "zfs release [-r] TAG SNAPSHOT…" };
const HOLDS: Spec =
    Spec { command: "zfs holds", letters: "rHpD:K:", long: &PLACES, usage: "zfs holds [-rHp] SNAPSHOT…" };
/// Most holds of one snapshot that are listed.
const MAX_HOLDS: usize = 1 << 20;

/// Runs `zfs hold`.
pub fn hold(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = HOLD.parse(line)?;
    change(call, &HOLD, &args, "cannot hold", Operation::Hold)
}

/// Runs `zfs release`.
pub fn release(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = RELEASE.parse(line)?;
    change(call, &RELEASE, &args, "cannot release hold from", Operation::Release)
}

fn change(
    call: &Call,
    spec: &Spec,
    args: &Args,
    doing: &str,
    operation: impl Fn(Vec<(String, String)>) -> Operation,
) -> Result<u8, Failure> {
    let words = words(spec, args, 2..=usize::MAX, "missing tag or snapshot argument")?;
    let Some((tag, names)) = words.split_first() else { return Err(spec.misused("missing tag argument")) };
    for name in names {
        if !name.contains('@') {
            return Err(Failure::failed(format!("'{name}' is not a snapshot")));
        }
        let doing = format!("{doing} snapshot '{name}'");
        target::open(call, args, name)?.with(async |engine| {
            let rq = &Request::internal("hold");
            let snapshots = meant(rq, &*dsl(engine, rq).await?, name, args.has('r')).await?;
            let pairs = snapshots.into_iter().map(|snapshot| (snapshot, tag.clone())).collect();
            target::run(call, engine, &doing, operation(pairs)).await
        })?;
    }
    Ok(0)
}

/// The snapshot itself, or with `recursive` all of its name at and below its dataset.
async fn meant(rq: &Request, dsl: &Dsl, name: &str, recursive: bool) -> Result<Vec<String>, Failure> {
    let (of, snapshot) = name.split_once('@').unwrap_or((name, ""));
    if !recursive {
        return Ok(vec![name.to_owned()]);
    }
    let mut out = Vec::new();
    for dir in below(dsl, of) {
        if target::snapshots(dsl, rq, dir).await?.iter().any(|s| s == snapshot) {
            out.push(format!("{}@{snapshot}", dir.name));
        }
    }
    Ok(out)
}

/// Runs `zfs holds`.
pub fn holds(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = HOLDS.parse(line)?;
    let names = words(&HOLDS, &args, 1..=usize::MAX, "missing snapshot argument")?;
    let machine = call.machine()?;
    let columns = ["NAME", "TAG", "TIMESTAMP"].map(|title| (title.to_owned(), Align::Left));
    let mut table = Table::new(columns, args.has('H'));
    for name in names {
        let search = crate::pools::search(call, args.values('D'))?;
        let pool = crate::pools::open(call, &OpenOptions::new(search, target::pool_of(&name)))?;
        let rows = machine.block_on(rows(&pool.dsl, &name, &args))?;
        rows.into_iter().for_each(|row| table.row(row));
    }
    call.print(format_args!("{}", table.text()));
    Ok(0)
}

async fn rows(dsl: &Dsl, name: &str, args: &Args) -> Result<Vec<Vec<String>>, Failure> {
    let rq = Request::internal("holds");
    let mut rows = Vec::new();
    for snapshot in meant(&rq, dsl, name, args.has('r')).await? {
        let absent = |_| Failure::failed(format!("cannot open '{snapshot}': dataset does not exist"));
        let found = dsl.find(&rq, &snapshot).await.map_err(absent)?;
        if found.phys.user_refs.0 == 0 {
            continue;
        }
        let zap = Zap::open(&rq, dsl.mos(), found.phys.user_refs).await.map_err(PoolError::from)?;
        for entry in zap.all(&rq, MAX_HOLDS).await.map_err(PoolError::from)? {
            let seconds = entry.value.first().unwrap_or(0);
            let time = if args.has('p') { seconds.to_string() } else { human_time(seconds) };
            rows.push(vec![snapshot.clone(), entry.key.text(), time]);
        }
    }
    Ok(rows)
}
