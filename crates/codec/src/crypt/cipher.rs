//! AES in its two authenticated modes, with 12-byte IVs and 16-byte MACs.

use super::keys::{HmacKey, Secret};
use super::{IV_BYTES, MAC_BYTES, SALT_BYTES, Suite};
use crate::error::CodecError;
use aes::{Aes128, Aes192, Aes256};
use aws_lc_rs::aead;
use ccm::aead::AeadInOut;
use ccm::aead::inout::InOutBuf;
use ccm::consts::{U12, U16};
use ccm::{Ccm, KeyInit};

type Mode<C> = Ccm<C, U16, U12>;

/// A key ready for use.
pub(super) enum BlockKey {
    Gcm(aead::LessSafeKey),
    Ccm128(Box<Mode<Aes128>>),
    Ccm192(Box<Mode<Aes192>>),
    Ccm256(Box<Mode<Aes256>>),
    /// What no key length gives; refuses everything.
    Unusable,
}

impl BlockKey {
    /// HKDF-SHA-512 (RFC 5869) without salt, the block's salt being its `info`; one round gives 64 bytes, enough for all.
    pub(super) fn derive(suite: Suite, master: &Secret<32>, salt: &[u8; SALT_BYTES]) -> Self {
        let extracted: [u8; 64] = HmacKey::new(&[]).truncated(&[&master.bytes()[..suite.key_bytes()]]);
        let expanded = Secret::<64>::new(HmacKey::new(&extracted).truncated(&[salt, &[1]]));
        Self::new(suite.is_gcm(), &expanded.bytes()[..suite.key_bytes()])
    }

    /// Wrapping keys are always of 256 bits, in the mode of the suite that they wrap.
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
            aead::UnboundKey::new(algorithm, key).ok().map(|k| BlockKey::Gcm(aead::LessSafeKey::new(k)))
        } else {
            match key.len() {
                16 => Mode::new_from_slice(key).ok().map(|k| BlockKey::Ccm128(Box::new(k))),
                24 => Mode::new_from_slice(key).ok().map(|k| BlockKey::Ccm192(Box::new(k))),
                _ => Mode::new_from_slice(key).ok().map(|k| BlockKey::Ccm256(Box::new(k))),
            }
        };
        made.unwrap_or(BlockKey::Unusable)
    }

    /// Decrypts `data` in place if the MAC over it and `aad` is right.
    pub(super) fn open(
        &self,
        iv: &[u8; IV_BYTES],
        aad: &[u8],
        data: &mut [u8],
        mac: &[u8; MAC_BYTES],
    ) -> Result<(), CodecError> {
        fn ccm<M: AeadInOut<NonceSize = U12, TagSize = U16>>(
            mode: &M,
            iv: &[u8; IV_BYTES],
            aad: &[u8],
            data: &mut [u8],
            mac: &[u8; MAC_BYTES],
        ) -> bool {
            mode.decrypt_inout_detached(&(*iv).into(), aad, InOutBuf::from(data), &(*mac).into()).is_ok()
        }
        let opened = match self {
            BlockKey::Gcm(key) => {
                let nonce = aead::Nonce::assume_unique_for_key(*iv);
                key.open_in_place_separate_tag(nonce, aead::Aad::from(aad), mac, data).is_ok()
            }
            BlockKey::Ccm128(mode) => ccm(&**mode, iv, aad, data, mac),
            BlockKey::Ccm192(mode) => ccm(&**mode, iv, aad, data, mac),
            BlockKey::Ccm256(mode) => ccm(&**mode, iv, aad, data, mac),
            BlockKey::Unusable => false,
        };
        if opened { Ok(()) } else { Err(CodecError::Authentication { what: "encrypted block" }) }
    }

    /// Encrypts `data` in place; the MAC covers it and `aad`.
    pub(super) fn seal(&self, iv: &[u8; IV_BYTES], aad: &[u8], data: &mut [u8]) -> Result<[u8; MAC_BYTES], CodecError> {
        fn ccm<M: AeadInOut<NonceSize = U12, TagSize = U16>>(
            mode: &M,
            iv: &[u8; IV_BYTES],
            aad: &[u8],
            data: &mut [u8],
        ) -> Option<[u8; MAC_BYTES]> {
            mode.encrypt_inout_detached(&(*iv).into(), aad, InOutBuf::from(data)).ok().map(Into::into)
        }
        let mac = match self {
            BlockKey::Gcm(key) => {
                let nonce = aead::Nonce::assume_unique_for_key(*iv);
                let tag = key.seal_in_place_separate_tag(nonce, aead::Aad::from(aad), data).ok();
                tag.and_then(|t| t.as_ref().try_into().ok())
            }
            BlockKey::Ccm128(mode) => ccm(&**mode, iv, aad, data),
            BlockKey::Ccm192(mode) => ccm(&**mode, iv, aad, data),
            BlockKey::Ccm256(mode) => ccm(&**mode, iv, aad, data),
            BlockKey::Unusable => None,
        };
        // CCM with 12-byte IVs counts bytes in 24 bits: one block of the largest size is a byte too long for it.
        mac.ok_or(CodecError::Structure { what: "block too long for its cipher", offset: 0 })
    }
}
