use super::*;
use proptest::prelude::*;

const SUITES: [Suite; 6] =
    [Suite::Aes128Ccm, Suite::Aes192Ccm, Suite::Aes256Ccm, Suite::Aes128Gcm, Suite::Aes192Gcm, Suite::Aes256Gcm];

fn key(suite: Suite, version: u64) -> DatasetKey {
    let wrapping = WrappingKey::from_raw(&[7; 32]).unwrap();
    let wrapped = WrappedKey::seal(&wrapping, suite, 99, [3; 12], &[5; 32], &[6; 64]).unwrap();
    let mut key = DatasetKey::unwrap(&wrapping, &wrapped).unwrap();
    key.version = version;
    key
}

fn block_crypt(object_type: ObjectType, endian: Endian) -> BlockCrypt {
    BlockCrypt { object_type, endian, salt: *b"saltsalt", iv: *b"initvectorrr" }
}

fn put(data: &mut [u8], at: usize, endian: Endian, value: u64) {
    let bytes = if endian == Endian::Big { value.to_be_bytes() } else { value.to_le_bytes() };
    data[at..at + 8].copy_from_slice(&bytes);
}

/// The golden keys of `tests/main.rs` show that the derivation is that of ZFS.
#[test]
fn passphrases_give_keys() {
    let wrapping = WrappingKey::from_passphrase(b"golden-passphrase", 0x1f0b_5b68_6fa0_7725, 100_000).unwrap();
    let again = WrappingKey::from_passphrase(b"golden-passphrase", 0x1f0b_5b68_6fa0_7725, 100_001).unwrap();
    let wrapped = WrappedKey::seal(&wrapping, Suite::Aes256Gcm, 1, [0; 12], &[1; 32], &[2; 64]).unwrap();
    assert!(DatasetKey::unwrap(&wrapping, &wrapped).is_ok());
    assert_eq!(DatasetKey::unwrap(&again, &wrapped).unwrap_err(), CodecError::WrongKey);
    for (passphrase, iterations) in [(&b"short"[..], 100_000), (&[b'x'; 513], 100_000), (b"long enough", 0)] {
        assert!(matches!(
            WrappingKey::from_passphrase(passphrase, 0, iterations),
            Err(CodecError::KeyMaterial { what: "passphrase", .. })
        ));
    }
    assert!(WrappingKey::from_passphrase(b"long enough", 0, u64::MAX).is_err());
}

#[test]
fn key_material_is_checked() {
    assert!(WrappingKey::from_hex("0g".repeat(32).as_bytes()).is_err());
    assert!(WrappingKey::from_hex("00".repeat(33).as_bytes()).is_err());
    assert!(WrappingKey::from_raw(&[0; 31]).is_err());
    let wrapping = WrappingKey::from_hex("Aa".repeat(32).as_bytes()).unwrap();
    let wrapped = WrappedKey::seal(&wrapping, Suite::Aes128Ccm, 1, [0; 12], &[1; 32], &[2; 64]).unwrap();
    let unknown = |w: WrappedKey| matches!(DatasetKey::unwrap(&wrapping, &w), Err(CodecError::UnknownCrypt { .. }));
    assert!(unknown(WrappedKey { suite: 9, ..wrapped.clone() }));
    assert!(unknown(WrappedKey { suite: 2, ..wrapped.clone() }));
    assert!(unknown(WrappedKey { version: 2, ..wrapped.clone() }));
    assert!(DatasetKey::unwrap(&WrappingKey::from_raw(&[0xaa; 32]).unwrap(), &wrapped).is_ok());
    assert!(!format!("{wrapping:?} {:?}", DatasetKey::unwrap(&wrapping, &wrapped)).contains("aa"));
}

/// A block of dnodes: free, plain with an encrypted bonus, with a spill pointer, large, with an unencrypted bonus.
fn dnodes(endian: Endian) -> Vec<u8> {
    let mut data: Vec<u8> = (0..16 * 512u32).map(|i| (i * 7 + i / 512) as u8).collect();
    let mut dnode = |slot: usize, object_type: u8, pointers: u8, bonus_type: u8, flags: u8, extra: u8| {
        let core = &mut data[slot * 512..][..64];
        core[0] = object_type;
        core[3] = pointers;
        core[4] = bonus_type;
        core[7] = flags;
        core[12] = extra;
    };
    dnode(0, 19, 1, 44, 1, 0);
    dnode(1, 0, 0, 0, 0, 0);
    dnode(2, 20, 1, 44, 5, 0);
    dnode(3, 19, 3, 44, 0, 3);
    dnode(7, 16, 1, 16, 0, 0);
    dnode(8, 19, 1, 44, 8, 7);
    // A bonus area of length 0 is not encrypted.
    data[7 * 512 + 10..][..2].fill(0);
    // A hole among the pointers.
    data[3 * 512 + 64 + 128..][..128].fill(0);
    put(&mut data, 24, endian, 4711);
    data
}

