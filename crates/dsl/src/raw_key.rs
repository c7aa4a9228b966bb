//! The key of a raw stream (OpenZFS `module/zfs/dsl_crypt.c`, `dsl_crypto_populate_key_nvlist`, `dsl_crypto_recv_raw_*_check`):
//! the wrapped key of the sender's dataset, how the user gives the wrapping key, and how the dnodes are stored.

use crate::KeyFormat;
use weir_codec::crypt::{Suite, WrappedKey};
use weir_dmu::live::RawHeader;
use weir_format::dsl::crypto_key;
use weir_format::{NvList, NvValue};

/// Minimum number of iterations over a passphrase (`MIN_PBKDF2_ITERATIONS`).
const MIN_ITERATIONS: u64 = 100_000;
/// Size in bytes of a block of dnodes.
const DNODE_BLOCK_BYTES: u64 = 16 << 10;

/// The key of a raw stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawKey {
    /// The keys, wrapped.
    pub wrapped: WrappedKey,
    /// How the user gives the wrapping key.
    pub format: KeyFormat,
    /// `pbkdf2salt`.
    pub salt: u64,
    /// `pbkdf2iters`.
    pub iterations: u64,
    /// The object set's header and meta dnode.
    pub header: RawHeader,
    /// Identity of the IVs of the snapshot; 0 if the sender has none.
    pub to_ivset_guid: u64,
    /// Identity of the IVs of the origin; 0 if there is none.
    pub from_ivset_guid: u64,
}

impl RawKey {
    /// Decodes the entry `crypt_keydata` of a stream's list.
    ///
    /// # Errors
    /// The name of the field that is missing or out of its range.
    pub fn from_list(list: &NvList) -> Result<Self, &'static str> {
        let word = |name: &'static str| list.get_u64(name).ok_or(name);
        let small = |name: &'static str, range: std::ops::RangeInclusive<u64>| {
            word(name).and_then(|n| if range.contains(&n) { Ok(n as u8) } else { Err(name) })
        };
        let suite = word(crypto_key::SUITE)?;
        Suite::from_u64(suite).ok_or(crypto_key::SUITE)?;
        let version = word(crypto_key::VERSION)?;
        if version != WrappedKey::CURRENT_VERSION {
            return Err(crypto_key::VERSION);
        }
        let wrapped = WrappedKey {
            suite,
            version,
            guid: word(crypto_key::GUID)?,
            master_key: bytes(list, crypto_key::MASTER_KEY)?,
            hmac_key: bytes(list, crypto_key::HMAC_KEY)?,
            iv: bytes(list, crypto_key::IV)?,
            mac: bytes(list, crypto_key::MAC)?,
        };
        let format = KeyFormat::from_u64(word(crypto_key::KEYFORMAT)?).ok_or(crypto_key::KEYFORMAT)?;
        let salt = word(crypto_key::PBKDF2_SALT)?;
        let iterations = word(crypto_key::PBKDF2_ITERS)?;
        let is_passphrase = format == KeyFormat::Passphrase;
        if is_passphrase && iterations < MIN_ITERATIONS || !is_passphrase && iterations != 0 {
            return Err(crypto_key::PBKDF2_ITERS);
        }
        if is_passphrase != (salt != 0) {
            return Err(crypto_key::PBKDF2_SALT);
        }
        if word("mdn_blksz")? != DNODE_BLOCK_BYTES {
            return Err("mdn_blksz");
        }
        let header = RawHeader {
            portable_mac: bytes(list, "portable_mac")?,
            levels: small("mdn_nlevels", 1..=8)?,
            block_bytes: DNODE_BLOCK_BYTES as u32,
            indirect_shift: small("mdn_indblkshift", 10..=17)?,
            pointers: small("mdn_nblkptr", 1..=3)?,
            max_block_id: word("mdn_maxblkid")?,
            checksum: small("mdn_checksum", 0..=14)?,
            compression: small("mdn_compress", 0..=16)?,
        };
        let shift = u32::from(header.indirect_shift - 7) * u32::from(header.levels - 1);
        let reached = if shift < 60 { u64::from(header.pointers) << shift } else { u64::MAX };
        if header.max_block_id >= reached || header.max_block_id >= 1 << 43 {
            return Err("mdn_maxblkid");
        }
        let to_ivset_guid = list.get_u64("to_ivset_guid").unwrap_or(0);
        let from_ivset_guid = list.get_u64("from_ivset_guid").unwrap_or(0);
        Ok(RawKey { wrapped, format, salt, iterations, header, to_ivset_guid, from_ivset_guid })
    }
}

/// An array of exactly this number of bytes.
fn bytes<const N: usize>(list: &NvList, name: &'static str) -> Result<[u8; N], &'static str> {
    match list.get(name) {
        Some(NvValue::Uint8Array(bytes)) => bytes.as_slice().try_into().map_err(|_| name),
        _ => Err(name),
    }
}
