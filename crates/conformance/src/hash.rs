//! SHA-256 as the manifests write it: lower-case hexadecimal.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

/// A hash being computed.
#[derive(Default)]
pub struct Hash(Sha256);

impl Hash {
    /// Takes in more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Ends the computation and writes the hash down.
    pub fn hex(self) -> String {
        let mut text = String::with_capacity(64);
        for byte in self.0.finalize() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

/// The hash of some bytes.
pub fn hex_of(bytes: &[u8]) -> String {
    let mut hash = Hash::default();
    hash.update(bytes);
    hash.hex()
}

/// The hash of a file's contents.
///
/// # Errors
/// As reading the file gives them.
pub fn hex_of_file(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Hash::default();
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hash.hex()),
            length => hash.update(chunk.get(..length).unwrap_or_default()),
        }
    }
}
