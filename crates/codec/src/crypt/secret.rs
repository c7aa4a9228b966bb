//! Key bytes that are wiped after use, and HMACs with them.

use super::MAC_BYTES;
use crate::error::CodecError;
use aws_lc_rs::hmac;

/// Key bytes that are wiped when dropped.
pub(super) struct Secret<const N: usize>([u8; N]);

impl<const N: usize> Secret<N> {
    pub(super) fn new(bytes: [u8; N]) -> Self {
        Secret(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8; N] {
        &self.0
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8; N] {
        &mut self.0
    }
}

impl<const N: usize> Drop for Secret<N> {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from removing the dead store.
        std::hint::black_box(&self.0);
    }
}

/// HMAC-SHA-512 with the dataset's HMAC key.
pub(super) struct HmacKey(hmac::Key);

impl HmacKey {
    pub(super) fn new(bytes: &[u8]) -> Self {
        HmacKey(hmac::Key::new(hmac::HMAC_SHA512, bytes))
    }

    /// The first `N` ≤ 64 bytes of the HMAC over the parts, one after the other.
    pub(super) fn truncated<const N: usize>(&self, parts: &[&[u8]]) -> [u8; N] {
        const { assert!(N <= 64) };
        let mut context = hmac::Context::with_key(&self.0);
        parts.iter().for_each(|part| context.update(part));
        let tag = context.sign();
        std::array::from_fn(|i| tag.as_ref()[i])
    }

    pub(super) fn verify(&self, data: &[u8], mac: &[u8; MAC_BYTES], what: &'static str) -> Result<(), CodecError> {
        let same = aws_lc_rs::constant_time::verify_slices_are_equal(&self.truncated::<MAC_BYTES>(&[data]), mac);
        same.map_err(|_| CodecError::Authentication { what })
    }
}
