//! Contents of a file system and its snapshots after a cut, and their comparison with the acknowledged state.

use super::versions::{Contents, Version, is_explained};
use super::{Known, LIMITED, Names, Snapshot};
use crate::states::When;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_engine::Engine;
use weir_files::{FileError, FileKind, FileSystem};
use weir_format::ObjectId;
use weir_machine::Request;

/// File found after a cut.
#[derive(PartialEq, Eq)]
struct FoundFile {
    object: ObjectId,
    links: u64,
    contents: Contents,
}

/// Contents of a file system or snapshot. Entries of directories have no file.
#[derive(PartialEq, Eq)]
struct Holds {
    entries: BTreeMap<String, Option<FoundFile>>,
    quota_bytes: u64,
}

/// Contents of a file system and its snapshots after a cut.
#[derive(PartialEq, Eq)]
pub struct Found {
    now: Holds,
    /// Snapshots in the order of the client, or the error of opening one.
    snapshots: Vec<Result<Holds, String>>,
}

/// Reads the file system, and every snapshot of it that ever existed.
pub async fn look(engine: &Arc<Engine>, known: &Known) -> Result<Found, String> {
    let rq = Request::internal("judge");
    let dataset = &known.dataset;
    let files = engine.file_system(&rq, dataset).await.map_err(|e| format!("{dataset}: {e}"))?;
    let mut found = Found { now: holds(&files).await.map_err(|e| format!("{dataset}: {e}"))?, snapshots: Vec::new() };
    for snapshot in &known.snapshots {
        let full = format!("{dataset}@{}", snapshot.name);
        found.snapshots.push(match engine.file_system(&rq, &full).await {
            Ok(files) => Ok(holds(&files).await.map_err(|e| format!("{full}: {e}"))?),
            Err(missing) => Err(missing.to_string()),
        });
    }
    Ok(found)
}

async fn holds(files: &FileSystem) -> Result<Holds, String> {
    let rq = &Request::internal("judge");
    let limits = files
        .objects()
        .accounting()
        .limits_of(rq, QuotaPrincipal::User, QuotaKind::Bytes)
        .await
        .map_err(|e| e.to_string())?;
    let quota_bytes = limits.get(&LIMITED).copied().unwrap_or(0);
    let mut holds = Holds { entries: BTreeMap::new(), quota_bytes };
    for entry in files.directories().read_dir(rq, files.root(), 0, 10_000).await.map_err(|e| e.to_string())? {
        let file = match entry.kind {
            Some(FileKind::Directory) => None,
            _ => Some(file(rq, files, entry.object).await.map_err(|e| e.to_string())?),
        };
        holds.entries.insert(String::from_utf8_lossy(&entry.name).into_owned(), file);
    }
    Ok(holds)
}

async fn file(rq: &Request, files: &FileSystem, object: ObjectId) -> Result<FoundFile, FileError> {
    let attributes = files.attrs().get(rq, object).await?;
    let mode = attributes.mode;
    let uid = attributes.uid;
    let links = attributes.links;
    let bytes = files.contents().read(rq, object, 0, 1 << 20).await?.to_vec();
    let mut xattrs = BTreeMap::new();
    for name in files.xattrs().names(rq, object).await? {
        if let Some(value) = files.xattrs().get(rq, object, &name).await? {
            xattrs.insert(name, value.to_vec());
        }
    }
    Ok(FoundFile { object, links, contents: Contents { bytes, mode, uid, xattrs } })
}

/// Checks the link count of each file, and that all names of a file refer to one object and no other file does.
fn judge_links(found: &Holds, state: &Names) -> Result<(), String> {
    let mut names = BTreeMap::new();
    let mut objects = BTreeMap::new();
    for file in state.entries.values().flatten() {
        *names.entry(*file).or_insert(0u64) += 1;
    }
    for (name, file) in &found.entries {
        let (Some(file), Some(Some(number))) = (file, state.entries.get(name)) else { continue };
        if file.links != names[number] {
            return Err(format!("{name} has {} links, not {}", file.links, names[number]));
        }
        let unshared = objects.insert(file.object, *number).is_none_or(|before| before == *number);
        if !unshared || found.object_of(state, *number).any(|object| object != file.object) {
            return Err(format!(
                "{name} refers to the object of another file, or to another object than the file's other names"
            ));
        }
    }
    Ok(())
}

