//! CHAP of an initiator (RFC 1994, RFC 7143 12.1.3): one-way; the target is not asked for proof.

use super::secret::Password;
use md5::Md5;
use sha2::{Digest, Sha256};

/// Offered algorithms, best first: SHA-256 and MD5.
pub const OFFERED: &str = "7,5";

/// The largest challenge in bytes (RFC 7143, 13.2.1).
const MAX_CHALLENGE_BYTES: usize = 1024;

/// The response to a challenge, in hexadecimal. `None` if algorithm, identifier or challenge are none.
pub fn response(algorithm: &str, identifier: &str, challenge: &str, password: &Password) -> Option<String> {
    let id = number(identifier)?;
    let challenge = binary(challenge)?;
    let parts: [&[u8]; 3] = [&[id], password.bytes(), &challenge];
    let digest = match algorithm {
        "5" => parts.into_iter().fold(Md5::new(), Digest::chain_update).finalize().to_vec(),
        "7" => parts.into_iter().fold(Sha256::new(), Digest::chain_update).finalize().to_vec(),
        _ => return None,
    };
    Some(digest.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}")))
}

fn number(text: &str) -> Option<u8> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Binary data: `0x` and hexadecimal digits, or `0b` and base64.
fn binary(text: &str) -> Option<Vec<u8>> {
    if text.len() > 2 * MAX_CHALLENGE_BYTES + 2 || !text.is_ascii() {
        return None;
    }
    match text.get(..2)? {
        "0x" | "0X" => {
            let digits = &text[2..];
            let padded = if digits.len() % 2 == 1 { format!("0{digits}") } else { digits.to_owned() };
            (0..padded.len()).step_by(2).map(|at| u8::from_str_radix(padded.get(at..at + 2)?, 16).ok()).collect()
        }
        "0b" | "0B" => base64(&text[2..]),
        _ => None,
    }
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut bits = 0_u32;
    let mut held = 0;
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held & 0xff) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_hexadecimal_or_base64() {
        assert_eq!(binary("0x0aFf"), Some(vec![0x0a, 0xff]));
        assert_eq!(binary("0xabc"), Some(vec![0x0a, 0xbc]));
        assert_eq!(binary("0bTWFu"), Some(b"Man".to_vec()));
        assert_eq!(binary("0bTWE="), Some(b"Ma".to_vec()));
        for wrong in ["", "0", "12", "0xzz", "0b*", "0xä"] {
            assert_eq!(binary(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_response_is_the_digest_of_identifier_password_and_challenge() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p");
        std::fs::write(&file, "bc").unwrap();
        let password = Password::find(Some(&file)).unwrap();
        // 'a' is 0x61: the digests of "abc" plus nothing.
        assert_eq!(response("5", "97", "0x", &password).as_deref(), Some("0x900150983cd24fb0d6963f7d28e17f72"));
        assert!(response("7", "0x61", "0x", &password).is_some_and(|text| text.starts_with("0xba7816bf8f01cfea")));
        assert_eq!(response("6", "97", "0x00", &password), None);
        assert_eq!(response("5", "300", "0x00", &password), None);
    }
}
