//! Replay of a claimed log (OpenZFS `zil_replay`): the file system or volume repeats the change of each record, in
//! order.
//!
//! A repeated change is logged like any change. Because the log knows that a record is being replayed, it marks the
//! record as replayed in the change's txg instead of logging it. So the header and the change sync together, and after
//! a crash in the middle the replay continues with the next record. After the last record the log is destroyed.
//!
//! *A record that cannot be replayed* ends the replay, because later records may depend on its change
//! (`zil_replay_error`). It and all later records are *given up*: [`Replayed::given_up`] names the first and counts
//! all, the caller reports them, and [`Zil::give_up`] destroys the log. Thus one unreadable block costs the changes
//! behind it, not the dataset.
//!
//! The log is *kept* instead, with [`ObjectError::LogKept`], while the cause can be removed without a loss: a device is
//! missing, the pool is full, or OpenZFS can replay the record and Weir cannot. [`GiveUp::Always`] overrides that. No
//! log is given up because the pool is suspended or the key is not loaded.

use super::claim::{self, needs_replay};
use super::log::Zil;
use super::lost::{FailedRecord, GiveUp, GivenUp, Verdict, object_of};
use super::walk::{LogBlock, LogWalk, RECORD_SEQ_VALID};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use weir_blocks::ReadOptions;
use weir_dmu::error::{ErrorLocation, ObjectError};
use weir_dmu::object_set::ObjectSet;
use weir_format::BlockPointer;
use weir_format::zil::{LogBody, LogRecord, ZilHeader};
use weir_machine::Request;

/// Repeats the change of a log record: a file system or a volume.
pub trait Replayer: Send + Sync {
    /// Repeats the change in its own transactions and logs it as any change: the record counts as replayed in the txg
    /// in which it is logged. A change that is already present is not an error. `data` is the data block that a write
    /// record points to, if the record does not carry its data.
    ///
    /// # Errors
    /// Errors of repeating the change. The caller retries once after all removals have synced.
    fn replay<'a>(
        &'a self,
        rq: &'a Request,
        record: &'a LogRecord<'a>,
        body: &'a LogBody<'a>,
        data: Option<Bytes>,
    ) -> BoxFuture<'a, Result<(), ObjectError>>;
}

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Number of records replayed.
    pub done: u64,
    /// Number of records skipped, because they had been replayed before or their object is gone.
    pub passed: u64,
    /// Records that cannot be replayed, if any. The log still exists then: [`Zil::give_up`] destroys it.
    pub given_up: Option<GivenUp>,
}

/// Replay in progress.
struct Replay<'a> {
    zil: &'a Zil,
    rq: &'a Request,
    set: &'a Arc<ObjectSet>,
    replayer: &'a dyn Replayer,
    header: ZilHeader,
    last_seq: u64,
    out: Replayed,
    error: Option<ObjectError>,
}

impl Zil {
    /// Replays the claimed log of `set`, to which this log belongs, and destroys it; adopts a log without records.
    /// Returns after that has synced. No other caller may change the set in the meantime.
    ///
    /// # Errors
    /// [`ObjectError::NoKey`] if the records are encrypted and the key is not loaded; [`ObjectError::LogKept`] if a
    /// record cannot be replayed and `give_up` keeps the log for it; [`ObjectError::Suspended`]. In all cases the log
    /// stays.
    pub async fn replay(
        self: &Arc<Self>,
        rq: &Request,
        set: &Arc<ObjectSet>,
        replayer: &dyn Replayer,
        give_up: GiveUp,
    ) -> Result<Replayed, ObjectError> {
        let header = self.header();
        let mut out = Replayed::default();
        if needs_replay(&header) {
            if set.is_locked() {
                return Err(ObjectError::NoKey { objset: self.set() });
            }
            // Earlier removals must have synced, because the records reuse the object numbers that they free.
            self.txgs.wait_synced(self.txgs.open()).await?;
            let header = header.clone();
            let mut replay = Replay { zil: self, rq, set, replayer, header, last_seq: 0, out, error: None };
            replay.run().await;
            let replayed = replay.out;
            let error = replay.error;
            if let (Some(lost), Some(error)) = (&replayed.given_up, error) {
                // A suspended pool is not the record's fault: this wait fails then.
                self.txgs.wait_synced(self.txgs.open()).await?;
                return match Verdict::on(&error, set, give_up) {
                    Verdict::GiveUp => Ok(replayed),
                    Verdict::Keep { remedy } => {
                        let why = format!("{lost}; {remedy}");
                        Err(ObjectError::LogKept { objset: self.set(), why })
                    }
                    Verdict::NotNow => Err(error),
                };
            }
            out = replayed;
        }
        if !header.log.is_hole() || header.flags != 0 {
            self.finish(rq, set).await?;
        }
        Ok(out)
    }

    /// Destroys a log whose records cannot all be replayed ([`Replayed::given_up`]). Returns after that has synced.
    ///
    /// # Errors
    /// [`ObjectError::Suspended`].
    pub async fn give_up(&self, rq: &Request, set: &Arc<ObjectSet>) -> Result<(), ObjectError> {
        debug_assert!(!set.is_locked());
        self.finish(rq, set).await
    }

