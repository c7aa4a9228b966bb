//! The tree's interface to file systems, as traits: implemented by the pool's file systems, and by an in-memory file
//! system for tests of the front ends.
//!
//! An operation has two places: its implementation, a method of a handle ([`crate::Contents`], [`crate::Names`], …),
//! and one line of the table at the end. The line generates the method of [`Files`], its implementation for
//! [`FileSystem`], and, in the sections `nodes`, the method of [`Tree`], which finds the file system of a node. The other
//! methods of [`Tree`] treat synthetic nodes and names in their own way, and are written by hand.

use super::{Changed, Export, Node, Tree, object_of};
use crate::{
    Acl, Attributes, CaseSensitivity, Cred, DirEntry, DirName, FileError, FileSystem, HoldKind, New, RenameMode, Seek,
    SetAttributes, SetFlags, Snapdir, Space, Usage, WriteAt, XattrMode,
};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use weir_dmu::zap::Match;
use weir_format::ObjectId;
use weir_machine::Request;

/// Future of a file operation.
pub type FileFuture<'a, T> = BoxFuture<'a, Result<T, FileError>>;

/// Time of creation of a snapshot; snapshots of one second are in the order of their txgs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Created {
    /// Seconds since 1970.
    pub seconds: u64,
    /// The txg.
    pub txg: u64,
}

/// Opens file systems and snapshots.
pub trait Opener: Send + Sync {
    /// Opens the file system of an export.
    ///
    /// # Errors
    /// [`FileError::NoKey`] if it is encrypted and its key is not loaded; [`FileError::NotFound`] if it was
    /// destroyed, even if its name was reused.
    fn open<'a>(&'a self, rq: &'a Request, export: &'a Export) -> FileFuture<'a, Arc<dyn Files>>;

    /// Time of creation of a snapshot.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if it was destroyed.
    fn created<'a>(&'a self, _rq: &'a Request, _export: &'a Export) -> FileFuture<'a, Created> {
        ready(Ok(Created::default())).boxed()
    }
}

fn refused<'a, T: Send + 'a>() -> FileFuture<'a, T> {
    ready(Err(FileError::ReadOnly)).boxed()
}

