//! Replies to calls that must not be done twice.
//!
//! A client that hears nothing sends its call again: same address and port, same `xid`. Done again, a REMOVE that had
//! worked would say "no such file"; a WRITE that comes late could undo what was written after it. So the replies to calls
//! that change something are kept for [`KEPT_SECONDS`], and a call that comes again is answered by its kept reply; one
//! that comes while the first is still being done waits for that one's.
//!
//! ```text
//!   key (client, port, hash of the whole call) ─▶ watch channel: none yet │ reply; until when it is kept
//!   order of arrival ─▶ the oldest answered ones go when there are more than MAX_KEPT
//! ```
//!
//! **Never a reply for a call that was not done.** That would lose data, and is worse than doing a call twice. Clients
//! begin to count their `xid`s where they like, often at the same number after each start; so a call is the same one only
//! if it comes from the same port, soon, and says the same to its last byte. A client that sends again from another port
//! is not recognised.
//!
//! Bounds: [`MAX_KEPT`] replies of some hundred bytes each. Calls under way never go; if all places are taken by such, a
//! new call is done without being kept, which is what a server without this table would do.
//!
//! Source of the rules: Linux `fs/nfsd/nfscache.c` (which looks at 256 bytes of the call).

use crate::reply::Reply;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Replies kept at a time.
pub const MAX_KEPT: usize = 4096;
/// So long a reply is kept.
pub const KEPT_SECONDS: u64 = 120;

type Answer = watch::Receiver<Option<Reply>>;

/// What tells one call from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    client: Arc<str>,
    port: u16,
    hash: [u8; 32],
}

impl Key {
    /// The key of a message of a client, sent from that port.
    pub(crate) fn new(client: &Arc<str>, port: u16, message: &[u8]) -> Self {
        Key { client: Arc::clone(client), port, hash: *blake3::hash(message).as_bytes() }
    }
}

/// The replies.
#[derive(Debug, Default)]
pub(crate) struct Duplicates(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    answers: BTreeMap<Key, Kept>,
    order: VecDeque<Key>,
}

/// A reply, or that there will be one.
#[derive(Debug)]
struct Kept {
    answer: Answer,
    /// When it is forgotten; none before it is there.
    until: Option<Instant>,
}

/// What to do with a call.
#[derive(Debug)]
pub(crate) enum Turn<'a> {
    /// Do it, and leave the reply here.
    Do(Ticket<'a>),
    /// It is being done, or was: wait for the reply.
    Wait(Answer),
}

/// The duty to leave a reply.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    all: &'a Duplicates,
    kept: Option<(Key, watch::Sender<Option<Reply>>)>,
}

impl Duplicates {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the call, which came now, is new.
    pub(crate) fn begin(&self, key: Key, now: Instant) -> Turn<'_> {
        let mut table = self.table();
        match table.answers.get(&key) {
            Some(kept) if kept.until.is_none_or(|until| now < until) => return Turn::Wait(kept.answer.clone()),
            Some(_) => table.forget(&key),
            None => {}
        }
        if !table.make_room() {
            return Turn::Do(Ticket { all: self, kept: None });
        }
        let (sender, answer) = watch::channel(None);
        table.answers.insert(key.clone(), Kept { answer, until: None });
        table.order.push_back(key.clone());
        Turn::Do(Ticket { all: self, kept: Some((key, sender)) })
    }
}

impl Table {
    fn forget(&mut self, key: &Key) {
        self.answers.remove(key);
        self.order.retain(|other| other != key);
    }

    /// Sees to a free place; false if there is none to be had.
    fn make_room(&mut self) -> bool {
        if self.answers.len() < MAX_KEPT {
            return true;
        }
        // Those under way go to the back: each is passed once at most.
        for _ in 0..self.order.len() {
            let Some(key) = self.order.pop_front() else { return false };
            if self.answers.get(&key).is_none_or(|kept| kept.until.is_some()) {
                self.answers.remove(&key);
                return true;
            }
            self.order.push_back(key);
        }
        false
    }
}

impl Ticket<'_> {
    /// Leaves the reply, which was ready now.
    pub(crate) fn keep(mut self, reply: &Reply, now: Instant) {
        if let Some((key, sender)) = self.kept.take() {
            if let Some(kept) = self.all.table().answers.get_mut(&key) {
                kept.until = Some(now + Duration::from_secs(KEPT_SECONDS));
            }
            // The table holds a receiver.
            let _ = sender.send(Some(reply.clone()));
        }
    }
}

