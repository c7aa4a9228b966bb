//! The pool's error log: blocks that are lost, because no copy and no reconstruction has the right bytes.
//!
//! ```text
//!   any read finds a lost block ─► list in memory ─► the next txg ─► errlog_last, or errlog_scrub while a scrub runs
//!   scrub finds a lost block ──────────────────────► its pass ─────► errlog_scrub
//!   scrub ends ─► errlog_scrub becomes errlog_last, which is removed
//! ```
//!
//! The list holds each block once, and at most [`MAX_UNLOGGED`] of them: a scrub finds the others. A block stays in it until the
//! txg that logs it is on stable storage, so that `zpool status` shows it at any time. A log that cannot be written fails no
//! txg: the reader got its error, and the next read or scrub finds the block again.
//!
//! Source: OpenZFS `module/zfs/spa_errlog.c` (`spa_log_error`, `spa_errlog_sync`, `spa_errlog_rotate`).

use super::TxgSync;
use std::collections::BTreeMap;
use weir_blocks::fault_observer::Bookmark;
use weir_dmu::ObjectError;
use weir_dmu::zap::{self, Key, NewZap, Zap};
use weir_format::dsl::pool as names;
use weir_format::{ObjectId, ObjectType, ObjsetId, Txg};
use weir_machine::lock::{Mutex, order};
use weir_pool::errlog::LoggedError;
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;
use weir_pool::walk::VisitPosition;

/// The feature that stores errors by head dataset.
pub(crate) const HEAD_ERRLOG: &str = "com.delphix:head_errlog";
const DIRECTORY: ObjectId = ObjectId(names::DIRECTORY_OBJECT);
/// Maximum lost blocks that wait for a txg to log them.
const MAX_UNLOGGED: usize = 10_000;

/// Lost blocks that readers found and that are not in the error log yet, with their physical births.
#[derive(Default)]
pub(crate) struct LostBlocks(Mutex<BTreeMap<Bookmark, Txg>, { order::LOST_BLOCKS }>);

impl LostBlocks {
    /// Adds a block.
    pub fn add(&self, at: Bookmark, birth: Txg) {
        let mut blocks = self.0.lock();
        if blocks.len() < MAX_UNLOGGED || blocks.contains_key(&at) {
            blocks.insert(at, birth);
        }
        debug_assert!(blocks.len() <= MAX_UNLOGGED);
    }

    /// The blocks that are not in the log yet.
    pub fn unlogged(&self) -> Vec<(Bookmark, Txg)> {
        self.0.lock().iter().map(|(at, birth)| (*at, *birth)).collect()
    }

    /// Removes blocks that are in the log now.
    fn forget(&self, logged: &[(Bookmark, Txg)]) {
        let mut blocks = self.0.lock();
        logged.iter().for_each(|(at, birth)| {
            // A block of another birth is another block, which was found meanwhile.
            if blocks.get(at) == Some(birth) {
                blocks.remove(at);
            }
        });
        debug_assert!(logged.iter().all(|(at, birth)| blocks.get(at) != Some(birth)));
    }
}

/// Lost blocks that a txg logs.
#[must_use = "they stay in the list until they are committed"]
#[derive(Default)]
pub(crate) struct Logged(Vec<(Bookmark, Txg)>);

impl Logged {
    /// The txg is on stable storage.
    pub fn committed(self, blocks: &LostBlocks) {
        blocks.forget(&self.0);
    }
}

/// Changes of the error log, in syncing context.
pub(crate) struct ErrorLogTask<'a, 'b>(pub &'a mut TxgSync<'b>);

impl ErrorLogTask<'_, '_> {
    /// Logs the lost blocks that readers found since the last txg (`spa_errlog_sync`).
    pub async fn log_found(&mut self) -> Logged {
        let found = self.0.engine.lost_blocks.unlogged();
        if found.is_empty() {
            return Logged::default();
        }
        let position = |(at, birth): &(Bookmark, Txg)| {
            let Bookmark { objset, object, level, block } = *at;
            (VisitPosition { objset, object, level: level as i8, block }, *birth)
        };
        let errors: Vec<_> = found.iter().map(position).collect();
        let log = self.name().await;
        if let Err(error) = self.add(log, &errors).await {
            tracing::warn!(%error, blocks = errors.len(), "lost blocks are not in the error log");
        }
        Logged(found)
    }

