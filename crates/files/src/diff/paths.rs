//! Resolves paths through parents: a file stores the directory in which it was created, or to which it was last moved
//! or linked, and its name is found in that directory.
//!
//! Many files are resolved together, one level of parents at a time, so that each directory is read once. Reading it changes no
//! access time.

use super::{ON_DELETE_QUEUE, Stat, master_word};
use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::handles::Directories;
use std::collections::{BTreeMap, BTreeSet};
use weir_dmu::zap;
use weir_format::ObjectId;
use weir_format::znode::master;
use weir_machine::Request;

/// Number of directory entries read at a time.
const ENTRIES: usize = 2048;
/// Placeholder for the directory of a file's extended attributes.
const XATTR_DIR: &[u8] = b"<xattrdir>";

/// Path of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// Path from the root.
    At(Vec<u8>),
    /// Unlinked, in the delete queue.
    Queued,
    /// The stored parent has no entry for it.
    None,
    /// The path could not be resolved.
    Failed(FileError),
}

/// Resolution state of an object.
enum Known {
    Root,
    Named { parent: ObjectId, name: Vec<u8> },
    Queued,
    Lost,
    Failed(FileError),
}

/// Paths of files and of all directories above them.
pub(super) struct Paths<'a> {
    files: &'a FileSystem,
    known: BTreeMap<ObjectId, Known>,
    /// Number of directory entries that may still be read. Files that are not found until then are [`Known::Lost`].
    entries_left: usize,
}

impl Directories<'_> {
    /// Paths from the root of those of these objects that have one, as bytes with a leading slash; `(on_delete_queue)` for an
    /// unlinked open file. Reads at most `max_entries` entries of directories.
    ///
    /// # Errors
    /// If the delete queue cannot be read. A file whose directory is unreadable has no path.
    pub async fn paths(
        self,
        rq: &Request,
        objects: &[ObjectId],
        max_entries: usize,
    ) -> Result<BTreeMap<ObjectId, Vec<u8>>, FileError> {
        let mut wanted = Vec::new();
        for object in objects {
            if let Ok(Some(stat)) = Stat::of(rq, self.files, *object).await {
                wanted.push((*object, stat));
            }
        }
        let mut paths = Paths { files: self.files, known: BTreeMap::new(), entries_left: max_entries };
        paths.learn_more(rq, wanted).await?;
        let path = |object: &ObjectId| match paths.of(*object) {
            Path::At(path) => Some((*object, path)),
            Path::Queued => Some((*object, ON_DELETE_QUEUE.to_vec())),
            Path::None | Path::Failed(_) => None,
        };
        Ok(objects.iter().filter_map(path).collect())
    }
}

impl<'a> Paths<'a> {
    /// Resolves the paths of these files.
    ///
    /// # Errors
    /// If the delete queue cannot be read. An error of one file becomes its [`Path::Failed`].
    pub async fn learn(
        rq: &Request,
        files: &'a FileSystem,
        wanted: Vec<(ObjectId, Stat)>,
    ) -> Result<Paths<'a>, FileError> {
        let mut paths = Paths { files, known: BTreeMap::new(), entries_left: usize::MAX };
        paths.learn_more(rq, wanted).await?;
        Ok(paths)
    }

    /// Resolves more files, or the same ones with other parents.
    ///
    /// # Errors
    /// As [`Paths::learn`].
    pub async fn learn_more(&mut self, rq: &Request, wanted: Vec<(ObjectId, Stat)>) -> Result<(), FileError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let files = self.files;
        let queue = master_word(rq, files, master::UNLINKED_SET).await?;
        let mut next = BTreeMap::new();
        for (id, stat) in wanted {
            let queued = match queue.filter(|_| stat.links == 0) {
                None => false,
                Some(queue) => {
                    let found = zap::lookup_word(rq, files.objects(), queue, &format!("{:x}", id.0)).await;
                    found.map_err(|e| FileError::at(e, queue, 0))?.is_some()
                }
            };
            match queued {
                true => drop(self.known.insert(id, Known::Queued)),
                false => drop(next.insert(id, stat)),
            }
        }
        while !next.is_empty() {
            next = self.generation(rq, next).await;
        }
        Ok(())
    }

    /// Finds the names of these files in their parents; returns the parents that are still unresolved.
    async fn generation(&mut self, rq: &Request, wanted: BTreeMap<ObjectId, Stat>) -> BTreeMap<ObjectId, Stat> {
        let mut by_parent: BTreeMap<ObjectId, BTreeMap<ObjectId, Stat>> = BTreeMap::new();
        for (id, stat) in wanted {
            match stat.parent == id {
                true => drop(self.known.insert(id, Known::Root)),
                false => drop(by_parent.entry(stat.parent).or_default().insert(id, stat)),
            }
        }
        let mut above = BTreeMap::new();
        for (parent, children) in by_parent {
            match Stat::of(rq, self.files, parent).await {
                Ok(Some(stat)) => {
                    self.name_children(rq, parent, &stat, children).await;
                    if !self.known.contains_key(&parent) {
                        above.insert(parent, stat);
                    }
                }
                Ok(None) => self.known.extend(children.into_keys().map(|id| (id, Known::Lost))),
                Err(why) => self.known.extend(children.into_keys().map(|id| (id, Known::Failed(why.clone())))),
            }
        }
        above.retain(|id, _| !self.known.contains_key(id));
        above
    }

    async fn name_children(&mut self, rq: &Request, parent: ObjectId, stat: &Stat, children: BTreeMap<ObjectId, Stat>) {
        let mut wanted = BTreeSet::new();
        for (id, child) in children {
            if child.is_xattr && child.is_dir() {
                self.known.insert(id, Known::Named { parent, name: XATTR_DIR.to_vec() });
            } else if stat.is_dir() {
                wanted.insert(id);
            } else {
                let why = FileError::NotDirectory { object: parent };
                self.known.insert(id, Known::Failed(why));
            }
        }
        let mut cookie = 0;
        while !wanted.is_empty() && self.entries_left > 0 {
            let max = ENTRIES.min(self.entries_left);
            let entries = match self.files.directories().search(rq, parent, cookie, max).await {
                Ok(entries) => entries,
                Err(why) => return self.known.extend(wanted.into_iter().map(|id| (id, Known::Failed(why.clone())))),
            };
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            self.entries_left = self.entries_left.saturating_sub(entries.len());
            for entry in entries {
                if wanted.remove(&entry.object) {
                    self.known.insert(entry.object, Known::Named { parent, name: entry.name });
                }
            }
        }
        self.known.extend(wanted.into_iter().map(|id| (id, Known::Lost)));
    }

    /// Path of a resolved file.
    pub fn of(&self, id: ObjectId) -> Path {
        let mut names = Vec::new();
        let mut at = id;
        // A cycle of parents never reaches the root.
        while names.len() <= self.known.len() {
            match self.known.get(&at) {
                Some(Known::Root) if names.is_empty() => return Path::At(b"/".to_vec()),
                Some(Known::Root) => {
                    return Path::At(names.iter().rev().flat_map(|n: &&Vec<u8>| [b"/", &n[..]].concat()).collect());
                }
                Some(Known::Named { parent, name }) => {
                    names.push(name);
                    at = *parent;
                }
                Some(Known::Queued) if at == id => return Path::Queued,
                Some(Known::Failed(why)) => return Path::Failed(why.clone()),
                Some(Known::Queued | Known::Lost) | None => return Path::None,
            }
        }
        Path::Failed(FileError::Corrupt { object: id, offset: 0, why: "cycle of parent directories".into() })
    }
}
