//! `zfs hold`, `release`, `holds`: snapshots that must not go.

use super::target::{self, words};
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::Places;
use crate::table::{Align, Table};
use clap::{Args, Parser};
use weir_admin::{Change, HeldSnapshot};
use weir_dmu::zap::Zap;
use weir_dsl::Dsl;
use weir_dsl::props::human_time;
use weir_machine::Request;
use weir_pool::{OpenOptions, PoolError};

/// Options and operands of `zfs hold` and `zfs release`.
#[derive(Args, Debug)]
pub struct TaggedSnapshots {
    /// Apply to the snapshots of that name of all datasets below as well
    #[arg(short)]
    recursive: bool,
    #[command(flatten)]
    places: Places,
    /// Tag, then snapshots
    #[arg(value_name = "TAG SNAPSHOT")]
    words: Vec<String>,
}

/// Hold snapshots: a held snapshot cannot be destroyed.
#[derive(Debug, Parser)]
#[command(name = "zfs hold", override_usage = "zfs hold [-r] [--dir DIR]… TAG SNAPSHOT…")]
pub struct HoldArgs {
    #[command(flatten)]
    tagged: TaggedSnapshots,
}

/// Release holds of snapshots.
#[derive(Debug, Parser)]
#[command(name = "zfs release", override_usage = "zfs release [-r] [--dir DIR]… TAG SNAPSHOT…")]
pub struct ReleaseArgs {
    #[command(flatten)]
    tagged: TaggedSnapshots,
}

/// List the holds of snapshots.
#[derive(Debug, Parser)]
#[command(name = "zfs holds", override_usage = "zfs holds [-rHp] [--dir DIR]… SNAPSHOT…")]
pub struct HoldsArgs {
    /// List also the holds of the snapshots of that name of all datasets below
    #[arg(short)]
    recursive: bool,
    /// No header; columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Print times in seconds since 1970
    #[arg(short)]
    parsable: bool,
    #[command(flatten)]
    places: Places,
    /// Snapshots
    #[arg(value_name = "SNAPSHOT")]
    words: Vec<String>,
}
/// Maximum number of holds of one snapshot that are listed.
const MAX_HOLDS: usize = 1 << 20;

/// Runs `zfs hold`.
pub fn hold(call: &Call, args: &HoldArgs) -> Result<u8, Failure> {
    change::<HoldArgs>(call, &args.tagged, "cannot hold", |holds, recursive| Change::Hold { holds, recursive })
}

/// Runs `zfs release`.
pub fn release(call: &Call, args: &ReleaseArgs) -> Result<u8, Failure> {
    change::<ReleaseArgs>(call, &args.tagged, "cannot release hold from", |holds, recursive| Change::Release {
        holds,
        recursive,
    })
}

fn change<C: CommandLine>(
    call: &Call,
    args: &TaggedSnapshots,
    doing: &str,
    change: impl Fn(Vec<HeldSnapshot>, bool) -> Change,
) -> Result<u8, Failure> {
    let words = words::<C>(&args.words, 2..=usize::MAX, "missing tag or snapshot argument")?;
    let Some((tag, names)) = words.split_first() else { return Err(C::misused("missing tag argument")) };
    for name in names {
        if !name.contains('@') {
            return Err(Failure::failed(format!("'{name}' is not a snapshot")));
        }
        let doing = format!("{doing} snapshot '{name}'");
        let held = vec![HeldSnapshot { snapshot: name.clone(), tag: tag.clone() }];
        target::once(call, &args.places, name, &doing, change(held, args.recursive))?;
    }
    Ok(0)
}

/// The snapshot itself, or with `recursive` all of its name at and below its dataset.
async fn meant(rq: &Request, dsl: &Dsl, name: &str, recursive: bool) -> Result<Vec<String>, Failure> {
    let (of, snapshot) = name.split_once('@').unwrap_or((name, ""));
    if !recursive {
        return Ok(vec![name.to_owned()]);
    }
    Ok(weir_admin::named_below(rq, dsl, of, snapshot).await?)
}

/// Runs `zfs holds`.
pub fn holds(call: &Call, args: &HoldsArgs) -> Result<u8, Failure> {
    let names = words::<HoldsArgs>(&args.words, 1..=usize::MAX, "missing snapshot argument")?;
    let machine = call.machine()?;
    let columns = ["NAME", "TAG", "TIMESTAMP"].map(|title| (title.to_owned(), Align::Left));
    let mut table = Table::new(columns, args.scripted);
    for name in names {
        let search = crate::pools::search(call, &args.places.dirs)?;
        let pool = crate::pools::open(call, &OpenOptions::new(search, target::pool_of(&name)))?;
        let rows = machine.block_on(rows(&pool.dsl, &name, args))?;
        rows.into_iter().for_each(|row| table.row(row));
    }
    call.print(format_args!("{}", table.text()));
    Ok(0)
}

async fn rows(dsl: &Dsl, name: &str, args: &HoldsArgs) -> Result<Vec<Vec<String>>, Failure> {
    let rq = Request::internal("holds");
    let mut rows = Vec::new();
    for snapshot in meant(&rq, dsl, name, args.recursive).await? {
        let absent = |_| Failure::failed(format!("cannot open '{snapshot}': dataset does not exist"));
        let found = dsl.find(&rq, &snapshot).await.map_err(absent)?;
        if found.phys.user_refs.0 == 0 {
            continue;
        }
        let zap = Zap::open(&rq, dsl.mos(), found.phys.user_refs).await.map_err(PoolError::from)?;
        for entry in zap.all(&rq, MAX_HOLDS).await.map_err(PoolError::from)? {
            let seconds = entry.value.first().unwrap_or(0);
            let time = if args.parsable { seconds.to_string() } else { human_time(seconds) };
            rows.push(vec![snapshot.clone(), entry.key.text(), time]);
        }
    }
    Ok(rows)
}
