//! Short secrets at rest: AES-256-GCM with a key from a file.

use super::cipher::{BlockKey, Suite};
use super::secret::Secret;
use super::{IV_BYTES, MAC_BYTES};
use crate::error::CodecError;

/// A key that encrypts secrets at rest; wiped when dropped.
pub struct SealingKey(Secret<{ SealingKey::BYTES }>);

impl std::fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealingKey")
    }
}

impl SealingKey {
    /// Size of a key in bytes.
    pub const BYTES: usize = 32;

    /// A key of these bytes.
    pub fn new(bytes: [u8; Self::BYTES]) -> Self {
        SealingKey(Secret::new(bytes))
    }

    /// Encrypts a secret: IV, ciphertext, MAC. The IV must be random. `context` names the secret: a ciphertext is valid with
    /// the same context only.
    ///
    /// # Errors
    /// If the cipher fails.
    pub fn seal(&self, iv: [u8; IV_BYTES], context: &[u8], secret: &[u8]) -> Result<Vec<u8>, CodecError> {
        let mut out = iv.to_vec();
        out.extend_from_slice(secret);
        let key = BlockKey::wrapping(Suite::Aes256Gcm, self.0.bytes());
        let mac = key.seal(&iv, context, out.get_mut(IV_BYTES..).unwrap_or_default())?;
        out.extend_from_slice(&mac);
        debug_assert_eq!(out.len(), IV_BYTES + secret.len() + MAC_BYTES);
        Ok(out)
    }

    /// Decrypts what [`SealingKey::seal`] returned.
    ///
    /// # Errors
    /// [`CodecError::Authentication`] if the key or the context is another one, or the bytes were changed.
    pub fn open(&self, context: &[u8], sealed: &[u8]) -> Result<Vec<u8>, CodecError> {
        let wrong = CodecError::Authentication { what: "secret at rest" };
        let Some((iv, rest)) = sealed.split_first_chunk::<IV_BYTES>() else { return Err(wrong) };
        let Some((encrypted, mac)) = rest.split_last_chunk::<MAC_BYTES>() else { return Err(wrong) };
        let mut out = encrypted.to_vec();
        let key = BlockKey::wrapping(Suite::Aes256Gcm, self.0.bytes());
        key.open(iv, context, &mut out, mac).map_err(|_| wrong)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_open_with_their_key_and_context_only() {
        let key = SealingKey::new([7; 32]);
        let sealed = key.seal([1; 12], b"ann", b"a long secret").unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_eq!(key.open(b"ann", &sealed).unwrap(), b"a long secret");
        assert!(key.open(b"bob", &sealed).is_err() && SealingKey::new([8; 32]).open(b"ann", &sealed).is_err());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(key.open(b"ann", &changed).is_err(), "byte {at}");
            assert!(key.open(b"ann", &sealed[..at]).is_err());
        }
        assert_eq!(format!("{key:?}"), "SealingKey");
    }
}
