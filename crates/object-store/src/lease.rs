//! One writer at a time: a process takes the disk by writing itself into the record ([`crate::record`]), and renews that.
//!
//! ```text
//!   holder: none ──────────────────────────────► taken: epoch + 1, If-Match
//!   another holder ── the record changes ──────► busy: that process renews it
//!                  └─ unchanged for the lease and a margin ─► taken over
//! ```
//!
//! Time is measured by each process's own clock, so clocks need not agree: a holder changes the store only until `LEASE` after
//! the last renewal that succeeded was *sent*; another process takes over when it has *seen* the record unchanged for longer.
//! Requests of the former holder that arrive later still are harmless by their conditions ([`crate::core`]).

use crate::record::{self, Holder, KEY, Record};
use crate::requests::Requests;
use crate::store::{Condition, Etag, StoreError};
use std::sync::Arc;
use std::time::Duration;
use weir_machine::lock::Mutex;
use weir_machine::{Nanos, invariant};

/// Times of a lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTimes {
    /// How long it lasts after a renewal.
    pub lease: Duration,
    /// How much longer another process waits, and how much sooner the holder stops.
    pub margin: Duration,
    /// Limit of the operations on the record.
    pub limit: Duration,
}

impl Default for LeaseTimes {
    /// 30 s, 3 s and 20 s.
    fn default() -> Self {
        LeaseTimes { lease: Duration::from_secs(30), margin: Duration::from_secs(3), limit: Duration::from_secs(20) }
    }
}

/// Interval between two looks at the record of another holder.
const LOOK: Duration = Duration::from_secs(2);

struct LeaseState {
    record: Record,
    etag: Etag,
    valid_until: Nanos,
    /// Why it is no longer held.
    lost: Option<String>,
}

/// A disk that this process has taken for writing.
pub struct Lease {
    requests: Arc<Requests>,
    times: LeaseTimes,
    nonce: u64,
    held: Mutex<LeaseState>,
    renewing: tokio::sync::Mutex<()>,
}

/// Reads the record; `None` if there is none.
///
/// # Errors
/// The place and the reason.
pub async fn read(requests: &Requests, limit: Duration) -> Result<Option<(Record, Etag)>, String> {
    let mut attempts = requests.attempts(limit);
    let at = |why: String| format!("{}: {why}", requests.place(KEY));
    loop {
        match requests.get(KEY, Some(0..record::MAX_BYTES as u64 + 1)).await {
            Ok(None) => return Ok(None),
            Ok(Some(got)) => return Ok(Some((Record::decode(&got.bytes).map_err(at)?, got.etag))),
            Err(error) => attempts.again(error).await.map_err(at)?,
        }
    }
}

/// How often a process tries to write itself into the record.
const TRIES: u32 = 8;

impl Lease {
    fn new(requests: Arc<Requests>, times: LeaseTimes, nonce: u64, held: (Record, Etag), valid_until: Nanos) -> Self {
        let held = Mutex::new(LeaseState { record: held.0, etag: held.1, valid_until, lost: None });
        Lease { requests, times, nonce, held, renewing: tokio::sync::Mutex::default() }
    }

    /// Takes the disk for writing. Also returns whether the last holder has not given it back. `before`: the record's tag as this
    /// process read it earlier, and the time after that read; if the record is still the same, it counts as unchanged since then.
    ///
    /// # Errors
    /// One line: no disk is there, another process has it, or the store fails.
    pub async fn take(
        requests: Arc<Requests>,
        me: Holder,
        times: LeaseTimes,
        before: Option<(Etag, Nanos)>,
    ) -> Result<(Self, bool), String> {
        let clock = requests.clock.clone();
        let mut was_held = false;
        let mut tries = 0;
        // The record as it was first seen.
        let mut seen: Option<(Etag, Nanos)> = None;
        let mut waits = false;
        loop {
            let begun = clock.now();
            let Some((record, etag)) = read(&requests, times.limit).await? else {
                return Err(format!("{}: there is no disk; a new one needs ?size=", requests.place("")));
            };
            if record.holder.as_ref().is_some_and(|holder| holder.nonce == me.nonce) {
                // A request that was not answered has succeeded, at a time that is not known: it is renewed.
                let lease = Lease::new(requests, times, me.nonce, (record, etag), begun);
                lease.renew().await?;
                return Ok((lease, was_held));
            }
            if let Some(holder) = &record.holder {
                match &seen {
                    // The holder may have renewed its lease until this read ended.
                    None => {
                        let same = before.clone().filter(|(tag, _)| *tag == etag);
                        seen = Some(same.unwrap_or_else(|| (etag.clone(), clock.now())));
                    }
                    Some((first, _)) if *first != etag => {
                        return Err(format!("{}: in use by {}", requests.place(""), holder.described()));
                    }
                    Some(_) => {}
                }
                let since = seen.as_ref().map_or(begun, |(_, since)| *since);
                if begun.since(since) <= times.lease + times.margin {
                    if !std::mem::replace(&mut waits, true) {
                        let (place, holder) = (requests.place(""), holder.described());
                        tracing::warn!(place, holder, lease = ?times.lease, "waits for the lease of the last holder to expire");
                    }
                    clock.sleep(LOOK).await;
                    continue;
                }
                was_held = true;
            }
            let epoch = record.epoch.saturating_add(1);
            let mine = Record { epoch, holder: Some(me.clone()), ..record };
            let sent = clock.now();
            let error = match requests.put(KEY, mine.encode().into(), Condition::Is(etag)).await {
                Ok(etag) => {
                    let valid_until = sent + times.lease;
                    return Ok((Lease::new(requests, times, me.nonce, (mine, etag), valid_until), was_held));
                }
                Err(error) => error,
            };
            tries += 1;
            if matches!(error, StoreError::Refused(_)) || tries > TRIES {
                return Err(format!("{}: {error}", requests.place(KEY)));
            }
            // The next look decides, also for a request that was not answered.
            clock.sleep(LOOK).await;
        }
    }

