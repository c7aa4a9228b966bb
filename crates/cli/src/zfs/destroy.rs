//! `zfs destroy`: datasets, snapshots and bookmarks go.

use super::target::{self, words};
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::Places;
use crate::reading::PoolReader;
use crate::writable::refused;
use clap::Parser;
use weir_admin::{Action, Change, Destruction, Outcome, Refusal, RefusalKind};
use weir_dsl::props::human_size;

/// Destroy a dataset, snapshots or a bookmark.
#[derive(Debug, Parser)]
#[command(
    name = "zfs destroy",
    override_usage = "zfs destroy [-fnpRrv] [--dir DIR]… FILESYSTEM|VOLUME\n       zfs destroy [-dnpRrv] [--dir DIR]… <filesystem|volume>@<snap>[%<snap>][,...]\n       zfs destroy [--dir DIR]… FILESYSTEM|VOLUME#BOOKMARK"
)]
pub struct DestroyArgs {
    /// Destroy also everything below the dataset, or the snapshots of that name below it
    #[arg(short)]
    recursive: bool,
    /// Like -r, and destroy also clones outside of the dataset
    #[arg(short = 'R')]
    dependents: bool,
    /// Show what would be destroyed and destroy nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// Print what is destroyed
    #[arg(short)]
    verbose: bool,
    /// Print the result in columns separated by tabs
    #[arg(short)]
    parsable: bool,
    /// Destroy held and cloned snapshots later, when no hold and no clone is left
    #[arg(short)]
    defer: bool,
    /// Accepted, has no effect: what is in use is busy all the same
    #[arg(short = 'f')]
    _force: bool,
    #[command(flatten)]
    places: Places,
    /// Dataset, snapshots or bookmark
    #[arg(value_name = "NAME")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &DestroyArgs) -> Result<u8, Failure> {
    let name = words::<DestroyArgs>(&args.words, 1..=1, "missing dataset argument")?.remove(0);
    let doing = format!("cannot destroy '{name}'");
    if name.is_empty() {
        return Err(Failure::failed(format!("{doing}: the name is empty")));
    }
    let recursive = args.recursive || args.dependents;
    if !name.contains(['/', '@', '#']) && !recursive {
        if !PoolReader::new(call, &args.places.dirs)?.are_pools(std::slice::from_ref(&name))? {
            return Err(Failure::failed(format!("cannot open '{name}': dataset does not exist")));
        }
        return Err(Failure::failed(format!(
            "{doing}: operation does not apply to pools\nuse 'zfs destroy -r {name}' to destroy all datasets in the \
             pool\nuse 'zpool destroy {name}' to destroy the pool itself"
        )));
    }
    if args.defer && !name.contains(['@', '#']) {
        // As in OpenZFS, -d applies to snapshots alone: a command line without the snapshot's name must not destroy the dataset.
        return Err(Failure::failed(format!(
            "cannot open '{name}': operation not applicable to datasets of this type"
        )));
    }
    if name.contains('#') {
        return bookmark(call, args, &name, &doing);
    }
    let what = match name.split_once('@') {
        Some((of, list)) => {
            let name = of.to_owned();
            let snapshots = list.to_owned();
            Destruction::Snapshots { name, snapshots, recursive, dependents: args.dependents, defer: args.defer }
        }
        None => Destruction::Dataset { name: name.clone(), recursive, dependents: args.dependents, defer: false },
    };
    let refuse = |refusal: Refusal| match refusal.kind {
        RefusalKind::HasClones if !refusal.names.is_empty() => dependents(&doing, &refusal, "-R"),
        RefusalKind::HasChildren if !refusal.names.is_empty() => dependents(&doing, &refusal, "-r"),
        RefusalKind::Held => held(&refusal),
        RefusalKind::NoSnapshots => Failure::failed(refusal.why),
        RefusalKind::Canceled => Failure::interrupted(format!("{doing}: {}", refusal.why)),
        _ => refused(&doing, refusal),
    };
    target::with(call, &args.places, &name, |target| {
        if (args.verbose || args.parsable || args.dry_run)
            && let Outcome::Destroys { names, reclaimed_bytes } =
                target.attempt(Action::Plan(what.clone()))?.map_err(refuse)?
        {
            show(call, &names, reclaimed_bytes, args);
        }
        if !args.dry_run {
            target.attempt(Action::Change(Change::Destroy { what }))?.map_err(refuse)?;
        }
        Ok(())
    })?;
    Ok(0)
}

/// Destroys a bookmark.
fn bookmark(call: &Call, args: &DestroyArgs, name: &str, doing: &str) -> Result<u8, Failure> {
    let options =
        [(args.dry_run, "dryrun"), (args.defer, "defer destroy"), (args.recursive || args.dependents, "recursive")];
    if let Some((_, what)) = options.iter().find(|(is_given, _)| *is_given) {
        return Err(Failure::failed(format!("{what} is not supported with bookmark")));
    }
    let change = Change::DestroyBookmarks { bookmarks: vec![name.to_owned()] };
    target::with(call, &args.places, name, |target| {
        target.attempt(Action::Change(change))?.map_err(|refusal| match refusal.kind {
            RefusalKind::Missing => Failure::failed(format!("bookmark '{name}' does not exist.")),
            _ => refused(doing, refusal),
        })
    })?;
    Ok(0)
}

fn show(call: &Call, names: &[String], reclaimed_bytes: Option<u64>, args: &DestroyArgs) {
    for name in names {
        match (args.parsable, args.dry_run) {
            (true, _) => outln!(call, "destroy\t{name}"),
            (false, true) => outln!(call, "would destroy {name}"),
            (false, false) => outln!(call, "will destroy {name}"),
        }
    }
    let Some(bytes) = reclaimed_bytes else { return };
    match (args.parsable, args.dry_run) {
        (true, _) => outln!(call, "reclaim\t{bytes}"),
        (false, true) => outln!(call, "would reclaim {}", human_size(bytes)),
        (false, false) => outln!(call, "will reclaim {}", human_size(bytes)),
    }
}

/// The message for held snapshots. OpenZFS prints one line for each (`zfs_destroy_snaps_nvl`), and other programs parse these lines.
fn held(refusal: &Refusal) -> Failure {
    let line = |name: &String| {
        format!("cannot destroy snapshot {name}: it's being held. Run 'zfs holds -r {name}' to see holders.")
    };
    Failure::failed(refusal.names.iter().map(line).collect::<Vec<_>>().join("\n"))
}

fn dependents(doing: &str, refusal: &Refusal, option: &str) -> Failure {
    let names = refusal.names.join("\n");
    Failure::failed(format!("{doing}: {}\nuse '{option}' to destroy the following datasets:\n{names}", refusal.why))
}
