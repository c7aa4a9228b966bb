//! Arguments and results of the network lock manager, version 4 (X/Open XNFS, chapter 10; 64-bit form of RFC 1813's era).
//!
//! ```text
//!  lock      caller name | handle of the file | owner handle | svid | offset | length (0: to the end of the file)
//!  LOCK      cookie | block | exclusive | lock | reclaim | state
//!  TEST      cookie | exclusive | lock            GRANTED the same
//!  CANCEL    cookie | block | exclusive | lock
//!  UNLOCK    cookie | lock
//!  SHARE     cookie | caller name | handle | owner handle | mode | access | reclaim
//!  result    cookie | status            TEST, if denied: and exclusive | svid | owner handle | offset | length
//! ```

use crate::wire::{Decoder, Encoder};
use std::sync::Arc;
use weir_front::locks::{Lock, LockHolder, ShareModes};

/// Maximum length of a name, a handle or a cookie in bytes (`MAXNETOBJ_SZ`, `LM_MAXSTRLEN`).
const MAX_BYTES: usize = 1024;

/// Statuses (`nlm4_stats`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Status {
    Granted = 0,
    Denied = 1,
    DeniedNoLocks = 2,
    Blocked = 3,
    DeniedGracePeriod = 4,
    Deadlock = 5,
    ReadOnly = 6,
    StaleHandle = 7,
    Failed = 9,
}

impl Status {
    /// Decodes a status; an unknown one counts as a failure.
    pub fn of(number: u32) -> Self {
        use Status::*;
        let all = [Granted, Denied, DeniedNoLocks, Blocked, DeniedGracePeriod, Deadlock, ReadOnly, StaleHandle];
        all.get(number as usize).copied().unwrap_or(Failed)
    }
}

/// A lock, as clients name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireLock<'a> {
    /// Name of the client.
    pub caller: &'a [u8],
    /// Handle of the file.
    pub file: &'a [u8],
    /// Owner, together with the process.
    pub owner: &'a [u8],
    /// The client's number of the process.
    pub process: u32,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; 0 reaches to the end of the file.
    pub len: u64,
}

impl<'a> WireLock<'a> {
    fn read(input: &mut Decoder<'a>) -> Option<Self> {
        Some(WireLock {
            caller: input.opaque(MAX_BYTES)?,
            file: input.opaque(MAX_BYTES)?,
            owner: input.opaque(MAX_BYTES)?,
            process: input.u32()?,
            offset: input.u64()?,
            len: input.u64()?,
        })
    }

    /// Encodes the lock.
    pub fn put(&self, out: &mut Encoder) {
        out.opaque(self.caller).opaque(self.file).opaque(self.owner).u32(self.process).u64(self.offset).u64(self.len);
    }

    /// The bytes, and whether they are locked exclusively.
    pub fn lock(&self, is_exclusive: bool) -> Lock {
        let end = match self.len {
            0 => u64::MAX,
            len => self.offset.saturating_add(len - 1),
        };
        Lock { start: self.offset, end, is_exclusive }
    }
}

/// The length of a lock on the wire.
pub fn wire_len(lock: Lock) -> u64 {
    if lock.end == u64::MAX { 0 } else { lock.end - lock.start + 1 }
}

/// Arguments of LOCK, TEST, CANCEL, UNLOCK and GRANTED; those that a procedure does not have are false.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockArguments<'a> {
    /// Chosen by the caller, repeated in the reply.
    pub cookie: &'a [u8],
    /// Whether the client waits.
    pub blocks: bool,
    /// Whether the lock is exclusive.
    pub is_exclusive: bool,
    /// The lock.
    pub lock: WireLock<'a>,
    /// Whether the client held the lock before the server restarted.
    pub reclaims: bool,
}

impl<'a> LockArguments<'a> {
    /// Decodes the arguments of LOCK.
    pub fn of_lock(input: &mut Decoder<'a>) -> Option<Self> {
        let cancel = Self::of_cancel(input)?;
        let reclaims = input.u32()? != 0;
        let _state = input.u32()?;
        Some(LockArguments { reclaims, ..cancel })
    }

    /// Decodes the arguments of CANCEL.
    pub fn of_cancel(input: &mut Decoder<'a>) -> Option<Self> {
        let cookie = input.opaque(MAX_BYTES)?;
        let blocks = input.u32()? != 0;
        let is_exclusive = input.u32()? != 0;
        Some(LockArguments { cookie, blocks, is_exclusive, lock: WireLock::read(input)?, reclaims: false })
    }

    /// Decodes the arguments of TEST or GRANTED.
    pub fn of_test(input: &mut Decoder<'a>) -> Option<Self> {
        let cookie = input.opaque(MAX_BYTES)?;
        let is_exclusive = input.u32()? != 0;
        Some(LockArguments { cookie, blocks: false, is_exclusive, lock: WireLock::read(input)?, reclaims: false })
    }

