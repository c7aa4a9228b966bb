use super::*;
use proptest::prelude::*;

const KINDS: [CompressionKind; 9] = [
    CompressionKind::Lzjb,
    CompressionKind::Zle,
    CompressionKind::Lz4,
    CompressionKind::Zstd,
    CompressionKind::Gzip(1),
    CompressionKind::Gzip(2),
    CompressionKind::Gzip(6),
    CompressionKind::Gzip(8),
    CompressionKind::Gzip(9),
];

/// Bytes with runs, repetitions and noise.
fn blocks() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        (any::<u8>(), 1usize..400).prop_map(|(b, n)| vec![b; n]),
        (1usize..400).prop_map(|n| vec![0; n]),
        proptest::collection::vec(any::<u8>(), 1..300),
        (proptest::collection::vec(any::<u8>(), 1..40), 1usize..30).prop_map(|(p, n)| p.repeat(n)),
    ];
    proptest::collection::vec(piece, 1..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn round_trip(block in blocks(), pad in 0usize..600) {
        for kind in KINDS {
            // Headers and padding come on top of the bytes, of which a block may have 1.
            let mut output = vec![0xaa; block.len() * 2 + 600 + pad];
            let Some(bytes) = compress(kind, ZstdLevel::DEFAULT, &block, &mut output).unwrap() else {
                return Err(TestCaseError::fail(format!("{kind:?} did not fit")));
            };
            // Padding after the compressed bytes is ignored; a block one byte larger or smaller is an error.
            let stored = &output[..bytes + pad];
            prop_assert_eq!(&decompress(kind, stored, block.len()).unwrap(), &block);
            if kind != CompressionKind::Lzjb && !block.is_empty() {
                prop_assert!(decompress(kind, &output[..bytes], block.len() + 1).is_err());
                if kind != CompressionKind::Zle || block.len() > 1 {
                    prop_assert!(decompress(kind, stored, block.len() - 1).is_err() || kind == CompressionKind::Zle);
                }
            }
            for cut in [0, bytes / 2, bytes.saturating_sub(1)] {
                if block.len() > 100 && cut < bytes {
                    prop_assert!(decompress(kind, &output[..cut], block.len()).is_err());
                }
            }
        }
    }

    /// Output never exceeds its buffer, and output that fits decompresses to the block.
    #[test]
    fn compress_respects_the_output_size(block in blocks(), size in 0usize..3000) {
        for kind in KINDS {
            let mut buffer = vec![0x55; size];
            if let Some(bytes) = compress(kind, ZstdLevel::DEFAULT, &block, &mut buffer).unwrap() {
                prop_assert_eq!(&decompress(kind, &buffer[..bytes], block.len()).unwrap(), &block);
            }
        }
    }

    /// Any input gives a block or an error.
    #[test]
    fn decompress_is_total(
        mut source in proptest::collection::vec(any::<u8>(), 0..600),
        length in 0usize..5000,
        valid_header: bool,
    ) {
        for kind in KINDS {
            if valid_header && source.len() > 12 {
                let rest = source.len() as u32 - if kind == CompressionKind::Lz4 { 4 } else { 8 };
                source[..4].copy_from_slice(&rest.to_be_bytes());
                source[4..8].copy_from_slice(&[3, 0, 40, 90]);
            }
            let _ = decompress(kind, &source, length);
        }
    }

    /// A flipped bit in compressed bytes causes no panic.
    #[test]
    fn decompress_survives_damage(block in blocks(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        for kind in KINDS {
            let mut output = vec![0; block.len() * 2 + 600];
            let bytes = compress(kind, ZstdLevel::DEFAULT, &block, &mut output).unwrap().unwrap();
            if bytes > 0 {
                output[at.index(bytes)] ^= 1 << bit;
                let _ = decompress(kind, &output[..bytes], block.len());
            }
        }
    }
}

#[test]
fn every_zstd_level_round_trips_and_is_in_the_header() {
    let block: Vec<u8> = (0..65536u32).map(|i| ((i * i) >> 7) as u8).collect();
    let mut count = 0;
    for level in (0..=255).filter_map(ZstdLevel::from_u8) {
        let mut output = vec![0; 70000];
        let bytes = compress(CompressionKind::Zstd, level, &block, &mut output).unwrap().unwrap();
        assert_eq!(zstd::level(&output), Some(level));
        let header = zstd::header(&output).unwrap();
        assert_eq!((header.frame_bytes as usize, header.level), (bytes - 8, level.to_u8()));
        assert!((10_400..20_000).contains(&header.version), "{header:?}");
        assert_eq!(decompress(CompressionKind::Zstd, &output[..bytes], block.len()).unwrap(), block);
        // Early big-endian hosts wrote the word in the other byte order.
        output[4..8].reverse();
        assert_eq!(zstd::header(&output), Some(header));
        count += 1;
    }
    assert_eq!(count, 40);
    assert_eq!(ZstdLevel::from_u8(123).unwrap().name(), "zstd-fast-1000");
    assert_eq!(ZstdLevel::from_u8(113).unwrap().name(), "zstd-fast-20");
    assert_eq!(ZstdLevel::from_u8(19).unwrap().name(), "zstd-19");
}

/// A megabyte of zeros in a few bytes does not decompress into a sector.
#[test]
fn decompression_bombs_are_rejected() {
    let bomb = vec![0; 1 << 20];
    for kind in KINDS.into_iter().filter(|&k| k != CompressionKind::Zle && k != CompressionKind::Lzjb) {
        let mut output = vec![0; 1 << 20];
        let bytes = compress(kind, ZstdLevel::DEFAULT, &bomb, &mut output).unwrap().unwrap();
        let error = decompress(kind, &output[..bytes], 512).unwrap_err();
        assert!(matches!(error, CodecError::Decompress { .. }), "{error}");
    }
    let error = decompress(CompressionKind::Empty, &[], MAX_BLOCK_BYTES + 1).unwrap_err();
    assert!(error.to_string().contains("size mismatch"), "{error}");
}

#[test]
fn plain_kinds() {
    assert_eq!(decompress(CompressionKind::Off, &[1, 2, 3], 2).unwrap(), [1, 2]);
    assert!(decompress(CompressionKind::Off, &[1, 2, 3], 4).is_err());
    assert_eq!(decompress(CompressionKind::Empty, &[], 3).unwrap(), [0; 3]);
    assert!(matches!(decompress(CompressionKind::On, &[], 3), Err(CodecError::CompressionKind { .. })));
    // A copy from before the start of the block, and one with distance 0.
    assert!(decompress(CompressionKind::Lzjb, &[0b10, b'a', 0, 2], 8).is_err());
    assert!(decompress(CompressionKind::Lzjb, &[0b10, b'a', 0, 0], 8).is_err());
    assert!(decompress(CompressionKind::Lzjb, &[0b10, b'a', 0xff, 1], 8).is_err());
    assert_eq!(decompress(CompressionKind::Lzjb, &[0b10, b'a', 0xfc, 1], 8).unwrap(), *b"aaaaaaaa");
    assert_eq!(decompress(CompressionKind::Zle, &[1, b'a', b'b', 66], 5).unwrap(), *b"ab\0\0\0");
}
