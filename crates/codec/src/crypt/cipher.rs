//! AES-GCM and AES-CCM with 12-byte IVs and 16-byte MACs.
//!
//! GCM comes from the library. CCM (RFC 3610 with M = 16, L = 3) is built here from the library's CBC and CTR:
//!
//! ```text
//!   B₀ = 0x7a (0x3a without aad) · IV · length (u24)      A₀ = 0x02 · IV · 0 (u24)
//!   MAC = last block of CBC(B₀ · length of aad · aad, padded · plaintext, padded) ⊕ AES(A₀)
//!   ciphertext = plaintext ⊕ AES(A₁) AES(A₂) …
//! ```

use super::secret::{HmacKey, Secret};
use super::{IV_BYTES, MAC_BYTES, SALT_BYTES};
use crate::error::CodecError;
use aws_lc_rs::aead;
use aws_lc_rs::cipher::{self, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::iv::FixedLength;

const AES_BLOCK: usize = 16;

/// The cipher of a dataset (`enum zio_encrypt`, the property `encryption`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Suite {
    Aes128Ccm = 3,
    Aes192Ccm = 4,
    Aes256Ccm = 5,
    Aes128Gcm = 6,
    Aes192Gcm = 7,
    Aes256Gcm = 8,
}

impl Suite {
    /// From the number in a key object; `None` for numbers that name no cipher (0 inherit, 1 on, 2 off, or unknown).
    pub fn from_u64(number: u64) -> Option<Self> {
        use Suite::*;
        [Aes128Ccm, Aes192Ccm, Aes256Ccm, Aes128Gcm, Aes192Gcm, Aes256Gcm].into_iter().find(|s| *s as u64 == number)
    }

    /// The name in the `encryption` property.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Aes128Ccm => "aes-128-ccm",
            Suite::Aes192Ccm => "aes-192-ccm",
            Suite::Aes256Ccm => "aes-256-ccm",
            Suite::Aes128Gcm => "aes-128-gcm",
            Suite::Aes192Gcm => "aes-192-gcm",
            Suite::Aes256Gcm => "aes-256-gcm",
        }
    }

    /// Size of the suite's keys in bytes.
    pub fn key_bytes(self) -> usize {
        match self {
            Suite::Aes128Ccm | Suite::Aes128Gcm => 16,
            Suite::Aes192Ccm | Suite::Aes192Gcm => 24,
            Suite::Aes256Ccm | Suite::Aes256Gcm => 32,
        }
    }

    pub(super) fn is_gcm(self) -> bool {
        matches!(self, Suite::Aes128Gcm | Suite::Aes192Gcm | Suite::Aes256Gcm)
    }
}

/// An expanded key for encryption and decryption.
pub(super) enum BlockKey {
    Gcm(aead::LessSafeKey),
    Ccm(Box<Ccm>),
    /// Fallback if the library rejects a key; every operation fails.
    Unusable,
}

impl BlockKey {
    /// Derives a block key by HKDF-SHA-512 (RFC 5869) without salt, with the block's salt as `info`. One round gives
    /// 64 bytes, enough for all key lengths.
    pub(super) fn derive(suite: Suite, master: &Secret<32>, salt: &[u8; SALT_BYTES]) -> Self {
        let extracted: [u8; 64] = HmacKey::new(&[]).truncated(&[&master.bytes()[..suite.key_bytes()]]);
        let expanded = Secret::<64>::new(HmacKey::new(&extracted).truncated(&[salt, &[1]]));
        Self::new(suite.is_gcm(), &expanded.bytes()[..suite.key_bytes()])
    }

    /// The key that wraps a dataset's keys: always 256 bits, in the mode of the dataset's suite.
    pub(super) fn wrapping(suite: Suite, key: &[u8; 32]) -> Self {
        Self::new(suite.is_gcm(), key)
    }

    fn new(gcm: bool, key: &[u8]) -> Self {
        let made = if gcm {
            let algorithm = match key.len() {
                16 => &aead::AES_128_GCM,
                24 => &aead::AES_192_GCM,
                _ => &aead::AES_256_GCM,
            };
            aead::UnboundKey::new(algorithm, key).map(|k| BlockKey::Gcm(aead::LessSafeKey::new(k)))
        } else {
            Ccm::new(key).map(|k| BlockKey::Ccm(Box::new(k)))
        };
        made.unwrap_or(BlockKey::Unusable)
    }

