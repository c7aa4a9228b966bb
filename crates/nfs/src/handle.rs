//! File handles: opaque to clients, checked by us.
//!
//! ```text
//!  0       1        4          12          20        28            36          52
//!  | ver 1 | zeros  | pool     | member    | object  | generation  | MAC       |
//! ```
//!
//! A handle names a file for as long as there is one: the pool's GUID, the data set's number, the object and its
//! generation. The MAC (BLAKE3 keyed with a secret of this server) makes handles unforgeable: a client can only present
//! what it was given, so it cannot reach files below an export that it never walked to, nor objects that no directory
//! leads to. With the same secret at each start, handles outlive the server; with another one, those of an earlier run
//! answer as stale.

use weir_files::tree::Node;

/// The length of our handles in bytes; the protocol allows 64.
pub const HANDLE_BYTES: usize = 52;
const MAC_BYTES: usize = 16;
const VERSION: u8 = 1;

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// The number of the file system or snapshot.
    pub member: u64,
    /// The object, or one of [`Node`]'s constants.
    pub object: u64,
    /// The object's generation.
    pub generation: u64,
}

/// Why a handle is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleError {
    /// It was never one of ours.
    Bad,
    /// It may have been, in another run or of another pool.
    Stale,
}

/// Makes and checks handles.
#[derive(Clone)]
pub struct Handles {
    pool: u64,
    key: [u8; 32],
}

impl Handles {
    /// For the pool with this GUID.
    pub fn new(pool: u64, key: [u8; 32]) -> Self {
        Handles { pool, key }
    }

    /// The pool's GUID.
    pub fn pool(&self) -> u64 {
        self.pool
    }

    /// The handle of a file.
    pub fn make(&self, id: FileId) -> [u8; HANDLE_BYTES] {
        let mut body = [0; HANDLE_BYTES];
        let words = [self.pool, id.member, id.object, id.generation];
        let fields = [VERSION, 0, 0, 0].into_iter().chain(words.into_iter().flat_map(u64::to_be_bytes));
        for (place, byte) in body.iter_mut().zip(fields) {
            *place = byte;
        }
        let (said, mac) = body.split_at_mut(HANDLE_BYTES - MAC_BYTES);
        mac.copy_from_slice(&self.mac(said));
        body
    }

    /// Checks a handle.
    pub fn read(&self, handle: &[u8]) -> Result<FileId, HandleError> {
        if handle.len() != HANDLE_BYTES || handle.first() != Some(&VERSION) {
            return Err(HandleError::Bad);
        }
        let (said, mac) = handle.split_last_chunk::<MAC_BYTES>().ok_or(HandleError::Bad)?;
        // The comparison takes the same time wherever the bytes differ.
        let differ = self.mac(said).iter().zip(mac).fold(0, |all, (a, b)| all | (a ^ b));
        if differ != 0 {
            return Err(HandleError::Stale);
        }
        let mut words =
            said.get(4..).unwrap_or(&[]).chunks_exact(8).map(|word| word.try_into().map(u64::from_be_bytes));
        let mut next = || words.next().and_then(Result::ok).ok_or(HandleError::Bad);
        if next()? != self.pool {
            return Err(HandleError::Stale);
        }
        Ok(FileId { member: next()?, object: next()?, generation: next()? })
    }

    fn mac(&self, said: &[u8]) -> [u8; MAC_BYTES] {
        let hash = blake3::keyed_hash(&self.key, said);
        let mut mac = [0; MAC_BYTES];
        for (place, byte) in mac.iter_mut().zip(hash.as_bytes()) {
            *place = *byte;
        }
        mac
    }
}

impl FileId {
    /// The handle's file in the tree.
    pub fn node(self, branch: u32) -> Node {
        Node { branch, object: self.object }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_handle_counts() {
        let handles = Handles::new(77, [3; 32]);
        let id = FileId { member: 5, object: 34, generation: 9 };
        let handle = handles.make(id);
        assert_eq!(handles.read(&handle), Ok(id));
        for bit in 0..HANDLE_BYTES * 8 {
            let mut forged = handle;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(handles.read(&forged).is_err(), "bit {bit}");
        }
        assert_eq!(handles.read(&handle[..51]), Err(HandleError::Bad));
        assert_eq!(handles.read(&[]), Err(HandleError::Bad));
        assert_eq!(Handles::new(77, [4; 32]).read(&handle), Err(HandleError::Stale));
    }
}
