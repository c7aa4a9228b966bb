//! `zfs snapshot`, `rollback`, `promote`, `rename`, `bookmark`: moments of datasets, and their names.

use super::target::{self, PLACES, below, must_exist, once, words};
use super::values;
use crate::args::Spec;
use crate::call::Call;
use crate::failure::Failure;
use crate::operations::Operation;
use crate::writable::dsl;
use std::ffi::OsString;
use weir_dsl::props::Value;
use weir_machine::Request;

const SNAPSHOT: Spec = Spec {
    command: "zfs snapshot",
    letters: "ro:D:K:",
    long: &PLACES,
    usage: "zfs snapshot [-r] [-o PROPERTY=VALUE]… FILESYSTEM@SNAPSHOT|VOLUME@SNAPSHOT…",
};
const ROLLBACK: Spec =
    Spec { command: "zfs rollback", letters: "rRfD:K:", long: &PLACES, usage: "zfs rollback [-rRf] SNAPSHOT" };
const PROMOTE: Spec = Spec { command: "zfs promote", letters: "D:K:", long: &PLACES, usage: "zfs promote CLONE" };
const RENAME: Spec = Spec {
    command: "zfs rename",
    letters: "fpruD:K:",
    long: &PLACES,
    usage: "zfs rename [-fu] FILESYSTEM|VOLUME|SNAPSHOT NEW\n       zfs rename -r SNAPSHOT NEW",
};
const BOOKMARK: Spec = Spec {
    command: "zfs bookmark",
    letters: "D:K:",
    long: &PLACES,
    usage: "zfs bookmark SNAPSHOT|BOOKMARK NEWBOOKMARK",
};

/// Runs `zfs snapshot`.
pub fn run(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = SNAPSHOT.parse(line)?;
    let names = words(&SNAPSHOT, &args, 1..=usize::MAX, "missing snapshot argument")?;
    for name in &names {
        if !name.contains('@') {
            return Err(Failure::failed(format!(
                "cannot create snapshot '{name}': missing '@' delimiter in snapshot name"
            )));
        }
    }
    let pool = target::pool_of(names.first().map_or("", String::as_str)).to_owned();
    if names.iter().any(|name| target::pool_of(name) != pool) {
        return Err(Failure::failed("cannot create snapshots: all must be in the same pool"));
    }
    let properties = user_properties(args.values('o'))?;
    let doing = match names.as_slice() {
        [one] => format!("cannot create snapshot '{one}'"),
        _ => "cannot create snapshots".to_owned(),
    };
    target::open(call, &args, &pool)?.with(async |engine| {
        let mut all = names.clone();
        if args.has('r') {
            let dsl = dsl(engine, &Request::internal("snapshot")).await?;
            all.clear();
            for name in &names {
                let (of, snapshot) = name.split_once('@').unwrap_or((name, ""));
                must_exist(&dsl, &doing, of).await?;
                all.extend(below(&dsl, of).iter().map(|dir| format!("{}@{snapshot}", dir.name)));
            }
        }
        target::run(call, engine, &doing, Operation::Snapshot(all, properties)).await
    })?;
    Ok(0)
}

/// Snapshots take user properties alone.
fn user_properties(given: Vec<OsString>) -> Result<Vec<(String, Value)>, Failure> {
    let parse = |text: OsString| {
        let text = text.to_string_lossy().into_owned();
        let is_user = text.split('=').next().is_some_and(|name| name.contains(':'));
        if !is_user {
            return Err(SNAPSHOT.misused(&format!("'{text}': a snapshot takes user properties (MODULE:NAME=VALUE)")));
        }
        values::parse(&text, weir_dsl::props::DatasetKind::Filesystem, values::When::Creation)
            .map_err(|why| SNAPSHOT.misused(&why))
    };
    given.into_iter().map(parse).collect()
}

