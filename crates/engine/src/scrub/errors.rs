//! Scrub of the blocks in the error log (`zpool scrub -e`).
//!
//! ```text
//!   start ─► the MOS records that it runs (`error_scrub`) ─► the entries of the error log, up to 256 in each txg:
//!              block is in no dataset any more ─► the entry is removed
//!              all copies and columns are right, or were repaired ─► the entry is removed
//!              else, or its dataset cannot be read ─► the entry stays
//! ```
//!
//! OpenZFS writes a new log, of the blocks that it could not read; here each entry that is settled leaves the log with the txg that
//! counts it. A scrub that goes on after a restart begins with the entries that are left. Errors that readers find meanwhile enter the
//! log as always.
//!
//! Source: OpenZFS `module/zfs/dsl_scan.c` (`dsl_errorscrub_sync`, `scrub_filesystem`).

use super::{CANCELED, DIRECTORY, FINISHED};
use crate::error_log::ErrorLogTask;
use crate::events::PoolEvent;
use crate::{ErrorScrubs, TxgSync};
use weir_blocks::{BlockError, ReadOptions};
use weir_dmu::zap;
use weir_dsl::sync_tasks::history;
use weir_format::BlockPointer;
use weir_format::dsl::{ErrorScrubPhys, pool as names};
use weir_machine::{Priority, Request};
use weir_pool::errlog::{AffectedSets, Logged, LoggedError};
use weir_pool::error::PoolError;
use weir_pool::features::Features;
use weir_pool::mos::Mos;

/// `POOL_SCAN_ERRORSCRUB`.
const ERROR_SCRUB: u64 = 3;
/// `DSS_ERRORSCRUBBING`.
const RUNNING: u64 = 4;
/// Entries of the log that are settled in one txg at most.
const ENTRIES_PER_TXG: usize = 256;

/// Result of reading the blocks of an entry of the log.
enum Settled {
    /// The block is right now, or no dataset has it any more.
    Right,
    /// The block cannot be read, or its place is not known.
    Lost,
}

/// Entries of the log whose blocks were read.
#[derive(Default)]
struct Part {
    right: Vec<LoggedError>,
    lost: u64,
}

/// Whether an error scrub is running or paused.
pub fn is_open(scrub: &ErrorScrubPhys) -> bool {
    (scrub.func, scrub.state) == (ERROR_SCRUB, RUNNING)
}

/// Whether an error scrub went over all entries of the log.
pub fn is_finished(scrub: &ErrorScrubPhys) -> bool {
    (scrub.func, scrub.state) == (ERROR_SCRUB, FINISHED)
}

/// The last error scrub that a MOS records; `None` if a scrub was started since then, which erases the record.
pub async fn error_scrub_in(rq: &Request, mos: &Mos) -> Result<Option<ErrorScrubPhys>, PoolError> {
    let words = mos.named_words(rq, names::ERRORSCRUB).await?.unwrap_or_default();
    Ok(ErrorScrubPhys::from_words(&words).filter(|scrub| scrub.func == ERROR_SCRUB))
}

