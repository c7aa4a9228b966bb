//! Comparing names: Unicode normalization and case (`module/zfs/zap_micro.c`, `zap_normalize`, `zap_match`).
//!
//! The hash is that of the name in upper case (if the ZAP folds case) and then in normal form. A comparison does the
//! same on both sides, but leaves case alone if the caller wants it to count. Names that are not UTF-8 match nothing in
//! a ZAP that normalizes.

use super::Match;
use std::borrow::Cow;
use unicode_normalization::UnicodeNormalization;
use weir_format::zap::NormFlags;

/// The name as a ZAP with these flags compares it; `None` if it is not UTF-8 but would have to be.
pub fn normalize(name: &[u8], norm: NormFlags) -> Option<Cow<'_, [u8]>> {
    if !norm.any() {
        return Some(Cow::Borrowed(name));
    }
    let text = std::str::from_utf8(name).ok()?;
    let cased: Cow<'_, str> = match norm.0 {
        n if n & NormFlags::TO_UPPER != 0 => text.chars().map(upper).collect::<String>().into(),
        n if n & NormFlags::TO_LOWER != 0 => text.chars().map(lower).collect::<String>().into(),
        _ => text.into(),
    };
    if cased.is_ascii() {
        return Some(Cow::Owned(cased.into_owned().into_bytes()));
    }
    let compatible = norm.0 & NormFlags::COMPAT_DECOMP != 0;
    let composed = norm.0 & NormFlags::CANON_COMP != 0;
    let decomposed = compatible || norm.0 & NormFlags::CANON_DECOMP != 0;
    let normal: String = match (decomposed, compatible, composed) {
        (false, ..) => cased.into_owned(),
        (true, false, false) => cased.nfd().collect(),
        (true, false, true) => cased.nfc().collect(),
        (true, true, false) => cased.nfkd().collect(),
        (true, true, true) => cased.nfkc().collect(),
    };
    Some(Cow::Owned(normal.into_bytes()))
}

/// Upper case, one letter for one: letters that would become several stay.
fn upper(c: char) -> char {
    let mut to = c.to_uppercase();
    match (to.next(), to.next()) {
        (Some(only), None) => only,
        _ => c,
    }
}

fn lower(c: char) -> char {
    let mut to = c.to_lowercase();
    match (to.next(), to.next()) {
        (Some(only), None) => only,
        _ => c,
    }
}

/// A name that is looked for.
pub(crate) struct Wanted<'a> {
    name: &'a [u8],
    normal: Cow<'a, [u8]>,
    flags: NormFlags,
    exact: bool,
}

impl<'a> Wanted<'a> {
    /// `None` if nothing can match.
    pub(crate) fn new(name: &'a [u8], norm: NormFlags, how: Match) -> Option<Self> {
        let flags = match how {
            Match::NormalizedCase => NormFlags(norm.0 & !(NormFlags::TO_UPPER | NormFlags::TO_LOWER)),
            _ => norm,
        };
        let exact = how == Match::Exact || !flags.any();
        let normal = if exact { Cow::Borrowed(name) } else { normalize(name, flags)? };
        Some(Wanted { name, normal, flags, exact })
    }

    /// Whether it has no other spelling.
    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether a name in the ZAP is the one.
    pub(crate) fn is(&self, candidate: &[u8]) -> bool {
        candidate == self.name
            || !self.exact && normalize(candidate, self.flags).is_some_and(|normal| normal == self.normal)
    }
}
