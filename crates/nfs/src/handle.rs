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
}

/// Makes and verifies handles.
#[derive(Clone)]
pub struct Handles {
    pool: u64,
    key: [u8; 32],
}

impl Handles {
    /// Creates the handle codec of the pool with this GUID; `key` is the MAC key.
    pub fn new(pool: u64, key: [u8; 32]) -> Self {
        Handles { pool, key }
    }

    /// The pool's GUID.
    pub fn pool(&self) -> u64 {
        self.pool
    }

    /// Makes the handle of a file.
    pub fn make(&self, id: FileId) -> [u8; HANDLE_BYTES] {
        let mut body = [0; HANDLE_BYTES];
        let words = [self.pool, id.export, id.object, id.generation];
        let fields = [VERSION, 0, 0, 0].into_iter().chain(words.into_iter().flat_map(u64::to_be_bytes));
        for (place, byte) in body.iter_mut().zip(fields) {
            *place = byte;
        }
        let (signed, mac) = body.split_at_mut(HANDLE_BYTES - MAC_BYTES);
        mac.copy_from_slice(&self.mac(signed));
        body
    }

    /// Verifies and decodes a handle.
    pub fn read(&self, handle: &[u8]) -> Result<FileId, HandleError> {
        if handle.len() != HANDLE_BYTES || handle.first() != Some(&VERSION) {
            return Err(HandleError::Bad);
        }
        let (signed, mac) = handle.split_last_chunk::<MAC_BYTES>().ok_or(HandleError::Bad)?;
        // Constant-time comparison.
        let differ = self.mac(signed).iter().zip(mac).fold(0, |all, (a, b)| all | (a ^ b));
        if differ != 0 {
            return Err(HandleError::Stale);
        }
        let mut words =
            signed.get(4..).unwrap_or(&[]).chunks_exact(8).map(|word| word.try_into().map(u64::from_be_bytes));
        let mut next = || words.next().and_then(Result::ok).ok_or(HandleError::Bad);
        if next()? != self.pool {
            return Err(HandleError::Stale);
        }
        Ok(FileId { export: next()?, object: next()?, generation: next()? })
    }

    fn mac(&self, signed: &[u8]) -> [u8; MAC_BYTES] {
        let hash = blake3::keyed_hash(&self.key, signed);
        let mut mac = [0; MAC_BYTES];
        for (place, byte) in mac.iter_mut().zip(hash.as_bytes()) {
            *place = *byte;
        }
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_with_any_bit_flipped_is_rejected() {
        let handles = Handles::new(77, [3; 32]);
        let id = FileId { export: 5, object: 34, generation: 9 };
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
}
