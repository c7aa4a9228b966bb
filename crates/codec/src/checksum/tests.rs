use super::*;
use proptest::prelude::*;
use weir_format::Dva;

fn hex<const N: usize>(text: &str) -> [u8; N] {
    std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
}

const LONG: &str =
    "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";

/// The known answers of OpenZFS's edonr_test (zfs-test, functional/checksum).
#[test]
fn edonr_known_answers() {
    assert_eq!(
        edonr::EdonR512::hash(b"abc"),
        hex("1b14db155f1d406594b8cef70a4362ec6b5de6a5daf50ec999e987c19d3049e2\
             de5977bb05b1bb220050a1ea5b46a9f1740acafbf6b45032adc90c628372c22b")
    );
    assert_eq!(
        edonr::EdonR512::hash(LONG.as_bytes()),
        hex("5351070dc51c3b2baca5a60d0252ccb4e4921a96fe5a69e76dad48fd21a0845a\
             d57f880b3e4a907bc503151842bb949e1cba7439a6409a34b8436cb46921583c")
    );
}

/// The known answers of appendix C of the Skein paper, which are those of OpenZFS's skein_test.
#[test]
fn skein_known_answers() {
    let message: Vec<u8> = (0..128).map(|i| 255 - i).collect();
    let digest = |bytes: &[u8]| {
        let mut state = skein::Skein512::new(512);
        state.update(bytes);
        state.finish::<64>()
    };
    assert_eq!(
        digest(&message[..1]),
        hex("71b7bce6fe6452227b9ced6014249e5bf9a9754c3ad618ccc4e0aae16b316cc8\
             ca698d864307ed3e80b6ef1570812ac5272dc409b5a012df2a579102f340617a")
    );
    assert_eq!(
        digest(&message[..64]),
        hex("45863ba3be0c4dfc27e75d358496f4ac9a736a505d9313b42b2f5eada79fc17f\
             63861e947afb1d056aa199575ad3f8c9a3cc1780b5e5fa4cae050e989876625b")
    );
    assert_eq!(
        digest(&message),
        hex("91cca510c263c4ddd010530a33073309628631f308747e1bcbaa90e451cab92e\
             5188087af4188773a332303e6667a7a210856f7421390000 71f48e8ba2a5adb7"
            .replace(' ', "")
            .as_str())
    );
}

/// FIPS 180-4 examples for SHA-512/256 and SHA-256, in ZFS's word order.
#[test]
fn sha2_known_answers() {
    let salt = Salt::none();
    let sha = |kind, endian, data: &[u8]| checksum(kind, endian, &salt, data).unwrap();
    let abc = hex::<32>("53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23");
    assert_eq!(sha(ChecksumKind::Sha512, Endian::Big, b"abc"), words(Endian::Big, &abc));
    assert_eq!(sha(ChecksumKind::Sha512, Endian::Little, b"abc"), words(Endian::Little, &abc));
    assert_eq!(sha(ChecksumKind::Sha512, Endian::Big, LONG.as_bytes())[0], 0x3928e184fb8690f8);
    assert_eq!(sha(ChecksumKind::Sha256, Endian::Little, b"abc")[0], 0xba7816bf8f01cfea);
    assert_eq!(sha(ChecksumKind::Sha256, Endian::Big, b"abc")[3], 0xb410ff61f20015ad);
}