impl ErrorScrubs<'_> {
    /// The last error scrub, if there was one since the last scrub.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn progress(&self, rq: &Request) -> Result<Option<ErrorScrubPhys>, PoolError> {
        let synced = self.engine.synced().state(rq).await?;
        error_scrub_in(rq, &Mos { set: synced.mos.clone() }).await
    }

    /// Starts an error scrub, or resumes a paused one. Without entries in the error log there is nothing to do.
    ///
    /// # Errors
    /// [`PoolError::Refused`] while a scrub, a resilver or an error scrub is running.
    pub async fn start(&self) -> Result<(), PoolError> {
        let rq = &Request::internal("error scrub");
        let _lost = self.engine.vdevs().probe(|_| true).await?;
        // What readers have found is in the log then.
        self.engine.sync().await?;
        let entries = self.logged(rq).await?.entries.len() as u64;
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move { ErrorScrubTask(syncing).start(entries).await })
            })
            .await
    }

    async fn logged(&self, rq: &Request) -> Result<Logged, PoolError> {
        let mos = Mos { set: self.engine.synced().state(rq).await?.mos.clone() };
        let by_head = Features::read(rq, &mos).await?.count(crate::error_log::HEAD_ERRLOG).is_some();
        Logged::read(rq, &mos, by_head).await
    }

    /// Carries out the error scrub that the MOS records as running, until it ends, or an administrator pauses or stops it. Does nothing
    /// if the MOS records none.
    ///
    /// # Errors
    /// Errors of reading or writing the MOS.
    pub async fn run(&self) -> Result<(), PoolError> {
        let rq = &Request::internal("error scrub").with_priority(Priority::Scrub);
        let runs = |scrub: Option<ErrorScrubPhys>| scrub.is_some_and(|scrub| is_open(&scrub) && scrub.paused == 0);
        if !runs(self.progress(rq).await?) {
            return Ok(());
        }
        let entries = self.logged(rq).await?.entries;
        for some in entries.chunks(ENTRIES_PER_TXG) {
            if self.engine.scan.is_closed() {
                return Err(self.engine.closed());
            }
            if !runs(self.progress(rq).await?) {
                return Ok(());
            }
            let part = self.read_logged(rq, some).await?;
            self.engine
                .sync_task(move |syncing: &mut TxgSync<'_>| {
                    Box::pin(async move { ErrorScrubTask(syncing).record(part).await })
                })
                .await?;
        }
        self.engine
            .sync_task(|syncing: &mut TxgSync<'_>| Box::pin(async move { ErrorScrubTask(syncing).end(FINISHED).await }))
            .await
    }

    /// Reads all copies and columns of the blocks of these entries, which repairs what can be repaired.
    async fn read_logged(&self, rq: &Request, entries: &[LoggedError]) -> Result<Part, PoolError> {
        // It delays the reuse of freed space: no pointer in it leads to another block.
        let synced = self.engine.synced().state(rq).await?;
        let dsl = synced.dsl(rq).await?;
        let loaded = dsl.dirs().into_iter().filter_map(|dir| Some((dir.id, self.engine.keys.of(Some(dir))?))).collect();
        let mut sets = AffectedSets::new(&dsl, &loaded, true);
        let mut part = Part::default();
        for entry in entries {
            match self.settle(rq, entry, &mut sets).await {
                Settled::Right => part.right.push(entry.clone()),
                Settled::Lost => part.lost += 1,
            }
        }
        debug_assert_eq!(part.right.len() as u64 + part.lost, entries.len() as u64);
        Ok(part)
    }

    async fn settle(&self, rq: &Request, entry: &LoggedError, sets: &mut AffectedSets<'_>) -> Settled {
        let mut read: Vec<BlockPointer> = Vec::new();
        for place in entry.places(rq, sets).await {
            let Some(pointer) = place.pointer else { return Settled::Lost };
            if read.contains(&pointer) || pointer.is_hole() || pointer.is_embedded() {
                continue;
            }
            let origin = entry.bookmark(place.objset);
            let options =
                ReadOptions { raw: true, objset: origin.objset, origin: Some(origin), ..ReadOptions::default() };
            let done: Result<_, BlockError> = self.engine.cache.blocks().read(rq, &pointer, &options).await;
            if done.is_err() {
                return Settled::Lost;
            }
            read.push(pointer);
        }
        Settled::Right
    }
}

/// Changes of the record of an error scrub, in syncing context.
pub(super) struct ErrorScrubTask<'a, 'b>(pub &'a mut TxgSync<'b>);

impl ErrorScrubTask<'_, '_> {
    /// The error scrub that is running or paused.
    pub(super) async fn open(&self) -> Result<Option<ErrorScrubPhys>, PoolError> {
        let recorded = error_scrub_in(self.0.change.rq, &Mos { set: self.0.engine.mos.clone() }).await?;
        Ok(recorded.filter(is_open))
    }

    async fn put(&self, scrub: &ErrorScrubPhys) -> Result<(), PoolError> {
        let change = &self.0.change;
        Ok(zap::put_words(change.rq, &change.mos, change.tx, DIRECTORY, names::ERRORSCRUB, &scrub.to_words()).await?)
    }

