//! Wrapping keys, and a dataset's wrapped and unwrapped keys.

use super::cipher::{BlockKey, Suite};
use super::secret::Secret;
use super::{IV_BYTES, MAC_BYTES};
use crate::error::CodecError;
use aws_lc_rs::pbkdf2;
use std::num::NonZeroU32;

/// The key derived from a user's passphrase or key file; wraps the keys of an encryption root's datasets.
///
/// ```
/// use weir_codec::crypt::WrappingKey;
/// let text = "2a".repeat(32);
/// assert!(WrappingKey::from_hex(text.as_bytes()).is_ok());
/// assert!(WrappingKey::from_hex(b"2a").is_err());
/// ```
pub struct WrappingKey(Secret<{ WrappingKey::BYTES }>);

impl std::fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WrappingKey")
    }
}

impl WrappingKey {
    /// Size of a wrapping key in bytes, for every suite.
    pub const BYTES: usize = 32;
    /// Minimum of the property `pbkdf2iters` that a user may set.
    pub const MIN_ITERATIONS: u64 = 100_000;
    /// Upper bound for iteration counts read from disk; larger values are taken as corrupt. 1.5 billion iterations
    /// would take ten minutes.
    const MAX_ITERATIONS: u64 = 100_000_000;

    /// `keyformat=passphrase`: PBKDF2-HMAC-SHA1 with the dataset's properties `pbkdf2salt` and `pbkdf2iters`. The
    /// passphrase is 8 to 512 bytes, without the line end that a file may have.
    ///
    /// # Errors
    /// [`CodecError::KeyMaterial`] for a passphrase or an iteration count out of bounds.
    pub fn from_passphrase(passphrase: &[u8], salt: u64, iterations: u64) -> Result<Self, CodecError> {
        let error = |problem| CodecError::KeyMaterial { what: "passphrase", problem };
        if !(8..=512).contains(&passphrase.len()) {
            return Err(error("must have 8 to 512 bytes"));
        }
        let iterations = Some(iterations).filter(|n| *n <= Self::MAX_ITERATIONS);
        let iterations = iterations.and_then(|n| NonZeroU32::new(u32::try_from(n).ok()?));
        let iterations = iterations.ok_or(error("the dataset's iteration count is invalid"))?;
        let mut key = [0; Self::BYTES];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA1, iterations, &salt.to_le_bytes(), passphrase, &mut key);
        Ok(WrappingKey(Secret::new(key)))
    }

    /// `keyformat=hex`: 64 hexadecimal digits, without a line end.
    ///
    /// # Errors
    /// [`CodecError::KeyMaterial`].
    pub fn from_hex(digits: &[u8]) -> Result<Self, CodecError> {
        let error = |problem| CodecError::KeyMaterial { what: "hex key", problem };
        let (pairs, rest) = digits.as_chunks::<2>();
        if pairs.len() != Self::BYTES || !rest.is_empty() {
            return Err(error("must have 64 digits"));
        }
        let mut key = [0; Self::BYTES];
        for (to, pair) in key.iter_mut().zip(pairs) {
            let value = |digit: u8| char::from(digit).to_digit(16).ok_or(error("a digit is not hexadecimal"));
            *to = (value(pair[0])? << 4 | value(pair[1])?) as u8;
        }
        Ok(WrappingKey(Secret::new(key)))
    }

    /// `keyformat=raw`: 32 bytes.
    ///
    /// # Errors
    /// [`CodecError::KeyMaterial`].
    pub fn from_raw(bytes: &[u8]) -> Result<Self, CodecError> {
        let problem = CodecError::KeyMaterial { what: "raw key", problem: "must have 32 bytes" };
        Ok(WrappingKey(Secret::new(bytes.try_into().map_err(|_| problem)?)))
    }
}

/// A dataset's wrapped keys, as stored in its key object (a ZAP); the fields give the names of the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedKey {
    /// `DSL_CRYPTO_SUITE`, see [`Suite`].
    pub suite: u64,
    /// `DSL_CRYPTO_VERSION`; 0 if the entry is missing.
    pub version: u64,
    /// `DSL_CRYPTO_GUID`.
    pub guid: u64,
    /// `DSL_CRYPTO_MASTER_KEY_1`; only the first [`Suite::key_bytes`] are used.
    pub master_key: [u8; 32],
    /// `DSL_CRYPTO_HMAC_KEY_1`.
    pub hmac_key: [u8; 64],
    /// `DSL_CRYPTO_IV`.
    pub iv: [u8; IV_BYTES],
    /// `DSL_CRYPTO_MAC`.
    pub mac: [u8; MAC_BYTES],
}

