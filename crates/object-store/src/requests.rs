//! Requests to a store with a time limit each, counted. A request that is not answered in time has an unknown outcome.

use crate::counters::{Counters, Kind};
use crate::store::{Answer, Condition, Etag, Fetched, Store, StoreError};
use bytes::Bytes;
use futures_util::future::{Either, select};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use weir_machine::{Clock, Nanos};

/// Pause before the first repetition; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(3);

/// A store with a clock.
pub struct Requests {
    store: Arc<dyn Store>,
    /// Clock.
    pub clock: Clock,
    timeout: Duration,
    /// Counters of the requests so far.
    pub counters: Arc<Counters>,
}

/// Repetitions of an operation until its deadline.
pub struct Attempts<'a> {
    requests: &'a Requests,
    deadline: Nanos,
    pause: Duration,
}

impl Attempts<'_> {
    /// The time at which the operation fails.
    pub fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// Waits before a repetition.
    ///
    /// # Errors
    /// `error` as a text, if it would not succeed when repeated, or the deadline would pass.
    pub async fn again(&mut self, error: StoreError) -> Result<(), String> {
        let clock = &self.requests.clock;
        if matches!(error, StoreError::Refused(_)) || clock.now() + self.pause > self.deadline {
            return Err(error.to_string());
        }
        self.requests.counters.retried();
        clock.sleep(self.pause).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        Ok(())
    }
}

impl Requests {
    /// Requests to `store`, each limited to `timeout`.
    pub fn new(store: Arc<dyn Store>, clock: Clock, timeout: Duration) -> Self {
        Requests::counted(store, clock, timeout, Arc::default())
    }

    /// As [`Requests::new`], with counters that other openings of the disk count in, too.
    pub fn counted(store: Arc<dyn Store>, clock: Clock, timeout: Duration, counters: Arc<Counters>) -> Self {
        Requests { store, clock, timeout, counters }
    }

    /// Where an object is, for messages.
    pub fn place(&self, key: &str) -> String {
        self.store.place(key)
    }

    /// [`Store::never`].
    pub fn never(&self) -> Etag {
        self.store.never()
    }

    /// [`Store::request_life`].
    pub fn request_life(&self) -> Option<Duration> {
        self.store.request_life()
    }

    /// [`Store::deletes_late`].
    pub fn deletes_late(&self) -> bool {
        self.store.deletes_late()
    }

    /// Repetitions until `limit` from now.
    pub fn attempts(&self, limit: Duration) -> Attempts<'_> {
        Attempts { requests: self, deadline: self.clock.now() + limit, pause: FIRST_PAUSE }
    }

    async fn timed<T>(&self, kind: Kind, answer: Answer<'_, T>) -> Result<T, StoreError> {
        let begun = self.clock.now();
        self.counters.sent(kind);
        let limit = pin!(self.clock.sleep(self.timeout));
        let result = match select(answer, limit).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(StoreError::Unknown(format!("no answer within {} s", self.timeout.as_secs()))),
        };
        self.counters.ended(kind, self.clock.now().since(begun), result.is_ok());
        result
    }

    /// [`Store::put`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put(&self, key: &str, body: Bytes, condition: Condition) -> Result<Etag, StoreError> {
        self.counters.moved(0, body.len() as u64);
        self.timed(Kind::Put, self.store.put(key.to_owned(), body, condition)).await
    }

    /// [`Store::get`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Option<Fetched>, StoreError> {
        let got = match self.timed(Kind::Get, self.store.get(key.to_owned(), range)).await {
            // As if the object were shorter than the range.
            Err(StoreError::PastEnd) => {
                let etag = self.head(key).await?;
                return Ok(etag.map(|etag| Fetched { bytes: Bytes::new(), etag }));
            }
            got => got?,
        };
        self.counters.moved(got.as_ref().map_or(0, |got| got.bytes.len() as u64), 0);
        Ok(got)
    }

    /// [`Store::head`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn head(&self, key: &str) -> Result<Option<Etag>, StoreError> {
        self.timed(Kind::Head, self.store.head(key.to_owned())).await
    }

    /// [`Store::delete`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn delete(&self, key: &str, etag: Etag) -> Result<(), StoreError> {
        self.timed(Kind::Delete, self.store.delete(key.to_owned(), etag)).await
    }
}
