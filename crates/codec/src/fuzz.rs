//! Fuzz targets, as in `weir_format::fuzz`: one function per family. For any input each returns without panicking, in
//! time and memory bounded by the input's length and the format's limits.
//!
//! The first bytes of an input select kind, byte order and lengths; the rest is the block. `cargo xtask fuzz` runs
//! these on mutated seeds, its long form guided by coverage, and the unit test below on random bytes.

use crate::checksum::embedded::{MAGIC, seal_embedded};
use crate::checksum::{Verifier, verify_block, verify_embedded, verify_gang_header};
use crate::crypt::{BlockCrypt, DatasetKey, Suite, WrappedKey, WrappingKey, verify_indirect};
use crate::{Salt, decompress, parity};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, Cursor, Endian, ObjectType};

/// A fuzz target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    ("checksum", checksum_target),
    ("crypt", crypt_target),
    ("decompress", decompress_target),
    ("parity", parity_target),
];

fn order(byte: u8) -> Endian {
    if byte & 1 == 0 { Endian::Little } else { Endian::Big }
}

/// First byte: the kind of compression; the next three: the logical size; the rest is the compressed block.
fn decompress_target(data: &[u8]) {
    let [kind, a, b, c, source @ ..] = data else { return };
    let Some(kind) = CompressionKind::from_u8(kind % 18) else { return };
    let logical_bytes = u32::from_le_bytes([*a, *b, *c % 4, 0]) as usize;
    if let Ok(block) = decompress(kind, source, logical_bytes) {
        assert_eq!(block.len(), logical_bytes);
    }
}

/// First byte: the kind; second: byte order; then a block pointer, then the block. The magic number of a log block is
/// also inserted, so that the checksum is computed.
fn checksum_target(data: &[u8]) {
    let [kind, endian, rest @ ..] = data else { return };
    let endian = order(*endian);
    let mut cursor = Cursor::new(rest, endian, "fuzz");
    let Ok(pointer) = BlockPointer::decode(&mut cursor) else { return };
    let block = rest.get(cursor.position()..).unwrap_or_default();
    let _ = verify_block(&pointer, &Salt::none(), block);
    let _ = verify_gang_header(&pointer, block);
    let Some(kind) = ChecksumKind::from_u8(kind % 15) else { return };
    let verifier = Verifier::Log { checksum: pointer.checksum(), with_mac: pointer.uses_crypt() };
    let _ = verify_embedded(kind, verifier, block);
    let mut sealed = block.to_vec();
    if let Some(magic) = sealed.get_mut(144..152) {
        magic.copy_from_slice(&if endian == Endian::Big { MAGIC.to_be_bytes() } else { MAGIC.to_le_bytes() });
        let _ = verify_embedded(kind, verifier, &sealed);
        if seal_embedded(kind, endian, verifier, &mut sealed).is_ok() {
            assert_eq!(verify_embedded(kind, verifier, &sealed), Ok(endian));
        }
    }
}

/// First byte: the suite; second: byte order; third: the object type; the rest is the block.
fn crypt_target(data: &[u8]) {
    let [suite, endian, object_type, block @ ..] = data else { return };
    let suite = Suite::from_u64(3 + u64::from(suite % 6)).unwrap_or(Suite::Aes256Gcm);
    let endian = order(*endian);
    let object_type = match object_type % 4 {
        0 => ObjectType::DNODE,
        1 => ObjectType::INTENT_LOG,
        2 => ObjectType::OBJSET,
        _ => ObjectType::PLAIN_FILE_CONTENTS,
    };
    let wrapping = WrappingKey::from_raw(&[1; WrappingKey::BYTES]);
    let wrapped = wrapping.as_ref().map(|w| WrappedKey::seal(w, suite, 1, [0; 12], &[2; 32], &[3; 64]));
    let (Ok(wrapping), Ok(Ok(wrapped))) = (&wrapping, wrapped) else { return };
    let Ok(key) = DatasetKey::unwrap(wrapping, &wrapped) else { return };
    let mut indirect = [0; 16];
    indirect[6] = 1 << 61 | 1 << 56 | u64::from(endian == Endian::Little) << 63;
    let _ = verify_indirect(&BlockPointer::from_words(indirect), block);
    let _ = key.verify_object_set(endian, block);
    if object_type == ObjectType::OBJSET {
        return;
    }
    let crypt = BlockCrypt { object_type, endian, salt: [4; 8], iv: [5; 12] };
    let mut stored = block.to_vec();
    if let Ok(mac) = key.encrypt(&crypt, &mut stored) {
        assert_eq!(key.decrypt(&crypt, &mac, &mut stored), Ok(()));
    }
}

/// First byte: data columns; second: parities; third: which columns are missing; fourth: where columns end. The rest
/// is split into columns; reconstruction must return the missing ones.
fn parity_target(data: &[u8]) {
    let [columns, parities, lost, shorter, bytes @ ..] = data else { return };
    let columns = usize::from(columns % 12);
    let parities = usize::from(parities % 5);
    let length = bytes.len() / columns.max(1);
    let cut = usize::from(*shorter).min(length);
    let row: Vec<&[u8]> = (0..columns)
        .map(|c| bytes.get(c * length..(c + 1) * length - if c * 2 > columns { cut } else { 0 }).unwrap_or_default())
        .collect();
    let mut made = vec![vec![0; length]; parities];
    let mut rows: Vec<&mut [u8]> = made.iter_mut().map(|p| &mut p[..]).collect();
    let generated = parity::generate(&row, &mut rows);
    let is_lost = |c: usize| lost >> (c % 8) & 1 == 1;
    let have: Vec<Option<&[u8]>> = row.iter().enumerate().map(|(c, d)| (!is_lost(c)).then_some(*d)).collect();
    let known: Vec<Option<&[u8]>> = made.iter().map(|p| Some(&p[..])).collect();
    let gaps: Vec<usize> = (0..columns).filter(|&c| is_lost(c)).collect();
    let mut rebuilt: Vec<Vec<u8>> = gaps.iter().map(|&c| vec![0; row[c].len()]).collect();
    let mut buffers: Vec<&mut [u8]> = rebuilt.iter_mut().map(|b| &mut b[..]).collect();
    if parity::reconstruct(&have, &known, &mut buffers).is_ok() && generated.is_ok() {
        assert!(gaps.iter().zip(&rebuilt).all(|(&c, b)| *b == row[c]));
    }
    let _ = parity::check(&row, &known);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_target_panics(data in proptest::collection::vec(any::<u8>(), 0..1500)) {
            for (_, body) in TARGETS {
                body(&data);
            }
        }
    }
}