impl WrappedKey {
    /// The newest version of the encryption format.
    pub const CURRENT_VERSION: u64 = 1;

    /// The cipher.
    ///
    /// # Errors
    /// [`CodecError::UnknownCrypt`].
    pub fn suite(&self) -> Result<Suite, CodecError> {
        Suite::from_u64(self.suite).ok_or(CodecError::UnknownCrypt { field: "cipher suite", value: self.suite })
    }

    /// The additional authenticated data: always little-endian; in version 0 only the GUID.
    fn aad(&self) -> Result<Vec<u8>, CodecError> {
        match self.version {
            0 => Ok(self.guid.to_le_bytes().to_vec()),
            Self::CURRENT_VERSION => {
                Ok([self.guid, self.suite, self.version].iter().flat_map(|w| w.to_le_bytes()).collect())
            }
            value => Err(CodecError::UnknownCrypt { field: "version", value }),
        }
    }

    /// Unwraps the master key (unused bytes zero) and the HMAC key.
    pub(super) fn open(&self, wrapping: &WrappingKey) -> Result<(Secret<32>, Secret<64>), CodecError> {
        let suite = self.suite()?;
        let aad = self.aad()?;
        let split = suite.key_bytes();
        let mut both = Secret::new([0; 96]);
        let payload = &mut both.bytes_mut()[..split + 64];
        payload[..split].copy_from_slice(&self.master_key[..split]);
        payload[split..].copy_from_slice(&self.hmac_key);
        let key = BlockKey::wrapping(suite, wrapping.0.bytes());
        key.open(&self.iv, &aad, payload, &self.mac).map_err(|_| CodecError::WrongKey)?;
        let master = Secret::new(std::array::from_fn(|i| if i < split { both.bytes()[i] } else { 0 }));
        let hmac = Secret::new(std::array::from_fn(|i| both.bytes()[split + i]));
        Ok((master, hmac))
    }

    /// Wraps the same keys with another wrapping key. The caller provides a random `iv`.
    ///
    /// # Errors
    /// [`CodecError::WrongKey`] if `old` is not their wrapping key; [`CodecError::UnknownCrypt`] for version 0 of the
    /// format, whose keys cannot be rewrapped.
    pub fn rewrap(&self, old: &WrappingKey, new: &WrappingKey, iv: [u8; IV_BYTES]) -> Result<Self, CodecError> {
        if self.version != Self::CURRENT_VERSION {
            return Err(CodecError::UnknownCrypt { field: "version", value: self.version });
        }
        let (master, hmac) = self.open(old)?;
        Self::seal(new, self.suite()?, self.guid, iv, master.bytes(), hmac.bytes())
    }

    /// Wraps a dataset's keys. Only the first [`Suite::key_bytes`] of `master` are used. The caller provides random
    /// `master`, `hmac`, `guid` and `iv`.
    ///
    /// # Errors
    /// [`CodecError::Structure`] if the library rejects the wrapping key.
    pub fn seal(
        wrapping: &WrappingKey,
        suite: Suite,
        guid: u64,
        iv: [u8; IV_BYTES],
        master: &[u8; 32],
        hmac: &[u8; 64],
    ) -> Result<Self, CodecError> {
        let split = suite.key_bytes();
        let mut wrapped = WrappedKey {
            suite: suite as u64,
            version: Self::CURRENT_VERSION,
            guid,
            master_key: [0; 32],
            hmac_key: [0; 64],
            iv,
            mac: [0; MAC_BYTES],
        };
        let mut both = Secret::new([0; 96]);
        let payload = &mut both.bytes_mut()[..split + 64];
        payload[..split].copy_from_slice(&master[..split]);
        payload[split..].copy_from_slice(hmac);
        wrapped.mac = BlockKey::wrapping(suite, wrapping.0.bytes()).seal(&iv, &wrapped.aad()?, payload)?;
        wrapped.master_key[..split].copy_from_slice(&payload[..split]);
        wrapped.hmac_key.copy_from_slice(&payload[split..]);
        Ok(wrapped)
    }
}
