//! Native encryption (OpenZFS `module/os/linux/zfs/zio_crypt.c`, `module/zfs/dsl_crypt.c`): from a passphrase or key
//! file to the plaintext of a block, and authentication of data that is not encrypted.
//!
//! ```text
//!   passphrase ─PBKDF2─▶ wrapping key ─AEAD decrypts─▶ master key ─HKDF(salt)─▶ block key ─AEAD decrypts─▶ block
//!   hex, raw ──────────▶ (256 bits)       (key object)  HMAC key ─────────────────────── authenticates ─▶ block
//! ```
//!
//! Meaning of a pointer's X bit:
//!
//! | block | protection | function |
//! |---|---|---|
//! | level 0, encrypted type | AES-GCM or CCM; salt and IV in the pointer, MAC in its checksum | [`DatasetKey::open_block`] |
//! | … of dnodes | bonus areas encrypted; the portable parts of the rest authenticated | the same, see [`layout`] |
//! | … of the intent log | records encrypted except for headers and pointers; MAC in the block's trailer | the same |
//! | level 0, other types | HMAC-SHA-512 over the stored bytes, its first 16 in the pointer | the same |
//! | object set | two HMACs inside the block | the same, see [`mac`] |
//! | level 1 and up | SHA-512 over the MACs of the pointers inside; needs no key, but the *decompressed* block | [`verify_indirect`] |
//!
//! Without the key all but the first three kinds of blocks can be read, and the last can be verified.
//!
//! Keys are wiped when dropped, and decrypt nothing after they are revoked. A [`DatasetKey`] caches the block keys of
//! the last few salts behind a mutex that is held only for the look-up: OpenZFS uses one salt for hundreds of
//! millions of blocks, and deriving a key costs as much as decrypting some ten kilobytes.

mod cipher;
mod keys;
pub mod layout;
pub mod mac;
mod sealed;
mod secret;

use crate::error::CodecError;
use cipher::BlockKey;
use secret::{HmacKey, Secret};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weir_format::{BlockPointer, Endian, ObjectType};

pub use cipher::Suite;
pub use keys::{WrappedKey, WrappingKey};
pub use sealed::SealingKey;

/// Size in bytes of a block's message authentication code.
pub const MAC_BYTES: usize = 16;
/// Size in bytes of an initialisation vector.
pub const IV_BYTES: usize = 12;
/// Size in bytes of a block's key-derivation salt.
pub const SALT_BYTES: usize = 8;

/// Maximum number of block keys that a dataset key caches.
const MAX_CACHED_BLOCK_KEYS: usize = 16;

/// Encryption parameters of a block; for all blocks but log blocks they are in the pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCrypt {
    /// Type of the block's object, which determines the encrypted parts.
    pub object_type: ObjectType,
    /// Byte order of the block.
    pub endian: Endian,
    /// Salt of the block's key.
    pub salt: [u8; SALT_BYTES],
    /// Initialisation vector.
    pub iv: [u8; IV_BYTES],
}

impl BlockCrypt {
    /// The parameters in `pointer`.
    pub fn of(pointer: &BlockPointer) -> Self {
        BlockCrypt {
            object_type: pointer.object_type(),
            endian: pointer.endian(),
            salt: pointer.crypt_salt(),
            iv: pointer.crypt_iv(),
        }
    }
}

/// A dataset's unwrapped keys, for encryption and decryption of its blocks.
pub struct DatasetKey {
    suite: Suite,
    version: u64,
    guid: u64,
    master: Secret<32>,
    hmac: HmacKey,
    block_keys: Mutex<Vec<([u8; SALT_BYTES], Arc<BlockKey>)>>,
    revoked: AtomicBool,
}

impl std::fmt::Debug for DatasetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DatasetKey({}, guid {:#x}, version {})", self.suite.name(), self.guid, self.version)
    }
}

impl DatasetKey {
    /// Unwraps a dataset's keys with the wrapping key of its encryption root.
    ///
    /// # Errors
    /// [`CodecError::WrongKey`] if the wrapping key is wrong, [`CodecError::UnknownCrypt`] for an unsupported suite
    /// or version.
    pub fn unwrap(wrapping: &WrappingKey, wrapped: &WrappedKey) -> Result<Self, CodecError> {
        let (master, hmac) = wrapped.open(wrapping)?;
        Ok(DatasetKey {
            suite: wrapped.suite()?,
            version: wrapped.version,
            guid: wrapped.guid,
            master,
            hmac: HmacKey::new(hmac.bytes()),
            block_keys: Mutex::default(),
            revoked: AtomicBool::new(false),
        })
    }

