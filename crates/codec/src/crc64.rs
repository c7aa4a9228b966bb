//! CRC-64 as ZAP objects hash names with it (OpenZFS `include/sys/fs/zfs.h` `ZFS_CRC64_POLY`, `zap_hash`): the
//! ECMA-182 polynomial bit-reversed, no final inversion; the caller gives the salt as the starting value.

/// The polynomial, least significant bit first.
const POLYNOMIAL: u64 = 0xC96C_5795_D787_0F42;

const TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// Continues `crc` over `bytes`.
///
/// ```
/// // The check value of CRC-64/XZ is the same register with both ends inverted.
/// assert_eq!(!weir_codec::crc64::update(!0, b"123456789"), 0x995d_c9bb_df19_39fa);
/// ```
pub fn update(crc: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(crc, |crc, &b| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ b)])
}
