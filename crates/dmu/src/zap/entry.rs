//! Entries of ZAPs: keys, values, and their order.

use weir_format::zap::ZapFlags;

/// Comparison of names in a look-up (`matchtype_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Match {
    /// Byte by byte.
    #[default]
    Exact,
    /// After the ZAP's normalization, with case folded if the ZAP folds case.
    Normalized,
    /// After normalization, with case significant.
    NormalizedCase,
}

/// Value of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Size of each integer in bytes: 1, 2, 4 or 8.
    pub int_size: u8,
    /// The integers.
    pub words: Vec<u64>,
}

impl Value {
    /// A value of one 64-bit integer.
    pub fn word(word: u64) -> Self {
        Value { int_size: 8, words: vec![word] }
    }

    /// The first integer.
    pub fn first(&self) -> Option<u64> {
        self.words.first().copied()
    }

    /// The value as bytes, if its integers have 1 byte.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        (self.int_size == 1).then(|| self.words.iter().map(|w| *w as u8).collect())
    }

    /// The value as text: bytes up to a NUL.
    pub fn text(&self) -> Option<String> {
        let bytes = self.bytes()?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(bytes.get(..end)?).into_owned())
    }
}

/// Key of an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A name.
    Name(Vec<u8>),
    /// An array of integers.
    Words(Vec<u64>),
}

impl Key {
    /// The name; `None` for integer keys.
    pub fn name(&self) -> Option<&[u8]> {
        match self {
            Key::Name(name) => Some(name),
            Key::Words(_) => None,
        }
    }

    /// The name, or the integers in hexadecimal.
    pub fn text(&self) -> String {
        match self {
            Key::Name(name) => String::from_utf8_lossy(name).into_owned(),
            Key::Words(words) => words.iter().map(|w| format!("{w:x}")).collect::<Vec<_>>().join("/"),
        }
    }
}

/// An entry of a ZAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The value.
    pub value: Value,
    /// Cookie to continue after this entry. Never 0.
    pub cookie: u64,
}

/// Hash and collision differentiator: the order of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub hash: u64,
    pub cd: u32,
}

/// Number of bits of a hash that are significant.
pub(super) fn hash_bits(flags: ZapFlags) -> u32 {
    if flags.hash64() { 48 } else { 28 }
}

impl Position {
    /// Packs the position into a cookie.
    pub fn cookie(self, flags: ZapFlags) -> u64 {
        let bits = hash_bits(flags);
        ((self.hash >> (64 - bits)) | u64::from(self.cd) << bits).saturating_add(1)
    }

    /// Position of a cookie; `None` for the start.
    pub fn of_cookie(cookie: u64, flags: ZapFlags) -> Option<Self> {
        let packed = cookie.checked_sub(1)?;
        let bits = hash_bits(flags);
        Some(Position { hash: packed << (64 - bits), cd: (packed >> bits) as u32 })
    }
}
