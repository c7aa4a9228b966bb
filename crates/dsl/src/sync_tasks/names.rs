//! Names of datasets, snapshots and bookmarks: `pool/a/b`, `pool/a@s`, `pool/a#b` (OpenZFS
//! `module/zcommon/zfs_namecheck.c`), and their lookup.

use super::{DslError, DslSyncContext};
use crate::matching;
use weir_dmu::cycle_guard::CycleGuard;
use weir_dmu::error::ObjectError;
use weir_dmu::zap::{Value, Zap};
use weir_format::dsl::{dataset_field, pool};
use weir_format::{DslDataset, DslDir, ObjectId};

/// Maximum length of a full name in bytes (`ZFS_MAX_DATASET_NAME_LEN` less the NUL).
const MAX_NAME_LEN: usize = 255;
/// Maximum nesting of directories (`zfs_max_dataset_nesting`).
const MAX_DEPTH: usize = 50;

/// Checks one component of a name: the text between two slashes, or after `@` or `#`.
///
/// # Errors
/// The reason for which it is invalid.
pub fn check_component(part: &str) -> Result<(), &'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ');
    match part {
        "" => Err("a component is empty"),
        "." => Err("'.' is no component"),
        ".." => Err("'..' is no component"),
        _ if part.len() > MAX_NAME_LEN => Err("a component is too long"),
        _ if !part.chars().all(allowed) => Err("only letters, digits, '-', '_', '.', ':' and spaces are allowed"),
        _ => Ok(()),
    }
}

/// The two parts of a snapshot's or bookmark's name, with the separator; `None` for a dataset's name.
pub fn split_name(name: &str) -> (&str, Option<(char, &str)>) {
    match name.find(['@', '#']) {
        Some(at) => {
            let (of, rest) = name.split_at(at);
            let mut chars = rest.chars();
            (of, chars.next().map(|mark| (mark, chars.as_str())))
        }
        None => (name, None),
    }
}

/// Checks a full name.
///
/// # Errors
/// [`DslError::Name`].
pub fn check_name(name: &str) -> Result<(), DslError> {
    let refuse = |why| DslError::Name { name: name.to_owned(), why };
    if name.len() > MAX_NAME_LEN {
        return Err(refuse("name is too long"));
    }
    let (dataset, rest) = split_name(name);
    if dataset.split('/').count() > MAX_DEPTH {
        return Err(refuse("nested too deeply"));
    }
    if !dataset.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(refuse("must begin with a letter"));
    }
    for part in dataset.split('/').chain(rest.map(|(_, part)| part)) {
        check_component(part).map_err(refuse)?;
    }
    Ok(())
}

/// Result of a directory lookup.
#[derive(Clone, Debug)]
pub(super) struct FoundDir {
    pub id: ObjectId,
    pub dir: DslDir,
    pub name: String,
}

/// Result of a dataset lookup: a head or snapshot.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// DSL directory of the dataset.
    pub at: FoundDir,
    pub id: ObjectId,
    pub phys: DslDataset,
    pub name: String,
}

/// The root directory.
pub(super) async fn root_dir(cx: &mut DslSyncContext<'_>) -> Result<ObjectId, DslError> {
    let missing = || ObjectError::NoName { what: "MOS directory entry", name: pool::ROOT_DATASET.into() };
    Ok(cx.pool_object(pool::ROOT_DATASET).await?.ok_or_else(missing)?)
}

/// An internal directory: `$MOS`, `$FREE`, `$ORIGIN`; `None` in pools older than it.
pub(super) async fn special_dir(cx: &mut DslSyncContext<'_>, name: &'static str) -> Result<Option<ObjectId>, DslError> {
    if let Some(id) = cx.pool_objects.get(name) {
        return Ok(Some(*id));
    }
    let root = root_dir(cx).await?;
    let children = cx.dir(root).await?.children;
    let found = cx.word(children, name).await?.map(ObjectId);
    if let Some(id) = found {
        cx.pool_objects.insert(name, id);
    }
    Ok(found)
}

/// The directory of a file system or volume.
pub(super) async fn find_dir(cx: &mut DslSyncContext<'_>, name: &str) -> Result<FoundDir, DslError> {
    let mut parts = name.split('/');
    if parts.next() != Some(cx.pool.name.as_str()) {
        return Err(DslError::missing(name));
    }
    let mut id = root_dir(cx).await?;
    let mut dir = cx.dir(id).await?;
    for part in parts {
        let child = if part.starts_with('$') { None } else { cx.word(dir.children, part).await? };
        id = ObjectId(child.ok_or_else(|| DslError::missing(name))?);
        dir = cx.dir(id).await?;
    }
    Ok(FoundDir { id, dir, name: name.to_owned() })
}

/// The head dataset of that name.
pub(super) async fn find_head(cx: &mut DslSyncContext<'_>, name: &str) -> Result<Found, DslError> {
    let at = find_dir(cx, name).await?;
    let id = at.dir.head_dataset;
    if id.0 == 0 {
        return Err(DslError::missing(name));
    }
    let phys = cx.dataset(id).await?;
    Ok(Found { at, id, phys, name: name.to_owned() })
}

