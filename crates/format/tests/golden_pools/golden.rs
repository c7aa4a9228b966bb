//! Locates and unpacks golden pools.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of golden pools, if it and the tools to unpack it are present.
pub fn folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    let folder = std::env::var_os("WEIR_GOLDEN").map_or(beside, PathBuf::from);
    let tools = ["zstd", "tar"].iter().all(|t| Command::new(t).arg("--version").output().is_ok());
    if folder.is_dir() && tools {
        return Some(folder);
    }
    eprintln!("skipped: no golden pools at {} (set WEIR_GOLDEN), or no zstd and tar", folder.display());
    None
}

/// The names and descriptions of all golden pools, sorted by name.
pub fn pools(folder: &Path) -> Vec<(String, serde_json::Value)> {
    let mut out: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .map(|p| {
            let name = p.file_stem().unwrap().to_string_lossy().into_owned();
            (name, serde_json::from_slice(&std::fs::read(p).unwrap()).unwrap())
        })
        .collect();
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}

/// Unpacks a pool's images into a temporary folder.
pub fn unpack(folder: &Path, name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let archive = folder.join(format!("{name}.tar.zst"));
    let status = Command::new("tar")
        .args(["--use-compress-program=zstd -d", "-xSf"])
        .arg(&archive)
        .arg("-C")
        .arg(dir.path())
        .status()
        .unwrap();
    assert!(status.success(), "tar of {}", archive.display());
    dir
}

/// Unpacks a file.
pub fn unpack_file(path: &Path) -> Vec<u8> {
    let out = Command::new("zstd").arg("-dcq").arg(path).output().unwrap();
    assert!(out.status.success(), "zstd of {}", path.display());
    out.stdout
}
