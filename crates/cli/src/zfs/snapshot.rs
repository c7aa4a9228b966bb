//! `zfs snapshot`, `rollback`, `promote`, `rename`, `bookmark`: moments of datasets, and their names.

use super::target::{self, once, words};
use super::values;
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::{self, Places};
use crate::writable::refused;
use clap::Parser;
use std::collections::BTreeSet;
use weir_admin::{Action, Change, RefusalKind, SourcedBookmark};
use weir_dsl::props::Value;

/// Create snapshots.
#[derive(Debug, Parser)]
#[command(
    name = "zfs snapshot",
    override_usage = "zfs snapshot [-r] [-o PROPERTY=VALUE]… [--dir DIR]… FILESYSTEM@SNAPSHOT|VOLUME@SNAPSHOT…"
)]
pub struct SnapshotArgs {
    /// Create snapshots of all datasets below as well, in the same txg
    #[arg(short)]
    recursive: bool,
    /// User property of the snapshots (MODULE:NAME=VALUE); may be repeated
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    #[command(flatten)]
    places: Places,
    /// Names of the snapshots
    #[arg(value_name = "SNAPSHOT")]
    words: Vec<String>,
}

/// Roll a dataset back to a snapshot.
#[derive(Debug, Parser)]
#[command(name = "zfs rollback", override_usage = "zfs rollback [-rRf] [--dir DIR]… SNAPSHOT")]
pub struct RollbackArgs {
    /// Destroy later snapshots and bookmarks
    #[arg(short)]
    recursive: bool,
    /// Like -r, and destroy also the clones of later snapshots
    #[arg(short = 'R')]
    dependents: bool,
    /// Accepted, has no effect: mounts of the file system stay, and show the contents of the snapshot
    #[arg(short = 'f')]
    _force: bool,
    #[command(flatten)]
    places: Places,
    /// Snapshot
    #[arg(value_name = "SNAPSHOT")]
    words: Vec<String>,
}

/// Make a clone independent of its origin.
#[derive(Debug, Parser)]
#[command(name = "zfs promote", override_usage = "zfs promote [--dir DIR]… CLONE")]
pub struct PromoteArgs {
    #[command(flatten)]
    places: Places,
    /// Clone
    #[arg(value_name = "CLONE")]
    words: Vec<String>,
}

/// Rename a dataset or snapshots.
#[derive(Debug, Parser)]
#[command(
    name = "zfs rename",
    override_usage = "zfs rename [-fpu] [--dir DIR]… FILESYSTEM|VOLUME|SNAPSHOT NEW\n       zfs rename -r [--dir DIR]… SNAPSHOT NEW"
)]
pub struct RenameArgs {
    /// Rename the snapshots of all datasets below as well
    #[arg(short)]
    recursive: bool,
    /// Unmount file systems that are in use, and mount them under their new names
    #[arg(short = 'f')]
    force: bool,
    /// Create the missing parents of the new name
    #[arg(short = 'p')]
    parents: bool,
    /// Do not remount file systems
    #[arg(short = 'u')]
    no_mount: bool,
    #[command(flatten)]
    places: Places,
    /// Present and new name
    #[arg(value_name = "NAME NEW")]
    words: Vec<String>,
}

/// Create a bookmark of a snapshot, or copy a bookmark.
#[derive(Debug, Parser)]
#[command(name = "zfs bookmark", override_usage = "zfs bookmark [--dir DIR]… SNAPSHOT|BOOKMARK NEWBOOKMARK")]
pub struct BookmarkArgs {
    #[command(flatten)]
    places: Places,
    /// Snapshot or bookmark, and name of the new bookmark
    #[arg(value_name = "SOURCE BOOKMARK")]
    words: Vec<String>,
}

/// Runs `zfs snapshot`.
pub fn run(call: &Call, args: &SnapshotArgs) -> Result<u8, Failure> {
    let names = words::<SnapshotArgs>(&args.words, 1..=usize::MAX, "missing snapshot argument")?;
    for name in &names {
        if !name.contains('@') {
            return Err(SnapshotArgs::misused(&format!("'{name}': missing '@' delimiter in snapshot name")));
        }
    }
    let pool = target::pool_of(names.first().map_or("", String::as_str)).to_owned();
    if names.iter().any(|name| target::pool_of(name) != pool) {
        return Err(Failure::failed("cannot create snapshots: all must be in the same pool"));
    }
    let properties = user_properties(&args.properties)?;
    let doing = match names.as_slice() {
        [one] => format!("cannot create snapshot '{one}'"),
        // As OpenZFS writes it.
        _ => "cannot create snapshots ".to_owned(),
    };
    let datasets: BTreeSet<String> = names.iter().filter_map(|name| Some(name.split_once('@')?.0.to_owned())).collect();
    let change = Change::Snapshot { snapshots: names, properties, recursive: args.recursive };
    target::with(call, &args.places, &pool, |target| {
        let Err(refusal) = target.attempt(Action::Change(change))? else { return Ok(()) };
        // The refusal does not say which of the datasets does not exist.
        for name in datasets.into_iter().filter(|_| refusal.kind == RefusalKind::Missing) {
            if target.attempt(Action::Kind { name: name.clone() })?.is_err_and(|why| why.kind == RefusalKind::Missing) {
                return Err(Failure::failed(format!("cannot open '{name}': dataset does not exist")));
            }
        }
        Err(refused(&doing, refusal))
    })?;
    Ok(0)
}

