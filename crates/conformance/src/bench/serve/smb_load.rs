//! Loads over SMB: smbclient, whole files and a listing.

use std::path::Path;
use std::time::Instant;

use super::super::Measured;
use super::servers::Server;
use crate::JudgeError;
use crate::kill::mixed;

/// Directory with many files.
const MANY: &str = "many";
/// Number of its files, and of listings in one measurement.
const FILES: u64 = 10_000;
const LISTINGS: u64 = 5;

/// A load on the share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmbLoad {
    /// `put` of one file.
    Write,
    /// `get` of that file to /dev/null.
    Read,
    /// `ls` of a directory with 10,000 files, five times in one session.
    List,
}

fn io_error(path: &Path) -> impl Fn(std::io::Error) -> JudgeError {
    let what = path.display().to_string();
    move |source| JudgeError::Io { what: what.clone(), source }
}

/// Makes the file that is put, with random contents, so that no compression helps.
pub fn make_source(server: &Server, mib: u64) -> Result<(), JudgeError> {
    let path = server.smb_source();
    let piece = |n: u64| (0..1u64 << 17).flat_map(|at| mixed(n << 17 | at).to_le_bytes()).collect::<Vec<u8>>();
    let made = std::fs::File::create(&path)
        .and_then(|mut file| (0..mib).try_for_each(|n| std::io::Write::write_all(&mut file, &piece(n))));
    made.map_err(io_error(&path))
}

/// Makes the directory with many files, below the server.
pub fn make_files(server: &Server) -> Result<(), JudgeError> {
    let folder = server.smb()?.directory.join(MANY);
    if folder.exists() {
        return Ok(());
    }
    std::fs::create_dir(&folder).map_err(io_error(&folder))?;
    (0..FILES).try_for_each(|n| std::fs::write(folder.join(format!("file-{n:05}")), b"x").map_err(io_error(&folder)))
}

/// Measures smbclient, from its start to its end.
pub fn measure(server: &Server, load: SmbLoad, mib: u64) -> Result<Measured, JudgeError> {
    let commands = match load {
        SmbLoad::Write => format!("put {} f", server.smb_source().display()),
        SmbLoad::Read => "get f /dev/null".to_string(),
        SmbLoad::List => format!("cd {MANY}{}", "; ls".repeat(LISTINGS as usize)),
    };
    let begun = Instant::now();
    let said = server.smb()?.client(&commands)?;
    let seconds = begun.elapsed().as_secs_f64();
    let failed = |why: String| JudgeError::Process { command: format!("smbclient: {commands}"), why };
    if let Some(why) = said.lines().find(|line| line.contains("NT_STATUS_")) {
        return Err(failed(why.to_string()));
    }
    let listed = said.lines().filter(|line| line.trim_start().starts_with("file-")).count() as u64;
    if load == SmbLoad::List && listed != FILES * LISTINGS {
        return Err(failed(format!("{listed} files are listed, not {}", FILES * LISTINGS)));
    }
    let is_list = load == SmbLoad::List;
    let bytes = if is_list { 0 } else { mib << 20 };
    Ok(Measured { bytes, operations: if is_list { listed } else { mib }, seconds, ..Measured::default() })
}
