//! Resolves the operands of zdb: a dataset, and objects in it by number or path.

use super::ranges;
use crate::failure::Failure;
use std::sync::Arc;
use weir_dmu::ObjectSet;
use weir_dsl::bpobj::Sums;
use weir_dsl::deadlist;
use weir_files::{FileError, FileSystem};
use weir_format::ObjectId;
use weir_machine::Request;
use weir_pool::Pool;

/// Bits of the number of an object: numbers are below 2^48.
const OBJECT_MASK: u64 = (1 << 48) - 1;

/// Follows a path from the root directory; symbolic links are not followed.
pub async fn walk(rq: &Request, fs: &FileSystem, path: &str) -> Result<ObjectId, FileError> {
    let mut at = fs.root();
    for part in path.split('/').filter(|p| !p.is_empty() && *p != ".") {
        at = fs.directories().lookup(rq, at, part.as_bytes()).await?;
    }
    Ok(at)
}

/// An object set, with the file system in it if it is one.
pub struct Set {
    /// Name: `mos` or the dataset's.
    pub name: String,
    /// The objects.
    pub objects: Arc<ObjectSet>,
    /// The file system.
    pub files: Option<Arc<FileSystem>>,
    /// The txg in which the dataset was made.
    pub created: u64,
    /// Bytes that it refers to.
    pub referenced_bytes: u64,
    /// Sums of its deadlist: blocks that it does not refer to, and its previous snapshot does.
    pub deadlist: Option<Sums>,
}

impl Set {
    /// The MOS.
    pub async fn mos(rq: &Request, pool: &Pool) -> Result<Self, Failure> {
        // The directory `$MOS` records the space that the MOS uses.
        let root = pool.dsl.root().map_or(ObjectId(0), |d| d.phys.children);
        let mut used = 0;
        if let Some(id) = pool.mos.numbers(rq, root).await.ok().and_then(|n| n.get("$MOS").copied())
            && let Ok(dir) = pool.mos.set.object(rq, ObjectId(id)).await
            && let Ok(phys) = weir_format::DslDir::decode(dir.dnode.bonus(), dir.dnode.endian)
        {
            used = phys.used_bytes;
        }
        let objects = pool.mos.set.clone();
        Ok(Set { name: "mos".into(), objects, files: None, created: 4, referenced_bytes: used, deadlist: None })
    }

    /// A dataset.
    pub async fn dataset(rq: &Request, pool: &Pool, name: &str) -> Result<Self, Failure> {
        let dataset = pool.dataset(rq, name).await?;
        let objects = pool.object_set(rq, name).await?;
        let files = match objects.kind() {
            weir_format::ObjsetKind::Zfs => pool.file_system(rq, name).await.ok(),
            _ => None,
        };
        let deadlist = match dataset.phys.deadlist {
            ObjectId(0) => None,
            // One that cannot be read is for `zdb -b` to report.
            id => deadlist::space(rq, &pool.mos.set, id).await.ok(),
        };
        Ok(Set {
            name: name.into(),
            deadlist,
            objects,
            files,
            created: dataset.phys.creation_txg.0,
            referenced_bytes: dataset.phys.referenced_bytes,
        })
    }

    /// The object that `word` names: a number, or a path in a file system.
    pub async fn object(&self, rq: &Request, word: &str) -> Result<ObjectId, Failure> {
        if let Some(number) = ranges::number(word) {
            // Inode numbers of a mount have the object in these bits.
            return Ok(ObjectId(if number < 1 << 63 { number & OBJECT_MASK } else { number }));
        }
        let no_files =
            || Failure::failed(format!("{}: '{word}' is no object number, and there are no files", self.name));
        let fs = self.files.as_ref().ok_or_else(no_files)?;
        walk(rq, fs, word).await.map_err(|e| Failure::failed(format!("{}: {word}: {e}", self.name)))
    }
}
