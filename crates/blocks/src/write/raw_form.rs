//! Form of blocks that `zfs receive` of a raw stream stores without the key.

use weir_codec::crypt::{IV_BYTES, MAC_BYTES, SALT_BYTES};
use weir_format::CompressionKind;

/// Form of a block whose bytes are encrypted or authenticated already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawForm {
    /// Compression of the clear bytes.
    pub compression: CompressionKind,
    /// Size in bytes of the clear and uncompressed block.
    pub lsize_bytes: u64,
    /// Salt of the block's key; zero for a block that is authenticated only.
    pub salt: [u8; SALT_BYTES],
    /// Initialisation vector; zero for a block that is authenticated only.
    pub iv: [u8; IV_BYTES],
    /// Message authentication code.
    pub mac: [u8; MAC_BYTES],
}

impl RawForm {
    /// The form of a block of this size that is neither compressed nor encrypted: one of zeros.
    pub fn clear(lsize_bytes: u64) -> Self {
        let compression = CompressionKind::Off;
        RawForm { compression, lsize_bytes, salt: [0; SALT_BYTES], iv: [0; IV_BYTES], mac: [0; MAC_BYTES] }
    }
}
