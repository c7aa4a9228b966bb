//! Golden pools on this machine: finds and unpacks them, and proves that no image was written.
//!
//! The folder comes from `WEIR_GOLDEN`, else `../shared/golden` beside the workspace. An archive is unpacked by
//! zstd(1) and tar(1), which keep the images sparse; the copy lives in a temporary folder until the value is dropped.
//! Each image is hashed against the manifest after use: reading must not change one byte.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::JudgeError;
use crate::hash::hex_of_file;
use crate::manifest::Golden;

/// The folder of golden pools, if it is here.
pub fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("WEIR_GOLDEN")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden"), PathBuf::from);
    folder.is_dir().then_some(folder)
}

/// Names of all goldens in a folder, sorted.
///
/// # Errors
/// If the folder cannot be listed.
pub fn names(folder: &Path) -> Result<Vec<String>, JudgeError> {
    let io = |source| JudgeError::Io { what: folder.display().to_string(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if let Some(stem) = name.strip_suffix(".tar.zst") {
            names.push(stem.to_string());
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the requested goldens; all, if none is named.
///
/// # Errors
/// If the folder cannot be listed.
pub fn chosen(folder: &Path, wanted: &[String]) -> Result<Vec<String>, JudgeError> {
    let mut names = names(folder)?;
    names.retain(|name| wanted.is_empty() || wanted.contains(name));
    Ok(names)
}

/// A golden's images, unpacked into a temporary folder.
pub struct Unpacked {
    directory: TempDir,
}

impl Unpacked {
    /// Unpacks `NAME.tar.zst`.
    ///
    /// # Errors
    /// If zstd(1) or tar(1) is missing or fails.
    pub fn new(folder: &Path, name: &str) -> Result<Unpacked, JudgeError> {
        let archive = folder.join(format!("{name}.tar.zst"));
        let failed = |source| JudgeError::Io { what: archive.display().to_string(), source };
        let directory = tempfile::Builder::new().prefix("weir-golden-").tempdir().map_err(failed)?;
        let mut zstd = Command::new("zstd")
            .args(["-dqc"])
            .arg(&archive)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut tar = Command::new("tar");
        tar.args(["-xSf", "-", "-C"]).arg(directory.path());
        if let Some(stdout) = zstd.stdout.take() {
            tar.stdin(Stdio::from(stdout));
        }
        let unpacked = tar.status().map_err(failed)?;
        let decompressed = zstd.wait().map_err(failed)?;
        if unpacked.success() && decompressed.success() {
            Ok(Unpacked { directory })
        } else {
            Err(JudgeError::Unpack { archive: archive.display().to_string() })
        }
    }

    /// Keeps the images after the drop.
    pub fn keep(&mut self) {
        self.directory.disable_cleanup(true);
    }

    /// Folder of the images.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the images whose bytes changed.
    ///
    /// # Errors
    /// If an image cannot be read.
    pub fn changed(&self, golden: &Golden) -> Result<Vec<String>, JudgeError> {
        let mut changed = Vec::new();
        for (file, expected) in &golden.image_sha256 {
            let path = self.path().join(file);
            if !path.exists() && golden.missing_devices.contains(file) {
                continue;
            }
            let found = hex_of_file(&path).map_err(|source| JudgeError::Io { what: file.clone(), source })?;
            if found != *expected {
                changed.push(file.clone());
            }
        }
        Ok(changed)
    }
}

/// Splits a name into the dataset's name and, for a snapshot, the snapshot's own.
pub fn split(name: &str) -> (&str, Option<&str>) {
    match name.split_once('@') {
        Some((dataset, snapshot)) => (dataset, Some(snapshot)),
        None => (name, None),
    }
}