    /// The name of the error log for errors that ordinary reads find (`spa_log_error`).
    ///
    /// While a scrub runs, this is the scrub's log, because it replaces the other log when the scrub ends.
    pub async fn name(&self) -> &'static str {
        if self.0.open_scrub().await.is_ok_and(|open| !open.is_resilver()) {
            names::ERRLOG_SCRUB
        } else {
            names::ERRLOG_LAST
        }
    }

    /// Appends errors, each with the birth txg of its block, to the error log `name` of the MOS directory.
    pub async fn add(&mut self, name: &str, errors: &[(VisitPosition, Txg)]) -> Result<(), PoolError> {
        if errors.is_empty() {
            return Ok(());
        }
        let rq = self.0.change.rq;
        let tx = self.0.change.tx;
        let mos = self.0.change.mos.clone();
        let new = || NewZap::new(ObjectType::ERROR_LOG);
        let found = zap::lookup_word(rq, &mos, DIRECTORY, name).await?.filter(|id| *id != 0);
        let log = match found {
            Some(id) => ObjectId(id),
            None => {
                let id = zap::create(rq, &mos, tx, &new()).await?;
                zap::put_word(rq, &mos, tx, DIRECTORY, name, id.0).await?;
                id
            }
        };
        let features = weir_pool::features::Features::read(rq, &Mos { set: mos.clone() }).await?;
        let by_head = features.count(HEAD_ERRLOG).is_some();
        let mut heads: BTreeMap<u64, ObjectId> = BTreeMap::new();
        for (at, birth) in errors {
            let level = i64::from(at.level) as u64;
            if !by_head {
                let name = format!("{:x}:{:x}:{level:x}:{:x}", at.objset.0, at.object, at.block);
                zap::put_bytes(rq, &mos, tx, log, &name, b"\0").await?;
                continue;
            }
            let head = self.head_of(at.objset).await;
            let inner = match heads.get(&head) {
                Some(inner) => *inner,
                None => {
                    let name = format!("{head:x}");
                    let known = zap::lookup_word(rq, &mos, log, &name).await?;
                    let inner = match known {
                        Some(id) => ObjectId(id),
                        None => zap::create(rq, &mos, tx, &new()).await?,
                    };
                    zap::put_word(rq, &mos, tx, log, &name, inner.0).await?;
                    heads.insert(head, inner);
                    inner
                }
            };
            let name = format!("{:x}:{level:x}:{:x}:{:x}", at.object, at.block, birth.0);
            zap::put_bytes(rq, &mos, tx, inner, &name, b"\0").await?;
        }
        Ok(())
    }

    /// Removes entries whose blocks are right. A log that was replaced meanwhile does not have them any more.
    pub async fn remove(&mut self, entries: &[LoggedError]) -> Result<(), PoolError> {
        let rq = self.0.change.rq;
        let tx = self.0.change.tx;
        let mos = self.0.change.mos.clone();
        for log in [names::ERRLOG_LAST, names::ERRLOG_SCRUB] {
            let Some(id) = zap::lookup_word(rq, &mos, DIRECTORY, log).await?.filter(|id| *id != 0) else { continue };
            let mut own = self.inner_logs(ObjectId(id)).await;
            own.push(ObjectId(id));
            for entry in entries.iter().filter(|entry| entry.log == log && own.contains(&entry.zap)) {
                zap::remove(rq, &mos, tx, entry.zap, &Key::from(entry.key.as_str())).await?;
            }
        }
        Ok(())
    }

    /// The head dataset of the file system or volume that an object set belongs to.
    async fn head_of(&self, objset: ObjsetId) -> u64 {
        let Ok(dataset) = self.0.change.dataset(ObjectId(objset.0)).await else { return objset.0 };
        let dir = self.0.change.dir(dataset.dir).await;
        dir.map_or(objset.0, |dir| dir.head_dataset.0)
    }

    /// The per-head logs that an error log refers to; empty if it cannot be read (`delete_errlog`).
    ///
    /// In that case the per-head logs leak, because a damaged old log must not fail the new scrub.
    async fn inner_logs(&self, log: ObjectId) -> Vec<ObjectId> {
        let rq = self.0.change.rq;
        let mos = &self.0.change.mos;
        let read = async { Zap::open(rq, mos, log).await?.all(rq, weir_pool::mos::MAX_ENTRIES).await };
        let entries = read.await.unwrap_or_else(|error: ObjectError| {
            tracing::warn!("cannot read an old error log; the logs it refers to are leaked: {error}");
            Vec::new()
        });
        let inner = entries.iter().filter(|e| !e.key.text().contains(':')).filter_map(|e| e.value.first());
        inner.map(ObjectId).collect()
    }

    /// Makes this scrub's error log the last one and removes the previous log (`spa_errlog_rotate`).
    pub async fn rotate(&mut self) -> Result<(), PoolError> {
        let rq = self.0.change.rq;
        let tx = self.0.change.tx;
        let mos = self.0.change.mos.clone();
        let named = async |name: &str| zap::lookup_word(rq, &mos, DIRECTORY, name).await;
        if let Some(old) = named(names::ERRLOG_LAST).await?.filter(|id| *id != 0).map(ObjectId) {
            for inner in self.inner_logs(old).await.into_iter().chain([old]) {
                self.0.discard(inner, "an old error log").await;
            }
        }
        let last = named(names::ERRLOG_SCRUB).await?.unwrap_or(0);
        if last == 0 {
            zap::remove(rq, &mos, tx, DIRECTORY, &Key::from(names::ERRLOG_LAST)).await?;
        } else {
            zap::put_word(rq, &mos, tx, DIRECTORY, names::ERRLOG_LAST, last).await?;
        }
        zap::remove(rq, &mos, tx, DIRECTORY, &Key::from(names::ERRLOG_SCRUB)).await?;
        Ok(())
    }
}