/// The snapshot of that full name.
pub(super) async fn find_snapshot(cx: &mut DslSyncContext<'_>, name: &str) -> Result<Found, DslError> {
    let (of, Some(('@', snapshot))) = split_name(name) else {
        return Err(DslError::kind(name, "not a snapshot"));
    };
    let head = find_head(cx, of).await.map_err(|e| renamed(e, name))?;
    let id = snapshot_named(cx, &head.phys, snapshot).await?.ok_or_else(|| DslError::missing(name))?;
    let phys = cx.dataset(id).await?;
    Ok(Found { at: head.at, id, phys, name: name.to_owned() })
}

/// The snapshot of a head that has this name after the `@`.
pub(super) async fn snapshot_named(
    cx: &DslSyncContext<'_>,
    head: &DslDataset,
    name: &str,
) -> Result<Option<ObjectId>, DslError> {
    let names = Zap::open(cx.rq, &cx.mos, head.snapshot_names).await?;
    let found = names.lookup(cx.rq, name.as_bytes(), matching(head)).await?;
    Ok(found.and_then(|value| value.first()).map(ObjectId))
}

/// A head or snapshot of that full name.
pub(super) async fn find(cx: &mut DslSyncContext<'_>, name: &str) -> Result<Found, DslError> {
    if name.contains('@') { find_snapshot(cx, name).await } else { find_head(cx, name).await }
}

/// A directory and its ancestors, up to the root.
pub(super) async fn upwards(cx: &DslSyncContext<'_>, dir: ObjectId) -> Result<Vec<(ObjectId, DslDir)>, DslError> {
    let mut out = Vec::new();
    let mut trail = CycleGuard::default();
    let mut at = dir;
    while at.0 != 0 {
        trail.step(&cx.mos, at)?;
        let phys = cx.dir(at).await?;
        let parent = phys.parent;
        out.push((at, phys));
        at = parent;
    }
    Ok(out)
}

/// The names of the child directories, sorted, without internal ones.
pub(super) async fn children_of(cx: &DslSyncContext<'_>, dir: &DslDir) -> Result<Vec<(String, ObjectId)>, DslError> {
    let entries = cx.entries(dir.children).await?;
    let child = |(name, value): (String, Value)| Some((name, ObjectId(value.first()?)));
    let mut out: Vec<_> = entries.into_iter().filter_map(child).filter(|(n, _)| !n.starts_with('$')).collect();
    out.sort_unstable();
    Ok(out)
}

/// The snapshots of a head: names and objects, sorted by name.
pub(super) async fn snapshots_of(
    cx: &DslSyncContext<'_>,
    head: &DslDataset,
) -> Result<Vec<(String, ObjectId)>, DslError> {
    let entries = cx.entries(head.snapshot_names).await?;
    let mut out: Vec<_> = entries.into_iter().filter_map(|(n, v)| Some((n, ObjectId(v.first()?)))).collect();
    out.sort_unstable();
    Ok(out)
}

/// The full name of a directory, found through its parents.
pub(super) async fn dir_name(cx: &mut DslSyncContext<'_>, id: ObjectId) -> Result<String, DslError> {
    let way = upwards(cx, id).await?;
    let mut parts = Vec::new();
    for ((at, _), (_, above)) in way.iter().zip(way.iter().skip(1)) {
        let entries = cx.entries(above.children).await?;
        let name = entries.into_iter().find(|(_, v)| v.first() == Some(at.0)).map(|(name, _)| name);
        let place = cx.mos.place(*at, 0, 0);
        let orphan = ObjectError::Corrupt { place, why: "a directory that its parent does not name" };
        parts.push(name.ok_or(orphan)?);
    }
    parts.push(cx.pool.name.clone());
    parts.reverse();
    Ok(parts.join("/"))
}

/// The object of a ZAP field of a dataset; `None` if the dataset has no such field.
pub(super) async fn dataset_word(cx: &DslSyncContext<'_>, id: ObjectId, name: &str) -> Result<Option<u64>, DslError> {
    if cx.object_type(id).await? != super::ZAP_METADATA {
        return Ok(None);
    }
    cx.word(id, name).await
}

/// The ZAP of a head's bookmarks.
pub(super) async fn bookmarks_zap(cx: &DslSyncContext<'_>, head: ObjectId) -> Result<Option<ObjectId>, DslError> {
    Ok(dataset_word(cx, head, dataset_field::BOOKMARK_NAMES).await?.map(ObjectId))
}

/// Replaces the name in a missing-dataset error by the requested one.
fn renamed(error: DslError, name: &str) -> DslError {
    match error {
        DslError::Missing { .. } => DslError::missing(name),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["tank", "tank/a b", "tank/a@s:1", "tank/a#b.c", "t/x-y_z"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        let long = format!("tank/{}", "x".repeat(252));
        let deep = vec!["a"; 51].join("/");
        for bad in ["", "/", "tank/", "tank//a", "1tank", "tank@", "tank@a@b", "tank/a%", "tank/..", &long, &deep] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert_eq!(split_name("a/b@c"), ("a/b", Some(('@', "c"))));
        assert_eq!(split_name("a/b#c"), ("a/b", Some(('#', "c"))));
        assert_eq!(split_name("a/b"), ("a/b", None));
    }
}
