//! Reads DSL directories: all of them, one with its ancestors, or a subtree.

use super::{Dir, MAX_ENTRIES, MAX_NAME_LEN};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_dmu::error::ObjectError;
use weir_dmu::object_set::ObjectSet;
use weir_dmu::zap::{self, Zap};
use weir_format::dsl::pool;
use weir_format::{DslDir, ObjectId, ObjectType};
use weir_machine::Request;

/// The directories that [`super::Dsl::read`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// All directories of the pool.
    All,
    /// The directory of this dataset, snapshot or bookmark, and its ancestors. The cost does not depend on the number of
    /// datasets in the pool. Values that name a dataset elsewhere (`origin`, `clones`, `encryptionroot`) are not known.
    Path(&'a str),
    /// The same, and all descendants of the directory.
    Subtree(&'a str),
}

impl Scope<'_> {
    /// Whether a directory was asked for by its full name or its place, and not read as an ancestor only.
    pub fn contains(&self, name: &str) -> bool {
        let below = |top: &str| name.strip_prefix(top).map(|rest| (rest.is_empty(), rest.starts_with('/')));
        match self {
            Scope::All => true,
            Scope::Path(top) => name == *top,
            Scope::Subtree(top) => below(top).is_some_and(|(is_top, is_below)| is_top || is_below),
        }
    }
}

/// Directories of one state of a pool, by object number and by name.
pub(crate) struct Directories {
    /// The root directory.
    pub root: ObjectId,
    /// The directories that were read.
    pub dirs: BTreeMap<ObjectId, Dir>,
    /// Their full names.
    pub names: BTreeMap<String, ObjectId>,
    /// Full names of directories that could not be read, with the reason.
    pub damaged: Vec<(String, ObjectError)>,
    /// Every directory that was read or will be read: each is read once.
    seen: BTreeSet<ObjectId>,
}

/// A directory to read, with its full name.
struct Found {
    id: ObjectId,
    name: String,
}

impl Directories {
    /// Reads directories of the pool `pool_name`.
    ///
    /// # Errors
    /// Errors of finding and reading the root directory.
    pub async fn read(
        rq: &Request,
        mos: &Arc<ObjectSet>,
        pool_name: &str,
        scope: Scope<'_>,
    ) -> Result<Self, ObjectError> {
        let root = zap::lookup_word(rq, mos, ObjectId(pool::DIRECTORY_OBJECT), pool::ROOT_DATASET).await?;
        let missing = ObjectError::NoName { what: "MOS directory entry", name: pool::ROOT_DATASET.into() };
        let root = ObjectId(root.ok_or(missing)?);
        let mut out = Directories {
            root,
            dirs: BTreeMap::new(),
            names: BTreeMap::new(),
            damaged: Vec::new(),
            seen: BTreeSet::from([root]),
        };
        let top = Found { id: root, name: pool_name.to_owned() };
        match scope {
            Scope::All => out.read_subtree(rq, mos, top).await,
            Scope::Path(name) => out.read_path(rq, mos, top, name).await.map(drop),
            Scope::Subtree(name) => match out.read_path(rq, mos, top, name).await? {
                Some(below) => out.read_subtree(rq, mos, below).await,
                None => Ok(()),
            },
        }?;
        debug_assert!(out.dirs.contains_key(&root), "the root directory was read or is an error");
        debug_assert_eq!(out.dirs.len(), out.names.len(), "each directory has one name");
        Ok(out)
    }