    /// Decodes the arguments of UNLOCK.
    pub fn of_unlock(input: &mut Decoder<'a>) -> Option<Self> {
        let cookie = input.opaque(MAX_BYTES)?;
        Some(LockArguments {
            cookie,
            blocks: false,
            is_exclusive: false,
            lock: WireLock::read(input)?,
            reclaims: false,
        })
    }

    /// The lock that is meant.
    pub fn lock(&self) -> Lock {
        self.lock.lock(self.is_exclusive)
    }
}

/// Arguments of SHARE and UNSHARE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareArguments<'a> {
    /// Chosen by the caller, repeated in the reply.
    pub cookie: &'a [u8],
    /// Name of the client.
    pub caller: &'a [u8],
    /// Handle of the file.
    pub file: &'a [u8],
    /// Owner.
    pub owner: &'a [u8],
    /// Use that is denied to others.
    pub deny: ShareModes,
    /// Use by the owner.
    pub access: ShareModes,
    /// Whether the client had the reservation before the server restarted.
    pub reclaims: bool,
}

impl<'a> ShareArguments<'a> {
    /// Decodes the arguments.
    pub fn read(input: &mut Decoder<'a>) -> Option<Self> {
        let modes = |word: u32| (word <= 3).then_some(ShareModes { read: word & 1 != 0, write: word & 2 != 0 });
        Some(ShareArguments {
            cookie: input.opaque(MAX_BYTES)?,
            caller: input.opaque(MAX_BYTES)?,
            file: input.opaque(MAX_BYTES)?,
            owner: input.opaque(MAX_BYTES)?,
            deny: modes(input.u32()?)?,
            access: modes(input.u32()?)?,
            reclaims: input.u32()? != 0,
        })
    }
}

/// Decodes cookie and status of a result.
pub fn result<'a>(input: &mut Decoder<'a>) -> Option<(&'a [u8], Status)> {
    Some((input.opaque(MAX_BYTES)?, Status::of(input.u32()?)))
}

/// Decodes name and state of FREE_ALL and of the status monitor's NOTIFY.
pub fn name_and_state<'a>(input: &mut Decoder<'a>) -> Option<(&'a [u8], u32)> {
    Some((input.opaque(MAX_BYTES)?, input.u32()?))
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockResult {
    /// The cookie of the call.
    pub cookie: Arc<[u8]>,
    /// The status.
    pub status: Status,
    /// The lock in the way, of TEST.
    pub holder: Option<LockHolder>,
    /// Of SHARE and UNSHARE, whose results end with a sequence number.
    pub has_sequence: bool,
}

impl LockResult {
    /// A result with a status alone.
    pub fn new(cookie: &[u8], status: Status) -> Self {
        LockResult { cookie: cookie.into(), status, holder: None, has_sequence: false }
    }

    /// Encodes the result.
    pub fn put(&self, out: &mut Encoder) {
        out.opaque(&self.cookie).u32(self.status as u32);
        if let (Status::Denied, Some(holder)) = (self.status, &self.holder) {
            out.bool(holder.lock.is_exclusive).u32(holder.process).opaque(&holder.handle);
            out.u64(holder.lock.start).u64(wire_len(holder.lock));
        }
        if self.has_sequence {
            out.u32(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_decoded_as_they_are_encoded() {
        let lock = WireLock { caller: b"host", file: b"handle", owner: b"17@host", process: 17, offset: 4, len: 0 };
        let mut out = Encoder::default();
        out.opaque(b"cookie").bool(true).bool(true);
        lock.put(&mut out);
        let cancel = out.bytes.clone();
        out.bool(true).u32(3);
        let arguments = LockArguments::of_lock(&mut Decoder::new(&out.bytes)).unwrap();
        assert_eq!((arguments.cookie, arguments.blocks, arguments.reclaims), (&b"cookie"[..], true, true));
        assert_eq!((arguments.lock, arguments.lock().end, wire_len(arguments.lock())), (lock, u64::MAX, 0));
        assert_eq!(LockArguments::of_cancel(&mut Decoder::new(&cancel)).unwrap().lock, lock);
        for len in 0..out.bytes.len() {
            assert_eq!(LockArguments::of_lock(&mut Decoder::new(&out.bytes[..len])), None, "cut after {len} bytes");
        }
        let short = WireLock { offset: u64::MAX, len: 9, ..lock }.lock(false);
        assert_eq!((short.start, short.end), (u64::MAX, u64::MAX), "it ends with the last byte");
        let one = WireLock { len: 1, ..lock }.lock(false);
        assert_eq!((one.end, wire_len(one)), (4, 1));
    }
}