/// Parses the properties of snapshots, which can be user properties only.
fn user_properties(given: &[String]) -> Result<Vec<(String, Value)>, Failure> {
    let parse = |text: &String| {
        let is_user = text.split('=').next().is_some_and(|name| name.contains(':'));
        if !is_user {
            return Err(SnapshotArgs::misused(&format!(
                "'{text}': a snapshot takes user properties (MODULE:NAME=VALUE)"
            )));
        }
        values::parse(text, weir_dsl::props::DatasetKind::Filesystem, values::When::Creation)
            .map_err(|why| SnapshotArgs::misused(&why))
    };
    options::once(given).map_err(Failure::failed)?;
    given.iter().map(parse).collect()
}

/// Runs `zfs rollback`.
pub fn rollback(call: &Call, args: &RollbackArgs) -> Result<u8, Failure> {
    let name = words::<RollbackArgs>(&args.words, 1..=1, "missing dataset argument")?.remove(0);
    let doing = format!("cannot rollback to '{name}'");
    let Some((of, _)) = name.split_once('@') else {
        return Err(Failure::failed(format!("{doing}: not a snapshot")));
    };
    let destroy_later = args.recursive || args.dependents;
    let dependents = args.dependents;
    let action = Action::Change(Change::Rollback { snapshot: name.clone(), destroy_later, dependents });
    target::with(call, &args.places, of, |target| {
        target.attempt(action)?.map_err(|refusal| match refusal.kind {
            RefusalKind::HasLater => Failure::failed(format!(
                "{doing}: {}\nuse '-r' to force deletion of the following snapshots and bookmarks:\n{}",
                refusal.why,
                refusal.names.join("\n")
            )),
            RefusalKind::HasClones if !refusal.names.is_empty() => Failure::failed(format!(
                "{doing}: {}\nuse '-R' to force deletion of the following clones and dependents:\n{}",
                refusal.why,
                refusal.names.join("\n")
            )),
            _ => refused(&doing, refusal),
        })
    })?;
    Ok(0)
}

/// Runs `zfs promote`.
pub fn promote(call: &Call, args: &PromoteArgs) -> Result<u8, Failure> {
    let name = words::<PromoteArgs>(&args.words, 1..=1, "missing clone filesystem argument")?.remove(0);
    once(call, &args.places, &name, &format!("cannot promote '{name}'"), Change::Promote { name: name.clone() })
}

/// Runs `zfs rename`.
pub fn rename(call: &Call, args: &RenameArgs) -> Result<u8, Failure> {
    let words = words::<RenameArgs>(&args.words, 2..=2, "missing source or target dataset argument")?;
    let [from, to] = words.as_slice() else { return Err(RenameArgs::misused("missing target dataset argument")) };
    let doing = format!("cannot rename '{from}'");
    // The new name of a snapshot may be given without its dataset.
    let to = match (from.split_once('@'), to.strip_prefix('@'), to.contains('@')) {
        (Some((of, _)), Some(snapshot), _) => format!("{of}@{snapshot}"),
        (Some((of, _)), None, false) => format!("{of}@{to}"),
        _ => to.clone(),
    };
    if *from == to {
        // As OpenZFS's `zfs_rename`: there is nothing to do, but the dataset must exist.
        let cannot_open = |refusal| refused(&format!("cannot open '{from}'"), refusal);
        target::with(call, &args.places, from, |target| {
            target.attempt(Action::Kind { name: to.clone() })?.map(drop).map_err(cannot_open)
        })?;
        return Ok(0);
    }
    if target::pool_of(from) != target::pool_of(&to) {
        return Err(Failure::failed(format!("{doing}: datasets must be within same pool")));
    }
    match (from.split_once('@'), to.split_once('@')) {
        (None, None) if args.recursive => Err(RenameArgs::misused("-r renames snapshots")),
        (None, None) => {
            let (name, new_name, parents) = (from.clone(), to.clone(), args.parents);
            let change = Change::Rename { name, new_name, force: args.force, parents };
            once(call, &args.places, from, &doing, target::action(change, args.no_mount))
        }
        (Some((of, _)), Some((other, _))) if of != other => {
            Err(Failure::failed(format!("{doing}: snapshots must be part of same dataset")))
        }
        (Some(_), Some((_, new))) => {
            let change =
                Change::RenameSnapshot { snapshot: from.clone(), new_name: new.to_owned(), recursive: args.recursive };
            once(call, &args.places, from, &doing, change)
        }
        _ => Err(Failure::failed(format!("{doing}: a snapshot stays a snapshot, and a dataset a dataset"))),
    }
}

/// Runs `zfs bookmark`.
pub fn bookmark(call: &Call, args: &BookmarkArgs) -> Result<u8, Failure> {
    let words = words::<BookmarkArgs>(&args.words, 2..=2, "missing snapshot or bookmark argument")?;
    let [source, name] = words.as_slice() else { return Err(BookmarkArgs::misused("missing bookmark argument")) };
    let of = source.split(['@', '#']).next().unwrap_or_default();
    let whole = |text: &str| if text.starts_with(['@', '#']) { format!("{of}{text}") } else { text.to_owned() };
    // Either may leave out the dataset that the other names.
    let source = match source.starts_with(['@', '#']) {
        true => format!("{}{source}", name.split('#').next().unwrap_or_default()),
        false => source.clone(),
    };
    let name = whole(name);
    let doing = format!("cannot create bookmark '{name}'");
    let bookmarks = vec![SourcedBookmark { bookmark: name, source: source.clone() }];
    target::with(call, &args.places, &source, |target| {
        target.attempt(Action::Change(Change::Bookmark { bookmarks }))?.map_err(|refusal| match refusal.kind {
            RefusalKind::Exists => Failure::failed(format!("{doing}: bookmark exists")),
            _ => refused(&doing, refusal),
        })
    })?;
    Ok(0)
}
