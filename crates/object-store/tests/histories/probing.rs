//! The test of a store at creation, in the simulator: where a DELETE may arrive late, tags must not come back.

use crate::bucket::{Behaviour, Bucket, Client};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use weir_object_store::probe::{Abilities, probe};
use weir_object_store::requests::Requests;
use weir_object_store::store::{Answer, Condition, Etag, Fetched, Store};
use weir_sim::SimWorld;

/// A store that does not refuse a late DELETE.
struct Late(Client);

impl Store for Late {
    fn place(&self, key: &str) -> String {
        self.0.place(key)
    }

    fn put(&self, key: String, body: Bytes, condition: Condition) -> Answer<'_, Etag> {
        self.0.put(key, body, condition)
    }

    fn get(&self, key: String, range: Option<Range<u64>>) -> Answer<'_, Option<Fetched>> {
        self.0.get(key, range)
    }

    fn head(&self, key: String) -> Answer<'_, Option<Etag>> {
        self.0.head(key)
    }

    fn delete(&self, key: String, etag: Etag) -> Answer<'_, ()> {
        self.0.delete(key, etag)
    }

    fn deletes_late(&self) -> bool {
        true
    }
}

/// The abilities of a store, and whether the object of the test is gone.
fn abilities(tags_are_digests: bool, is_late: bool) -> (Abilities, bool) {
    let world = SimWorld::new(11);
    let (machine, mut rng) = (world.machine(), world.rng());
    let ran = world.run(async move {
        let behaviour = Behaviour { faults: 0, tags_are_digests, latest: Duration::from_secs(60) };
        let bucket = Bucket::new(rng.fork(), behaviour, machine.clock.clone(), machine.tasks.clone());
        let client = bucket.client();
        let store: Arc<dyn Store> = if is_late { Arc::new(Late(client)) } else { Arc::new(client) };
        let requests = Requests::new(store, machine.clock.clone(), Duration::from_secs(5));
        let found = probe(&requests, 7).await.expect("the store obeys conditions");
        let left = requests.head("weir-probe-0000000000000007").await;
        (found, left == Ok(None))
    });
    ran.expect("the probe ends")
}

#[test]
fn late_deletes_need_tags_that_do_not_come_back() {
    let deletes = |conditional_delete| (Abilities { conditional_delete }, true);
    assert_eq!(abilities(true, false), deletes(true));
    assert_eq!(abilities(false, false), deletes(true));
    assert_eq!(abilities(false, true), deletes(true));
    assert_eq!(abilities(true, true), deletes(false));
}
