//! Compares names: Unicode normalization and case (`module/zfs/zap_micro.c`, `zap_normalize`, `zap_match`).
//!
//! The hash is that of the name in upper case (if the ZAP folds case) and then in normal form. A comparison converts
//! both sides likewise, but keeps case if that is significant for the caller. Names that are not UTF-8 match no name in
//! a ZAP with normal form.

use super::entry::Match;
use std::borrow::Cow;
use unicode_normalization::UnicodeNormalization;
use weir_format::zap::NormFlags;

/// Returns the form in which a ZAP with these flags compares the name; `None` if it needs UTF-8 for its normal form and
/// the name is not. Case is folded letter by letter in any bytes.
pub fn normalize(name: &[u8], norm: NormFlags) -> Option<Cow<'_, [u8]>> {
    let has = |flag| norm.0 & flag != 0;
    let cased = match (has(NormFlags::TO_UPPER), has(NormFlags::TO_LOWER)) {
        (true, _) => Cow::Owned(each_letter(name, upper)),
        (false, true) => Cow::Owned(each_letter(name, lower)),
        (false, false) => Cow::Borrowed(name),
    };
    let compatible = has(NormFlags::COMPAT_DECOMP);
    if !compatible && !has(NormFlags::CANON_DECOMP) || cased.is_ascii() {
        return Some(cased);
    }
    let text = std::str::from_utf8(&cased).ok()?;
    let normal: String = match (compatible, has(NormFlags::CANON_COMP)) {
        (false, false) => text.nfd().collect(),
        (false, true) => text.nfc().collect(),
        (true, false) => text.nfkd().collect(),
        (true, true) => text.nfkc().collect(),
    };
    Some(Cow::Owned(normal.into_bytes()))
}

/// Whether two names differ in case alone, by the capitals of [`normalize`].
pub fn differ_in_case_alone(a: &[u8], b: &[u8]) -> bool {
    let fold = |name| each_letter(name, upper);
    // A capital may be shorter or longer than its letter, in other alphabets.
    let may_be = !(a.is_ascii() && b.is_ascii()) || a.len() == b.len();
    a == b || may_be && fold(a) == fold(b)
}

/// Converts each letter. The first byte determines a letter's length; bytes that are not UTF-8 stay, and so do the
/// bytes that they seem to include (`u8_textprep_str` with `U8_TEXTPREP_IGNORE_INVALID`).
fn each_letter(name: &[u8], change: fn(char) -> char) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.first() {
        let len = match first {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        let (letter, behind) = rest.split_at(rest.len().min(len));
        match std::str::from_utf8(letter).ok().and_then(|letter| letter.chars().next()) {
            Some(letter) => out.extend_from_slice(change(letter).encode_utf8(&mut [0; 4]).as_bytes()),
            None => out.extend_from_slice(letter),
        }
        rest = behind;
    }
    out
}

/// Ranges of letters with a capital in Unicode 5.0; letters in between have none. Letters that later versions of
/// Unicode added, or gave a capital, stay as they are (`module/unicode/u8_textprep.c`).
const WITH_CAPITALS: [(char, char); 62] = [
    ('\u{b5}', '\u{b5}'),
    ('\u{e0}', '\u{137}'),
    ('\u{13a}', '\u{148}'),
    ('\u{14b}', '\u{18c}'),
    ('\u{192}', '\u{19a}'),
    ('\u{19e}', '\u{1a8}'),
    ('\u{1ad}', '\u{1b9}'),
    ('\u{1bd}', '\u{1bf}'),
    ('\u{1c5}', '\u{1ef}'),
    ('\u{1f2}', '\u{21f}'),
    ('\u{223}', '\u{233}'),
    ('\u{23c}', '\u{23c}'),
    ('\u{242}', '\u{24f}'),
    ('\u{253}', '\u{25b}'),
    ('\u{260}', '\u{260}'),
    ('\u{263}', '\u{263}'),
    ('\u{268}', '\u{269}'),
    ('\u{26b}', '\u{26b}'),
    ('\u{26f}', '\u{26f}'),
    ('\u{272}', '\u{272}'),
    ('\u{275}', '\u{275}'),
    ('\u{27d}', '\u{27d}'),
    ('\u{280}', '\u{280}'),
    ('\u{283}', '\u{283}'),
    ('\u{288}', '\u{28c}'),
    ('\u{292}', '\u{292}'),
    ('\u{345}', '\u{345}'),
    ('\u{37b}', '\u{37d}'),
    ('\u{3ac}', '\u{3d1}'),
    ('\u{3d5}', '\u{3d6}'),
    ('\u{3d9}', '\u{3f2}'),
    ('\u{3f5}', '\u{3f5}'),
    ('\u{3f8}', '\u{3fb}'),
    ('\u{430}', '\u{481}'),
    ('\u{48b}', '\u{513}'),
    ('\u{561}', '\u{586}'),
    ('\u{1d7d}', '\u{1d7d}'),
    ('\u{1e01}', '\u{1e95}'),
    ('\u{1e9b}', '\u{1e9b}'),
    ('\u{1ea1}', '\u{1ef9}'),
    ('\u{1f00}', '\u{1f15}'),
    ('\u{1f20}', '\u{1f45}'),
    ('\u{1f51}', '\u{1f57}'),
    ('\u{1f60}', '\u{1f7d}'),
    ('\u{1f80}', '\u{1fb3}'),
    ('\u{1fbe}', '\u{1fbe}'),
    ('\u{1fc3}', '\u{1fc3}'),
    ('\u{1fd0}', '\u{1fd1}'),
    ('\u{1fe0}', '\u{1fe1}'),
    ('\u{1fe5}', '\u{1fe5}'),
    ('\u{1ff3}', '\u{1ff3}'),
    ('\u{214e}', '\u{214e}'),
    ('\u{2170}', '\u{217f}'),
    ('\u{2184}', '\u{2184}'),
    ('\u{24d0}', '\u{24e9}'),
    ('\u{2c30}', '\u{2c5e}'),
    ('\u{2c61}', '\u{2c6c}'),
    ('\u{2c76}', '\u{2c76}'),
    ('\u{2c81}', '\u{2ce3}'),
    ('\u{2d00}', '\u{2d25}'),
    ('\u{ff41}', '\u{ff5a}'),
    ('\u{10428}', '\u{1044f}'),
];

