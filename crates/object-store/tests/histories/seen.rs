//! A store that counts what arrives at it, to compare the counters of the disks with.

use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use weir_machine::lock::Mutex;
use weir_object_store::counters::{Counters, Counts, Kind};
use weir_object_store::store::{Answer, Condition, Etag, Fetched, Store};

/// Requests by kind that arrived, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    requests: [u64; 4],
    written_bytes: u64,
    /// Bytes of answers that were complete; those whose reader had given up are not among them.
    read_bytes: u64,
}

/// The counts of all clients of a bucket, and the counters that these clients had.
#[derive(Clone, Default)]
pub struct Ledger {
    arrived: Arc<Mutex<Arrived>>,
    counters: Arc<Mutex<Vec<Arc<Counters>>>>,
}

/// A store of which a ledger keeps count.
pub struct Seen {
    store: Box<dyn Store>,
    ledger: Ledger,
}

impl Ledger {
    /// A client's store, counted here.
    pub fn watch(&self, store: impl Store + 'static) -> Seen {
        Seen { store: Box::new(store), ledger: self.clone() }
    }

    /// The counters of a client that are compared at the end.
    pub fn counters(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        self.counters.lock().push(counters.clone());
        counters
    }

    /// Panics if the counters of all clients together are not what arrived.
    pub fn assert_equal(&self) -> Counts {
        let arrived = *self.arrived.lock();
        let mut sum = Counts::default();
        for counts in self.counters.lock().iter().map(|counters| counters.now()) {
            for kind in 0..4 {
                sum.requests[kind] += counts.requests[kind];
                sum.failed[kind] += counts.failed[kind];
                assert!(counts.failed[kind] <= counts.requests[kind], "{counts:?}");
            }
            sum.read_bytes += counts.read_bytes;
            sum.written_bytes += counts.written_bytes;
            sum.retries += counts.retries;
        }
        let counted = Arrived { requests: sum.requests, written_bytes: sum.written_bytes, read_bytes: sum.read_bytes };
        assert_eq!(counted, arrived, "what the disks counted is not what the store saw");
        sum
    }
}

impl Seen {
    fn arrived(&self, kind: Kind, written_bytes: u64) {
        let mut arrived = self.ledger.arrived.lock();
        arrived.requests[kind as usize] += 1;
        arrived.written_bytes += written_bytes;
    }
}

impl Store for Seen {
    fn place(&self, key: &str) -> String {
        self.store.place(key)
    }

    fn put(&self, key: String, body: Bytes, condition: Condition) -> Answer<'_, Etag> {
        self.arrived(Kind::Put, body.len() as u64);
        self.store.put(key, body, condition)
    }

    fn get(&self, key: String, range: Option<Range<u64>>) -> Answer<'_, Option<Fetched>> {
        self.arrived(Kind::Get, 0);
        Box::pin(async move {
            let got = self.store.get(key, range).await?;
            self.ledger.arrived.lock().read_bytes += got.as_ref().map_or(0, |got| got.bytes.len() as u64);
            Ok(got)
        })
    }

    fn head(&self, key: String) -> Answer<'_, Option<Etag>> {
        self.arrived(Kind::Head, 0);
        self.store.head(key)
    }

    fn delete(&self, key: String, etag: Etag) -> Answer<'_, ()> {
        self.arrived(Kind::Delete, 0);
        self.store.delete(key, etag)
    }
}