    async fn finish(&self, rq: &Request, set: &Arc<ObjectSet>) -> Result<(), ObjectError> {
        let header = self.header();
        let empty = !needs_replay(&header);
        let raw = ReadOptions { raw: set.is_locked(), ..set.options().clone() };
        let (frees, ended_by) = claim::blocks(rq, set.cache().blocks(), &raw, &header).await;
        if let Some(error) = ended_by {
            tracing::warn!(objset = %self.set(), %error, "blocks of a destroyed intent log stay allocated");
        }
        let txg = {
            let tx = self.txgs.hold()?;
            if empty {
                self.adopt(&tx)
            } else {
                self.destroy(&tx, frees)
            }
            tx.txg()
        };
        self.txgs.wait_synced(txg).await
    }
}

impl Replay<'_> {
    /// Replays up to the first record that fails, and counts those behind it.
    async fn run(&mut self) {
        let blocks = self.set.cache().blocks().clone();
        let mut walk = LogWalk::over(blocks, self.set.options().clone(), &self.header);
        loop {
            let ahead = walk.ahead();
            match walk.next(self.rq).await {
                Ok(Some(block)) => self.block(walk.place(&block.pointer), &block).await,
                Ok(None) => break self.check_end(ahead.map(|pointer| walk.place(&pointer))),
                Err(error) => break self.fail(None, error),
            }
        }
    }

    /// Reports a damaged block if the walk ended before the last record that the claim recorded.
    fn check_end(&mut self, place: Option<ErrorLocation>) {
        let claimed = self.header.claim_record_seq;
        if self.header.flags & RECORD_SEQ_VALID != 0 && self.last_seq < claimed {
            let place = place.unwrap_or(ErrorLocation { objset: self.zil.set(), ..ErrorLocation::default() });
            let why = format!(
                "a block of the intent log is damaged: its records {} to {claimed} are lost",
                self.last_seq + 1
            );
            self.fail(None, ObjectError::Replay { place, unreadable: true, why });
        }
    }

    fn fail(&mut self, record: Option<FailedRecord>, error: ObjectError) {
        if self.error.is_none() {
            self.out.given_up = Some(GivenUp::new(record, &error));
            self.error = Some(error);
        }
        debug_assert_eq!(self.error.is_some(), self.out.given_up.is_some());
    }

    async fn block(&mut self, place: ErrorLocation, block: &LogBlock) {
        let records = match block.records() {
            Ok(records) => records,
            Err(error) => return self.fail(None, ObjectError::decode(place, error)),
        };
        for record in records {
            self.last_seq = record.seq;
            if record.seq <= self.header.replay_seq || record.txg < self.header.claim_txg {
                self.out.passed += 1;
                continue;
            }
            match record.body() {
                Ok(body) => self.record(&record, &body).await,
                Err(error) => self.fail(Some(FailedRecord::of(&record, None)), ObjectError::decode(place, error)),
            }
        }
    }

    async fn record(&mut self, record: &LogRecord<'_>, body: &LogBody<'_>) {
        if self.error.is_none() {
            match self.replay_one(record, body).await {
                Ok(true) => self.out.done += 1,
                Ok(false) => self.out.passed += 1,
                Err(error) => self.fail(Some(FailedRecord::of(record, Some(body))), error),
            }
        }
        if let Some(lost) = &mut self.out.given_up {
            lost.add(body);
        }
    }

    /// Replays one record. Returns false if its object is gone.
    async fn replay_one(&self, record: &LogRecord<'_>, body: &LogBody<'_>) -> Result<bool, ObjectError> {
        let rq = self.rq;
        let zil = self.zil;
        if is_gone(rq, self.set, body).await? {
            return Ok(false);
        }
        let data = data_of(rq, self.set, body).await?;
        zil.replaying(Some(record.seq));
        let mut done = self.replayer.replay(rq, record, body, data.clone()).await;
        if done.is_err() {
            done = match zil.txgs.wait_synced(zil.txgs.open()).await {
                Ok(()) => self.replayer.replay(rq, record, body, data).await,
                Err(suspended) => Err(suspended),
            };
        }
        zil.replaying(None);
        done.map(|()| true)
    }
}

/// Whether the record changes only one object, and that object no longer exists.
async fn is_gone(rq: &Request, set: &Arc<ObjectSet>, body: &LogBody<'_>) -> Result<bool, ObjectError> {
    let Some(object) = object_of(body) else { return Ok(false) };
    match set.object(rq, object).await {
        Ok(_) => Ok(false),
        Err(error) if error.is_absent() => Ok(true),
        Err(error) => Err(error),
    }
}

/// Reads the data block that a write record points to, if the record does not carry its data.
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
    // The crash may have come before all devices had the block, which the claim could not repair: its space was not allocated.
    let options = ReadOptions { speculative: true, ..set.options().clone() };
    let read = set.cache().blocks().read(rq, pointer, &options).await;
    read.map(Some).map_err(|e| ObjectError::block(place, e))
}
