//! Setting NFSv4 access control lists (OpenZFS `zfs_setacl`).

use super::acls;
use super::make::NAME_BYTES;
use super::may;
use super::set::put_list;
use crate::acl::{Ace, Acl, Who};
use crate::change::Cred;
use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::metadata::index;
use weir_dmu::live::Purpose;
use weir_format::ObjectId;
use weir_format::acl::Ace as StoredAce;
use weir_format::znode::flag;
use weir_machine::Request;

/// Most entries of a list (`MAX_ACL_ENTRIES`).
const ENTRIES_MAX: usize = 1024;

fn stored(ace: &Ace) -> StoredAce {
    let (who_flags, who) = match ace.who {
        Who::Owner => (StoredAce::OWNER, 0),
        Who::OwningGroup => (StoredAce::GROUP | StoredAce::IDENTIFIER_GROUP, 0),
        Who::Everyone => (StoredAce::EVERYONE, 0),
        Who::User(id) => (0, id),
        Who::Group(id) => (StoredAce::IDENTIFIER_GROUP, id),
    };
    let flags = ace.flags & !StoredAce::WHO_FLAGS | who_flags;
    StoredAce { kind: ace.kind, flags, mask: ace.mask, who, object: None }
}

impl FileSystem {
    /// Sets the access control list of a file, and the mode that follows from it. An empty list is that of the mode.
    ///
    /// # Errors
    /// [`FileError::NotPermitted`] if the caller is not the owner; [`FileError::Invalid`] for a list that is too long or
    /// has entries of unknown kinds; [`FileError::Unsupported`] if the file system has POSIX lists.
    pub async fn set_acl(&self, rq: &Request, cred: &Cred, object: ObjectId, acl: &Acl) -> Result<(), FileError> {
        let aces: Vec<StoredAce> = acl.entries.iter().map(stored).collect();
        if self.writing()?.settings().acl_type == super::AclType::Posix {
            return Err(FileError::Unsupported { what: "an NFSv4 list where acltype=posix".into() });
        }
        self.set_acl_locked(rq, cred, object, aces, None).await?;
        self.settle(rq, Some(object)).await
    }

    pub(super) async fn set_acl_locked(
        &self,
        rq: &Request,
        cred: &Cred,
        object: ObjectId,
        aces: Vec<StoredAce>,
        flags: Option<u64>,
    ) -> Result<(), FileError> {
        const ALARM: u16 = 3;
        let writing = self.writing()?;
        if aces.len() > ENTRIES_MAX || aces.iter().any(|ace| ace.kind > ALARM) {
            return Err(FileError::Invalid { why: "no access control list" });
        }
        let _held = writing.locks.one(object).await;
        let mut node = self.node(rq, object).await?;
        if !may::is_owner(cred, &node) || node.has_flag(flag::IMMUTABLE) {
            return Err(FileError::NotPermitted { object });
        }
        let tx = self.begin(rq, NAME_BYTES, Purpose::Names).await?;
        let (mode, is_dir) = (node.mode(), node.is_dir());
        // Flags of the list that are not given stay.
        let kept = node.flags() & (flag::ACL_AUTO_INHERIT | flag::ACL_PROTECTED | flag::ACL_DEFAULTED);
        let flags = flags.unwrap_or(kept);
        let listed = match aces.is_empty() {
            true => acls::chmod(&[], mode, is_dir, flags, acls::AclMode::Discard),
            false => acls::set(aces.clone(), mode, is_dir, flags, node.word(index::UID), node.word(index::GID)),
        };
        put_list(&mut node, listed)?;
        node.touch(writing.now())?;
        self.store(rq, &tx, &node).await?;
        self.log_acl(&tx, &node)
    }
}