/// Upper case as in OpenZFS, one letter for one: letters that would become several stay, except for Greek ones with an
/// iota subscript, which have capitals.
fn upper(c: char) -> char {
    if c.is_ascii() {
        return c.to_ascii_uppercase();
    }
    let after = WITH_CAPITALS.partition_point(|(first, _)| *first <= c);
    if after.checked_sub(1).and_then(|i| WITH_CAPITALS.get(i)).is_none_or(|(_, last)| c > *last) {
        return c;
    }
    let ahead = |letters| char::from_u32(u32::from(c) + letters).unwrap_or(c);
    match c {
        '\u{1f80}'..='\u{1f87}' | '\u{1f90}'..='\u{1f97}' | '\u{1fa0}'..='\u{1fa7}' => ahead(8),
        '\u{1fb3}' | '\u{1fc3}' | '\u{1ff3}' => ahead(9),
        _ => {
            let mut to = c.to_uppercase();
            to.next().filter(|_| to.next().is_none()).unwrap_or(c)
        }
    }
}

fn lower(c: char) -> char {
    let mut to = c.to_lowercase();
    match (to.next(), to.next()) {
        (Some(only), None) => only,
        _ => c,
    }
}

/// A name to look for.
pub(crate) struct NormalizedName<'a> {
    name: &'a [u8],
    normal: Cow<'a, [u8]>,
    flags: NormFlags,
    exact: bool,
}

impl<'a> NormalizedName<'a> {
    /// `None` if no name can match.
    pub(crate) fn new(name: &'a [u8], norm: NormFlags, how: Match) -> Option<Self> {
        let flags = match how {
            Match::NormalizedCase => NormFlags(norm.0 & !(NormFlags::TO_UPPER | NormFlags::TO_LOWER)),
            _ => norm,
        };
        let exact = how == Match::Exact || !flags.any();
        let normal = if exact { Cow::Borrowed(name) } else { normalize(name, flags)? };
        Some(NormalizedName { name, normal, flags, exact })
    }

    /// Whether the name has no other spelling.
    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether a name of the ZAP matches.
    pub(crate) fn is(&self, candidate: &[u8]) -> bool {
        candidate == self.name
            || !self.exact && normalize(candidate, self.flags).is_some_and(|normal| normal == self.normal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_case_alone() {
        for (a, b) in [("a.TXT", "A.txt"), ("Ä", "ä"), ("x", "x"), ("ß", "ß")] {
            assert!(differ_in_case_alone(a.as_bytes(), b.as_bytes()), "{a} {b}");
        }
        for (a, b) in [("a", "b"), ("a", "ab"), ("a", "ä"), ("\u{212a}", "k")] {
            assert!(!differ_in_case_alone(a.as_bytes(), b.as_bytes()), "{a} {b}");
        }
        assert!(!differ_in_case_alone(b"\xff", b"\xfe") && differ_in_case_alone(b"\xffA", b"\xffa"));
    }

    /// Compares with OpenZFS's `u8_textprep_str` on each letter: number of changed letters, and a hash over all.
    #[test]
    fn capitals_are_those_of_openzfs() {
        let folded = ('\u{80}'..='\u{2ffff}').map(|c| (c, upper(c))).filter(|(c, upper)| c != upper);
        let mut count = 0;
        let mut hash = 0u64;
        for (c, upper) in folded {
            count += 1;
            hash = hash.wrapping_mul(1_000_003) ^ (u64::from(u32::from(c)) << 32 | u64::from(u32::from(upper)));
        }
        assert_eq!((count, hash), (905, 0xd840_30ff_245f_92f9));
        for (small, capital) in [('e', 'E'), ('é', 'É'), ('ß', 'ß'), ('ა', 'ა'), ('ᾳ', 'ᾼ'), ('ж', 'Ж')] {
            assert_eq!(upper(small), capital);
        }
    }
}
