//! Attributes, permissions, names, data, directories.

use super::{Call, ResolvedFile, shown};
use bytes::Bytes;
use futures_util::future::join_all;
use smallvec::SmallVec;
use weir_files::permission::{AccessInfo, EXECUTE, POSIX_ACCESS, READ, WRITE, granted, is_decided_by_mode};
use weir_files::tree::{Node, TreeEntry};
use weir_files::{FileFlags, FileKind};
use weir_front::files::{
    Attributes, Entry, Failure, File, FileError, FileId, FileSystemInfo, Listing, Permissions, ReadData, Usage,
};

impl Call<'_> {
    /// Permissions of the caller on a file, as bits of read, write and execute.
    pub(super) async fn granted(&self, found: &ResolvedFile) -> Result<u32, FileError> {
        let attributes = &found.attributes;
        let by_mode = AccessInfo::by_mode(attributes);
        if is_decided_by_mode(&self.cred, attributes) || found.node.is_synthetic() {
            return Ok(granted(&self.cred, &by_mode));
        }
        let posix = self.tree.xattr(self.rq, found.node, POSIX_ACCESS).await.map_err(shown)?;
        let acl = match attributes.flags.has(FileFlags::ACL_TRIVIAL) {
            true => None,
            false => self.tree.acl(self.rq, found.node).await.map_err(shown)?,
        };
        Ok(granted(&self.cred, &AccessInfo { posix: posix.as_deref(), acl: acl.as_ref(), ..by_mode }))
    }

    /// Fails unless the caller has at least one of these permissions.
    pub(super) async fn require(&self, found: &ResolvedFile, any_of: u32) -> Result<(), FileError> {
        if self.granted(found).await? & any_of != 0 { Ok(()) } else { Err(FileError::Denied) }
    }

    /// Finds a directory on which the caller has at least one of these permissions.
    async fn directory(&self, id: FileId, any_of: u32) -> Result<ResolvedFile, Failure> {
        let dir = self.resolve(id).await?;
        if dir.attributes.kind != FileKind::Directory {
            return Err(failure(FileError::NotDirectory, &dir));
        }
        self.require(&dir, any_of).await.map_err(|error| failure(error, &dir))?;
        Ok(dir)
    }

    pub(super) async fn open_path(&self, path: &[u8]) -> Result<File, FileError> {
        let slashes = path.iter().take_while(|byte| **byte == b'/').count();
        let path = path.get(slashes..).unwrap_or_default();
        let found = match self.shares.mounted_at(self.host, path) {
            Some((id, rest)) => {
                let branch = self.tree.branch_by_id(id).ok_or(FileError::Stale)?;
                self.walk(Node { branch, object: Node::ROOT }, rest).await
            }
            None => Err(FileError::NotFound),
        };
        // Dataset names lead to every shared file system, also to one whose mount point is covered by another's.
        let node = match found {
            Ok(node) => node,
            Err(_) => self.walk_from_pool(path).await?,
        };
        if !self.is_shared(node) {
            return Err(FileError::Denied);
        }
        let found = self.at(node).await?;
        self.tree.require_usable(self.rq, node).await.map_err(shown)?;
        if found.attributes.kind == FileKind::Directory { self.file(&found) } else { Err(FileError::NotDirectory) }
    }

    /// Follows a path that begins with the name of the pool.
    async fn walk_from_pool(&self, path: &[u8]) -> Result<Node, FileError> {
        let root = self.tree.root();
        let pool = self.tree.export_of(root).map(|export| export.name.into_bytes()).unwrap_or_default();
        let rest = path.strip_prefix(pool.as_slice()).filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
        match rest {
            Some(rest) => self.walk(root, rest).await,
            None => Err(FileError::NotFound),
        }
    }

    /// Follows a path. In a file system that is not shared, only its child file systems are found.
    async fn walk(&self, from: Node, path: &[u8]) -> Result<Node, FileError> {
        let mut node = from;
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            if part == b".." {
                return Err(FileError::Denied);
            }
            let is_shared = self.is_shared(node);
            let found = self.tree.lookup(self.rq, node, part).await;
            node = match found {
                Ok(found) if is_shared || found.branch != node.branch => found,
                Err(error) if is_shared => return Err(shown(error)),
                Ok(_) | Err(_) => return Err(FileError::Denied),
            };
        }
        Ok(node)
    }

    pub(super) async fn attributes(&self, id: FileId) -> Result<Attributes, Failure> {
        Ok(self.resolve(id).await?.shown())
    }

    pub(super) async fn access(&self, id: FileId) -> Result<(Attributes, Permissions), Failure> {
        let found = self.resolve(id).await?;
        let granted = match self.tree.require_usable(self.rq, found.node).await {
            Ok(()) => self.granted(&found).await.map_err(|error| failure(error, &found))?,
            // Clients then report the error themselves, also for root, before they read the directory.
            Err(_) => EXECUTE,
        };
        let write = granted & WRITE != 0 && self.require_writable(&found).await.is_ok();
        Ok((found.shown(), Permissions { read: granted & READ != 0, write, execute: granted & EXECUTE != 0 }))
    }

    pub(super) async fn lookup(&self, dir: FileId, name: &[u8]) -> Result<(File, Attributes), Failure> {
        let dir = self.directory(dir, EXECUTE).await?;
        let found = async {
            if name.is_empty() {
                return Err(FileError::NotFound);
            }
            let node = self.tree.lookup(self.rq, dir.node, name).await.map_err(shown)?;
            let node = match node.branch == dir.node.branch || self.is_shared(node) {
                true => node,
                false if name == b".." => dir.node,
                false => return Err(FileError::NotFound),
            };
            self.file(&self.at(node).await?)
        };
        match found.await {
            Ok(file) => Ok((file, dir.shown())),
            Err(error) => Err(failure(error, &dir)),
        }
    }

    pub(super) async fn read_link(&self, id: FileId) -> Result<(Bytes, Attributes), Failure> {
        let found = self.resolve(id).await?;
        if found.attributes.kind != FileKind::Symlink {
            return Err(failure(FileError::Invalid { why: "not a symbolic link" }, &found));
        }
        match self.tree.read_link(self.rq, found.node).await {
            Ok(target) => Ok((target, found.shown())),
            Err(error) => Err(failure(shown(error), &found)),
        }
    }

    pub(super) async fn read(&self, id: FileId, offset: u64, len: usize) -> Result<ReadData, Failure> {
        let found = self.resolve(id).await?;
        let data = async {
            match found.attributes.kind {
                FileKind::Regular | FileKind::Other => {}
                FileKind::Directory => return Err(FileError::IsDirectory),
                _ => return Err(FileError::Invalid { why: "not a regular file" }),
            }
            if !self.is_owner(&found) {
                self.require(&found, READ | EXECUTE).await?;
            }
            let left = found.attributes.size_bytes.saturating_sub(offset);
            if left == 0 || len == 0 {
                return Ok((SmallVec::new(), left == 0));
            }
            let pieces = self.tree.read(self.rq, found.node, offset, len).await.map_err(shown)?;
            let count: usize = pieces.iter().map(Bytes::len).sum();
            Ok((pieces, count as u64 >= left))
        };
        match data.await {
            Ok((pieces, at_end)) => Ok(ReadData { file: found.shown(), pieces, at_end }),
            Err(error) => Err(failure(error, &found)),
        }
    }

    pub(super) async fn read_dir(
        &self,
        id: FileId,
        cookie: u64,
        max: usize,
        with_files: bool,
    ) -> Result<Listing, Failure> {
        let dir = self.directory(id, READ).await?;
        let (entries, at_end) = self.shared_entries(&dir, cookie, max).await.map_err(|error| failure(error, &dir))?;
        // Roots of other file systems are reported without their file: listing ten thousand snapshots opens none of them.
        let files = join_all(entries.iter().map(|entry| async {
            let wanted = with_files && entry.node.branch == dir.node.branch;
            if wanted { self.at(entry.node).await.ok() } else { None }
        }));
        let listed = entries.iter().zip(files.await).map(|(entry, found)| Entry {
            name: entry.name.clone(),
            cookie: entry.cookie,
            file_number: self.file_number(&dir, entry, found.as_ref()),
            file: found.and_then(|found| self.file(&found).ok()),
        });
        Ok(Listing { dir: dir.shown(), entries: listed.collect(), at_end })
    }

    /// Reads entries of a directory, without file systems that are not shared with the host; and whether they reach the end.
    /// None are returned at the end only.
    async fn shared_entries(
        &self,
        dir: &ResolvedFile,
        mut cookie: u64,
        max: usize,
    ) -> Result<(Vec<TreeEntry>, bool), FileError> {
        loop {
            let mut entries = self.tree.read_dir(self.rq, dir.node, cookie, max).await.map_err(shown)?;
            let at_end = entries.len() < max;
            let last = entries.last().map(|entry| entry.cookie);
            entries.retain_mut(|entry| {
                let is_shared = entry.node.branch == dir.node.branch || self.is_shared(entry.node);
                let is_parent = entry.name == b"..";
                if !is_shared && is_parent {
                    entry.node = dir.node;
                }
                is_shared || is_parent
            });
            match last {
                Some(last) if entries.is_empty() && !at_end => cookie = last,
                _ => return Ok((entries, at_end)),
            }
        }
    }

    /// Number of an entry's file: its object number; for the root of another file system, a number above all objects.
    fn file_number(&self, dir: &ResolvedFile, entry: &TreeEntry, found: Option<&ResolvedFile>) -> u64 {
        if let Some(found) = found {
            return found.attributes.object.0;
        }
        if entry.node == dir.node {
            return dir.attributes.object.0;
        }
        if entry.node.branch == dir.node.branch && entry.node.object != Node::ROOT {
            return entry.node.object;
        }
        (1 << 48) | self.tree.export_of(entry.node).map_or(0, |export| export.id)
    }

    pub(super) async fn usage(&self, id: FileId) -> Result<(Usage, Attributes), Failure> {
        let found = self.resolve(id).await?;
        let usage = self.tree.usage(self.rq, found.node).await.map_err(|error| failure(shown(error), &found))?;
        let usage = Usage {
            total_bytes: usage.referenced_bytes.saturating_add(usage.available_bytes),
            available_bytes: usage.available_bytes,
            total_files: usage.objects_used.saturating_add(usage.objects_available),
            available_files: usage.objects_available,
        };
        Ok((usage, found.shown()))
    }

    pub(super) async fn file_system(&self, id: FileId) -> Result<(FileSystemInfo, Attributes), Failure> {
        let found = self.resolve(id).await?;
        let name_max = self.tree.name_max(self.rq, found.node).await;
        let name_max = name_max.map_err(|error| failure(shown(error), &found))?;
        let rules = self.tree.name_rules(self.rq, found.node).await;
        let is_case_insensitive = rules.is_ok_and(|rules| rules.is_case_insensitive);
        let is_writable = self.require_writable(&found).await.is_ok();
        Ok((FileSystemInfo { name_max, is_case_insensitive, is_writable }, found.shown()))
    }
}

fn failure(error: FileError, file: &ResolvedFile) -> Failure {
    Failure { error, file: Some(file.shown()) }
}
