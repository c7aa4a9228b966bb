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

/// The known answers of appendix C of the Skein paper, also used by OpenZFS's skein_test.
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

/// The examples of FIPS 180-4, also used by OpenZFS's sha2_test, in ZFS's word order.
#[test]
fn sha2_known_answers() {
    let salt = Salt::none();
    let sha = |kind, endian, data: &str| checksum(kind, endian, &salt, data.as_bytes()).unwrap();
    let middle = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    for (text, expected) in [
        ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (middle, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"),
        (LONG, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"),
    ] {
        let expected = words(Endian::Big, &hex::<32>(expected));
        assert_eq!(sha(ChecksumKind::Sha256, Endian::Big, text), expected);
        assert_eq!(sha(ChecksumKind::Sha256, Endian::Little, text), expected);
    }
    for (text, expected) in [
        ("abc", "53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23"),
        (LONG, "3928e184fb8690f840da3988121d31be65cb9d3ef83ee6146feac861e19b563a"),
    ] {
        let expected = hex::<32>(expected);
        assert_eq!(sha(ChecksumKind::Sha512, Endian::Big, text), words(Endian::Big, &expected));
        assert_eq!(sha(ChecksumKind::Sha512, Endian::Little, text), words(Endian::Little, &expected));
    }
}

/// The keyed test vectors of the BLAKE3 project, also used by OpenZFS's blake3_test: the input bytes are 0, 1 … 250,
/// 0 ….
#[test]
fn blake3_known_answers() {
    let salt = Salt::new(*b"whats the Elvish word for friend");
    let input: Vec<u8> = (0..102_400u32).map(|i| (i % 251) as u8).collect();
    for (length, expected) in [
        (0, "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26"),
        (1, "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b"),
        (2, "5392ddae0e0a69d5f40160462cbd9bd889375082ff224ac9c758802b7a6fd20a"),
        (3, "39e67b76b5a007d4921969779fe666da67b5213b096084ab674742f0d5ec62b9"),
        (4, "7671dde590c95d5ac9616651ff5aa0a27bee5913a348e053b8aa9108917fe070"),
        (5, "73ac69eecf286894d8102018a6fc729f4b1f4247d3703f69bdc6a5fe3e0c8461"),
        (6, "82d3199d0013035682cc7f2a399d4c212544376a839aa863a0f4c91220ca7a6d"),
        (7, "af0a7ec382aedc0cfd626e49e7628bc7a353a4cb108855541a5651bf64fbb28a"),
        (8, "be2f5495c61cba1bb348a34948c004045e3bd4dae8f0fe82bf44d0da245a0600"),
        (63, "bb1eb5d4afa793c1ebdd9fb08def6c36d10096986ae0cfe148cd101170ce37ae"),
        (64, "ba8ced36f327700d213f120b1a207a3b8c04330528586f414d09f2f7d9ccb7e6"),
        (65, "c0a4edefa2d2accb9277c371ac12fcdbb52988a86edc54f0716e1591b4326e72"),
        (127, "c64200ae7dfaf35577ac5a9521c47863fb71514a3bcad18819218b818de85818"),
        (128, "b04fe15577457267ff3b6f3c947d93be581e7e3a4b018679125eaf86f6a628ec"),
        (129, "d4a64dae6cdccbac1e5287f54f17c5f985105457c1a2ec1878ebd4b57e20d38f"),
        (1023, "c951ecdf03288d0fcc96ee3413563d8a6d3589547f2c2fb36d9786470f1b9d6e"),
        (1024, "75c46f6f3d9eb4f55ecaaee480db732e6c2105546f1e675003687c31719c7ba4"),
        (1025, "357dc55de0c7e382c900fd6e320acc04146be01db6a8ce7210b7189bd664ea69"),
        (2048, "879cf1fa2ea0e79126cb1063617a05b6ad9d0b696d0d757cf053439f60a99dd1"),
        (2049, "9f29700902f7c86e514ddc4df1e3049f258b2472b6dd5267f61bf13983b78dd5"),
        (3072, "044a0e7b172a312dc02a4c9a818c036ffa2776368d7f528268d2e6b5df191770"),
        (3073, "68dede9bef00ba89e43f31a6825f4cf433389fedae75c04ee9f0cf16a427c95a"),
        (4096, "befc660aea2f1718884cd8deb9902811d332f4fc4a38cf7c7300d597a081bfc0"),
        (4097, "00df940cd36bb9fa7cbbc3556744e0dbc8191401afe70520ba292ee3ca80abbc"),
        (5120, "2c493e48e9b9bf31e0553a22b23503c0a3388f035cece68eb438d22fa1943e20"),
        (5121, "6ccf1c34753e7a044db80798ecd0782a8f76f33563accaddbfbb2e0ea4b2d024"),
        (6144, "3d6b6d21281d0ade5b2b016ae4034c5dec10ca7e475f90f76eac7138e9bc8f1d"),
        (6145, "9ac301e9e39e45e3250a7e3b3df701aa0fb6889fbd80eeecf28dbc6300fbc539"),
        (7168, "b42835e40e9d4a7f42ad8cc04f85a963a76e18198377ed84adddeaecacc6f3fc"),
        (7169, "ed9b1a922c046fdb3d423ae34e143b05ca1bf28b710432857bf738bcedbfa511"),
        (8192, "dc9637c8845a770b4cbf76b8daec0eebf7dc2eac11498517f08d44c8fc00d58a"),
        (8193, "954a2a75420c8d6547e3ba5b98d963e6fa6491addc8c023189cc519821b4a1f5"),
        (16384, "9e9fc4eb7cf081ea7c47d1807790ed211bfec56aa25bb7037784c13c4b707b0d"),
        (31744, "efa53b389ab67c593dba624d898d0f7353ab99e4ac9d42302ee64cbf9939a419"),
        (102400, "1c35d1a5811083fd7119f5d5d1ba027b4d01c0c6c49fb6ff2cf75393ea5db4a7"),
    ] {
        let sums = checksum(ChecksumKind::Blake3, Endian::Big, &salt, &input[..length]).unwrap();
        assert_eq!(sums, words(Endian::Big, &hex::<32>(expected)), "{length}");
    }
}

proptest! {
    #[test]
    fn incremental_updates_equal_one_hash(data in proptest::collection::vec(any::<u8>(), 0..700), cuts in any::<[u16; 3]>()) {
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

    /// Any input returns a value or an error.
    #[test]
    fn embedded_is_total(mut data in proptest::collection::vec(any::<u8>(), 0..600), used in any::<u64>(), big: bool) {
        if let Some(slot) = data.get_mut(136..152) {
            slot[..8].copy_from_slice(&used.to_le_bytes());
            let magic = if big { embedded::MAGIC.to_be_bytes() } else { embedded::MAGIC.to_le_bytes() };
            slot[8..].copy_from_slice(&magic);
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
            // Beside a MAC, Fletcher's four sums are folded into two words, and a flipped bit may change both halves of
            // a fold alike; only the MAC finds it then.
            let is_folded = with_mac && matches!(kind, ChecksumKind::Zilog | ChecksumKind::Zilog2);
            if !is_folded && !(136..184).contains(&flip) {
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
fn blocks_verify_in_both_byte_orders_and_with_a_mac() {
    let data: Vec<u8> = (0..4096u32).map(|i| (i * i) as u8).collect();
    let salt = Salt::new([7; 32]);
    for kind in (6..15).filter_map(ChecksumKind::from_u8).filter(|k| !k.is_embedded() && *k as u8 != 10) {
        let little = checksum(kind, Endian::Little, &salt, &data).unwrap();
        let big = checksum(kind, Endian::Big, &salt, &data).unwrap();
        assert_eq!(little == big, kind == ChecksumKind::Sha256);
        for endian in [Endian::Little, Endian::Big] {
            let sums = if endian == Endian::Big { big } else { little };
            assert_eq!(verify_block(&pointer(kind, endian, 19, false, sums), &salt, &data), Ok(()));
            // The comparison ignores the MAC in the last two words.
            let weak = matches!(kind, ChecksumKind::Fletcher2 | ChecksumKind::Fletcher4 | ChecksumKind::Edonr);
            let half = if weak { [sums[0] ^ sums[2], sums[1] ^ sums[3], 1, 2] } else { [sums[0], sums[1], 1, 2] };
            assert_eq!(verify_block(&pointer(kind, endian, 19, true, half), &salt, &data), Ok(()));
            // An object set contains its MACs, and its pointer the whole checksum.
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
