//! Setting attributes: mode, owner, group, size, times (OpenZFS `zfs_setattr`).

use super::acls::{self, AclAndMode};
use super::log::LoggedAttributes;
use super::make::NAME_BYTES;
use super::node::Node;
use super::quota::owners;
use super::{access_checks, posix_acl, xattrs};
use crate::attributes::Attributes;
use crate::change::{Cred, SetAttributes, SetTime};
use crate::error::FileError;
use crate::handles::{Attrs, Contents, Names};
use crate::metadata::index;
use weir_dmu::live::SpaceReserve;
use weir_dmu::txg::Tx;
use weir_dsl::QuotaPrincipal;
use weir_format::ObjectId;
use weir_format::znode::{FileFlags, Timestamp};
use weir_machine::Request;

const SET_UID: u64 = 0o4000;
const SET_GID: u64 = 0o2000;
const GROUP_EXECUTE: u64 = 0o010;
const NS_PER_S: i128 = 1_000_000_000;

/// File flags that follow from the ACL.
const LIST_FLAGS: u64 = FileFlags::ACL_AUTO_INHERIT
    | FileFlags::ACL_DEFAULTED
    | FileFlags::ACL_PROTECTED
    | FileFlags::ACL_TRIVIAL
    | FileFlags::INHERIT_ACE
    | FileFlags::ACL_OBJ_ACE
    | FileFlags::NO_EXECS_DENIED;

/// Sets a file's ACL with the resulting mode and flags.
pub(super) fn put_acl(node: &mut Node, acl: AclAndMode) -> Result<(), FileError> {
    node.set_word(index::FLAGS, node.flags() & !LIST_FLAGS | acl.flags)?;
    node.set_word(index::MODE, acl.mode)?;
    node.set_aces(&acl.aces)
}

fn timestamp(ns: i128) -> Timestamp {
    let sec = ns.div_euclid(NS_PER_S).clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    Timestamp { sec, nsec: ns.rem_euclid(NS_PER_S) as u32 }
}