/// Declares [`Files`]. `properties` are the methods of the trait that are no operations, and `by_file_system` their
/// implementation. In the other sections, a line `name = handle.method(arguments) -> result` is an operation; changes
/// also take the credentials of the caller. In the sections `nodes`, the first argument is a file or directory.
macro_rules! files {
    (
        properties { $($properties:tt)* }
        by_file_system { $($by_file_system:tt)* }
        reads { $($(#[$read_doc:meta])* $read:ident = $read_handle:ident.$read_method:ident
            ($($read_arg:ident: $read_type:ty),*) -> $read_result:ty;)* }
        reads_of_nodes { $($(#[$see_doc:meta])* $see:ident = $see_handle:ident.$see_method:ident
            ($($see_arg:ident: $see_type:ty),*) -> $see_result:ty;)* }
        changes { $($(#[$change_doc:meta])* $change:ident = $change_handle:ident.$change_method:ident
            ($($change_arg:ident: $change_type:ty),*) -> $change_result:ty;)* }
        changes_of_nodes { $($(#[$set_doc:meta])* $set:ident = $set_handle:ident.$set_method:ident
            ($($set_arg:ident: $set_type:ty),*) -> $set_result:ty;)* }
    ) => {
        /// One file system. Changes fail with [`FileError::ReadOnly`] unless they are implemented.
        #[allow(unused_variables, reason = "the default implementations of changes fail")]
        pub trait Files: Send + Sync {
            $($properties)*
            $($(#[$read_doc])*
            fn $read<'a>(&'a self, rq: &'a Request, $($read_arg: $read_type),*) -> FileFuture<'a, $read_result>;)*
            $($(#[$see_doc])*
            fn $see<'a>(&'a self, rq: &'a Request, object: ObjectId, $($see_arg: $see_type),*)
                -> FileFuture<'a, $see_result>;)*
            $($(#[$change_doc])*
            fn $change<'a>(&'a self, rq: &'a Request, cred: &'a Cred, $($change_arg: $change_type),*)
                -> FileFuture<'a, $change_result>
            {
                refused()
            })*
            $($(#[$set_doc])*
            fn $set<'a>(&'a self, rq: &'a Request, cred: &'a Cred, object: ObjectId, $($set_arg: $set_type),*)
                -> FileFuture<'a, $set_result>
            {
                refused()
            })*
        }

        impl Files for FileSystem {
            $($by_file_system)*
            $(fn $read<'a>(&'a self, rq: &'a Request, $($read_arg: $read_type),*) -> FileFuture<'a, $read_result> {
                self.$read_handle().$read_method(rq, $($read_arg),*).boxed()
            })*
            $(fn $see<'a>(&'a self, rq: &'a Request, object: ObjectId, $($see_arg: $see_type),*)
                -> FileFuture<'a, $see_result>
            {
                self.$see_handle().$see_method(rq, object, $($see_arg),*).boxed()
            })*
            $(fn $change<'a>(&'a self, rq: &'a Request, cred: &'a Cred, $($change_arg: $change_type),*)
                -> FileFuture<'a, $change_result>
            {
                self.$change_handle().$change_method(rq, cred, $($change_arg),*).boxed()
            })*
            $(fn $set<'a>(&'a self, rq: &'a Request, cred: &'a Cred, object: ObjectId, $($set_arg: $set_type),*)
                -> FileFuture<'a, $set_result>
            {
                self.$set_handle().$set_method(rq, cred, object, $($set_arg),*).boxed()
            })*
        }

        impl Tree {
            $($(#[$see_doc])*
            pub async fn $see<'a>(&'a self, rq: &'a Request, node: Node, $($see_arg: $see_type),*)
                -> Result<$see_result, FileError>
            {
                let files = self.files(rq, node).await?;
                files.$see(rq, object_of(&*files, node), $($see_arg),*).await
            })*
            $($(#[$set_doc])*
            pub async fn $set<'a>(&'a self, rq: &'a Request, cred: &'a Cred, node: Node, $($set_arg: $set_type),*)
                -> Result<$set_result, FileError>
            {
                let files = self.file_system_to_modify(rq, node).await?;
                let done = files.$set(rq, cred, object_of(&*files, node), $($set_arg),*).await?;
                self.observers().report(rq, Changed::File(node));
                Ok(done)
            })*
        }
    };
}

files! {
    properties {
        /// The root directory.
        fn root(&self) -> ObjectId;
        /// ID of the file system, stable over renames.
        fn fsid(&self) -> u64;
        /// Maximum length of a name in bytes.
        fn name_max(&self) -> usize;
        /// Whether names that differ only in case are equal.
        fn is_case_insensitive(&self) -> bool;
        /// Whether each name has exactly one spelling.
        fn has_exact_names(&self) -> bool {
            !self.is_case_insensitive()
        }
        /// Visibility of `.zfs`.
        fn snapdir(&self) -> Snapdir;
        /// Whether it was closed permanently: every other operation then fails.
        fn is_closed(&self) -> bool {
            false
        }
        /// Whether it is writable; if not, changes fail with [`FileError::ReadOnly`].
        fn is_writable(&self) -> bool {
            false
        }
        /// The underlying file system, if it belongs to a pool: two of the same pool can clone blocks.
        fn file_system(&self) -> Option<&FileSystem> {
            None
        }
        /// Waits until earlier changes, of one object or of all, are on stable storage.
        fn sync<'a>(&'a self, _rq: &'a Request, _object: Option<ObjectId>) -> FileFuture<'a, ()> {
            ready(Ok(())).boxed()
        }
        /// Holds a file, so that it survives the removal of its last link.
        fn hold(&self, _object: ObjectId, _kind: HoldKind) {}
        /// Whether any file is held.
        fn has_holds(&self) -> bool {
            false
        }
        /// Releases a hold of this kind; an unlinked file without holds is freed.
        fn release<'a>(&'a self, _rq: &'a Request, _object: ObjectId, _kind: HoldKind) -> FileFuture<'a, ()> {
            ready(Ok(())).boxed()
        }
    }
    by_file_system {
        fn root(&self) -> ObjectId {
            FileSystem::root(self)
        }

        fn fsid(&self) -> u64 {
            FileSystem::fsid(self)
        }

        fn name_max(&self) -> usize {
            FileSystem::name_max(self)
        }

        fn is_case_insensitive(&self) -> bool {
            self.case_sensitivity() == CaseSensitivity::Insensitive
        }

        fn has_exact_names(&self) -> bool {
            self.matching() == Match::Exact
        }

        fn snapdir(&self) -> Snapdir {
            FileSystem::snapdir(self)
        }

        fn is_closed(&self) -> bool {
            FileSystem::is_closed(self)
        }

        fn is_writable(&self) -> bool {
            FileSystem::is_writable(self)
        }

        fn file_system(&self) -> Option<&FileSystem> {
            Some(self)
        }

        fn sync<'a>(&'a self, rq: &'a Request, object: Option<ObjectId>) -> FileFuture<'a, ()> {
            FileSystem::sync(self, rq, object).boxed()
        }

        fn hold(&self, object: ObjectId, kind: HoldKind) {
            self.holds().hold(object, kind);
        }

        fn has_holds(&self) -> bool {
            self.holds().any()
        }

        fn release<'a>(&'a self, rq: &'a Request, object: ObjectId, kind: HoldKind) -> FileFuture<'a, ()> {
            self.holds().release(rq, object, kind).boxed()
        }
    }
    reads {
        /// Attributes of an object.
        attributes = attrs.get(object: ObjectId) -> Attributes;
        /// Attributes of an object if it still has this generation.
        by_file_id = attrs.by_file_id(object: ObjectId, generation: u64) -> Attributes;
        /// Directory that contains the object.
        parent = attrs.parent(object: ObjectId) -> ObjectId;
        /// Looks up `name` in directory `dir`; not `.` and `..`.
        lookup = directories.lookup(dir: ObjectId, name: &'a [u8]) -> ObjectId;
        /// The name in directory `dir` that differs from `name` in case alone, or `name` itself.
        spelling = directories.spelling(dir: ObjectId, name: &'a [u8]) -> Option<Vec<u8>>;
        /// Up to `max` entries of a directory after `cookie`.
        read_dir = directories.read_dir(dir: ObjectId, cookie: u64, max: usize) -> Vec<DirEntry>;
        /// Names of all extended attributes.
        xattr_names = xattrs.names(object: ObjectId) -> Vec<Vec<u8>>;
        /// Value of an extended attribute, if it exists.
        xattr = xattrs.get(object: ObjectId, name: &'a [u8]) -> Option<Bytes>;
        /// The ACL.
        acl = acls.get(object: ObjectId) -> Acl;
        /// Space usage for `statvfs` of a file or directory.
        usage = quotas.usage(object: ObjectId) -> Usage;
    }
    reads_of_nodes {
        /// Reads up to `len` bytes of a file at `offset`, limited by its end, as slices of cached blocks.
        read = contents.read_segments(offset: u64, len: usize) -> SmallVec<[Bytes; 4]>;
        /// Next data or hole at or after `offset`; `None` if there is none.
        seek = contents.seek(offset: u64, what: Seek) -> Option<u64>;
        /// The target of a symbolic link.
        read_link = contents.read_link() -> Bytes;
    }
    changes {
        /// Creates a file of any kind in directory `dir`; see [`Names::create`](crate::Names::create).
        create = names.create(dir: ObjectId, name: &'a [u8], new: &'a New) -> Attributes;
        /// Creates a hard link; see [`Names::link`](crate::Names::link).
        link = names.link(file: ObjectId, dir: ObjectId, name: &'a [u8]) -> Attributes;
        /// Removes a link of a file that is not a directory; see [`Names::remove`](crate::Names::remove).
        remove = names.remove(dir: ObjectId, name: &'a [u8]) -> ();
        /// Removes an empty directory; see [`Names::remove_dir`](crate::Names::remove_dir).
        remove_dir = names.remove_dir(dir: ObjectId, name: &'a [u8]) -> ();
        /// Renames; see [`Names::rename`](crate::Names::rename).
        rename = names.rename(from: DirName<'a, ObjectId>, to: DirName<'a, ObjectId>, mode: RenameMode) -> ();
    }
    changes_of_nodes {
        /// Writes to a file; see [`Contents::write`](crate::Contents::write).
        write = contents.write(at: WriteAt, data: Bytes) -> Attributes;
        /// Reserves, zeroes or punches a range; see [`Contents::allocate`](crate::Contents::allocate).
        allocate = contents.allocate(range: Range<u64>, space: Space) -> Attributes;
        /// Sets attributes, including the size; see [`Attrs::set`](crate::Attrs::set).
        set_attributes = attrs.set(set: &'a SetAttributes) -> Attributes;
        /// Sets flags and project of a file; see [`Attrs::set_flags`](crate::Attrs::set_flags).
        set_flags = attrs.set_flags(set: &'a SetFlags) -> Attributes;
        /// Sets an extended attribute; see [`Xattrs::set`](crate::Xattrs::set).
        set_xattr = xattrs.set(name: &'a [u8], value: &'a [u8], mode: XattrMode) -> ();
        /// Removes an extended attribute; see [`Xattrs::remove`](crate::Xattrs::remove).
        remove_xattr = xattrs.remove(name: &'a [u8]) -> ();
        /// Sets the ACL; see [`Acls::set`](crate::Acls::set).
        set_acl = acls.set(acl: &'a Acl) -> ();
    }
}