impl Drop for Ticket<'_> {
    /// A call that ends without a reply is forgotten: it may be tried again.
    fn drop(&mut self) {
        if let Some((key, _)) = self.kept.take() {
            self.all.table().forget(&key);
        }
    }
}

/// Waits for the reply of the call that came first; `None` if it ended without one.
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
    fn a_call_that_comes_again_gets_the_first_reply() {
        let (all, now) = (Duplicates::default(), Instant::now());
        let Turn::Do(ticket) = all.begin(key(1), now) else { panic!("new") };
        let Turn::Wait(answer) = all.begin(key(1), now) else { panic!("under way") };
        let waiting = wait(answer);
        futures_util::pin_mut!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        ticket.keep(&reply(7), now);
        let Turn::Wait(answer) = all.begin(key(1), now) else { panic!("done") };
        assert_eq!(wait(answer).now_or_never().unwrap().unwrap().body(), [7]);
        assert!(matches!(all.begin(key(2), now), Turn::Do(_)));
        let other = Key::new(&Arc::from("other"), 700, &1u64.to_be_bytes());
        assert!(matches!(all.begin(other, now), Turn::Do(_)));
    }

    #[test]
    fn a_call_without_a_reply_may_be_tried_again() {
        let (all, now) = (Duplicates::default(), Instant::now());
        let Turn::Do(ticket) = all.begin(key(1), now) else { panic!("new") };
        let Turn::Wait(answer) = all.begin(key(1), now) else { panic!("under way") };
        drop(ticket);
        assert!(wait(answer).now_or_never().unwrap().is_none());
        assert!(matches!(all.begin(key(1), now), Turn::Do(_)));
        assert!(all.table().order.is_empty());
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_oldest_reply_first() {
        let (all, now) = (Duplicates::default(), Instant::now());
        let Turn::Do(running) = all.begin(key(0), now) else { panic!("new") };
        for n in 1..=MAX_KEPT as u64 + 9 {
            let Turn::Do(ticket) = all.begin(key(n), now) else { panic!("new") };
            ticket.keep(&reply(1), now);
        }
        assert_eq!(all.table().answers.len(), MAX_KEPT);
        assert!(matches!(all.begin(key(0), now), Turn::Wait(_)), "under way: never forgotten");
        assert!(matches!(all.begin(key(MAX_KEPT as u64 + 9), now), Turn::Wait(_)));
        assert!(!all.table().answers.contains_key(&key(1)));
        drop(running);
        let tickets: Vec<_> = (1 << 20..(1 << 20) + MAX_KEPT as u64 + 5).map(|n| all.begin(key(n), now)).collect();
        assert!(tickets.iter().all(|turn| matches!(turn, Turn::Do(_))));
        assert_eq!(all.table().answers.len(), MAX_KEPT);
    }

    #[test]
    fn only_the_same_call_soon_after_from_the_same_port_is_the_same() {
        let (all, now) = (Duplicates::default(), Instant::now());
        let client: Arc<str> = Arc::from("client");
        // Of one WRITE and another with the same xid the last byte may be all that differs.
        let (mut long, end) = (vec![7; 100_000], 99_999);
        let call = |port, message: &[u8]| Key::new(&client, port, message);
        let Turn::Do(ticket) = all.begin(call(700, &long), now) else { panic!("new") };
        ticket.keep(&reply(7), now);
        let soon = now + Duration::from_secs(KEPT_SECONDS - 1);
        assert!(matches!(all.begin(call(700, &long), soon), Turn::Wait(_)));
        assert!(matches!(all.begin(call(701, &long), soon), Turn::Do(_)), "another port");
        long[end] = 8;
        assert!(matches!(all.begin(call(700, &long), soon), Turn::Do(_)), "another last byte");
        long[end] = 7;
        let late = now + Duration::from_secs(KEPT_SECONDS);
        let Turn::Do(running) = all.begin(call(700, &long), late) else { panic!("forgotten") };
        assert!(matches!(all.begin(call(700, &long), late + Duration::from_secs(9999)), Turn::Wait(_)), "under way");
        drop(running);
    }
}