impl Attrs<'_> {
    /// Sets attributes and returns the resulting ones.
    ///
    /// A change of owner or group clears the set-user-id and set-group-id bits, as does a change of size by another
    /// user.
    ///
    /// # Errors
    /// [`FileError::NotPermitted`] if only the owner or the superuser may; [`FileError::IsDirectory`] and
    /// [`FileError::Invalid`] for the size of a file without contents; [`FileError::TooLarge`].
    pub async fn set(
        self,
        rq: &Request,
        cred: &Cred,
        object: ObjectId,
        set: &SetAttributes,
    ) -> Result<Attributes, FileError> {
        self.set_locked(rq, cred, object, set).await?;
        self.files.commit_if_sync_always(rq, Some(object)).await?;
        self.get(rq, object).await
    }

    pub(super) async fn set_locked(
        self,
        rq: &Request,
        cred: &Cred,
        object: ObjectId,
        set: &SetAttributes,
    ) -> Result<(), FileError> {
        let writing = self.files.writing()?;
        if set.is_empty() {
            return Ok(());
        }
        let _held = writing.locks.one(rq, object).await;
        let mut node = self.files.nodes().load(rq, object).await?;
        if let Some(size_bytes) = set.size_bytes {
            node = node.require_file()?;
            Contents::check_size(size_bytes)?;
        }
        access_checks::set(cred, &node, set)?;
        let mut gainers = Vec::new();
        for (who, now) in owners(&node) {
            let new = match who {
                QuotaPrincipal::User => set.uid,
                QuotaPrincipal::Group => set.gid,
                QuotaPrincipal::Project => None,
            };
            gainers.extend(new.map(u64::from).filter(|new| *new != now).map(|new| (who, new)));
        }
        self.files.quotas().may_own(rq, &gainers).await?;
        if Self::mode_after(cred, &node, set).is_some() {
            self.may_chmod(&node)?;
        }
        if let Some(size_bytes) = set.size_bytes.filter(|size| *size < node.size_bytes()) {
            self.files.contents().free_long_range(rq, &node, size_bytes..u64::MAX).await?;
        }
        let shrinks = set.size_bytes.is_some_and(|size| size <= node.size_bytes());
        let purpose = if shrinks { SpaceReserve::NetFree } else { SpaceReserve::Half };
        let tx = self.files.begin(rq, NAME_BYTES, purpose).await?;
        self.apply(rq, &tx, cred, &mut node, set, writing.now()).await?;
        self.files.nodes().store(rq, &tx, &node).await
    }

    /// Sets attributes of a loaded file within a transaction and logs them; the caller stores the node.
    pub(super) async fn apply(
        self,
        rq: &Request,
        tx: &Tx,
        cred: &Cred,
        node: &mut Node,
        set: &SetAttributes,
        now: Timestamp,
    ) -> Result<(), FileError> {
        let mut applied = LoggedAttributes::default();
        let mode = Self::mode_after(cred, node, set);
        if let Some(size_bytes) = set.size_bytes {
            self.files.contents().resize(rq, tx, node, size_bytes).await?;
            node.touch_contents(now)?;
            applied.size = Some(size_bytes);
            applied.mtime = Some(now);
        }
        for (index, id) in [(index::UID, set.uid), (index::GID, set.gid)] {
            let Some(id) = id else { continue };
            node.set_word(index, id.into())?;
            let applied = if index == index::UID { &mut applied.uid } else { &mut applied.gid };
            *applied = Some(id.into());
        }
        if let Some(mode) = mode {
            self.chmod(node, mode)?;
            applied.mode = Some(node.mode());
        }
        for (index, time) in [(index::ATIME, set.atime), (index::MTIME, set.mtime)] {
            let time = match time {
                None => continue,
                Some(SetTime::Now) => now,
                Some(SetTime::At(ns)) => timestamp(ns),
            };
            if index == index::ATIME {
                self.files.atimes().forget(node.id);
            }
            node.set_time(index, time)?;
            let applied = if index == index::ATIME { &mut applied.atime } else { &mut applied.mtime };
            *applied = Some(time);
        }
        node.touch(now)?;
        self.files.log().set(tx, node, &applied);
        Ok(())
    }

    /// Mode after setting attributes, with kind bits; `None` if unchanged.
    fn mode_after(cred: &Cred, node: &Node, set: &SetAttributes) -> Option<u64> {
        let mut mode = set.mode.map(|mode| u64::from(mode) & 0o7777 | node.mode() & !0o7777);
        if set.size_bytes.is_some() && cred.uid != 0 && node.mode() & 0o111 != 0 {
            mode = Some(Names::clear_setid_bits(mode.unwrap_or(node.mode())));
        }
        if (set.uid.is_some() || set.gid.is_some()) && !node.is_dir() && !cred.checked {
            let old = mode.unwrap_or(node.mode());
            let kept = if old & GROUP_EXECUTE != 0 { old & !SET_GID } else { old };
            mode = Some(kept & !SET_UID).filter(|new| set.mode.is_some() || *new != node.mode());
        }
        let mode = mode.filter(|mode| set.mode.is_some() || *mode != node.mode())?;
        let gid = set.gid.unwrap_or(node.owner().1);
        let member = cred.checked || cred.uid == 0 || cred.in_group(gid);
        Some(if member { mode } else { mode & !SET_GID })
    }

    /// Checks whether the mode may be changed.
    fn may_chmod(self, node: &Node) -> Result<(), FileError> {
        let restricted = self.files.writing()?.settings().acl_mode == acls::AclMode::Restricted;
        let refused = restricted && !node.has_flag(FileFlags::ACL_TRIVIAL);
        if refused { Err(FileError::NotPermitted { object: node.id }) } else { Ok(()) }
    }

    /// Sets the mode (with kind bits) and updates the ACLs accordingly.
    pub(super) fn chmod(self, node: &mut Node, mode: u64) -> Result<(), FileError> {
        self.may_chmod(node)?;
        let settings = self.files.writing()?.settings();
        let acl = acls::chmod(&node.aces()?, mode, node.is_dir(), node.flags(), settings.acl_mode);
        put_acl(node, acl)?;
        if let Some(list) = xattrs::nvlist_value(node, posix_acl::ACCESS)?
            && let Some(mut list) = posix_acl::List::decode(&list)
        {
            list.chmod(mode);
            xattrs::put_in_nvlist(node, posix_acl::ACCESS, Some(&list.encode()))?;
        }
        Ok(())
    }
}