    /// Reads the directories from `top` down to the one that `name` names. Returns that one; `None` if it does not exist or
    /// an ancestor could not be read.
    async fn read_path(
        &mut self,
        rq: &Request,
        mos: &Arc<ObjectSet>,
        top: Found,
        name: &str,
    ) -> Result<Option<Found>, ObjectError> {
        let of_dir = name.split(['@', '#']).next().unwrap_or(name);
        let below = of_dir.strip_prefix(top.name.as_str()).filter(|below| below.is_empty() || below.starts_with('/'));
        let Some(below) = below else {
            // A name of another pool.
            return self.read_one(rq, mos, &top).await.map(|_| None);
        };
        let mut at = top;
        for component in below.split('/').skip(1) {
            let Some(children) = self.read_one(rq, mos, &at).await? else { return Ok(None) };
            let child = match child_of(rq, mos, children, component).await {
                Ok(Some(child)) => child,
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.damaged.push((format!("{}/{component}", at.name), error));
                    return Ok(None);
                }
            };
            let Some(next) = self.child(mos, &at, child, component) else { return Ok(None) };
            at = next;
        }
        Ok(self.read_one(rq, mos, &at).await?.map(|_| at))
    }

    /// Reads all directories from `top` on.
    async fn read_subtree(&mut self, rq: &Request, mos: &Arc<ObjectSet>, top: Found) -> Result<(), ObjectError> {
        let mut to_read = vec![top];
        while let Some(at) = to_read.pop() {
            let Some(children) = self.read_one(rq, mos, &at).await? else { continue };
            let children = match children_of(rq, mos, children).await {
                Ok(children) => children,
                Err(error) => {
                    self.forget(&at);
                    self.lost(at, error)?;
                    continue;
                }
            };
            for (child, below) in children {
                to_read.extend(self.child(mos, &at, child, &below));
            }
        }
        Ok(())
    }

    /// Reads one directory unless it was read already; returns its ZAP of children. `None` if it cannot be read.
    async fn read_one(
        &mut self,
        rq: &Request,
        mos: &Arc<ObjectSet>,
        at: &Found,
    ) -> Result<Option<ObjectId>, ObjectError> {
        if let Some(dir) = self.dirs.get(&at.id) {
            return Ok(Some(dir.phys.children));
        }
        match read_dir(rq, mos, at.id, &at.name).await {
            Ok(dir) => {
                let children = dir.phys.children;
                self.names.insert(at.name.clone(), at.id);
                self.dirs.insert(at.id, dir);
                Ok(Some(children))
            }
            Err(error) => self.lost(Found { id: at.id, name: at.name.clone() }, error).map(|()| None),
        }
    }

    /// Adds a child to its parent and returns it, to be read; `None` if it cannot be a child.
    fn child(&mut self, mos: &Arc<ObjectSet>, parent: &Found, id: ObjectId, name: &str) -> Option<Found> {
        let child = Found { id, name: format!("{}/{name}", parent.name) };
        let why = match (self.seen.insert(id), child.name.len() <= MAX_NAME_LEN) {
            (true, true) => {
                if let Some(dir) = self.dirs.get_mut(&parent.id) {
                    dir.children.push(id);
                }
                return Some(child);
            }
            (false, _) => "the directory is in the tree twice",
            (true, false) => "the directory's name is too long",
        };
        self.damaged.push((child.name, ObjectError::Corrupt { place: mos.place(id, 0, 0), why }));
        None
    }

    fn forget(&mut self, at: &Found) {
        self.names.remove(&at.name);
        self.dirs.remove(&at.id);
    }

    /// Records a directory that cannot be read; without the root there is no tree.
    fn lost(&mut self, at: Found, error: ObjectError) -> Result<(), ObjectError> {
        if at.id == self.root {
            return Err(error);
        }
        self.damaged.push((at.name, error));
        Ok(())
    }
}

/// Whether a name is internal: `$MOS`, `$FREE`, `$ORIGIN`, `$LEAK`.
fn is_internal(name: &str) -> bool {
    name.starts_with('$')
}

/// The child of this name in a ZAP of children.
async fn child_of(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    children: ObjectId,
    name: &str,
) -> Result<Option<ObjectId>, ObjectError> {
    if children.0 == 0 || is_internal(name) {
        return Ok(None);
    }
    Ok(zap::lookup_word(rq, mos, children, name).await?.map(ObjectId))
}

/// All children in a ZAP of children, sorted by name.
pub(crate) async fn children_of(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    children: ObjectId,
) -> Result<Vec<(ObjectId, String)>, ObjectError> {
    let mut out = Vec::new();
    if children.0 != 0 {
        for entry in Zap::open(rq, mos, children).await?.all(rq, MAX_ENTRIES).await? {
            let name = entry.key.text();
            if let Some(child) = entry.value.first().filter(|_| !is_internal(&name)) {
                out.push((ObjectId(child), name));
            }
        }
        out.sort_unstable_by(|a, b| a.1.cmp(&b.1));
    }
    Ok(out)
}

/// Reads a directory without its children.
async fn read_dir(rq: &Request, mos: &Arc<ObjectSet>, id: ObjectId, name: &str) -> Result<Dir, ObjectError> {
    let object = mos.object(rq, id).await?;
    let place = mos.place(id, 0, 0);
    if object.dnode.bonus_type != ObjectType::DSL_DIR {
        return Err(ObjectError::Corrupt { place, why: "not a directory of datasets" });
    }
    let phys = DslDir::decode(object.dnode.bonus(), object.dnode.endian).map_err(|e| ObjectError::decode(place, e))?;
    let mut fields = BTreeMap::new();
    if object.dnode.object_type.is_zap() {
        for entry in Zap::of(rq, mos, object).await?.all(rq, MAX_ENTRIES).await? {
            fields.insert(entry.key.text(), entry.value.first().unwrap_or(0));
        }
    }
    Ok(Dir { id, name: name.to_owned(), phys, children: Vec::new(), fields })
}
