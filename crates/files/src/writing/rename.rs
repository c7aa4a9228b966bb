//! Renaming (OpenZFS `zfs_rename`).
//!
//! A directory must not become its own descendant. Moves between directories are serialised by the rename lock, so
//! that no ancestor of the target changes while the ancestors are checked.

use super::entries::unlink;
use super::make::NAME_BYTES;
use super::node::Node;
use super::{access_checks, flags};
use crate::change::DirName;
use crate::change::{Cred, RenameMode};
use crate::error::FileError;
use crate::handles::Names;
use weir_dmu::live::SpaceReserve;
use weir_dmu::txg::Tx;
use weir_dmu::zap::Match;
use weir_dmu::zap::name::normalize;
use weir_format::ObjectId;
use weir_format::zap::NormFlags;
use weir_format::znode::Timestamp;
use weir_machine::Request;

/// Maximum depth of the ancestor check; twice the number of components in `PATH_MAX`, because a client need not use
/// paths.
const DEPTH_MAX: usize = 1 << 16;

/// Both directories of a rename, which may be the same.
struct Dirs {
    from: Node,
    to: Option<Node>,
}

impl Dirs {
    fn to(&mut self) -> &mut Node {
        self.to.as_mut().unwrap_or(&mut self.from)
    }

    fn to_ref(&self) -> &Node {
        self.to.as_ref().unwrap_or(&self.from)
    }
}

/// State loaded under the locks.
struct RenamePlan {
    dirs: Dirs,
    node: Node,
    target: Option<Node>,
}

