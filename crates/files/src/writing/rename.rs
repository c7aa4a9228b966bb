//! Renaming (OpenZFS `zfs_rename`).
//!
//! A directory must not come to stand below itself. Moves between directories happen one at a time, under the rename
//! lock, so that nothing changes above the target while the way up from it is walked.

use super::entries::unlink;
use super::make::NAME_BYTES;
use super::node::Node;
use super::{flags, may};
use crate::change::{Cred, RenameMode};
use crate::error::FileError;
use crate::file_system::FileSystem;
use weir_dmu::live::Purpose;
use weir_dmu::txg::Tx;
use weir_dmu::zap::Match;
use weir_dmu::zap::name::normalize;
use weir_format::ObjectId;
use weir_format::zap::NormFlags;
use weir_format::znode::Timestamp;
use weir_machine::Request;

/// Deepest directory that the way up is walked from: `PATH_MAX` holds half as many names, but nobody has to use paths.
const DEPTH_MAX: usize = 1 << 16;

/// A directory and a name in it.
type Place<'a> = (ObjectId, &'a [u8]);

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

/// What is known under the locks.
struct Plan {
    dirs: Dirs,
    node: Node,
    target: Option<Node>,
}

impl FileSystem {
    /// Gives a file another name, in the same or another directory; what the mode says happens to a file that has that
    /// name.
    ///
    /// # Errors
    /// [`FileError::Invalid`] if a directory would come to stand in itself; [`FileError::Exists`] and
    /// [`FileError::NotFound`] as the mode says; [`FileError::NotDirectory`], [`FileError::IsDirectory`] and
    /// [`FileError::NotEmpty`] if the file that has the name cannot be replaced; [`FileError::CrossDevice`] into a
    /// directory that passes on another project; permissions.
    pub async fn rename(
        &self,
        rq: &Request,
        cred: &Cred,
        from: Place<'_>,
        to: Place<'_>,
        mode: RenameMode,
    ) -> Result<(), FileError> {
        let gone = self.rename_locked(rq, cred, from, to, mode).await?;
        self.after_removal(rq, gone).await
    }

    pub(super) async fn rename_locked(
        &self,
        rq: &Request,
        cred: &Cred,
        from: Place<'_>,
        to: Place<'_>,
        mode: RenameMode,
    ) -> Result<Option<ObjectId>, FileError> {
        let writing = self.writing()?;
        let moves = from.0 != to.0;
        let _alone = if moves { Some(writing.renames.lock().await) } else { None };
        loop {
            let source = self.lookup(rq, from.0, from.1).await?;
            let target = self.find(rq, to.0, to.1).await?;
            let _held = writing.locks.all([from.0, to.0, source].into_iter().chain(target)).await;
            let dirs = Dirs {
                from: self.dir_node(rq, from.0).await?,
                to: if moves { Some(self.dir_node(rq, to.0).await?) } else { None },
            };
            let again = (self.find(rq, from.0, from.1).await?, self.find(rq, to.0, to.1).await?);
            if again != (Some(source), target) {
                continue;
            }
            self.check_name(to.1)?;
            let same = target == Some(source);
            // The same file by two names stays as it is; by one name in another spelling, it gets the new spelling.
            if same && (moves || from.1 == to.1 || !self.folds(from.1, to.1)) {
                return if mode == RenameMode::NoReplace { Err(FileError::Exists) } else { Ok(None) };
            }
            let target = match target.filter(|_| !same) {
                Some(id) => Some(self.node(rq, id).await?),
                None => None,
            };
            let plan = Plan { dirs, node: self.node(rq, source).await?, target };
            self.may_rename(rq, cred, &plan, mode).await?;
            let now = writing.now();
            let tx = self.begin(rq, 2 * NAME_BYTES, Purpose::Names).await?;
            return match mode {
                RenameMode::Exchange => self.exchange(rq, &tx, plan, from.1, to.1, now).await.map(|()| None),
                _ => self.replace(rq, &tx, plan, from.1, to.1, now).await,
            };
        }
    }

    /// Whether two names are the same to this file system. One of mixed case has both at once.
    fn folds(&self, a: &[u8], b: &[u8]) -> bool {
        let norm = match self.matching() {
            Match::Exact => return false,
            Match::Normalized => self.norm_flags(),
            Match::NormalizedCase => NormFlags(self.normalization()),
        };
        norm.any() && normalize(a, norm) == normalize(b, norm)
    }

