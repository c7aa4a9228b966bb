//! Setting NFSv4 ACLs (OpenZFS `zfs_setacl`).

use super::access_checks;
use super::acls;
use super::make::NAME_BYTES;
use super::set::put_acl;
use crate::acl::{Ace, AceWho, Acl};
use crate::change::Cred;
use crate::error::FileError;
use crate::handles::Acls;
use crate::metadata::index;
use weir_dmu::live::SpaceReserve;
use weir_format::ObjectId;
use weir_format::acl::Ace as StoredAce;
use weir_format::znode::FileFlags;
use weir_machine::Request;

fn stored(ace: &Ace) -> StoredAce {
    let (who_flags, who) = match ace.who {
        AceWho::Owner => (StoredAce::OWNER, 0),
        AceWho::OwningGroup => (StoredAce::GROUP | StoredAce::IDENTIFIER_GROUP, 0),
        AceWho::Everyone => (StoredAce::EVERYONE, 0),
        AceWho::User(id) => (0, id),
        AceWho::Group(id) => (StoredAce::IDENTIFIER_GROUP, id),
    };
    let flags = ace.flags & !StoredAce::WHO_FLAGS | who_flags;
    StoredAce { kind: ace.kind, flags, mask: ace.mask, who, object: None }
}

impl Acls<'_> {
    /// Sets the ACL of a file, and the mode that follows from it. An empty ACL is replaced by that of the mode.
    ///
    /// # Errors
    /// [`FileError::NotPermitted`] if the caller is neither the owner nor has the right to change the ACL; [`FileError::Invalid`] for an ACL that is too long
    /// or has entries of unknown types; [`FileError::Unsupported`] if the file system uses POSIX ACLs.
    pub async fn set(self, rq: &Request, cred: &Cred, object: ObjectId, acl: &Acl) -> Result<(), FileError> {
        let aces: Vec<StoredAce> = acl.entries.iter().map(stored).collect();
        if self.files.writing()?.settings().acl_type == super::AclType::Posix {
            return Err(FileError::Unsupported { what: "an NFSv4 ACL with acltype=posix".into() });
        }
        self.set_locked(rq, cred, object, aces, Some(acl.stored_flags())).await?;
        self.files.commit_if_sync_always(rq, Some(object)).await
    }

    pub(super) async fn set_locked(
        self,
        rq: &Request,
        cred: &Cred,
        object: ObjectId,
        aces: Vec<StoredAce>,
        flags: Option<u64>,
    ) -> Result<(), FileError> {
        let writing = self.files.writing()?;
        if aces.len() > Acl::MAX_ENTRIES || aces.iter().any(|ace| ace.kind > StoredAce::ALARM) {
            return Err(FileError::Invalid { why: "invalid access control list" });
        }
        let _held = writing.locks.one(rq, object).await;
        let mut node = self.files.nodes().load(rq, object).await?;
        access_checks::set_acl(cred, &node)?;
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::Half).await?;
        let mode = node.mode();
        let is_dir = node.is_dir();
        // ACL flags that are not given keep their value.
        let kept = node.flags() & (FileFlags::ACL_AUTO_INHERIT | FileFlags::ACL_PROTECTED | FileFlags::ACL_DEFAULTED);
        let flags = flags.unwrap_or(kept);
        let acl = match aces.is_empty() {
            true => acls::chmod(&[], mode, is_dir, flags, acls::AclMode::Discard),
            false => acls::set(aces.clone(), mode, is_dir, flags, node.word(index::UID), node.word(index::GID)),
        };
        put_acl(&mut node, acl)?;
        node.touch(writing.now())?;
        self.files.nodes().store(rq, &tx, &node).await?;
        self.files.log().acl(&tx, &node)
    }
}