/// A log block: a write with data, a rename, a clone of two blocks, a write without data.
fn log(endian: Endian) -> Vec<u8> {
    let mut data: Vec<u8> = (0..4096u32).map(|i| (i * 11) as u8).collect();
    let mut at = 184;
    for (kind, length) in [(9, 192 + 100), (12, 80), (24, 72 + 256), (9, 192), (5, 32)] {
        put(&mut data, at, endian, kind);
        put(&mut data, at + 8, endian, length);
        at += length as usize;
    }
    put(&mut data, 136, endian, at as u64);
    data[at..].fill(0);
    data
}

#[test]
fn every_suite_version_order_and_kind_round_trips() {
    for suite in SUITES {
        for (version, endian) in [(0, Endian::Little), (1, Endian::Little), (1, Endian::Big)] {
            let key = key(suite, version);
            for (object_type, clear) in [
                (ObjectType::PLAIN_FILE_CONTENTS, vec![42; 131072]),
                (ObjectType::DNODE, dnodes(endian)),
                (ObjectType::INTENT_LOG, log(endian)),
            ] {
                let crypt = block_crypt(object_type, endian);
                let mut data = clear.clone();
                let mac = key.encrypt(&crypt, &mut data).unwrap();
                assert_ne!(data, clear);
                let stored = data.clone();
                key.decrypt(&crypt, &mac, &mut data).unwrap();
                assert_eq!(data, clear, "{suite:?} {object_type:?}");
                let mut wrong = mac;
                wrong[15] ^= 1;
                assert!(key.decrypt(&crypt, &wrong, &mut stored.clone()).is_err());
                let other = BlockCrypt { salt: *b"SALTsalt", ..crypt };
                assert!(key.decrypt(&other, &mac, &mut stored.clone()).is_err());
            }
        }
    }
}

/// Which bytes of a dnode block are plaintext, which are authenticated, and which may change undetected.
#[test]
fn only_bonus_areas_of_dnodes_are_encrypted() {
    let key = key(Suite::Aes256Gcm, 1);
    let crypt = block_crypt(ObjectType::DNODE, Endian::Little);
    let clear = dnodes(Endian::Little);
    let mut stored = clear.clone();
    let mac = key.encrypt(&crypt, &mut stored).unwrap();
    let changed = |range: std::ops::Range<usize>| stored[range.clone()] != clear[range];
    // Only the bonus areas of slots 0, 2 (before its spill pointer), 3–6 and 8–15 are encrypted.
    assert!(!changed(0..192) && changed(192..512));
    assert!(!changed(512..2 * 512 + 192) && changed(2 * 512 + 192..3 * 512 - 128) && !changed(3 * 512 - 128..3 * 512));
    assert!(!changed(3 * 512..3 * 512 + 448) && changed(3 * 512 + 448..7 * 512));
    assert!(!changed(7 * 512..8 * 512 + 192) && changed(8 * 512 + 192..16 * 512));

    let opens_with = |at: usize, bit: u8| {
        let mut data = stored.clone();
        data[at] ^= bit;
        key.decrypt(&crypt, &mac, &mut data).is_ok()
    };
    // Not authenticated, since a raw receive changes them: space used, non-portable flags, a pointer's address.
    assert!(opens_with(24, 1) && opens_with(7, 8) && opens_with(64 + 8, 1));
    // Authenticated: type, a pointer's MAC and logical size, a free slot, the spill pointer's MAC, an unencrypted
    // bonus area.
    for at in [0, 64 + 112, 64 + 48, 512 + 100, 3 * 512 - 1, 7 * 512 + 300, 200] {
        assert!(!opens_with(at, 2), "byte {at}");
    }
}

/// Version 0 authenticates 24 bytes per pointer, version 1 32 bytes; a key of one version does not decrypt the other.
#[test]
fn versions_are_incompatible() {
    let crypt = block_crypt(ObjectType::DNODE, Endian::Big);
    let mut stored = dnodes(Endian::Big);
    let mac = key(Suite::Aes128Gcm, 0).encrypt(&crypt, &mut stored).unwrap();
    assert!(key(Suite::Aes128Gcm, 1).decrypt(&crypt, &mac, &mut stored.clone()).is_err());
    assert!(key(Suite::Aes128Gcm, 0).decrypt(&crypt, &mac, &mut stored).is_ok());
}

