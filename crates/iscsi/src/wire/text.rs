//! Text keys: `key=value`, each ended by a zero byte (RFC 7143, 6.1).
//!
//! Bounds: a text has at most [`MAX_TEXT_BYTES`], a key 63 characters and a value [`MAX_VALUE_BYTES`].

/// Maximum length in bytes of the text of one negotiation step, over all of its units.
pub const MAX_TEXT_BYTES: usize = 16 << 10;
/// Maximum length of a value in bytes.
pub const MAX_VALUE_BYTES: usize = 8192;
const MAX_KEY_BYTES: usize = 63;
/// Maximum length in bytes of a binary value, such as a CHAP challenge.
const MAX_BINARY_BYTES: usize = 1024;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Keys with their values, in the order of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys(Vec<(String, String)>);

impl Keys {
    /// Decodes a text; `None` if it is malformed, too long, or has a key twice.
    pub fn decode(text: &[u8]) -> Option<Self> {
        if text.len() > MAX_TEXT_BYTES {
            return None;
        }
        let mut keys = Keys::default();
        for pair in text.split(|byte| *byte == 0).filter(|pair| !pair.is_empty()) {
            let (key, value) = std::str::from_utf8(pair).ok()?.split_once('=')?;
            let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b".-+@_/".contains(&byte);
            let is_valid = !key.is_empty() && key.len() <= MAX_KEY_BYTES && key.bytes().all(is_key);
            if !is_valid || value.len() > MAX_VALUE_BYTES || keys.get(key).is_some() {
                return None;
            }
            keys.push(key, value);
        }
        Some(keys)
    }

    /// Appends a key.
    pub fn push(&mut self, key: &str, value: impl Into<String>) {
        self.0.push((key.to_owned(), value.into()));
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| &value[..])
    }

    /// All keys with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Encodes the keys.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (key, value) in self.iter() {
            out.extend_from_slice(key.as_bytes());
            out.push(b'=');
            out.extend_from_slice(value.as_bytes());
            out.push(0);
        }
        out
    }
}

/// Decodes a number: decimal, or hexadecimal after `0x`.
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) if !hex.starts_with('+') => u64::from_str_radix(hex, 16).ok(),
        None if !text.starts_with('+') => text.parse().ok(),
        _ => None,
    }
}

/// Decodes a binary value: hexadecimal after `0x`, base64 after `0b`.
pub fn binary(text: &str) -> Option<Vec<u8>> {
    let (prefix, digits) = text.split_at_checked(2)?;
    let bytes = match prefix {
        "0x" | "0X" => from_hex(digits)?,
        "0b" | "0B" => from_base64(digits)?,
        _ => return None,
    };
    (!bytes.is_empty() && bytes.len() <= MAX_BINARY_BYTES).then_some(bytes)
}

/// Encodes a binary value as hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let digits = digits.as_bytes();
    // An odd number of digits lacks a leading zero.
    let (odd, pairs) = digits.split_at(digits.len() % 2);
    let first = odd.first().map(|digit| nibble(*digit));
    let pairs = pairs.chunks_exact(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?));
    first.into_iter().chain(pairs).collect()
}

fn from_base64(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.trim_end_matches('=').as_bytes();
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let mut word = 0u32;
        for digit in group {
            word = word << 6 | BASE64.iter().position(|known| known == digit)? as u32;
        }
        match group.len() {
            4 => out.extend_from_slice(&word.to_be_bytes()[1..]),
            3 => out.extend_from_slice(&(word >> 2).to_be_bytes()[2..]),
            2 => out.push((word >> 4) as u8),
            _ => return None,
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_are_decoded_and_encoded() {
        let text = b"InitiatorName=iqn.2000-01.com.example:a\0SessionType=Normal\0X-empty=\0";
        let keys = Keys::decode(text).unwrap();
        assert_eq!(keys.get("SessionType"), Some("Normal"));
        assert_eq!(keys.get("X-empty"), Some(""));
        assert_eq!(keys.encode(), text);
        for bad in [&b"=x\0"[..], b"a\0", b"a=1\0a=2\0", b"a b=1\0", b"\xff=1\0"] {
            assert_eq!(Keys::decode(bad), None, "{bad:?}");
        }
        assert_eq!(Keys::decode(&vec![0; MAX_TEXT_BYTES + 1]), None);
    }

    #[test]
    fn numbers_and_binary_values() {
        assert_eq!(["16", "0x1F", "+1", "0x+1", "", "1 "].map(number), [Some(16), Some(31), None, None, None, None]);
        assert_eq!(binary("0x0aF"), Some(vec![0, 0xaf]));
        assert_eq!(binary("0bAQI="), Some(vec![1, 2]));
        assert_eq!(binary("0bAQID"), Some(vec![1, 2, 3]));
        for bad in ["", "0x", "0xg0", "0bA", "0b?A==", "12", "é0x"] {
            assert_eq!(binary(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn hexadecimal_values_survive(bytes in proptest::collection::vec(any::<u8>(), 1..64)) {
            prop_assert_eq!(binary(&to_hex(&bytes)), Some(bytes));
        }
    }
}
