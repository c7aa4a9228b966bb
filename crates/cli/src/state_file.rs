//! Small files of the state directory: replaced as a whole, so that a crash leaves the old contents or the new ones.

use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reads a JSON file of at most `max_bytes`; `None` if it is absent.
///
/// # Errors
/// Of reading, and of contents that are not a `T`.
pub fn load_json<T: DeserializeOwned>(file: &Path, max_bytes: u64) -> io::Result<Option<T>> {
    let mut bytes = Vec::new();
    match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?.take(max_bytes).read_to_end(&mut bytes)?,
    };
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Replaces a file: writes a new one of this mode, which is synced and renamed.
///
/// # Errors
/// Of writing.
pub fn replace(file: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let new = file.with_extension("new");
    // One that a killed process left has its mode.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut to = File::options().create_new(true).write(true).mode(mode).open(&new)?;
    to.write_all(bytes)?;
    to.sync_all()?;
    fs::rename(&new, file)
}