/// The MACs of an object set are the same in both byte orders.
#[test]
fn object_sets_are_authenticated_in_any_byte_order() {
    let key = key(Suite::Aes256Gcm, 1);
    let build = |endian: Endian| {
        let mut data = vec![0u8; 4096];
        put(&mut data, 704, endian, 2);
        put(&mut data, 712, endian, 7);
        for at in [0, 1024, 1536, 2048] {
            data[at] = 10;
            data[at + 3] = 1;
            let sectors = if endian == Endian::Big { 32u16.to_be_bytes() } else { 32u16.to_le_bytes() };
            data[at + 8..at + 10].copy_from_slice(&sectors);
            put(&mut data, at + 16, endian, 5);
            put(&mut data, at + 24, endian, 999 + u64::from(endian == Endian::Big));
        }
        data
    };
    let little = build(Endian::Little);
    let big = build(Endian::Big);
    let macs = key.object_set_macs(Endian::Little, &little).unwrap();
    assert_eq!(macs, key.object_set_macs(Endian::Big, &big).unwrap());
    assert!(macs.portable != [0; 32] && macs.local != [0; 32]);

    let mut sealed = big;
    sealed[720..752].copy_from_slice(&macs.portable);
    sealed[752..784].copy_from_slice(&macs.local);
    assert_eq!(key.verify_object_set(Endian::Big, &sealed), Ok(()));
    for at in [0, 8, 711, 719, 720, 752, 1024 + 16, 2048 + 16] {
        let mut damaged = sealed.clone();
        damaged[at] ^= 1;
        let verdict = key.verify_object_set(Endian::Big, &damaged);
        // Byte 719 holds the flag of complete accounting: without it the local MAC is ignored.
        assert_eq!(verdict.is_ok(), at == 719, "byte {at}");
    }
    assert!(key.verify_object_set(Endian::Little, &[0; 700]).is_err());
    let mut invalid = sealed.clone();
    invalid[3] = 4;
    assert!(matches!(
        key.object_set_macs(Endian::Big, &invalid),
        Err(CodecError::Structure { what: "dnode", offset: 0 })
    ));
}

#[test]
fn the_cache_of_block_keys_is_bounded() {
    let key = key(Suite::Aes128Gcm, 1);
    for n in 0..100u64 {
        let crypt = BlockCrypt { salt: n.to_le_bytes(), ..block_crypt(ObjectType::ZVOL, Endian::Little) };
        let mut data = *b"the same clear bytes";
        let mac = key.encrypt(&crypt, &mut data).unwrap();
        key.decrypt(&crypt, &mac, &mut data).unwrap();
    }
    assert_eq!(key.block_keys.lock().unwrap().len(), MAX_CACHED_BLOCK_KEYS);
}

#[test]
fn a_block_too_long_for_ccm_is_rejected() {
    let mut data = vec![0; 1 << 24];
    let crypt = block_crypt(ObjectType::ZVOL, Endian::Little);
    assert!(key(Suite::Aes128Ccm, 1).encrypt(&crypt, &mut data).is_err());
    assert!(key(Suite::Aes128Gcm, 1).encrypt(&crypt, &mut data).is_ok());
}

proptest! {
    /// Any bytes as dnodes, log blocks, object sets and indirect blocks return without a panic.
    #[test]
    fn any_bytes_return_without_panic(
        mut data in proptest::collection::vec(any::<u8>(), 0..3000),
        used in 0u64..3000,
        kind in prop_oneof![Just(9u64), Just(24), Just(1), any::<u64>()],
        length in prop_oneof![0u64..600, any::<u64>()],
        big: bool,
    ) {
        let endian = if big { Endian::Big } else { Endian::Little };
        let key = key(Suite::Aes128Gcm, 1);
        for object_type in [ObjectType::DNODE, ObjectType::ZVOL] {
            prop_assert!(key.decrypt(&block_crypt(object_type, endian), &[0; 16], &mut data.clone()).is_err());
        }
        prop_assert!(key.verify_object_set(endian, &data).is_err());
        let pointer = BlockPointer::from_words({ let mut w = [0; 16]; w[6] = 1 << 61 | 1 << 56; w });
        prop_assert!(verify_indirect(&pointer, &data).is_err());
        if data.len() > 240 {
            put(&mut data, 136, endian, used);
            put(&mut data, 184, endian, kind);
            put(&mut data, 192, endian, length);
        }
        prop_assert!(key.decrypt(&block_crypt(ObjectType::INTENT_LOG, endian), &[0; 16], &mut data).is_err());
    }
}
