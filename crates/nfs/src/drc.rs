//! Duplicate request cache (DRC): replies to calls that must not run twice.
//!
//! A client that receives no reply retransmits its call from the same address and port with the same `xid`. Running
//! it again would be wrong: a second REMOVE would fail with "no such file", and a late WRITE could overwrite newer
//! data. Therefore the replies of calls that modify something are cached for [`ENTRY_LIFETIME_SECONDS`]. A
//! retransmitted call gets the cached reply; if the first call is still running, the retransmission waits for its
//! reply.
//!
//! ```text
//!   key (client, port, hash of the whole call) ─▶ watch channel: None while running │ reply; expiry time
//!   order of arrival ─▶ the oldest completed entries are evicted beyond MAX_ENTRIES
//! ```
//!
//! **A call that was not executed is never answered from the cache.** That would lose data, which is worse than
//! running a call twice. After a restart, clients may start their `xid`s at the same number again. So two calls count
//! as the same only if the source port and every byte of the call are equal and the first is recent. A retransmission
//! from another port is not recognised.
//!
//! Bounds: [`MAX_ENTRIES`] replies of some hundred bytes each. Entries of running calls are never evicted; if all
//! entries belong to running calls, a new call runs without an entry, as in a server without a DRC.
//!
//! Source: Linux `fs/nfsd/nfscache.c`, which compares only the first 256 bytes of the call.

use crate::reply::Reply;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use weir_machine::Nanos;
use weir_machine::lock::{Mutex, MutexGuard};

/// Maximum number of entries.
pub const MAX_ENTRIES: usize = 4096;
/// Lifetime of a completed entry in seconds.
pub const ENTRY_LIFETIME_SECONDS: u64 = 120;

type Answer = watch::Receiver<Option<Reply>>;

/// Identity of a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    client: Arc<str>,
    port: u16,
    hash: [u8; 32],
}

impl Key {
    /// Key of a message from this client and source port.
    pub(crate) fn new(client: &Arc<str>, port: u16, message: &[u8]) -> Self {
        Key { client: Arc::clone(client), port, hash: *blake3::hash(message).as_bytes() }
    }
}

/// The duplicate request cache.
#[derive(Debug, Default)]
pub(crate) struct DuplicateRequestCache(Mutex<DrcTable>);

#[derive(Debug, Default)]
struct DrcTable {
    answers: BTreeMap<Key, DrcEntry>,
    order: VecDeque<Key>,
}

/// State of one call: running or completed.
#[derive(Debug)]
struct DrcEntry {
    answer: Answer,
    /// Expiry time; `None` while the call is running.
    expires: Option<Nanos>,
}

/// How to handle a call.
#[derive(Debug)]
pub(crate) enum DrcDecision<'a> {
    /// The call is new: execute it and complete the reservation.
    Execute(DrcReservation<'a>),
    /// The call is a duplicate: wait for the reply of the first one.
    Wait(Answer),
}

/// Entry of a running call. Dropping it without a reply removes the entry.
#[derive(Debug)]
pub(crate) struct DrcReservation<'a> {
    cache: &'a DuplicateRequestCache,
    pending: Option<(Key, watch::Sender<Option<Reply>>)>,
}

impl DuplicateRequestCache {
    fn table(&self) -> MutexGuard<'_, DrcTable> {
        self.0.lock()
    }

    /// Looks up a call that arrived at `now` and adds an entry if it is new.
    pub(crate) fn begin(&self, key: Key, now: Nanos) -> DrcDecision<'_> {
        let mut table = self.table();
        match table.answers.get(&key) {
            Some(entry) if entry.expires.is_none_or(|expires| now < expires) => {
                return DrcDecision::Wait(entry.answer.clone());
            }
            Some(_) => table.remove(&key),
            None => {}
        }
        if !table.make_room() {
            return DrcDecision::Execute(DrcReservation { cache: self, pending: None });
        }
        let (sender, answer) = watch::channel(None);
        table.answers.insert(key.clone(), DrcEntry { answer, expires: None });
        table.order.push_back(key.clone());
        DrcDecision::Execute(DrcReservation { cache: self, pending: Some((key, sender)) })
    }
}

impl DrcTable {
    fn remove(&mut self, key: &Key) {
        self.answers.remove(key);
        self.order.retain(|other| other != key);
    }

    /// Evicts the oldest completed entry if the table is full; false if all entries are running.
    fn make_room(&mut self) -> bool {
        if self.answers.len() < MAX_ENTRIES {
            return true;
        }
        // Running entries move to the back, so each is inspected at most once.
        for _ in 0..self.order.len() {
            let Some(key) = self.order.pop_front() else { return false };
            if self.answers.get(&key).is_none_or(|entry| entry.expires.is_some()) {
                self.answers.remove(&key);
                return true;
            }
            self.order.push_back(key);
        }
        false
    }
}

impl DrcReservation<'_> {
    /// Stores the reply and starts the entry's lifetime at `now`.
    pub(crate) fn complete(mut self, reply: &Reply, now: Nanos) {
        if let Some((key, sender)) = self.pending.take() {
            if let Some(entry) = self.cache.table().answers.get_mut(&key) {
                entry.expires = Some(now + Duration::from_secs(ENTRY_LIFETIME_SECONDS));
            }
            // The table holds a receiver.
            let _ = sender.send(Some(reply.clone()));
        }
    }
}