impl Holds {
    /// Objects to which the names of a file refer.
    fn object_of(&self, state: &Names, number: usize) -> impl Iterator<Item = ObjectId> {
        let names = state.entries.iter().filter(move |(_, of)| **of == Some(number));
        names.filter_map(|(name, _)| Some(self.entries.get(name)?.as_ref()?.object))
    }

    fn is_named_as(&self, state: &Names) -> bool {
        state.quota_bytes == self.quota_bytes && state.entries.keys().eq(self.entries.keys())
    }
}

/// Compares the contents after a cut at `cut` with the acknowledged state.
pub fn judge(found: &Found, known: &Known, cut: When) -> Result<(), String> {
    let Some(names) = known.names.as_ref().filter(|names| names.is_promised(cut)) else { return Ok(()) };
    let states: Vec<&Names> = names.allowed(cut).filter(|state| found.now.is_named_as(state)).collect();
    if states.is_empty() {
        let newest: Vec<_> = names.allowed(cut).next().map(|n| n.entries.keys().collect()).unwrap_or_default();
        let names = found.now.entries.keys();
        let quota = found.now.quota_bytes;
        return Err(format!(
            "{}: names {names:?}, quota {quota} match no allowed state, such as {newest:?}",
            known.dataset
        ));
    }
    // After an exchange several states have equal names: one of them must explain all files.
    let mut wrong = String::new();
    let explained = states.into_iter().any(|state| match unexplained(&found.now, state, known, cut) {
        None => true,
        Some(why) => {
            wrong = why;
            false
        }
    });
    if !explained {
        return Err(format!("{}: {wrong}", known.dataset));
    }
    known.snapshots.iter().zip(&found.snapshots).try_for_each(|(known, found)| judge_snapshot(found, known, cut))
}

/// Returns the first difference that this state does not explain.
fn unexplained(found: &Holds, state: &Names, known: &Known, cut: When) -> Option<String> {
    let wrong = found.entries.iter().find(|(name, file)| match (state.entries.get(*name).copied().flatten(), file) {
        (None, None) => false,
        (Some(number), Some(file)) => {
            let mut versions: Vec<&Version> = known.files[number].allowed(cut).collect();
            versions.reverse();
            !is_explained(&versions, &file.contents)
        }
        _ => true,
    });
    let named = |(name, file): (&String, &Option<FoundFile>)| {
        let contents = file.as_ref().map(|file| &file.contents);
        let bytes = contents.map(|contents| contents.bytes.len());
        let rest = contents.map(|contents| (contents.mode, contents.uid, contents.xattrs.keys().collect::<Vec<_>>()));
        format!("{name} ({bytes:?} bytes, {rest:?}) matches no allowed state")
    };
    wrong.map(named).or_else(|| judge_links(found, state).err())
}

fn judge_snapshot(found: &Result<Holds, String>, known: &Snapshot, cut: When) -> Result<(), String> {
    let reached = |when: Option<When>| when.is_some_and(|when| when <= cut);
    let must = reached(known.done) && !reached(known.destroy_began);
    let may = known.began <= cut && !reached(known.destroy_done);
    let name = &known.name;
    let found = match found {
        Ok(_) if !may => return Err(format!("destroyed snapshot {name} exists")),
        Err(e) if must => return Err(format!("snapshot {name}: {e}")),
        Err(_) => return Ok(()),
        Ok(found) => found,
    };
    if !found.is_named_as(&known.names) {
        return Err(format!("snapshot {name} has {:?}, not {:?}", found.entries.keys(), known.names.entries.keys()));
    }
    let as_it_was = |(file, found): (&Option<usize>, &Option<FoundFile>)| match (file, found) {
        (None, None) => true,
        (Some(file), Some(found)) => known.contents[*file] == found.contents,
        _ => false,
    };
    match known.names.entries.values().zip(found.entries.values()).position(|pair| !as_it_was(pair)) {
        Some(nth) => Err(format!("snapshot {name}: the {nth}th name has other contents")),
        None => judge_links(found, &known.names).map_err(|why| format!("snapshot {name}: {why}")),
    }
}