proptest! {
    #[test]
    fn pieces_make_the_whole(data in proptest::collection::vec(any::<u8>(), 0..700), cuts in any::<[u16; 3]>()) {
        let mut skein = skein::Skein512::keyed(256, b"key");
        let mut edonr = edonr::EdonR512::new();
        let mut rest = &data[..];
        for cut in cuts {
            let (now, later) = rest.split_at(usize::from(cut) % (rest.len() + 1));
            skein.update(now);
            edonr.update(now);
            rest = later;
        }
        skein.update(rest);
        edonr.update(rest);
        let mut whole = skein::Skein512::keyed(256, b"key");
        whole.update(&data);
        prop_assert_eq!(skein.finish::<32>(), whole.finish::<32>());
        prop_assert_eq!(edonr.finish(), edonr::EdonR512::hash(&data));
    }

    /// Whatever stands there: a value or an error.
    #[test]
    fn embedded_is_total(mut data in proptest::collection::vec(any::<u8>(), 0..600), used in any::<u64>(), big: bool) {
        if let Some(room) = data.get_mut(136..152) {
            room[..8].copy_from_slice(&used.to_le_bytes());
            let magic = if big { embedded::MAGIC.to_be_bytes() } else { embedded::MAGIC.to_le_bytes() };
            room[8..].copy_from_slice(&magic);
        }
        for kind in (0..15).filter_map(ChecksumKind::from_u8) {
            let verifier = Verifier::Log { checksum: [1, 2, 3, 4], with_mac: big };
            prop_assert!(verify_embedded(kind, verifier, &data).is_err());
        }
    }

    #[test]
    fn sealed_blocks_verify(
        mut data in proptest::collection::vec(any::<u8>(), 8192),
        used in 200u64..8192,
        big: bool,
        with_mac: bool,
        flip in 0usize..4096,
    ) {
        let endian = if big { Endian::Big } else { Endian::Little };
        data[136..144].copy_from_slice(&if big { used.to_be_bytes() } else { used.to_le_bytes() });
        for kind in [ChecksumKind::Zilog, ChecksumKind::Zilog2, ChecksumKind::Label, ChecksumKind::GangHeader] {
            let mut block = data.clone();
            let verifier = match kind {
                ChecksumKind::Label => Verifier::Label { offset_bytes: 16384 },
                ChecksumKind::GangHeader => {
                    Verifier::Gang { vdev: 1, offset_bytes: 512, physical_birth: 7, halved: with_mac }
                }
                _ => Verifier::Log { checksum: [5, 6, 7, 8], with_mac },
            };
            embedded::seal_embedded(kind, endian, verifier, &mut block).unwrap();
            prop_assert_eq!(verify_embedded(kind, verifier, &block), Ok(endian));
            let elsewhere = Verifier::Label { offset_bytes: 1 };
            prop_assert!(verify_embedded(kind, elsewhere, &block).is_err());
            if !(136..184).contains(&flip) {
                block[flip] ^= 1;
                prop_assert!(verify_embedded(kind, verifier, &block).is_err());
            }
        }
    }
}

/// A pointer to `data` with checksum `kind`; `X` bit and type as given.
fn pointer(kind: ChecksumKind, endian: Endian, object_type: u8, crypt: bool, words: [u64; 4]) -> BlockPointer {
    let mut w = [0; 16];
    [w[0], w[1]] = Dva { vdev: 0, offset_bytes: 4096, asize_bytes: 4096, gang: false, grid: 0 }.to_words();
    w[6] = u64::from(endian == Endian::Little) << 63
        | u64::from(crypt) << 61
        | u64::from(object_type) << 48
        | (kind as u64) << 40
        | 2 << 32;
    w[12..].copy_from_slice(&words);
    BlockPointer::from_words(w)
}

#[test]
fn blocks_verify_in_both_orders_and_beside_a_mac() {
    let data: Vec<u8> = (0..4096u32).map(|i| (i * i) as u8).collect();
    let salt = Salt::new([7; 32]);
    for kind in (6..15).filter_map(ChecksumKind::from_u8).filter(|k| !k.is_embedded() && *k as u8 != 10) {
        let little = checksum(kind, Endian::Little, &salt, &data).unwrap();
        let big = checksum(kind, Endian::Big, &salt, &data).unwrap();
        assert_eq!(little == big, kind == ChecksumKind::Sha256);
        for endian in [Endian::Little, Endian::Big] {
            let sums = if endian == Endian::Big { big } else { little };
            assert_eq!(verify_block(&pointer(kind, endian, 19, false, sums), &salt, &data), Ok(()));
            // The MAC in the last two words is not the checksum's business.
            let weak = matches!(kind, ChecksumKind::Fletcher2 | ChecksumKind::Fletcher4 | ChecksumKind::Edonr);
            let half = if weak { [sums[0] ^ sums[2], sums[1] ^ sums[3], 1, 2] } else { [sums[0], sums[1], 1, 2] };
            assert_eq!(verify_block(&pointer(kind, endian, 19, true, half), &salt, &data), Ok(()));
            // An object set keeps its MACs inside and the checksum whole.
            assert!(verify_block(&pointer(kind, endian, 11, true, half), &salt, &data).is_err());
            assert_eq!(verify_block(&pointer(kind, endian, 11, true, sums), &salt, &data), Ok(()));
            let mut wrong = sums;
            wrong[3] ^= 1;
            let verdict = verify_block(&pointer(kind, endian, 19, false, wrong), &salt, &data);
            assert!(matches!(verdict, Err(CodecError::Checksum { .. })), "{kind:?}");
        }
    }
    let off = pointer(ChecksumKind::Off, Endian::Little, 19, false, [0; 4]);
    assert_eq!(verify_block(&off, &salt, &data), Ok(()));
    let none = pointer(ChecksumKind::On, Endian::Little, 19, false, [0; 4]);
    assert!(verify_block(&none, &salt, &data).is_err());
}