    async fn start(&mut self, entries: u64) -> Result<(), PoolError> {
        let refused = |what: &str| PoolError::Refused { what: what.to_owned() };
        if let Ok(open) = self.0.open_scrub().await {
            let what = if open.is_resilver() {
                "currently resilvering"
            } else {
                "currently scrubbing; use 'zpool scrub -s' to cancel scrub"
            };
            return Err(refused(what));
        }
        self.0.engine.rebuilds().check_none_running()?;
        match self.open().await? {
            Some(mut open) if open.paused != 0 => {
                open.paused = 0;
                self.0.engine.events.post(PoolEvent::ErrorScrubResume, |_| {});
                return self.put(&open).await;
            }
            Some(_) => return Err(refused("an error scrub is in progress; use 'zpool scrub -s' to cancel it")),
            // As in OpenZFS, this is no failure.
            None if entries == 0 => return Ok(()),
            None => {}
        }
        let scrub = ErrorScrubPhys {
            func: ERROR_SCRUB,
            state: RUNNING,
            start_time_s: self.0.now_s(),
            to_examine: entries,
            ..ErrorScrubPhys::default()
        };
        self.put(&scrub).await?;
        self.0.engine.events.post(PoolEvent::ErrorScrubStart, |_| {});
        let text = format!("func={ERROR_SCRUB} mintxg=0 maxtxg={}", self.0.change.txg());
        self.log("error scrub setup", &text).await;
        Ok(())
    }

    /// Removes the entries of a part whose blocks are right from the error log, and adds the part to the counts in the record. Does
    /// nothing if an administrator stopped the error scrub meanwhile.
    async fn record(&mut self, part: Part) -> Result<(), PoolError> {
        let Some(mut scrub) = self.open().await? else { return Ok(()) };
        let examined = part.right.len() as u64 + part.lost;
        ErrorLogTask(self.0).remove(&part.right).await?;
        scrub.examined = scrub.examined.saturating_add(examined);
        scrub.to_examine = scrub.to_examine.saturating_sub(examined);
        scrub.errors = scrub.errors.saturating_add(part.lost);
        debug_assert!(scrub.errors <= scrub.examined, "{scrub:?}");
        self.put(&scrub).await
    }

    /// Pauses the error scrub.
    pub(super) async fn pause(&mut self, mut scrub: ErrorScrubPhys) -> Result<(), PoolError> {
        if scrub.paused != 0 {
            let what = "error scrub is paused; use 'zpool scrub -e' to resume error scrub".to_owned();
            return Err(PoolError::Refused { what });
        }
        scrub.paused = 1;
        self.0.engine.events.post(PoolEvent::ErrorScrubPaused, |_| {});
        self.put(&scrub).await
    }

    /// Ends the error scrub in this state, if one is running or paused.
    pub(super) async fn end(&mut self, state: u64) -> Result<(), PoolError> {
        debug_assert!(matches!(state, FINISHED | CANCELED));
        let Some(mut scrub) = self.open().await? else { return Ok(()) };
        scrub.state = state;
        scrub.paused = 0;
        scrub.end_time_s = self.0.now_s();
        self.put(&scrub).await?;
        let (event, what) = match state {
            FINISHED => (PoolEvent::ErrorScrubFinish, "error scrub done"),
            _ => (PoolEvent::ErrorScrubAbort, "error scrub canceled"),
        };
        self.0.engine.events.post(event, |_| {});
        self.log(what, &format!("errors={}", scrub.errors)).await;
        Ok(())
    }

    /// A scrub that starts erases the record of the last error scrub, as in OpenZFS; a resilver ends one that is running.
    pub(super) async fn forget(&mut self, for_scrub: bool) -> Result<(), PoolError> {
        if !for_scrub {
            return self.end(CANCELED).await;
        }
        let recorded = error_scrub_in(self.0.change.rq, &Mos { set: self.0.engine.mos.clone() }).await?;
        match recorded {
            Some(_) => self.put(&ErrorScrubPhys::default()).await,
            None => Ok(()),
        }
    }

    async fn log(&mut self, what: &str, text: &str) {
        if let Err(error) = history::log_pool(&mut self.0.change, what, text).await {
            tracing::warn!("the pool's history lacks '{what} {text}': {error}");
        }
    }
}
