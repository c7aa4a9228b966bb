//! The persistent error log: blocks of files that could not be read by the last scrub, or by readers since then.
//! found them.
//!
//! ```text
//!   MOS directory ─ errlog_last, errlog_scrub ─► ZAP   "objset:object:level:block"                      (the old form)
//!                                                ZAP   head dataset ─► ZAP "object:level:block:birth"  (`head_errlog`)
//! ```
//!
//! An object is shown by its path, found by following parents from the object to the root; an object without a path, by
//! its numbers. Source: OpenZFS `module/zfs/spa_errlog.c`, `lib/libzfs/libzfs_pool.c` (`zpool_obj_to_path`).

use crate::error::PoolError;
use crate::mos::MAX_ENTRIES;
use crate::open::Pool;
use std::collections::BTreeSet;
use weir_dmu::zap::Entry;
use weir_dmu::{ObjectError, Zap};
use weir_files::FileSystem;
use weir_format::ObjectId;
use weir_format::dsl::pool as names;
use weir_format::records::ErrorName;
use weir_machine::Request;

/// Feature that keeps the log by dataset.
const HEAD_ERRLOG: &str = "com.delphix:head_errlog";
/// Maximum number of components of a path.
const MAX_DEPTH: usize = 4096;
/// Number of entries of a log that are read at once.
const MAX_CONCURRENT_READS: usize = 1024;

/// Permanent errors of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Number of blocks with an error.
    pub count: u64,
    /// Error of reading a part of the log.
    pub lost: Option<ObjectError>,
    /// Dataset and object of each error, without duplicates.
    objects: BTreeSet<(u64, u64)>,
}

/// Reads the error log.
pub async fn errors(pool: &Pool, rq: &Request) -> Result<Errors, PoolError> {
    let mut out = Errors::default();
    let by_head = pool.features.count(HEAD_ERRLOG).is_some();
    for name in [names::ERRLOG_LAST, names::ERRLOG_SCRUB] {
        let Some(id) = pool.mos.named(rq, name).await? else { continue };
        for entry in entries(pool, rq, id, &mut out).await {
            if !by_head {
                if let Some(ErrorName::Bookmark { objset, object, .. }) = ErrorName::parse(&entry.key.text(), false) {
                    out.add(objset, object);
                }
                continue;
            }
            let head = u64::from_str_radix(&entry.key.text(), 16);
            let log = entry.value.first();
            let (Ok(head), Some(log)) = (head, log) else { continue };
            for entry in entries(pool, rq, ObjectId(log), &mut out).await {
                if let Some(ErrorName::InHead { object, .. }) = ErrorName::parse(&entry.key.text(), true) {
                    out.add(head, object);
                }
            }
        }
    }
    Ok(out)
}

/// Returns the entries of a log; none if it cannot be read, which is recorded in `errors`.
async fn entries(pool: &Pool, rq: &Request, log: ObjectId, errors: &mut Errors) -> Vec<Entry> {
    let read = async { Zap::open(rq, &pool.mos.set, log).await?.all(rq, MAX_ENTRIES).await };
    read.await.unwrap_or_else(|error| {
        errors.lost = Some(error);
        Vec::new()
    })
}

/// Returns the files with errors, one line each: `dataset:/path`.
pub async fn error_lines(pool: &Pool, rq: &Request, errors: &Errors) -> Vec<String> {
    let mut out = Vec::new();
    for (set, object) in &errors.objects {
        out.push(error_line(pool, rq, *set, *object).await);
    }
    out
}

async fn error_line(pool: &Pool, rq: &Request, set: u64, object: u64) -> String {
    if set == 0 {
        return format!("<metadata>:<{object:#x}>");
    }
    let dataset = pool.dsl.dataset(rq, ObjectId(set), String::new()).await.ok();
    let dir = dataset.and_then(|d| pool.dsl.dir(d.dir).filter(|dir| dir.phys.head_dataset.0 == set));
    let name = match dir {
        Some(dir) => dir.name.clone(),
        None => match pool.dsl.snapshot_name(rq, ObjectId(set)).await {
            Ok(Some(name)) => name,
            _ => return format!("<{set:#x}>:<{object:#x}>"),
        },
    };
    let path = match pool.file_system(rq, &name).await {
        Ok(files) => path_of(rq, &files, ObjectId(object)).await,
        Err(_) => None,
    };
    match path {
        Some(path) => format!("{name}:{path}"),
        None => format!("{name}:<{object:#x}>"),
    }
}

impl Errors {
    fn add(&mut self, set: u64, object: u64) {
        self.count += 1;
        self.objects.insert((set, object));
    }
}

/// Returns the path of an object from the root; `None` if a parent cannot be read.
pub async fn path_of(rq: &Request, files: &FileSystem, object: ObjectId) -> Option<String> {
    let mut at = object;
    let mut parts = Vec::new();
    while at != files.root() {
        let parent = files.attrs().parent(rq, at).await.ok()?;
        if parts.len() >= MAX_DEPTH || parent == at {
            return None;
        }
        parts.push(name_in(rq, files, parent, at).await?);
        at = parent;
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}

async fn name_in(rq: &Request, files: &FileSystem, dir: ObjectId, object: ObjectId) -> Option<String> {
    let mut cookie = 0;
    loop {
        let entries = files.directories().read_dir(rq, dir, cookie, MAX_CONCURRENT_READS).await.ok()?;
        let found = entries.iter().find(|e| e.object == object);
        if let Some(found) = found {
            return Some(String::from_utf8_lossy(&found.name).into_owned());
        }
        cookie = entries.last()?.cookie;
    }
}
