//! Replies to calls that must not be done twice.
//!
//! A client that hears nothing sends its call again: same address, same `xid`. Done again, a REMOVE that had worked would
//! say "no such file". So the replies to calls that change something are kept for a while, and a call that comes again is
//! answered by its kept reply; one that comes while the first is still being done waits for that one's.
//!
//! ```text
//!   key (client, xid, procedure, hash of the call) ─▶ watch channel: none yet │ reply
//!   order of arrival ─▶ the oldest answered ones go when there are more than MAX_KEPT
//! ```
//!
//! Bounds: [`MAX_KEPT`] replies of some hundred bytes each. Calls under way never go; if all places are taken by such, a
//! new call is done without being kept, which is what a server without this table would do.

use crate::reply::Reply;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Replies kept at a time.
pub const MAX_KEPT: usize = 4096;
/// So many bytes of a call are hashed; `xid`s come round, but not with the same head.
const HASHED_BYTES: usize = 512;

type Answer = watch::Receiver<Option<Reply>>;

/// What tells one call from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    client: Arc<str>,
    hash: [u8; 32],
}

impl Key {
    /// The key of a message of a client: the hash covers `xid`, procedure, credential and the head of the arguments.
    pub(crate) fn new(client: &Arc<str>, message: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(message.len() as u64).to_be_bytes());
        hasher.update(message.get(..HASHED_BYTES).unwrap_or(message));
        Key { client: Arc::clone(client), hash: *hasher.finalize().as_bytes() }
    }
}

/// The replies.
#[derive(Debug, Default)]
pub(crate) struct Duplicates(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    answers: BTreeMap<Key, Answer>,
    order: VecDeque<Key>,
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

    /// Whether the call is new.
    pub(crate) fn begin(&self, key: Key) -> Turn<'_> {
        let mut table = self.table();
        if let Some(answer) = table.answers.get(&key) {
            return Turn::Wait(answer.clone());
        }
        if !table.make_room() {
            return Turn::Do(Ticket { all: self, kept: None });
        }
        let (sender, answer) = watch::channel(None);
        table.answers.insert(key.clone(), answer);
        table.order.push_back(key.clone());
        Turn::Do(Ticket { all: self, kept: Some((key, sender)) })
    }
}

impl Table {
    /// Sees to a free place; false if there is none to be had.
    fn make_room(&mut self) -> bool {
        if self.answers.len() < MAX_KEPT {
            return true;
        }
        // Those under way go to the back: each is passed once at most.
        for _ in 0..self.order.len() {
            let Some(key) = self.order.pop_front() else { return false };
            let answered = self.answers.get(&key).is_none_or(|answer| answer.borrow().is_some());
            if answered {
                self.answers.remove(&key);
                return true;
            }
            self.order.push_back(key);
        }
        false
    }
}

impl Ticket<'_> {
    /// Leaves the reply.
    pub(crate) fn keep(mut self, reply: &Reply) {
        if let Some((_, sender)) = self.kept.take() {
            // The table holds a receiver unless the call was forgotten.
            let _ = sender.send(Some(reply.clone()));
        }
    }
}

impl Drop for Ticket<'_> {
    /// A call that ends without a reply is forgotten: it may be tried again.
    fn drop(&mut self) {
        if let Some((key, _)) = self.kept.take() {
            let mut table = self.all.table();
            table.answers.remove(&key);
            table.order.retain(|other| *other != key);
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
        Key::new(&Arc::from("client"), &n.to_be_bytes())
    }

    fn reply(byte: u8) -> Reply {
        Reply::of(vec![byte])
    }

    #[test]
    fn a_call_that_comes_again_gets_the_first_reply() {
        let all = Duplicates::default();
        let Turn::Do(ticket) = all.begin(key(1)) else { panic!("new") };
        let Turn::Wait(answer) = all.begin(key(1)) else { panic!("under way") };
        let waiting = wait(answer);
        futures_util::pin_mut!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        ticket.keep(&reply(7));
        let Turn::Wait(answer) = all.begin(key(1)) else { panic!("done") };
        assert_eq!(wait(answer).now_or_never().unwrap().unwrap().body(), [7]);
        assert!(matches!(all.begin(key(2)), Turn::Do(_)));
        let other = Key::new(&Arc::from("other"), &1u64.to_be_bytes());
        assert!(matches!(all.begin(other), Turn::Do(_)));
    }

    #[test]
    fn a_call_without_a_reply_may_be_tried_again() {
        let all = Duplicates::default();
        let Turn::Do(ticket) = all.begin(key(1)) else { panic!("new") };
        let Turn::Wait(answer) = all.begin(key(1)) else { panic!("under way") };
        drop(ticket);
        assert!(wait(answer).now_or_never().unwrap().is_none());
        assert!(matches!(all.begin(key(1)), Turn::Do(_)));
        assert!(all.table().order.is_empty());
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_oldest_reply_first() {
        let all = Duplicates::default();
        let Turn::Do(running) = all.begin(key(0)) else { panic!("new") };
        for n in 1..=MAX_KEPT as u64 + 9 {
            let Turn::Do(ticket) = all.begin(key(n)) else { panic!("new") };
            ticket.keep(&reply(1));
        }
        assert_eq!(all.table().answers.len(), MAX_KEPT);
        assert!(matches!(all.begin(key(0)), Turn::Wait(_)), "under way: never forgotten");
        assert!(matches!(all.begin(key(MAX_KEPT as u64 + 9)), Turn::Wait(_)));
        assert!(!all.table().answers.contains_key(&key(1)));
        drop(running);
        let tickets: Vec<_> = (1 << 20..(1 << 20) + MAX_KEPT as u64 + 5).map(|n| all.begin(key(n))).collect();
        assert!(tickets.iter().all(|turn| matches!(turn, Turn::Do(_))));
        assert_eq!(all.table().answers.len(), MAX_KEPT);
    }
}