/// Runs `zfs rollback`.
pub fn rollback(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = ROLLBACK.parse(line)?;
    let name = words(&ROLLBACK, &args, 1..=1, "missing dataset argument")?.remove(0);
    let doing = format!("cannot rollback to '{name}'");
    let Some((of, snapshot)) = name.split_once('@') else {
        return Err(Failure::failed(format!("{doing}: not a snapshot")));
    };
    target::open(call, &args, of)?.with(async |engine| {
        let rq = Request::internal("rollback");
        let dsl = dsl(engine, &rq).await?;
        let absent = || Failure::failed(format!("{doing}: dataset does not exist"));
        let dir = dsl.dir_named(of).ok_or_else(absent)?;
        let there = target::snapshots(&dsl, &rq, dir).await?;
        let at = there.iter().position(|s| s == snapshot).ok_or_else(absent)?;
        let newer: Vec<String> = there.iter().skip(at + 1).map(|s| format!("{of}@{s}")).collect();
        let head = dsl.head(&rq, dir).await.map_err(weir_pool::PoolError::from)?;
        let bookmarks = dsl.bookmarks(&rq, &head).await.map_err(weir_pool::PoolError::from)?;
        let moment = dsl.find(&rq, &name).await.map_err(weir_pool::PoolError::from)?.phys.creation_txg;
        let later = bookmarks.into_iter().filter(|b| b.bookmark.creation_txg > moment).map(|b| b.name);
        let later: Vec<String> = later.collect();
        let forced = args.has('r') || args.has('R');
        if !forced && (!newer.is_empty() || !later.is_empty()) {
            let all = newer.iter().chain(&later).cloned().collect::<Vec<_>>().join("\n");
            return Err(Failure::failed(format!(
                "{doing}: more recent snapshots or bookmarks exist\nuse '-r' to force deletion of the following snapshots \
                 and bookmarks:\n{all}"
            )));
        }
        // What changes them waits for a group.
        drop(dsl);
        if engine.is_used(&rq, of).await? {
            // Before anything is gone for it.
            return Err(Failure::failed(format!("{doing}: '{of}' is busy: clients use it")));
        }
        if !later.is_empty() {
            target::run(call, engine, &doing, Operation::DestroyBookmarks(later)).await?;
        }
        if !newer.is_empty() {
            target::run(call, engine, &doing, Operation::DestroySnapshots(newer, false)).await?;
        }
        target::run(call, engine, &doing, Operation::Rollback(of.to_owned(), name.clone())).await
    })?;
    Ok(0)
}

/// Runs `zfs promote`.
pub fn promote(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = PROMOTE.parse(line)?;
    let name = words(&PROMOTE, &args, 1..=1, "missing clone filesystem argument")?.remove(0);
    once(call, &args, &name, &format!("cannot promote '{name}'"), Operation::Promote(name.clone()))
}

/// Runs `zfs rename`.
pub fn rename(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = RENAME.parse(line)?;
    let words = words(&RENAME, &args, 2..=2, "missing source or target dataset argument")?;
    let [from, to] = words.as_slice() else { return Err(RENAME.misused("missing target dataset argument")) };
    let doing = format!("cannot rename '{from}'");
    // A snapshot's new name may stand alone.
    let to = match (from.split_once('@'), to.strip_prefix('@'), to.contains('@')) {
        (Some((of, _)), Some(snapshot), _) => format!("{of}@{snapshot}"),
        (Some((of, _)), None, false) => format!("{of}@{to}"),
        _ => to.clone(),
    };
    if target::pool_of(from) != target::pool_of(&to) {
        return Err(Failure::failed(format!("{doing}: datasets must be within same pool")));
    }
    match (from.split_once('@'), to.split_once('@')) {
        (None, None) if args.has('r') => Err(RENAME.misused("-r renames snapshots")),
        (None, None) => once(call, &args, from, &doing, Operation::Rename(from.clone(), to.clone())),
        (Some((of, _)), Some((other, _))) if of != other => {
            Err(Failure::failed(format!("{doing}: snapshots must be part of same dataset")))
        }
        (Some(_), Some((_, new))) if !args.has('r') => {
            once(call, &args, from, &doing, Operation::RenameSnapshots(vec![(from.clone(), new.to_owned())]))
        }
        (Some((of, old)), Some((_, new))) => {
            target::open(call, &args, of)?.with(async |engine| {
                let rq = Request::internal("rename");
                let dsl = dsl(engine, &rq).await?;
                must_exist(&dsl, &doing, of).await?;
                let mut all = Vec::new();
                for dir in below(&dsl, of) {
                    if target::snapshots(&dsl, &rq, dir).await?.iter().any(|s| s == old) {
                        all.push((format!("{}@{old}", dir.name), new.to_owned()));
                    }
                }
                drop(dsl);
                if !all.iter().any(|(name, _)| name == from) {
                    return Err(Failure::failed(format!("{doing}: dataset does not exist")));
                }
                target::run(call, engine, &doing, Operation::RenameSnapshots(all)).await
            })?;
            Ok(0)
        }
        _ => Err(Failure::failed(format!("{doing}: a snapshot stays a snapshot, and a dataset a dataset"))),
    }
}

/// Runs `zfs bookmark`.
pub fn bookmark(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = BOOKMARK.parse(line)?;
    let words = words(&BOOKMARK, &args, 2..=2, "missing snapshot or bookmark argument")?;
    let [source, name] = words.as_slice() else { return Err(BOOKMARK.misused("missing bookmark argument")) };
    let of = source.split(['@', '#']).next().unwrap_or_default();
    let whole = |text: &str| if text.starts_with(['@', '#']) { format!("{of}{text}") } else { text.to_owned() };
    // Either may leave out the dataset that the other names.
    let source = match source.starts_with(['@', '#']) {
        true => format!("{}{source}", name.split('#').next().unwrap_or_default()),
        false => source.clone(),
    };
    let name = whole(name);
    let doing = format!("cannot create bookmark '{name}'");
    once(call, &args, &source, &doing, Operation::Bookmark(vec![(name.clone(), source.clone())]))
}