    /// The cipher and key length.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The key's GUID; datasets with the same GUID share their keys.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Revokes the key: every further encryption and decryption fails, for all holders. The key is wiped when the
    /// last holder drops it.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::SeqCst);
        self.block_keys.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Whether the key was revoked.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::SeqCst)
    }

    /// Decrypts and authenticates a stored block; the result is still compressed if `pointer` says so. Does nothing
    /// to blocks without the X bit, nor to indirect blocks, which [`verify_indirect`] verifies after decompression.
    ///
    /// `data` are the physical bytes, with verified checksum. After an error their contents are unspecified.
    ///
    /// # Errors
    /// [`CodecError::Authentication`] if the block was not written with this key, [`CodecError::Structure`] if a
    /// dnode or log block is inconsistent.
    pub fn open_block(&self, pointer: &BlockPointer, data: &mut [u8]) -> Result<(), CodecError> {
        if pointer.is_encrypted() {
            let mac = match pointer.object_type() {
                ObjectType::INTENT_LOG => layout::log_mac(data)?,
                _ => pointer.crypt_mac(),
            };
            self.decrypt(&BlockCrypt::of(pointer), &mac, data)
        } else if !pointer.is_authenticated() {
            Ok(())
        } else if pointer.object_type() == ObjectType::OBJSET {
            self.verify_object_set(pointer.endian(), data)
        } else {
            self.hmac.verify(data, &pointer.crypt_mac(), "block")
        }
    }

    /// Decrypts a level-0 block of an encrypted type in place.
    ///
    /// # Errors
    /// As for [`Self::open_block`].
    pub fn decrypt(&self, block: &BlockCrypt, mac: &[u8; MAC_BYTES], data: &mut [u8]) -> Result<(), CodecError> {
        let key = self.block_key(block.salt)?;
        let layout = layout::Layout::of(block, self.version, data)?;
        layout.with_secret_bytes(data, |aad, secret| key.open(&block.iv, aad, secret, mac))?;
        layout.finish(data);
        Ok(())
    }

    /// Encrypts a level-0 block in place and returns the MAC for its pointer (of a log block: for its trailer, by
    /// [`layout::set_log_mac`]). The caller must never use the same pair of salt and IV for different blocks.
    ///
    /// # Errors
    /// [`CodecError::Structure`] if a dnode or log block is inconsistent.
    pub fn encrypt(&self, block: &BlockCrypt, data: &mut [u8]) -> Result<[u8; MAC_BYTES], CodecError> {
        let key = self.block_key(block.salt)?;
        let layout = layout::Layout::of(block, self.version, data)?;
        let mac = layout.with_secret_bytes(data, |aad, secret| key.seal(&block.iv, aad, secret))?;
        layout.finish(data);
        Ok(mac)
    }

    /// The MAC of a block that is authenticated only.
    pub fn authenticate(&self, data: &[u8]) -> [u8; MAC_BYTES] {
        self.hmac.truncated(&[data])
    }

    /// Salt and IV of a block in a dataset with dedup, derived from its plaintext.
    pub fn dedup_salt_and_iv(&self, clear: &[u8]) -> ([u8; SALT_BYTES], [u8; IV_BYTES]) {
        let digest: [u8; SALT_BYTES + IV_BYTES] = self.hmac.truncated(&[clear]);
        (std::array::from_fn(|i| digest[i]), std::array::from_fn(|i| digest[SALT_BYTES + i]))
    }

    /// Verifies an object set's header block by the two HMACs in it.
    ///
    /// # Errors
    /// [`CodecError::Authentication`], [`CodecError::Structure`].
    pub fn verify_object_set(&self, endian: Endian, data: &[u8]) -> Result<(), CodecError> {
        mac::ObjectSetMacs::stored(data)?.verify(&self.object_set_macs(endian, data)?)
    }

    /// Computes the two HMACs of an object set's header block.
    ///
    /// # Errors
    /// [`CodecError::Structure`] if the block is too short or a dnode in it is inconsistent.
    pub fn object_set_macs(&self, endian: Endian, data: &[u8]) -> Result<mac::ObjectSetMacs, CodecError> {
        mac::ObjectSetMacs::compute(&self.hmac, self.version, endian, data)
    }

    /// The MAC of an indirect block, over the MACs of the pointers in its decompressed bytes `logical`.
    pub fn indirect_mac(&self, endian: Endian, logical: &[u8]) -> [u8; MAC_BYTES] {
        mac::indirect(self.version, endian, logical)
    }

    fn block_key(&self, salt: [u8; SALT_BYTES]) -> Result<Arc<BlockKey>, CodecError> {
        if self.is_revoked() {
            return Err(CodecError::WrongKey);
        }
        let mut known = self.block_keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = known.iter().position(|(s, _)| *s == salt) {
            return Ok(known[at].1.clone());
        }
        let key = Arc::new(BlockKey::derive(self.suite, &self.master, &salt));
        if known.len() >= MAX_CACHED_BLOCK_KEYS {
            known.remove(0);
        }
        known.push((salt, key.clone()));
        Ok(key)
    }
}

/// The MAC of an indirect block of a dataset with the current version of keys, over the MACs of the pointers in its
/// decompressed bytes `logical`. Needs no key, because the MACs of the data below depend on it.
pub fn indirect_mac(endian: Endian, logical: &[u8]) -> [u8; MAC_BYTES] {
    mac::indirect(WrappedKey::CURRENT_VERSION, endian, logical)
}

/// Verifies a decompressed indirect block against the MAC in its `pointer`. Needs no key. Blocks without the X bit
/// and level-0 blocks pass.
///
/// # Errors
/// [`CodecError::Authentication`] if the pointers in the block were changed.
pub fn verify_indirect(pointer: &BlockPointer, logical: &[u8]) -> Result<(), CodecError> {
    if !pointer.has_indirect_mac() {
        return Ok(());
    }
    // The version is in the dataset's key object, which is not available here: try both.
    let expected = pointer.crypt_mac();
    if [1, 0].iter().any(|&version| mac::indirect(version, pointer.endian(), logical) == expected) {
        Ok(())
    } else {
        Err(CodecError::Authentication { what: "indirect block" })
    }
}

#[cfg(test)]
mod tests;
