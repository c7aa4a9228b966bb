//! Differences between a snapshot and a later state of a file system: `zfs diff`.
//!
//! ```text
//!   newer set's tree of dnodes ─► ranges of object numbers that may have changed   (weir_dmu::dnode_diff)
//!        ─► the objects there in either set, by number ─► attributes in both ─► differ?
//!        ─► names, through the parents that files name ([`paths`]) ─► differences
//! ```
//!
//! Files are identified by object number: if a name was taken over by another file, the diff shows one removed and
//! one added file. Files with the same generation and `ctime` in both states are considered unchanged, as in OpenZFS;
//! users cannot set `ctime`.
//!
//! The order is that of object numbers. Memory is bounded: [`BATCH`] objects are compared at a time.
//!
//! Source: OpenZFS `lib/libzfs/libzfs_diff.c`, `module/zfs/dmu_diff.c`, `module/zfs/zfs_znode.c` (`zfs_obj_to_stats`).

mod paths;

use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::metadata::{Metadata, MetadataScope};
use paths::{Path, Paths};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use weir_dmu::zap;
use weir_format::znode::{Timestamp, master};
use weir_format::{ObjectId, Txg};
use weir_machine::Request;

/// Number of objects compared and named at a time.
const BATCH: usize = 32 << 10;
/// The kind bits of a mode.
const KIND: u64 = 0o170_000;
/// Shown in place of the path of an unlinked open file.
const ON_DELETE_QUEUE: &[u8] = b"(on_delete_queue)";
/// A directory.
const DIRECTORY: u64 = 0o040_000;

/// Kind of a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Added.
    Added,
    /// Removed.
    Removed,
    /// Same name, other contents or attributes.
    Modified,
    /// The link count changed by this number.
    Links(i64),
    /// Renamed to this path, as bytes.
    Renamed(Vec<u8>),
}

/// A file that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The object.
    pub object: ObjectId,
    /// Kind of the difference.
    pub change: Change,
    /// Path from the root of the file system, with a leading slash, as bytes; `(on_delete_queue)` for an unlinked
    /// open file.
    pub path: Vec<u8>,
    /// The stored `S_IFMT` bits of its mode.
    pub kind: u64,
    /// Time of its last change.
    pub ctime: Timestamp,
}

/// A file that could not be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The object.
    pub object: ObjectId,
    /// Snapshot or file system in which it is unreadable.
    pub name: String,
    /// Cause.
    pub why: FileError,
}

/// Metadata of a file in one of the two states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stat {
    mode: u64,
    generation: u64,
    links: u64,
    ctime: Timestamp,
    parent: ObjectId,
    is_xattr: bool,
}

