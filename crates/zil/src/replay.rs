//! Replaying a claimed log (OpenZFS `zil_replay`): each record is done again, in order, by whoever knows what it means.
//!
//! A change made again is logged as any change is; the log, which knows that a record is being replayed, marks it as done
//! in the change's group instead. So the header says, together with the change itself, how far replay went, and a crash
//! in the middle goes on behind it. When all is done the log goes away.
//!
//! What fails: a record that cannot be replayed. The log stays as it is, and so does what is behind the record.

use super::claim::{self, needs_replay};
use super::log::Zil;
use super::walk::LogWalk;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use weir_blocks::ReadOptions;
use weir_dmu::error::ObjectError;
use weir_dmu::object_set::ObjectSet;
use weir_format::zil::{LogBody, LogRecord};
use weir_format::{BlockPointer, ObjectId};
use weir_machine::Request;

/// Who does again what a record says.
pub trait Replayer: Send + Sync {
    /// Does it, within transactions of its own, and logs it as any change: the record counts as replayed in the group in
    /// which it is logged. Doing a thing that is done already is no error. `data` is what a record of a write leads
    /// to, if it does not carry its data.
    ///
    /// # Errors
    /// If it cannot be done. It is tried once more when all removals have synced.
    fn replay<'a>(
        &'a self,
        rq: &'a Request,
        record: &'a LogRecord<'a>,
        body: &'a LogBody<'a>,
        data: Option<Bytes>,
    ) -> BoxFuture<'a, Result<(), ObjectError>>;
}

/// What a replay did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records done again.
    pub done: u64,
    /// Records that had been done before, or whose object is gone.
    pub passed: u64,
}

impl Zil {
    /// Replays the claimed log of `set`, whose log this is, and lets it go; a log without records is taken over.
    /// Returns when that has synced. Nobody else may change the set meanwhile.
    ///
    /// # Errors
    /// [`ObjectError::NoKey`] if the records are encrypted and the key is not loaded; a record that cannot be read or
    /// done: then the log stays.
    pub async fn replay(
        self: &Arc<Self>,
        rq: &Request,
        set: &Arc<ObjectSet>,
        replayer: &dyn Replayer,
    ) -> Result<Replayed, ObjectError> {
        let header = self.header();
        let mut count = Replayed::default();
        if needs_replay(&header) {
            if set.is_locked() {
                return Err(ObjectError::NoKey { objset: self.set() });
            }
            // Removals under way must have synced: their numbers are to be taken again.
            self.groups.wait_synced(self.groups.open()).await?;
            let mut walk = LogWalk::over(set.cache().blocks().clone(), set.options().clone(), &header);
            while let Some(block) = walk.next(rq).await? {
                let place = walk.place(&block.pointer);
                for record in block.records().map_err(|e| ObjectError::decode(place, e))? {
                    let old = record.seq <= header.replay_seq || record.txg < header.claim_txg;
                    let body = record.body().map_err(|e| ObjectError::decode(place, e))?;
                    if old || is_gone(rq, set, &body).await? {
                        count.passed += 1;
                        continue;
                    }
                    self.replay_record(rq, set, replayer, &record, &body).await?;
                    count.done += 1;
                }
            }
        }
        if header.log.is_hole() && header.flags == 0 {
            return Ok(count);
        }
        self.let_go(rq, set).await?;
        Ok(count)
    }

    async fn let_go(&self, rq: &Request, set: &Arc<ObjectSet>) -> Result<(), ObjectError> {
        let header = self.header();
        let empty = !needs_replay(&header);
        let raw = ReadOptions { raw: set.is_locked(), ..set.options().clone() };
        let frees = claim::blocks(rq, set.cache().blocks(), &raw, &header).await?;
        let txg = {
            let tx = self.groups.hold()?;
            if empty {
                self.adopt(&tx)
            } else {
                self.destroy(&tx, frees)
            }
            tx.txg()
        };
        self.groups.wait_synced(txg).await
    }

    async fn replay_record(
        &self,
        rq: &Request,
        set: &Arc<ObjectSet>,
        replayer: &dyn Replayer,
        record: &LogRecord<'_>,
        body: &LogBody<'_>,
    ) -> Result<(), ObjectError> {
        let data = data_of(rq, set, body).await?;
        self.replaying(Some(record.seq));
        let mut done = replayer.replay(rq, record, body, data.clone()).await;
        if done.is_err() {
            self.groups.wait_synced(self.groups.open()).await?;
            done = replayer.replay(rq, record, body, data).await;
        }
        self.replaying(None);
        done
    }
}

/// Whether the record changes one object alone, and that is no more.
async fn is_gone(rq: &Request, set: &Arc<ObjectSet>, body: &LogBody<'_>) -> Result<bool, ObjectError> {
    let Some(object) = object_of(body) else { return Ok(false) };
    match set.object(rq, object).await {
        Ok(_) => Ok(false),
        Err(error) if error.is_absent() => Ok(true),
        Err(error) => Err(error),
    }
}

/// The object that a record changes alone.
pub fn object_of(body: &LogBody<'_>) -> Option<ObjectId> {
    match body {
        LogBody::Write(write) | LogBody::Write2(write) => Some(write.object),
        LogBody::Truncate { object, .. }
        | LogBody::SetAttr { object, .. }
        | LogBody::AclV0 { object, .. }
        | LogBody::Acl { object, .. }
        | LogBody::SetSaXattr { object, .. }
        | LogBody::CloneRange { object, .. } => Some(*object),
        _ => None,
    }
}

/// What a record of a write leads to, if it does not carry its data.
async fn data_of(rq: &Request, set: &Arc<ObjectSet>, body: &LogBody<'_>) -> Result<Option<Bytes>, ObjectError> {
    let LogBody::Write(write) = body else { return Ok(None) };
    if write.data.is_some() {
        return Ok(None);
    }
    let pointer: &BlockPointer = &write.pointer;
    if pointer.is_hole() {
        return Ok(Some(Bytes::from(vec![0; write.length.max(pointer.lsize_bytes()) as usize])));
    }
    let place = set.place(write.object, 0, write.offset / pointer.lsize_bytes().max(1));
    let read = set.cache().blocks().read(rq, pointer, set.options()).await;
    read.map(Some).map_err(|e| ObjectError::block(place, e))
}
