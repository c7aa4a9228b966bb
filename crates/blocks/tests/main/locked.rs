//! Encrypted blocks: what was sealed opens with the key, and with no other.

use crate::store::*;
use std::sync::Arc;
use weir_blocks::{BlockError, Blocks, ReadOptions, WriteOptions};
use weir_codec::crypt::{DatasetKey, Suite, WrappedKey, WrappingKey};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, ObjectType};
use weir_machine::Request;
use weir_sim::Timing;

fn key(suite: Suite, master: u8) -> Arc<DatasetKey> {
    let wrapping = WrappingKey::from_raw(&[7; 32]).unwrap();
    let guid = 90 + u64::from(master);
    let wrapped = WrappedKey::seal(&wrapping, suite, guid, [3; 12], &[master; 32], &[6; 64]).unwrap();
    Arc::new(DatasetKey::unwrap(&wrapping, &wrapped).unwrap())
}

fn read_with(
    bench: &Bench,
    blocks: &Blocks,
    pointer: &BlockPointer,
    keys: Option<&Arc<DatasetKey>>,
) -> Result<Vec<u8>, BlockError> {
    let options = ReadOptions { keys: keys.cloned(), ..ReadOptions::default() };
    let request = Request::internal("test");
    bench.world.run(blocks.read(&request, pointer, &options)).unwrap().map(|b| b.to_vec())
}

/// Dnodes: a file's with a bonus, a free one, a directory's.
fn dnodes() -> Vec<u8> {
    let mut block = vec![0; 16 << 10];
    for (slot, kind) in [(0usize, 19u8), (2, 20)] {
        let at = slot * 512;
        block[at..at + 5].copy_from_slice(&[kind, 14, 1, 1, 44]);
        block[at + 10] = 168;
        block[at + 64 + 128..at + 64 + 128 + 168].copy_from_slice(&pattern(168, slot as u64));
    }
    block
}

#[test]
fn what_was_sealed_opens_with_its_key_alone() {
    let bench = Bench::new(1, 3, Timing::Chaos);
    let blocks = stripe_of(&bench, 12, 3);
    for suite in [Suite::Aes128Ccm, Suite::Aes256Ccm, Suite::Aes192Gcm, Suite::Aes256Gcm] {
        let keys = key(suite, 5);
        let other = key(suite, 6);
        for checksum in [ChecksumKind::Fletcher4, ChecksumKind::Sha256, ChecksumKind::Edonr, ChecksumKind::Blake3] {
            for (object_type, data, secret) in [
                (ObjectType::PLAIN_FILE_CONTENTS, soft(128 << 10, 1), true),
                (ObjectType::PLAIN_FILE_CONTENTS, pattern(4096, 2), true),
                (ObjectType::DIRECTORY_CONTENTS, pattern(512, 3), true),
                (ObjectType::MASTER_NODE, soft(16 << 10, 4), false),
                (ObjectType::DNODE, dnodes(), true),
            ] {
                let options =
                    WriteOptions { object_type, checksum, keys: Some(keys.clone()), copies: 3, fill: 7, ..options() };
                let pointer = write(&bench, &blocks, &data, &options).unwrap();
                let context = format!("{suite:?} {checksum:?} {pointer:?}");
                assert_eq!((pointer.is_encrypted(), pointer.is_authenticated()), (secret, !secret), "{context}");
                assert_eq!(pointer.dvas().count(), if secret { 2 } else { 3 });
                assert_eq!(pointer.fill(), 7);
                assert_eq!(read_with(&bench, &blocks, &pointer, Some(&keys)), Ok(data.clone()), "{context}");
                assert!(read_with(&bench, &blocks, &pointer, Some(&other)).is_err() || !secret, "{context}");
                assert_eq!(read_with(&bench, &blocks, &pointer, None).is_err(), secret, "{context}");
                if object_type == ObjectType::DNODE {
                    assert_eq!(pointer.compression(), Some(CompressionKind::Off), "walked without the key");
                }
            }
        }
    }
}

#[test]
fn no_two_blocks_have_the_same_salt_and_vector() {
    let bench = Bench::new(2, 1, Timing::Nvme);
    let blocks = stripe_of(&bench, 9, 1);
    let keys = key(Suite::Aes256Gcm, 5);
    let options = WriteOptions { keys: Some(keys), ..options() };
    let pointers: Vec<_> = (0..50).map(|_| write(&bench, &blocks, &pattern(512, 1), &options).unwrap()).collect();
    let mut vectors: Vec<_> = pointers.iter().map(|p| (p.crypt_salt(), p.crypt_iv())).collect();
    vectors.sort_unstable();
    vectors.dedup();
    assert_eq!(vectors.len(), 50);
    assert!(pointers.iter().all(|p| p.crypt_salt() == pointers[0].crypt_salt()), "a key is derived once per salt");
    let hole = write(&bench, &blocks, &[0; 512], &options).unwrap();
    assert!(hole.is_hole(), "holes are seen, as in every encrypted dataset");
}

#[test]
fn indirect_blocks_and_object_sets_carry_the_macs_of_what_is_below() {
    let bench = Bench::new(3, 1, Timing::Nvme);
    let blocks = stripe_of(&bench, 12, 1);
    let keys = key(Suite::Aes256Gcm, 5);
    let sealed = WriteOptions { keys: Some(keys.clone()), ..options() };
    let below = write(&bench, &blocks, &soft(64 << 10, 1), &sealed).unwrap();
    let mut indirect = below.encode(weir_format::Endian::Little).to_vec();
    indirect.resize(16 << 10, 0);
    let above = write(&bench, &blocks, &indirect, &WriteOptions { level: 1, ..sealed.clone() }).unwrap();
    assert!(above.has_indirect_mac() && above.psize_bytes() < 16 << 10);
    for keys in [Some(&keys), None] {
        assert_eq!(read_with(&bench, &blocks, &above, keys), Ok(indirect.clone()));
    }
    let mut set = vec![0; 4096];
    set[0] = 10;
    set[3] = 3;
    set[64..192].copy_from_slice(&below.encode(weir_format::Endian::Little));
    set[704] = 2;
    let object_type = ObjectType::OBJSET;
    let root = write(&bench, &blocks, &set, &WriteOptions { object_type, ..sealed }).unwrap();
    let read = read_with(&bench, &blocks, &root, Some(&keys)).unwrap();
    assert_eq!((&read[..720], &read[784..]), (&set[..720], &set[784..]));
    assert_ne!(read[720..752], [0; 32]);
}

#[test]
fn encrypted_gangs_open() {
    let bench = Bench::new(4, 2, Timing::Chaos);
    let blocks = stripe_of(&bench, 12, 2);
    blocks.force_gangs_above(Some(16 << 10)).unwrap();
    let keys = key(Suite::Aes256Gcm, 5);
    for copies in [1, 2, 3] {
        let data = pattern(128 << 10, 4);
        let options = WriteOptions { keys: Some(keys.clone()), copies, ..options() };
        let pointer = write(&bench, &blocks, &data, &options).unwrap();
        assert!(pointer.is_gang() && pointer.dvas().count() == 2);
        assert_eq!(read_with(&bench, &blocks, &pointer, Some(&keys)), Ok(data));
    }
}
