//! File handles: opaque to clients, authenticated by a MAC.
//!
//! ```text
//!  0       1        4          12          20        28            36          52
//!  | ver 1 | zeros  | pool     | export    | object  | generation  | MAC       |
//! ```
//!
//! A handle identifies a file for its lifetime: pool GUID, dataset number, object number and generation. The MAC
//! (BLAKE3 keyed with a secret of this server) prevents altered handles: a client can only present handles it was
//! given, so it cannot reach files outside the export it mounted, nor objects that are in no directory. If the secret
//! is the same at each start, handles survive a restart; if not, older handles are stale.

use std::collections::{BTreeMap, BTreeSet};
use weir_front::files::FileId;

/// Length of a handle in bytes; the protocol allows 64.
pub const HANDLE_BYTES: usize = 52;
const MAC_BYTES: usize = 16;
const VERSION: u8 = 1;

/// Reason why a handle is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleError {
    /// Not made by this implementation.
    Bad,
    /// Made with another secret or for another pool.
    Stale,
    /// Of a pool that is expected to be served later.
    NotYet,
}

/// Makes and verifies the handles of pools.
#[derive(Clone, Default)]
pub struct Handles {
    /// MAC key of each pool, by GUID.
    keys: BTreeMap<u64, [u8; 32]>,
    /// GUIDs of the pools that are expected.
    expected: BTreeSet<u64>,
}

impl Handles {
    /// Handles of the pool with this GUID; `key` is the MAC key.
    pub fn new(pool: u64, key: [u8; 32]) -> Self {
        Handles { keys: BTreeMap::from([(pool, key)]), expected: BTreeSet::new() }
    }

    /// Adds a pool.
    pub fn add(&mut self, pool: u64, key: [u8; 32]) {
        self.keys.insert(pool, key);
    }

    /// Removes a pool: its handles are stale from now on.
    pub fn remove(&mut self, pool: u64) {
        self.keys.remove(&pool);
    }

    /// Sets the pools that are expected: clients with handles of them are to try again, instead of giving them up.
    pub fn expect(&mut self, pools: BTreeSet<u64>) {
        self.expected = pools;
    }

    /// The pool that a handle names; the handle is not verified.
    pub fn pool_of(handle: &[u8]) -> Option<u64> {
        let word = handle.get(4..12).filter(|_| handle.len() == HANDLE_BYTES)?;
        word.try_into().ok().map(u64::from_be_bytes)
    }

    /// Makes the handle of a file. The handle of a file of a pool that was removed meanwhile is stale.
    pub fn make(&self, id: FileId) -> [u8; HANDLE_BYTES] {
        let mut body = [0; HANDLE_BYTES];
        let words = [id.pool, id.export, id.object, id.generation];
        let fields = [VERSION, 0, 0, 0].into_iter().chain(words.into_iter().flat_map(u64::to_be_bytes));
        for (place, byte) in body.iter_mut().zip(fields) {
            *place = byte;
        }
        let (signed, mac) = body.split_at_mut(HANDLE_BYTES - MAC_BYTES);
        if let Some(key) = self.keys.get(&id.pool) {
            mac.copy_from_slice(&mac_of(key, signed));
        }
        body
    }

    /// Verifies and decodes a handle.
    pub fn read(&self, handle: &[u8]) -> Result<FileId, HandleError> {
        if handle.len() != HANDLE_BYTES || handle.first() != Some(&VERSION) {
            return Err(HandleError::Bad);
        }
        let (signed, mac) = handle.split_last_chunk::<MAC_BYTES>().ok_or(HandleError::Bad)?;
        let pool = Self::pool_of(handle).ok_or(HandleError::Bad)?;
        let absent = || if self.expected.contains(&pool) { HandleError::NotYet } else { HandleError::Stale };
        let key = self.keys.get(&pool).ok_or_else(absent)?;
        // Constant-time comparison.
        let differ = mac_of(key, signed).iter().zip(mac).fold(0, |all, (a, b)| all | (a ^ b));
        if differ != 0 {
            return Err(HandleError::Stale);
        }
        let mut words =
            signed.get(12..).unwrap_or(&[]).chunks_exact(8).map(|word| word.try_into().map(u64::from_be_bytes));
        let mut next = || words.next().and_then(Result::ok).ok_or(HandleError::Bad);
        Ok(FileId { pool, export: next()?, object: next()?, generation: next()? })
    }
}

fn mac_of(key: &[u8; 32], signed: &[u8]) -> [u8; MAC_BYTES] {
    let hash = blake3::keyed_hash(key, signed);
    let mut mac = [0; MAC_BYTES];
    for (place, byte) in mac.iter_mut().zip(hash.as_bytes()) {
        *place = *byte;
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_with_any_bit_flipped_is_rejected() {
        let handles = Handles::new(77, [3; 32]);
        let id = FileId { pool: 77, export: 5, object: 34, generation: 9 };
        let handle = handles.make(id);
        assert_eq!(handles.read(&handle), Ok(id));
        for bit in 0..HANDLE_BYTES * 8 {
            let mut altered = handle;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(handles.read(&altered).is_err(), "bit {bit}");
        }
        assert_eq!(handles.read(&handle[..51]), Err(HandleError::Bad));
        assert_eq!(handles.read(&[]), Err(HandleError::Bad));
        assert_eq!(Handles::new(77, [4; 32]).read(&handle), Err(HandleError::Stale));
    }

    #[test]
    fn handles_of_several_pools_do_not_mix() {
        let mut handles = Handles::new(77, [3; 32]);
        handles.add(78, [4; 32]);
        let of = |pool| FileId { pool, export: 5, object: 34, generation: 9 };
        let [one, other] = [77, 78].map(|pool| handles.make(of(pool)));
        assert_eq!((handles.read(&one), handles.read(&other)), (Ok(of(77)), Ok(of(78))));
        assert_eq!(Handles::pool_of(&other), Some(78));
        assert_eq!(Handles::pool_of(&other[1..]), None);
        handles.remove(77);
        assert_eq!((handles.read(&one), handles.read(&other)), (Err(HandleError::Stale), Ok(of(78))));
        assert_eq!(handles.make(of(77))[36..], [0; 16], "no MAC without a key");
        handles.expect(BTreeSet::from([77]));
        assert_eq!(handles.read(&one), Err(HandleError::NotYet));
        handles.add(77, [3; 32]);
        assert_eq!(handles.read(&one), Ok(of(77)), "a pool that comes back has its handles");
    }
}
