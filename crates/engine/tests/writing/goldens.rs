//! Pools that OpenZFS made, for tests that go on from them. `cargo xtask judge golden-rw` writes each of them.

use crate::real;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn goldens() -> Option<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    let from = std::env::var_os("WEIR_GOLDEN").map_or(top, PathBuf::from);
    if !from.is_dir() {
        eprintln!("skipped: no goldens in {} (WEIR_GOLDEN)", from.display());
        return None;
    }
    Some(from)
}

/// A stream that OpenZFS made.
pub fn stream(from: &Path, name: &str) -> Vec<u8> {
    let file = from.join("streams").join(format!("{name}.zstream.zst"));
    let output = Command::new("zstd").arg("-dqc").arg(file).output().unwrap();
    assert!(output.status.success(), "unpacking {name}");
    output.stdout
}

pub fn unpack(from: &Path, name: &str) -> PathBuf {
    let dir = real::folder(&format!("golden-{name}"));
    let unpack = "zstd -dc \"$0\" | tar -xSf - -C \"$1\"";
    let archive = from.join(format!("{name}.tar.zst"));
    let status = Command::new("sh").args(["-c", unpack]).arg(archive).arg(&dir).status().unwrap();
    assert!(status.success(), "unpacking {name}");
    dir
}
