//! POSIX files and directories on top of objects: the ZPL.
//!
//! A file system is an object set. Its object 1, the *master node*, is a ZAP that references everything else:
//!
//! ```text
//!  master node (1) ─ ROOT ──────► directory: a ZAP, name → kind (4 bits) and object number (48 bits)
//!                  ├ VERSION      3 to 5; from 5 on attributes are system attributes, before that a znode in the bonus
//!                  ├ SA_ATTRS ──► master node of the system attributes: registry and layouts
//!                  ├ FUID ──────► table of the domains that Windows identities come from
//!                  ├ casesensitivity, normalization, utf8only
//!                  └ DELETE_QUEUE, SHARES
//! ```
//!
//! [`FileSystem`] holds what all operations share: the object set, the properties, the state for modification. The
//! operations are methods of *handles*, one per concept, which are references that are copied freely:
//!
//! ```text
//!  files.contents()     read, seek, write, allocate, copy      files.directories()   look up, list
//!  files.names()        create, link, rename, remove           files.attrs()         attributes and flags
//!  files.xattrs()       extended attributes                    files.acls()          access control lists
//!  files.quotas()       space usage, quotas                    files.atimes()        access times not stored yet
//!  files.holds()        open files                             files.delete_queue()  unlinked files
//!  files.replay()       replay of the intent log
//! ```
//!
//! Within the crate, `nodes()` loads and stores objects with their system attributes, and `log()` records changes in
//! the intent log. Reading is implemented in the modules here, modification in [`writing`]. Invariants: nothing read from disk is
//! trusted (a name, a size, an object number may be arbitrary); a corrupt object is an error for that object only; no
//! lock is held across an await.
//!
//! Errors: see [`FileError`].
//!
//! ```
//! use weir_files::Cred;
//! use weir_files::permission::{AccessInfo, READ, WRITE, granted};
//!
//! let file = AccessInfo { is_dir: false, mode: 0o640, uid: 1000, gid: 100, posix: None, acl: None };
//! assert_eq!(granted(&Cred::new(1000, 100, &[]), &file), READ | WRITE);
//! assert_eq!(granted(&Cred::new(1001, 5, &[100]), &file), READ); // a member of the group
//! assert_eq!(granted(&Cred::new(1002, 5, &[]), &file), 0);
//! ```

mod acl;
pub mod acl_xdr;
mod attributes;
mod change;
mod contents;
pub mod diff;
mod directory;
mod error;
mod file_system;
pub mod fuzz;
mod handles;
pub mod locks;
mod metadata;
pub mod permission;
pub mod tree;
mod usage;
pub mod writing;
mod xattr;

pub use acl::{Ace, AceWho, Acl};

/// Rights in the mask of an ACL's entry.
pub mod masks {
    pub use crate::acl::{APPEND_DATA, DELETE_CHILD, EXECUTE, READ_ACL, READ_DATA, WRITE_DATA};
}
pub use attributes::{Attributes, FileKind};
pub use change::{
    Cred, DirName, FilePosition, New, NewKind, RenameMode, SetAttributes, SetFlags, SetTime, Space, WriteAt, XattrMode,
};
pub use directory::DirEntry;
pub use error::FileError;
pub use file_system::{CaseSensitivity, FileSystem, Identity, Seek, Snapdir, Usage};
pub use handles::{Acls, Atimes, Attrs, Contents, DeleteQueue, Directories, Holds, Names, Quotas, Replay, Xattrs};
pub use weir_format::znode::FileFlags;
pub use writing::unlinked::HoldKind;