impl Names<'_> {
    /// Renames a file within or between directories; `mode` determines the treatment of an existing target.
    ///
    /// # Errors
    /// [`FileError::Invalid`] if a directory would become its own descendant; [`FileError::Exists`] and
    /// [`FileError::NotFound`] according to the mode; [`FileError::NotDirectory`], [`FileError::IsDirectory`] and
    /// [`FileError::NotEmpty`] if the existing target cannot be replaced; [`FileError::CrossDevice`] into a directory
    /// that inherits another project; permission errors.
    pub async fn rename(
        self,
        rq: &Request,
        cred: &Cred,
        from: DirName<'_, ObjectId>,
        to: DirName<'_, ObjectId>,
        mode: RenameMode,
    ) -> Result<(), FileError> {
        let gone = self.rename_locked(rq, cred, from, to, mode).await?;
        self.after_removal(rq, gone).await
    }

    pub(super) async fn rename_locked(
        self,
        rq: &Request,
        cred: &Cred,
        from: DirName<'_, ObjectId>,
        to: DirName<'_, ObjectId>,
        mode: RenameMode,
    ) -> Result<Option<ObjectId>, FileError> {
        let writing = self.files.writing()?;
        let moves = from.dir != to.dir;
        let _alone = if moves { Some(writing.rename_lock.lock().await) } else { None };
        loop {
            let source = self.files.directories().lookup(rq, from.dir, from.name).await?;
            let target = self.files.directories().find(rq, to.dir, to.name).await?;
            let _held = writing.locks.all(rq, [from.dir, to.dir, source].into_iter().chain(target)).await;
            let dirs = Dirs {
                from: self.files.directories().dir_node(rq, from.dir).await?,
                to: if moves { Some(self.files.directories().dir_node(rq, to.dir).await?) } else { None },
            };
            let again = (
                self.files.directories().find(rq, from.dir, from.name).await?,
                self.files.directories().find(rq, to.dir, to.name).await?,
            );
            if again != (Some(source), target) {
                continue;
            }
            self.files.directories().check_name(to.name)?;
            let same = target == Some(source);
            // Two links of the same file stay as they are; the same entry in another spelling gets the new spelling.
            if same && (moves || from.name == to.name || !self.folds(from.name, to.name)) {
                return if mode == RenameMode::NoReplace { Err(FileError::Exists) } else { Ok(None) };
            }
            let target = match target.filter(|_| !same) {
                Some(id) => Some(self.files.nodes().load(rq, id).await?),
                None => None,
            };
            let plan = RenamePlan { dirs, node: self.files.nodes().load(rq, source).await?, target };
            self.may_rename(rq, cred, &plan, mode).await?;
            let now = writing.now();
            let tx = self.files.begin(rq, 2 * NAME_BYTES, SpaceReserve::Half).await?;
            return match mode {
                RenameMode::Exchange => self.exchange(rq, &tx, plan, from.name, to.name, now).await.map(|()| None),
                _ => self.replace(rq, &tx, plan, from.name, to.name, now).await,
            };
        }
    }

    /// Whether two names are equal in this file system. With mixed case sensitivity both exist.
    fn folds(self, a: &[u8], b: &[u8]) -> bool {
        let norm = match self.files.matching() {
            Match::Exact => return false,
            Match::Normalized => self.files.norm_flags(),
            Match::NormalizedCase => NormFlags(self.files.normalization()),
        };
        norm.any() && normalize(a, norm) == normalize(b, norm)
    }

    async fn may_rename(self, rq: &Request, cred: &Cred, plan: &RenamePlan, mode: RenameMode) -> Result<(), FileError> {
        let RenamePlan { dirs, node, target } = plan;
        let moves = dirs.to.is_some();
        access_checks::remove(cred, &dirs.from, node)?;
        access_checks::add(cred, dirs.to_ref())?;
        if node.is_xattr() != dirs.to_ref().is_xattr() {
            return Err(FileError::Invalid { why: "an attribute cannot become a file, nor a file an attribute" });
        }
        if moves {
            flags::enters(node, dirs.to_ref())?;
        }
        if moves && node.is_dir() {
            access_checks::move_dir(cred, node)?;
            self.must_not_be_below(rq, dirs.to_ref().id, node.id).await?;
        }
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(FileError::Exists),
            (None, RenameMode::Exchange) => return Err(FileError::NotFound),
            _ => {}
        }
        let Some(target) = target else { return Ok(()) };
        access_checks::remove(cred, dirs.to_ref(), target)?;
        if mode == RenameMode::Exchange {
            if moves && target.is_dir() {
                access_checks::move_dir(cred, target)?;
                self.must_not_be_below(rq, dirs.from.id, target.id).await?;
            }
            return Ok(());
        }
        match (node.is_dir(), target.is_dir()) {
            (true, false) => Err(FileError::NotDirectory { object: target.id }),
            (false, true) => Err(FileError::IsDirectory { object: target.id }),
            (true, true) if !self.files.directories().is_empty_dir(rq, target).await? => {
                Err(FileError::NotEmpty { object: target.id })
            }
            _ => Ok(()),
        }
    }

    /// Fails if the directory `below` is `above` or a descendant of it.
    async fn must_not_be_below(self, rq: &Request, below: ObjectId, above: ObjectId) -> Result<(), FileError> {
        let mut at = below;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Err(FileError::Invalid { why: "a directory cannot move into itself" });
            }
            if at == self.files.root() {
                return Ok(());
            }
            at = self.files.attrs().parent(rq, at).await?;
        }
        Err(FileError::Corrupt { object: below, offset: 0, why: "cycle of directories".into() })
    }

    async fn replace(
        self,
        rq: &Request,
        tx: &Tx,
        plan: RenamePlan,
        name: &[u8],
        new_name: &[u8],
        now: Timestamp,
    ) -> Result<Option<ObjectId>, FileError> {
        let RenamePlan { mut dirs, mut node, target } = plan;
        let is_dir = node.is_dir();
        let mut gone = None;
        if let Some(mut target) = target {
            let id = target.id;
            self.files.directories().remove_name(rq, tx, dirs.to(), new_name, target.is_dir(), now).await?;
            let last = unlink(&mut target, now)?;
            if last {
                self.files.log().forget(id);
            }
            if last && self.files.delete_queue().can_free_in_transaction(rq, &target).await {
                self.files.objects().frees().remove(rq, tx, id).await.map_err(|e| FileError::at(e, id, 0))?;
            } else {
                self.files.nodes().store(rq, tx, &target).await?;
                if last {
                    self.files.delete_queue().add(rq, tx, id).await?;
                    gone = Some(id);
                }
            }
        }
        self.files.directories().remove_name(rq, tx, &mut dirs.from, name, is_dir, now).await?;
        self.files.directories().insert_name(rq, tx, dirs.to(), new_name, &mut node, now).await?;
        flags::inherit(&mut node, dirs.to_ref())?;
        node.touch(now)?;
        self.store_moved(rq, tx, &dirs, &[&node]).await?;
        self.files.log().rename(tx, (&dirs.from, name), (dirs.to_ref(), new_name), node.id, false);
        Ok(gone)
    }

    async fn exchange(
        self,
        rq: &Request,
        tx: &Tx,
        plan: RenamePlan,
        name: &[u8],
        new_name: &[u8],
        now: Timestamp,
    ) -> Result<(), FileError> {
        let RenamePlan { mut dirs, mut node, target } = plan;
        let Some(mut target) = target else { return Ok(()) };
        self.files.directories().remove_name(rq, tx, &mut dirs.from, name, node.is_dir(), now).await?;
        self.files.directories().remove_name(rq, tx, dirs.to(), new_name, target.is_dir(), now).await?;
        self.files.directories().insert_name(rq, tx, &mut dirs.from, name, &mut target, now).await?;
        self.files.directories().insert_name(rq, tx, dirs.to(), new_name, &mut node, now).await?;
        flags::inherit(&mut node, dirs.to_ref())?;
        flags::inherit(&mut target, &dirs.from)?;
        node.touch(now)?;
        target.touch(now)?;
        self.store_moved(rq, tx, &dirs, &[&node, &target]).await?;
        self.files.log().rename(tx, (&dirs.from, name), (dirs.to_ref(), new_name), node.id, true);
        Ok(())
    }

    async fn store_moved(self, rq: &Request, tx: &Tx, dirs: &Dirs, nodes: &[&Node]) -> Result<(), FileError> {
        for node in nodes {
            self.files.nodes().store(rq, tx, node).await?;
        }
        self.files.nodes().store(rq, tx, &dirs.from).await?;
        match &dirs.to {
            Some(to) => self.files.nodes().store(rq, tx, to).await,
            None => Ok(()),
        }
    }
}