    async fn may_rename(&self, rq: &Request, cred: &Cred, plan: &Plan, mode: RenameMode) -> Result<(), FileError> {
        let Plan { dirs, node, target } = plan;
        let moves = dirs.to.is_some();
        may::remove(cred, &dirs.from, node)?;
        may::add(cred, dirs.to_ref())?;
        if node.is_xattr() != dirs.to_ref().is_xattr() {
            return Err(FileError::Invalid { why: "an attribute cannot become a file, nor a file an attribute" });
        }
        if moves {
            flags::enters(node, dirs.to_ref())?;
        }
        if moves && node.is_dir() {
            may::move_dir(cred, node)?;
            self.must_not_be_below(rq, dirs.to_ref().id, node.id).await?;
        }
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(FileError::Exists),
            (None, RenameMode::Exchange) => return Err(FileError::NotFound),
            _ => {}
        }
        let Some(target) = target else { return Ok(()) };
        may::remove(cred, dirs.to_ref(), target)?;
        if mode == RenameMode::Exchange {
            if moves && target.is_dir() {
                may::move_dir(cred, target)?;
                self.must_not_be_below(rq, dirs.from.id, target.id).await?;
            }
            return Ok(());
        }
        match (node.is_dir(), target.is_dir()) {
            (true, false) => Err(FileError::NotDirectory { object: target.id }),
            (false, true) => Err(FileError::IsDirectory { object: target.id }),
            (true, true) if !self.is_empty_dir(rq, target).await? => Err(FileError::NotEmpty { object: target.id }),
            _ => Ok(()),
        }
    }

    /// Refuses if the directory `below` is `above`, or stands in it at any depth.
    async fn must_not_be_below(&self, rq: &Request, below: ObjectId, above: ObjectId) -> Result<(), FileError> {
        let mut at = below;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Err(FileError::Invalid { why: "a directory cannot move into itself" });
            }
            if at == self.root() {
                return Ok(());
            }
            at = self.parent(rq, at).await?;
        }
        Err(FileError::Corrupt { object: below, offset: 0, why: "directories that contain each other".into() })
    }

    async fn replace(
        &self,
        rq: &Request,
        tx: &Tx,
        plan: Plan,
        name: &[u8],
        new_name: &[u8],
        now: Timestamp,
    ) -> Result<Option<ObjectId>, FileError> {
        let Plan { mut dirs, mut node, target } = plan;
        let is_dir = node.is_dir();
        let mut gone = None;
        if let Some(mut target) = target {
            let id = target.id;
            self.leave(rq, tx, dirs.to(), new_name, target.is_dir(), now).await?;
            let last = unlink(&mut target, now)?;
            if last {
                self.forget_in_log(id);
            }
            if last && self.goes_at_once(rq, &target).await {
                self.objects().remove(rq, tx, id).await.map_err(|e| FileError::at(e, id, 0))?;
            } else {
                self.store(rq, tx, &target).await?;
                if last {
                    self.queue_unlinked(rq, tx, id).await?;
                    gone = Some(id);
                }
            }
        }
        self.leave(rq, tx, &mut dirs.from, name, is_dir, now).await?;
        self.enter(rq, tx, dirs.to(), new_name, &mut node, now).await?;
        flags::inherit(&mut node, dirs.to_ref())?;
        node.touch(now)?;
        self.store_moved(rq, tx, &dirs, &[&node]).await?;
        self.log_rename(tx, (&dirs.from, name), (dirs.to_ref(), new_name), node.id, false);
        Ok(gone)
    }

    async fn exchange(
        &self,
        rq: &Request,
        tx: &Tx,
        plan: Plan,
        name: &[u8],
        new_name: &[u8],
        now: Timestamp,
    ) -> Result<(), FileError> {
        let Plan { mut dirs, mut node, target } = plan;
        let Some(mut target) = target else { return Ok(()) };
        self.leave(rq, tx, &mut dirs.from, name, node.is_dir(), now).await?;
        self.leave(rq, tx, dirs.to(), new_name, target.is_dir(), now).await?;
        self.enter(rq, tx, &mut dirs.from, name, &mut target, now).await?;
        self.enter(rq, tx, dirs.to(), new_name, &mut node, now).await?;
        flags::inherit(&mut node, dirs.to_ref())?;
        flags::inherit(&mut target, &dirs.from)?;
        node.touch(now)?;
        target.touch(now)?;
        self.store_moved(rq, tx, &dirs, &[&node, &target]).await?;
        self.log_rename(tx, (&dirs.from, name), (dirs.to_ref(), new_name), node.id, true);
        Ok(())
    }

    async fn store_moved(&self, rq: &Request, tx: &Tx, dirs: &Dirs, nodes: &[&Node]) -> Result<(), FileError> {
        for node in nodes {
            self.store(rq, tx, node).await?;
        }
        self.store(rq, tx, &dirs.from).await?;
        match &dirs.to {
            Some(to) => self.store(rq, tx, to).await,
            None => Ok(()),
        }
    }
}