    /// Decrypts `data` in place and verifies the MAC over it and `aad`.
    pub(super) fn open(
        &self,
        iv: &[u8; IV_BYTES],
        aad: &[u8],
        data: &mut [u8],
        mac: &[u8; MAC_BYTES],
    ) -> Result<(), CodecError> {
        let opened = match self {
            BlockKey::Gcm(key) => {
                let nonce = aead::Nonce::assume_unique_for_key(*iv);
                key.open_in_place_separate_tag(nonce, aead::Aad::from(aad), mac, data).is_ok()
            }
            BlockKey::Ccm(key) => key.open(iv, aad, data, mac).is_ok(),
            BlockKey::Unusable => false,
        };
        if opened { Ok(()) } else { Err(CodecError::Authentication { what: "encrypted block" }) }
    }

    /// Encrypts `data` in place and returns the MAC over it and `aad`.
    pub(super) fn seal(&self, iv: &[u8; IV_BYTES], aad: &[u8], data: &mut [u8]) -> Result<[u8; MAC_BYTES], CodecError> {
        let mac = match self {
            BlockKey::Gcm(key) => {
                let nonce = aead::Nonce::assume_unique_for_key(*iv);
                let tag = key.seal_in_place_separate_tag(nonce, aead::Aad::from(aad), data).ok();
                tag.and_then(|t| t.as_ref().try_into().ok())
            }
            BlockKey::Ccm(key) => key.seal(iv, aad, data).ok(),
            BlockKey::Unusable => None,
        };
        // CCM with 12-byte IVs has a 24-bit length, so a block of the maximum size (16 MiB) is one byte too long.
        mac.ok_or(CodecError::Structure { what: "block too long for its cipher", offset: 0 })
    }
}

/// A CCM key.
pub(super) struct Ccm {
    chain: EncryptingKey,
    counter: EncryptingKey,
}

impl Ccm {
    fn new(key: &[u8]) -> Result<Self, Unspecified> {
        let algorithm = match key.len() {
            16 => &cipher::AES_128,
            24 => &cipher::AES_192,
            _ => &cipher::AES_256,
        };
        Ok(Ccm {
            chain: EncryptingKey::cbc(UnboundCipherKey::new(algorithm, key)?)?,
            counter: EncryptingKey::ctr(UnboundCipherKey::new(algorithm, key)?)?,
        })
    }

    fn open(&self, iv: &[u8; IV_BYTES], aad: &[u8], data: &mut [u8], mac: &[u8; MAC_BYTES]) -> Result<(), Unspecified> {
        let mask = self.key_stream(iv, data)?;
        let made = self.mac(iv, aad, data)?;
        let masked: [u8; MAC_BYTES] = std::array::from_fn(|i| made[i] ^ mask[i]);
        verify_slices_are_equal(&masked, mac).inspect_err(|_| data.fill(0))
    }

    fn seal(&self, iv: &[u8; IV_BYTES], aad: &[u8], data: &mut [u8]) -> Result<[u8; MAC_BYTES], Unspecified> {
        let made = self.mac(iv, aad, data)?;
        let mask = self.key_stream(iv, data)?;
        Ok(std::array::from_fn(|i| made[i] ^ mask[i]))
    }

    /// Xors `data` with the key stream from A₁ on; returns the key stream block of A₀.
    fn key_stream(&self, iv: &[u8; IV_BYTES], data: &mut [u8]) -> Result<[u8; AES_BLOCK], Unspecified> {
        let context = |count: u8| {
            let mut block = [0; AES_BLOCK];
            block[0] = 2;
            block[1..13].copy_from_slice(iv);
            block[15] = count;
            EncryptionContext::Iv128(FixedLength::from(block))
        };
        let mut mask = [0; AES_BLOCK];
        self.counter.less_safe_encrypt(&mut mask, context(0))?;
        self.counter.less_safe_encrypt(data, context(1))?;
        Ok(mask)
    }