impl Drop for DrcReservation<'_> {
    /// Removes the entry of a call that ended without a reply, so that it can be retried.
    fn drop(&mut self) {
        if let Some((key, _)) = self.pending.take() {
            self.cache.table().remove(&key);
        }
    }
}

/// Waits for the reply of the first call; `None` if it ended without one.
pub(crate) async fn wait(mut answer: Answer) -> Option<Reply> {
    answer.wait_for(Option::is_some).await.ok().and_then(|reply| reply.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn key(n: u64) -> Key {
        Key::new(&Arc::from("client"), 700, &n.to_be_bytes())
    }

    fn reply(byte: u8) -> Reply {
        Reply::of(vec![byte])
    }

    #[test]
    fn a_retransmitted_call_gets_the_first_reply() {
        let all = DuplicateRequestCache::default();
        let now = Nanos(1_000_000_000);
        let DrcDecision::Execute(reservation) = all.begin(key(1), now) else { panic!("new") };
        let DrcDecision::Wait(answer) = all.begin(key(1), now) else { panic!("running") };
        let waiting = wait(answer);
        futures_util::pin_mut!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        reservation.complete(&reply(7), now);
        let DrcDecision::Wait(answer) = all.begin(key(1), now) else { panic!("done") };
        assert_eq!(wait(answer).now_or_never().unwrap().unwrap().body(), [7]);
        assert!(matches!(all.begin(key(2), now), DrcDecision::Execute(_)));
        let other = Key::new(&Arc::from("other"), 700, &1u64.to_be_bytes());
        assert!(matches!(all.begin(other, now), DrcDecision::Execute(_)));
    }

    #[test]
    fn a_call_without_a_reply_can_be_retried() {
        let all = DuplicateRequestCache::default();
        let now = Nanos(1_000_000_000);
        let DrcDecision::Execute(reservation) = all.begin(key(1), now) else { panic!("new") };
        let DrcDecision::Wait(answer) = all.begin(key(1), now) else { panic!("running") };
        drop(reservation);
        assert!(wait(answer).now_or_never().unwrap().is_none());
        assert!(matches!(all.begin(key(1), now), DrcDecision::Execute(_)));
        assert!(all.table().order.is_empty());
    }

    #[test]
    fn the_table_is_bounded_and_evicts_the_oldest_reply_first() {
        let all = DuplicateRequestCache::default();
        let now = Nanos(1_000_000_000);
        let DrcDecision::Execute(running) = all.begin(key(0), now) else { panic!("new") };
        for n in 1..=MAX_ENTRIES as u64 + 9 {
            let DrcDecision::Execute(reservation) = all.begin(key(n), now) else { panic!("new") };
            reservation.complete(&reply(1), now);
        }
        assert_eq!(all.table().answers.len(), MAX_ENTRIES);
        assert!(matches!(all.begin(key(0), now), DrcDecision::Wait(_)), "a running call is never evicted");
        assert!(matches!(all.begin(key(MAX_ENTRIES as u64 + 9), now), DrcDecision::Wait(_)));
        assert!(!all.table().answers.contains_key(&key(1)));
        drop(running);
        let reservations: Vec<_> =
            (1 << 20..(1 << 20) + MAX_ENTRIES as u64 + 5).map(|n| all.begin(key(n), now)).collect();
        assert!(reservations.iter().all(|turn| matches!(turn, DrcDecision::Execute(_))));
        assert_eq!(all.table().answers.len(), MAX_ENTRIES);
    }

    #[test]
    fn a_duplicate_has_the_same_bytes_and_port_and_is_recent() {
        let all = DuplicateRequestCache::default();
        let now = Nanos(1_000_000_000);
        let client: Arc<str> = Arc::from("client");
        // Two WRITEs with the same xid may differ only in their last byte.
        let mut long = vec![7; 100_000];
        let end = 99_999;
        let call = |port, message: &[u8]| Key::new(&client, port, message);
        let DrcDecision::Execute(reservation) = all.begin(call(700, &long), now) else { panic!("new") };
        reservation.complete(&reply(7), now);
        let soon = now + Duration::from_secs(ENTRY_LIFETIME_SECONDS - 1);
        assert!(matches!(all.begin(call(700, &long), soon), DrcDecision::Wait(_)));
        assert!(matches!(all.begin(call(701, &long), soon), DrcDecision::Execute(_)), "another port");
        long[end] = 8;
        assert!(matches!(all.begin(call(700, &long), soon), DrcDecision::Execute(_)), "another last byte");
        long[end] = 7;
        let late = now + Duration::from_secs(ENTRY_LIFETIME_SECONDS);
        let DrcDecision::Execute(running) = all.begin(call(700, &long), late) else { panic!("forgotten") };
        assert!(
            matches!(all.begin(call(700, &long), late + Duration::from_secs(9999)), DrcDecision::Wait(_)),
            "running"
        );
        drop(running);
    }
}
