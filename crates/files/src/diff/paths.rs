//! Names of files, found through their parents: a file names the directory in which it was made, or to which it was last
//! moved or linked, and the directory has its name.
//!
//! Many are named at once, a generation of parents after the other, so that each directory is read once for all that are
//! looked for in it.

use super::{Stat, master_word};
use crate::error::FileError;
use crate::file_system::FileSystem;
use std::collections::{BTreeMap, BTreeSet};
use weir_dmu::zap;
use weir_format::ObjectId;
use weir_format::znode::master;
use weir_machine::Request;

/// Entries of a directory that are read at a time.
const ENTRIES: usize = 2048;
/// What the directory of a file's extended attributes is shown as.
const XATTR_DIR: &[u8] = b"<xattrdir>";

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// There, from the root on.
    At(Vec<u8>),
    /// It has no name any more and waits to be taken apart.
    Queued,
    /// No name of it is found where it says.
    None,
    /// It cannot be looked for.
    Failed(FileError),
}

/// What is known of an object.
enum Known {
    Root,
    Named { parent: ObjectId, name: Vec<u8> },
    Queued,
    Lost,
    Failed(FileError),
}

/// The names of some files, and of all directories above them.
pub(super) struct Paths<'a> {
    files: &'a FileSystem,
    known: BTreeMap<ObjectId, Known>,
}

impl<'a> Paths<'a> {
    /// Names these files.
    ///
    /// # Errors
    /// If the list of files without names cannot be read. What goes wrong with one file is that one's [`Path::Failed`].
    pub async fn learn(
        rq: &Request,
        files: &'a FileSystem,
        wanted: Vec<(ObjectId, Stat)>,
    ) -> Result<Paths<'a>, FileError> {
        let mut paths = Paths { files, known: BTreeMap::new() };
        paths.learn_more(rq, wanted).await?;
        Ok(paths)
    }

    /// Names more files, or some anew, by other parents.
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

    /// Names these files in their parents; gives the parents that have no name yet.
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
        while !wanted.is_empty() {
            let entries = match self.files.read_dir(rq, parent, cookie, ENTRIES).await {
                Ok(entries) => entries,
                Err(why) => return self.known.extend(wanted.into_iter().map(|id| (id, Known::Failed(why.clone())))),
            };
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            for entry in entries {
                if wanted.remove(&entry.object) {
                    self.known.insert(entry.object, Known::Named { parent, name: entry.name });
                }
            }
        }
        self.known.extend(wanted.into_iter().map(|id| (id, Known::Lost)));
    }

    /// Where a file is that was asked for.
    pub fn of(&self, id: ObjectId) -> Path {
        let (mut names, mut at) = (Vec::new(), id);
        // Parents that lead in circles lead to no root.
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
        Path::Failed(FileError::Corrupt { object: id, offset: 0, why: "its parents lead in a circle".into() })
    }
}
