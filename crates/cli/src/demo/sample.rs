//! Sample data: directories with compressible text and incompressible bytes.

use crate::failure::Failure;
use bytes::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use weir_files::tree::{Node, Tree};
use weir_files::{Cred, FileError, New, NewKind, SetAttributes, WriteAt};
use weir_machine::Request;

/// Number of directories, files in each, and bytes of a file.
const FOLDERS: u64 = 4;
const FILES: u64 = 16;
const FILE_BYTES: usize = 512 << 10;
/// Mode of directories in which all users may create files and none may remove those of another.
const STICKY_FOR_ALL: u32 = 0o1777;
const WORDS: [&str; 16] = [
    "pool", "water", "flow", "weir", "block", "copy", "write", "tree", "leaf", "root", "disk", "name", "time", "sum",
    "log", "group",
];

/// Root directory of the demo's file system.
pub async fn files(rq: &Request, tree: &Tree) -> Result<Node, FileError> {
    tree.lookup(rq, tree.root(), b"files").await
}

/// Writes the sample data, unless it exists.
pub async fn fill(tree: &Tree) -> Result<(), Failure> {
    make(tree).await.map_err(|error| Failure::failed(format!("weir demo: sample data: {error}")))
}

async fn make(tree: &Tree) -> Result<(), FileError> {
    let rq = &Request::internal("sample");
    let cred = Cred::root();
    let top = files(rq, tree).await?;
    for dir in [tree.root(), top] {
        // NFS clients are mapped to the user nobody, and must be able to write, as in /tmp.
        if tree.attributes(rq, dir).await?.mode != STICKY_FOR_ALL {
            tree.set_attributes(rq, &cred, dir, &SetAttributes::mode(STICKY_FOR_ALL)).await?;
        }
    }
    let sample = match tree.create(rq, &cred, top, b"sample", &New::of(NewKind::Directory, 0o755)).await {
        Ok((node, _)) => node,
        Err(FileError::Exists) => return Ok(()),
        Err(error) => return Err(error),
    };
    let bar = ProgressBar::new(FOLDERS * FILES * FILE_BYTES as u64);
    let style = ProgressStyle::with_template("sample data {bar:30} {bytes} of {total_bytes} ({bytes_per_sec})");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    for folder in 0..FOLDERS {
        let name = format!("folder{folder}");
        let (dir, _) = tree.create(rq, &cred, sample, name.as_bytes(), &New::of(NewKind::Directory, 0o755)).await?;
        for file in 0..FILES {
            // Every second file is incompressible.
            let (kind, content) = match file % 2 {
                0 => ("txt", text(folder * FILES + file)),
                _ => ("bin", noise(folder * FILES + file, FILE_BYTES)),
            };
            let name = format!("file{file:02}.{kind}");
            let (node, _) = tree.create(rq, &cred, dir, name.as_bytes(), &New::of(NewKind::Regular, 0o644)).await?;
            tree.write(rq, &cred, node, WriteAt::Offset(0), Bytes::from(content)).await?;
            bar.inc(FILE_BYTES as u64);
        }
    }
    tree.sync(rq, top).await?;
    bar.finish();
    Ok(())
}

/// Text of common words, different for each seed.
fn text(seed: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(FILE_BYTES + 16);
    let mut random = Random::new(seed);
    while out.len() < FILE_BYTES {
        let word = WORDS.get((random.next() % WORDS.len() as u64) as usize).copied().unwrap_or("weir");
        out.extend_from_slice(word.as_bytes());
        out.push(if random.next().is_multiple_of(11) { b'\n' } else { b' ' });
    }
    out.truncate(FILE_BYTES);
    out
}

/// Incompressible bytes.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&random.next().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Xorshift generator, so that the sample is the same on every machine.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_text_and_noise_is_not() {
        let text = text(1);
        assert!(text.len() == FILE_BYTES && text.iter().all(u8::is_ascii));
        let noise = noise(1, 4096);
        let distinct = noise.iter().collect::<std::collections::BTreeSet<_>>().len();
        assert!(noise.len() == 4096 && distinct > 200, "{distinct}");
        assert_ne!(noise, super::noise(2, 4096));
    }
}
