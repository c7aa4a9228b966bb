//! The operations of a file system, by concept.
//!
//! [`FileSystem`] itself holds what they share: the object set, the properties, and the state for modification. Each
//! handle here is one concept with its operations. A handle is a reference: it is made where it is used, and copied.

use crate::file_system::FileSystem;

macro_rules! handles {
    ($($(#[$doc:meta])* $vis:vis $name:ident = $handle:ident;)+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            $vis struct $handle<'a> {
                pub(crate) files: &'a FileSystem,
            }
        )+

        impl FileSystem {
            $(
                $(#[$doc])*
                $vis fn $name(&self) -> $handle<'_> {
                    $handle { files: self }
                }
            )+
        }
    };
}

handles! {
    /// Contents of files: read, seek, write, allocate, copy.
    pub contents = Contents;
    /// Entries of directories: look up, list; internally insert and remove.
    pub directories = Directories;
    /// Names of files: create, link, rename, remove.
    pub names = Names;
    /// Attributes: get, set, and the flags of files.
    pub attrs = Attrs;
    /// Access times that are not stored yet.
    pub atimes = Atimes;
    /// Access control lists.
    pub acls = Acls;
    /// Extended attributes.
    pub xattrs = Xattrs;
    /// Space usage, and quotas of users, groups and projects.
    pub quotas = Quotas;
    /// Open files.
    pub holds = Holds;
    /// Unlinked files that are not freed yet.
    pub delete_queue = DeleteQueue;
    /// Replay of the intent log.
    pub replay = Replay;
    /// Objects with their system attributes, as modified.
    pub(crate) nodes = Nodes;
    /// Records of changes in the intent log.
    pub(crate) log = ChangeLog;
}
