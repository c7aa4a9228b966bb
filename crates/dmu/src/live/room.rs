//! How many bytes of a set's blocks are on their way to the devices at once.
//!
//! Many objects sync side by side, each with many blocks, and blocks have 512 bytes to 16 MiB: what bounds the memory for
//! their compressed and copied forms is the sum of their bytes. Who wants to write takes room first, in the order of
//! asking; a block larger than all the room there is goes when it is alone.

use futures_channel::oneshot;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct State {
    free_bytes: u64,
    waiting: VecDeque<(u64, oneshot::Sender<Taken>)>,
}

/// Room for a number of bytes. A small handle: clones share it.
#[derive(Clone)]
pub(super) struct Room {
    whole_bytes: u64,
    state: Arc<Mutex<State>>,
}

/// Room that was taken; dropped, it is free again.
pub(super) struct Taken {
    bytes: u64,
    room: Room,
}

impl Room {
    pub fn new(bytes: u64) -> Self {
        let state = State { free_bytes: bytes, waiting: VecDeque::new() };
        Room { whole_bytes: bytes, state: Arc::new(Mutex::new(state)) }
    }

    /// Held only for a few instructions, never while anything is waited for.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for so many bytes as soon as it is there.
    pub async fn take(&self, bytes: u64) -> Taken {
        let bytes = bytes.min(self.whole_bytes);
        loop {
            let turn = {
                let mut state = self.lock();
                if state.waiting.is_empty() && state.free_bytes >= bytes {
                    state.free_bytes -= bytes;
                    return Taken { bytes, room: self.clone() };
                }
                let (tell, turn) = oneshot::channel();
                state.waiting.push_back((bytes, tell));
                turn
            };
            if let Ok(taken) = turn.await {
                return taken;
            }
        }
    }

    fn give_back(&self, bytes: u64) {
        self.lock().free_bytes += bytes;
        loop {
            let (bytes, tell) = {
                let mut state = self.lock();
                let fits = state.waiting.front().is_some_and(|(bytes, _)| *bytes <= state.free_bytes);
                let Some((bytes, tell)) = fits.then(|| state.waiting.pop_front()).flatten() else { return };
                state.free_bytes -= bytes;
                (bytes, tell)
            };
            if let Err(mut unwanted) = tell.send(Taken { bytes, room: self.clone() }) {
                // It has gone: not given back by its drop, which would come here again, but for the next.
                self.lock().free_bytes += std::mem::take(&mut unwanted.bytes);
            }
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.room.give_back(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn room_is_given_in_turn_and_a_block_of_any_size_has_its_day() {
        let room = Room::new(100);
        let first = room.take(60).now_or_never().unwrap();
        let mut huge = Box::pin(room.take(1 << 20));
        assert!((&mut huge).now_or_never().is_none());
        let mut small = Box::pin(room.take(10));
        assert!((&mut small).now_or_never().is_none(), "not before the one that asked first");
        drop(first);
        let all = (&mut huge).now_or_never().unwrap();
        assert!((&mut small).now_or_never().is_none());
        drop(small);
        let mut last = Box::pin(room.take(100));
        assert!((&mut last).now_or_never().is_none());
        drop(all);
        let last = (&mut last).now_or_never().unwrap();
        assert_eq!((last.bytes, room.lock().free_bytes), (100, 0));
        drop(last);
        assert_eq!(room.lock().free_bytes, 100);
    }
}