impl Stat {
    /// Returns `None` if the object is free or not a file.
    async fn of(rq: &Request, files: &FileSystem, id: ObjectId) -> Result<Option<Stat>, FileError> {
        let load = async {
            let object = files.object(rq, id).await?;
            Metadata::load(rq, files.objects(), &files.numbers(), &object, MetadataScope::Basics).await
        };
        match load.await {
            Ok(metadata) => Ok(Some(Stat {
                mode: metadata.mode,
                generation: metadata.generation,
                links: metadata.links,
                ctime: metadata.ctime(),
                parent: metadata.parent,
                is_xattr: metadata.flags.has(crate::FileFlags::XATTR),
            })),
            Err(FileError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_dir(&self) -> bool {
        self.mode & KIND == DIRECTORY
    }
}

/// Iterates over the objects of a set in a range of numbers, block by block.
struct Cursor {
    files: Arc<FileSystem>,
    found: VecDeque<ObjectId>,
    rest: Range<ObjectId>,
}

impl Cursor {
    fn new(files: &Arc<FileSystem>, rest: Range<ObjectId>) -> Self {
        Cursor { files: files.clone(), found: VecDeque::new(), rest }
    }

    async fn peek(&mut self, rq: &Request) -> Result<Option<ObjectId>, FileError> {
        if self.found.is_empty() {
            let found = self.files.objects().dnodes().objects_in(rq, self.rest.clone()).await;
            let found = found.map_err(|e| FileError::at(e, self.rest.start, 0))?;
            let (ids, next) = found.unwrap_or_else(|| (Vec::new(), self.rest.end));
            self.found.extend(ids);
            self.rest.start = next;
        }
        Ok(self.found.front().copied())
    }

    /// Consumes the next object if it has this number.
    fn pass(&mut self, id: ObjectId) -> bool {
        let is_next = self.found.front() == Some(&id);
        if is_next {
            self.found.pop_front();
        }
        is_next
    }
}

/// An object that may have changed.
struct Candidate {
    id: ObjectId,
    /// Whether it is allocated in the newer state.
    in_newer: bool,
    older: Result<Option<Stat>, FileError>,
    newer: Result<Option<Stat>, FileError>,
}

impl Candidate {
    /// Whether the file is unchanged.
    fn is_same(&self) -> bool {
        let (Ok(older), Ok(newer)) = (&self.older, &self.newer) else { return false };
        match (older, newer) {
            (None, None) => true,
            (Some(a), Some(b)) => a.generation == b.generation && a.ctime == b.ctime && (a.mode ^ b.mode) & KIND == 0,
            _ => false,
        }
    }
}

/// A comparison in progress.
pub struct Diff {
    older: Arc<FileSystem>,
    newer: Arc<FileSystem>,
    after: Txg,
    /// Object of the directory for SMB shares, which is excluded.
    shares: Option<ObjectId>,
    next: ObjectId,
    range: Option<(Cursor, Cursor)>,
}

impl Diff {
    /// Compares a snapshot taken in txg `after` with a later state: a snapshot of the same file system or of a clone
    /// of it, or such a file system itself if it does not change meanwhile.
    ///
    /// # Errors
    /// If the master node cannot be read.
    pub async fn new(
        rq: &Request,
        older: Arc<FileSystem>,
        newer: Arc<FileSystem>,
        after: Txg,
    ) -> Result<Self, FileError> {
        let shares = master_word(rq, &newer, master::SHARES).await?;
        Ok(Diff { older, newer, after, shares, next: ObjectId(1), range: None })
    }

    /// Next differences in order of object numbers; `None` at the end.
    ///
    /// # Errors
    /// If a dnode block or an indirect block above it cannot be read; the differences in it are unknown.
    pub async fn next(&mut self, rq: &Request) -> Result<Option<Vec<Result<Difference, Unknown>>>, FileError> {
        loop {
            let candidates = self.candidates(rq).await?;
            if candidates.is_empty() {
                return Ok(None);
            }
            let reported = self.resolve(rq, candidates).await?;
            if !reported.is_empty() {
                return Ok(Some(reported));
            }
        }
    }

    /// Next objects that may have changed.
    async fn candidates(&mut self, rq: &Request) -> Result<Vec<Candidate>, FileError> {
        let mut out = Vec::new();
        while out.len() < BATCH {
            let Some((id, in_newer)) = self.next_object(rq).await? else { break };
            if Some(id) == self.shares {
                continue;
            }
            let older = Stat::of(rq, &self.older, id).await;
            let newer = if in_newer { Stat::of(rq, &self.newer, id).await } else { Ok(None) };
            let candidate = Candidate { id, in_newer, older, newer };
            if !candidate.is_same() {
                out.push(candidate);
            }
        }
        Ok(out)
    }

    /// Next object in a changed block, and whether it is allocated in the newer state.
    async fn next_object(&mut self, rq: &Request) -> Result<Option<(ObjectId, bool)>, FileError> {
        loop {
            if let Some((older, newer)) = &mut self.range {
                let first = [older.peek(rq).await?, newer.peek(rq).await?].into_iter().flatten().min();
                if let Some(id) = first {
                    older.pass(id);
                    return Ok(Some((id, newer.pass(id))));
                }
            }
            let found = self.newer.objects().dnodes().next_changed(rq, self.next, self.after).await;
            let Some(range) = found.map_err(|e| FileError::at(e, self.next, 0))? else { return Ok(None) };
            self.next = range.end;
            self.range = Some((Cursor::new(&self.older, range.clone()), Cursor::new(&self.newer, range)));
        }
    }

    /// Resolves paths in both states and classifies the differences.
    async fn resolve(
        &self,
        rq: &Request,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Result<Difference, Unknown>>, FileError> {
        let of = |side: fn(&Candidate) -> &Result<Option<Stat>, FileError>| {
            candidates.iter().filter_map(move |c| Some((c.id, side(c).as_ref().ok().copied().flatten()?)))
        };
        let mut older = Paths::learn(rq, &self.older, of(|c| &c.older).collect()).await?;
        let mut newer = Paths::learn(rq, &self.newer, of(|c| &c.newer).collect()).await?;
        // A file that lost a link may still name the directory of that link as its parent; try the parent of the
        // other state.
        let pairs =
            candidates.iter().filter_map(|c| Some((c.id, c.older.as_ref().ok()?.zip(*c.newer.as_ref().ok()?)?)));
        let lost = |paths: &Paths<'_>, id, stat: &Stat| stat.links > 0 && paths.of(id) == Path::None;
        let mut of_older = Vec::new();
        let mut of_newer = Vec::new();
        for (id, (a, b)) in pairs.filter(|(_, (a, b))| a.generation == b.generation && a.parent != b.parent) {
            if lost(&older, id, &a) {
                of_older.push((id, Stat { parent: b.parent, ..a }));
            } else if lost(&newer, id, &b) {
                of_newer.push((id, Stat { parent: a.parent, ..b }));
            }
        }
        older.learn_more(rq, of_older).await?;
        newer.learn_more(rq, of_newer).await?;
        let mut out = Vec::new();
        for candidate in candidates {
            let Candidate { id, in_newer, older: a, newer: b } = candidate;
            let a = Side { name: self.older.name(), path: path_of(&older, id, &a), stat: a.unwrap_or_default() };
            let b = Side { name: self.newer.name(), path: path_of(&newer, id, &b), stat: b.unwrap_or_default() };
            classify(id, in_newer, &a, &b, &mut out);
        }
        Ok(out)
    }
}

/// A file in one of the two states.
struct Side<'a> {
    name: &'a str,
    stat: Option<Stat>,
    path: Path,
}

impl Side<'_> {
    fn unknown(&self, object: ObjectId) -> Option<Unknown> {
        match &self.path {
            Path::Failed(why) => Some(Unknown { object, name: self.name.to_owned(), why: why.clone() }),
            _ => None,
        }
    }

    fn path(&self) -> Option<&[u8]> {
        match &self.path {
            Path::At(path) => Some(path),
            Path::Queued => Some(ON_DELETE_QUEUE),
            Path::None | Path::Failed(_) => None,
        }
    }
}

fn path_of(paths: &Paths<'_>, id: ObjectId, stat: &Result<Option<Stat>, FileError>) -> Path {
    match stat {
        Ok(Some(_)) => paths.of(id),
        Ok(None) => Path::None,
        Err(why) => Path::Failed(why.clone()),
    }
}

/// Classifies the difference of a file.
fn classify(object: ObjectId, in_newer: bool, a: &Side<'_>, b: &Side<'_>, out: &mut Vec<Result<Difference, Unknown>>) {
    // Report a file that is unreadable in both states once.
    out.extend(a.unknown(object).or_else(|| b.unknown(object)).map(Err));
    let mut resolve = |change, path: &[u8], stat: Option<Stat>| {
        let Stat { mode, ctime, .. } = stat.unwrap_or_default();
        out.push(Ok(Difference { object, change, path: path.to_owned(), kind: mode & KIND, ctime }));
    };
    if !in_newer {
        // A file without a path in both states was reported when it was unlinked.
        if let Path::At(path) = &a.path {
            resolve(Change::Removed, path, a.stat);
        }
        return;
    }
    let before = a.stat.unwrap_or_default();
    let after = b.stat.unwrap_or_default();
    let links = match before.is_dir() || after.is_dir() || before.links == 0 || after.links == 0 {
        true => 0,
        false => (after.links as i64).wrapping_sub(before.links as i64),
    };
    let or_links = |change| if links == 0 { change } else { Change::Links(links) };
    match (a.path(), b.path()) {
        (None, None) => {}
        (None, Some(path)) => resolve(or_links(Change::Added), path, b.stat),
        (Some(path), None) => resolve(or_links(Change::Removed), path, a.stat),
        (Some(from), Some(to)) => {
            if before.generation != after.generation || (before.mode ^ after.mode) & KIND != 0 {
                // The object number was reused.
                resolve(Change::Removed, from, a.stat);
                resolve(Change::Added, to, b.stat);
            } else if links != 0 {
                resolve(Change::Links(links), if links > 0 { from } else { to }, b.stat);
            } else if from == to {
                resolve(Change::Modified, from, b.stat);
            } else {
                resolve(Change::Renamed(to.to_owned()), from, b.stat);
            }
        }
    }
}

/// Object number of an entry of the master node.
async fn master_word(rq: &Request, files: &FileSystem, name: &str) -> Result<Option<ObjectId>, FileError> {
    let master = ObjectId(master::OBJECT);
    let found = zap::lookup_word(rq, files.objects(), master, name).await;
    Ok(found.map_err(|e| FileError::at(e, master, 0))?.map(ObjectId))
}

#[cfg(test)]
mod tests;