    /// The last CBC block over B₀, `aad` and plaintext.
    fn mac(&self, iv: &[u8; IV_BYTES], aad: &[u8], clear: &[u8]) -> Result<[u8; AES_BLOCK], Unspecified> {
        let length = u32::try_from(clear.len()).map_err(|_| Unspecified)?.to_be_bytes();
        if length[0] != 0 {
            return Err(Unspecified);
        }
        let mut first = [0; AES_BLOCK];
        first[0] = if aad.is_empty() { 0x3a } else { 0x7a };
        first[1..13].copy_from_slice(iv);
        first[13..].copy_from_slice(&length[1..]);
        let mut chain = Chain { key: &self.chain, last: [0; AES_BLOCK], pending: Vec::with_capacity(Chain::PIECE) };
        chain.take(&first)?;
        if !aad.is_empty() {
            match u16::try_from(aad.len()) {
                Ok(short) if short < 0xff00 => chain.take(&short.to_be_bytes())?,
                _ => {
                    chain.take(&[0xff, 0xfe])?;
                    chain.take(&u32::try_from(aad.len()).map_err(|_| Unspecified)?.to_be_bytes())?;
                }
            }
            chain.take(aad)?;
            chain.pad();
        }
        chain.take(clear)?;
        chain.finish()
    }
}

/// CBC-MAC over bytes that arrive in pieces: keeps only the last block.
struct Chain<'a> {
    key: &'a EncryptingKey,
    last: [u8; AES_BLOCK],
    pending: Vec<u8>,
}

impl Chain<'_> {
    /// Bytes encrypted at once: a multiple of the cipher's block size that fits in the L1 cache.
    const PIECE: usize = 8192;

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Unspecified> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(Self::PIECE - self.pending.len()));
            self.pending.extend(now);
            bytes = later;
            if self.pending.len() == Self::PIECE {
                self.run()?;
            }
        }
        Ok(())
    }

    fn pad(&mut self) {
        self.pending.resize(self.pending.len().next_multiple_of(AES_BLOCK), 0);
    }

    fn run(&mut self) -> Result<(), Unspecified> {
        let context = EncryptionContext::Iv128(FixedLength::from(self.last));
        self.key.less_safe_encrypt(&mut self.pending, context)?;
        self.last = *self.pending.last_chunk().ok_or(Unspecified)?;
        self.pending.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<[u8; AES_BLOCK], Unspecified> {
        self.pad();
        if !self.pending.is_empty() {
            self.run()?;
        }
        Ok(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm::aead::{AeadInOut, inout::InOutBuf};
    use ccm::consts::{U12, U16};
    use ccm::{Ccm as Reference, KeyInit};
    use proptest::prelude::*;

    fn agrees<P: AeadInOut<NonceSize = U12, TagSize = U16> + KeyInit>(key: &[u8], aad: &[u8], clear: &[u8]) {
        let iv = *b"initvectorrr";
        let reference = P::new_from_slice(key).unwrap();
        let mut reference_data = clear.to_vec();
        let reference_mac =
            reference.encrypt_inout_detached(&iv.into(), aad, InOutBuf::from(&mut reference_data[..])).unwrap();
        let ours = BlockKey::new(false, key);
        let mut data = clear.to_vec();
        let mac = ours.seal(&iv, aad, &mut data).unwrap();
        assert_eq!((&data, mac), (&reference_data, reference_mac.into()));
        ours.open(&iv, aad, &mut data, &mac).unwrap();
        assert_eq!(data, clear);
    }

    proptest! {
        /// The `ccm` crate gives the same bytes.
        #[test]
        fn ccm_agrees_with_another_implementation(
            key: [u8; 32],
            aad in proptest::collection::vec(any::<u8>(), 0..100),
            clear in proptest::collection::vec(any::<u8>(), 0..9000),
        ) {
            agrees::<Reference<aes::Aes128, U16, U12>>(&key[..16], &aad, &clear);
            agrees::<Reference<aes::Aes192, U16, U12>>(&key[..24], &aad, &clear);
            agrees::<Reference<aes::Aes256, U16, U12>>(&key, &aad, &clear);
        }
    }

    /// The length of the aad has another encoding from 0xff00 on.
    #[test]
    fn ccm_with_long_aad() {
        for length in [0xfeff, 0xff00, 0x1_0000, 100_000] {
            agrees::<Reference<aes::Aes128, U16, U12>>(&[1; 16], &vec![7; length], b"clear");
        }
    }
}