    /// The record.
    pub fn record(&self) -> Record {
        self.held.lock().record.clone()
    }

    /// Why the lease is lost.
    pub fn lost(&self) -> Option<String> {
        self.held.lock().lost.clone()
    }

    fn lose(&self, record: Option<&Record>) -> String {
        let holder = record.and_then(|record| record.holder.as_ref()).map(Holder::described);
        let by = holder.map_or("its record was changed".to_owned(), |holder| format!("{holder} has taken it"));
        let why = format!("{}: this process has lost the disk: {by}", self.requests.place(""));
        self.held.lock().lost.get_or_insert(why).clone()
    }

    /// Renews the lease.
    ///
    /// # Errors
    /// The reason; the lease may be held nevertheless ([`Lease::lost`]).
    pub async fn renew(&self) -> Result<(), String> {
        let _one = self.renewing.lock().await;
        let mut attempts = self.requests.attempts(self.times.limit);
        loop {
            let sent = self.requests.clock.now();
            let (next, etag) = {
                let held = self.held.lock();
                if let Some(lost) = &held.lost {
                    return Err(lost.clone());
                }
                let mut next = held.record.clone();
                next.holder.iter_mut().for_each(|holder| holder.renewal = holder.renewal.wrapping_add(1));
                (next, held.etag.clone())
            };
            match self.requests.put(KEY, next.encode().into(), Condition::Is(etag)).await {
                Ok(etag) => {
                    let mut held = self.held.lock();
                    invariant!(held.record.epoch == next.epoch, "a lease was renewed with another epoch");
                    (held.record, held.etag, held.valid_until) = (next, etag, sent + self.times.lease);
                    return Ok(());
                }
                Err(error) => {
                    if error != StoreError::Precondition {
                        attempts.again(error).await.map_err(|why| format!("{}: {why}", self.requests.place(KEY)))?;
                    }
                    // A renewal that was not answered may have succeeded: the next one needs its tag.
                    self.confirm().await?;
                }
            }
        }
    }

    /// Reads the record: whether this process still holds the disk.
    ///
    /// # Errors
    /// The reason; [`Lease::lost`] if it does not.
    pub async fn confirm(&self) -> Result<(), String> {
        let epoch = self.held.lock().record.epoch;
        let mut attempts = self.requests.attempts(self.times.limit);
        let now = loop {
            match read(&self.requests, self.times.limit).await? {
                // A version from before this process took the disk.
                Some((old, _)) if old.epoch < epoch => attempts.again(StoreError::Unknown("stale read".into())).await?,
                now => break now,
            }
        };
        match now {
            Some((record, etag)) if record.holder.as_ref().is_some_and(|holder| holder.nonce == self.nonce) => {
                let mut held = self.held.lock();
                // A renewal that succeeded meanwhile is newer.
                let renewal = |record: &Record| record.holder.as_ref().map_or(0, |holder| holder.renewal);
                if renewal(&record) >= renewal(&held.record) {
                    (held.record, held.etag) = (record, etag);
                }
                Ok(())
            }
            other => Err(self.lose(other.as_ref().map(|(record, _)| record))),
        }
    }

    /// Returns when this process may change the store: the lease is valid for some time yet.
    ///
    /// # Errors
    /// It is lost, or could not be renewed until `deadline`.
    pub async fn valid(&self, deadline: Nanos) -> Result<(), String> {
        loop {
            let now = self.requests.clock.now();
            {
                let held = self.held.lock();
                if let Some(lost) = &held.lost {
                    return Err(lost.clone());
                }
                if now + self.times.margin < held.valid_until {
                    return Ok(());
                }
            }
            match self.renew().await {
                Ok(()) => {}
                Err(why) if self.lost().is_some() || self.requests.clock.now() >= deadline => return Err(why),
                Err(_) => self.requests.clock.sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// Gives the disk back. No change may be in progress. A failure is logged: then the next process waits for the expiry.
    pub async fn release(&self) {
        let _one = self.renewing.lock().await;
        for _ in 0..3 {
            let (record, etag) = {
                let held = self.held.lock();
                if held.lost.is_some() {
                    return;
                }
                (Record { holder: None, ..held.record.clone() }, held.etag.clone())
            };
            match self.requests.put(KEY, record.encode().into(), Condition::Is(etag)).await {
                Ok(_) => {
                    self.held.lock().lost = Some("the disk is closed".into());
                    return;
                }
                // If it was released after all, there is nothing more to do.
                Err(_) if self.confirm().await.is_err() => return,
                Err(error) => tracing::debug!(%error, "a disk is not released yet"),
            }
        }
        tracing::warn!(place = self.requests.place(""), "the disk could not be given back: its lease expires");
    }
}
