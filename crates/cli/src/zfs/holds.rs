//! `zfs hold`, `release`, `holds`: snapshots that must not go.

use super::target::{self, words};
use crate::args::CommandLine;
use crate::call::{Call, errln};
use crate::failure::Failure;
use crate::options::Places;
use crate::reading::{PoolReader, refused};
use crate::table::{Align, Table};
use crate::times;
use clap::{Args, Parser};
use weir_admin::{Change, HeldSnapshot, HoldsQuery, PoolQuery, Row};

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

/// Runs `zfs holds`.
pub fn holds(call: &Call, args: &HoldsArgs) -> Result<u8, Failure> {
    let names = words::<HoldsArgs>(&args.words, 1..=usize::MAX, "missing snapshot argument")?;
    let columns = ["NAME", "TAG", "TIMESTAMP"].map(|title| (title.to_owned(), Align::Left));
    let mut table = Table::new(columns, args.scripted);
    let pools = PoolReader::new(call, &args.places.dirs)?;
    for name in names {
        let pool = target::pool_of(&name).to_owned();
        let query = PoolQuery::Holds(HoldsQuery { snapshot: name, recursive: args.recursive });
        let mut take = |row| match row {
            Row::Hold(hold) => {
                let time = if args.parsable { hold.time_s.to_string() } else { times::property(hold.time_s) };
                table.row(vec![hold.snapshot, hold.tag, time]);
            }
            Row::Warning { name, why } => errln!(call, "{name}: {why}"),
            // Rows of other queries do not occur.
            _ => {}
        };
        pools.read(&pool, query, &mut take)?.map_err(refused)?;
    }
    call.print(format_args!("{}", table.text()));
    Ok(0)
}
