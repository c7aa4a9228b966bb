use super::entry::{Match, Position, hash_bits};
use super::name::{NormalizedName, normalize};
use weir_format::zap::{NormFlags, ZapFlags};

const UPPER: u64 = NormFlags::TO_UPPER;

#[test]
fn cookies_round_trip_and_keep_clear_of_the_start() {
    for flags in [ZapFlags(0), ZapFlags(1)] {
        for (hash, cd) in [(0u64, 0u32), (1 << 40, 7), (0xfff_ffff << 36, 65_535)] {
            let position = Position { hash, cd };
            let cookie = position.cookie(flags);
            assert_ne!(cookie, 0);
            let masked = hash >> (64 - hash_bits(flags)) << (64 - hash_bits(flags));
            assert_eq!(Position::of_cookie(cookie, flags), Some(Position { hash: masked, cd }));
        }
    }
    assert_eq!(Position::of_cookie(0, ZapFlags(0)), None);
}

#[test]
fn names_are_folded_and_normalized() {
    let same = |a: &str, b: &str, flags: u64, how| {
        NormalizedName::new(a.as_bytes(), NormFlags(flags), how).is_some_and(|w| w.is(b.as_bytes()))
    };
    assert!(same("Readme", "README", UPPER, Match::Normalized));
    assert!(!same("Readme", "README", UPPER, Match::NormalizedCase));
    assert!(!same("Readme", "README", UPPER, Match::Exact));
    assert!(same("e\u{301}", "é", NormFlags::NFC, Match::Normalized));
    assert!(same("É", "e\u{301}", NormFlags::NFD | UPPER, Match::Normalized));
    assert!(!same("ﬁ", "fi", NormFlags::NFD, Match::Normalized));
    assert!(same("ﬁ", "fi", NormFlags::NFKD, Match::Normalized));
    assert!(same("ß", "ß", UPPER, Match::Normalized));
}

#[test]
fn what_is_not_text_matches_nothing_once_names_are_normalized() {
    let forms = NormFlags(UPPER | NormFlags::NFD);
    assert_eq!(normalize(b"\xff", forms), None);
    assert!(NormalizedName::new(b"\xff", forms, Match::Normalized).is_none());
    assert!(NormalizedName::new(b"\xff", NormFlags(0), Match::Exact).is_some());
}

/// Folded as by OpenZFS's library.
#[test]
fn case_is_folded_also_where_names_are_not_text() {
    let upper = |name: &[u8]| normalize(name, NormFlags(UPPER)).unwrap().into_owned();
    assert_eq!(upper(b"caf\xe9"), b"CAF\xe9");
    assert_eq!(upper(b"na\xefve"), b"NA\xefve");
    assert_eq!(upper(b"\xff\xfea\x80b\xf5c"), b"\xff\xfeA\x80B\xf5C");
    assert_eq!(upper(b"\xc3\xa9\xe9abc"), b"\xc3\x89\xe9abC");
    assert_eq!(upper(b"\xed\xa0\x80a\xf4\xbf\xbf\xbfq\xc3"), b"\xed\xa0\x80A\xf4\xbf\xbf\xbfQ\xc3");
}
