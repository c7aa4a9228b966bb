//! `zfs rewrite`: writes the blocks of files anew, as the present properties of their file systems say. It works on files of a mounted
//! file system, with the permissions of the caller. Source: OpenZFS's manual page `zfs-rewrite(8)`.

use crate::args::CommandLine;
use crate::call::{Call, errln, outln};
use crate::failure::{FAILED, Failure};
use clap::Parser;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use weir_linux::rewrite::RewriteArgs as Request;

/// Bytes of one request: a signal ends the command between two of them.
const PIECE_BYTES: u64 = 64 << 20;

/// Write the blocks of files anew, without changing them
#[derive(Debug, Parser)]
#[command(
    name = "zfs rewrite",
    override_usage = "zfs rewrite [-rvx] [-l LENGTH] [-o OFFSET] FILE|DIRECTORY…",
    after_help = "The new blocks have the present compression, checksum, copies and dedup of the file system, and a new place: after \
'zpool add' or a RAID-Z expansion data spread over all vdevs. Their size (recordsize) stays. What a snapshot or a clone shares is \
then stored twice, and the blocks are part of the next incremental stream."
)]
pub struct RewriteArgs {
    /// Rewrite the files in directories, and below them, too
    #[arg(short)]
    recursive: bool,
    /// Print the names of the files that were rewritten
    #[arg(short)]
    verbose: bool,
    /// Do not enter other file systems
    #[arg(short = 'x')]
    one_file_system: bool,
    /// Rewrite at most this number of bytes of each file
    #[arg(short, value_name = "LENGTH", value_parser = size)]
    length: Option<u64>,
    /// Begin at this byte of each file
    #[arg(short, value_name = "OFFSET", value_parser = size, default_value = "0")]
    offset: u64,
    /// Files and directories
    #[arg(value_name = "FILE|DIRECTORY")]
    files: Vec<OsString>,
}

fn size(text: &str) -> Result<u64, String> {
    crate::size::parse(text).ok_or_else(|| "a number of bytes is needed, as 1048576 or 1M".to_owned())
}

/// Runs the command.
pub fn run(call: &Call, args: &RewriteArgs) -> Result<u8, Failure> {
    // Files are changed with the caller's permissions, not with those of the process that has the pool open.
    if call.process().is_some() {
        return Err(Failure::failed("'zfs rewrite' is not done by another process"));
    }
    if args.files.is_empty() {
        return Err(RewriteArgs::misused("missing file or directory target(s)"));
    }
    let mut code = 0;
    let mut failed = |why: String| {
        errln!(call, "{why}");
        code = FAILED;
    };
    for word in &args.files {
        let shown = Path::new(word);
        let path = call.path(shown);
        match std::fs::symlink_metadata(&path) {
            Err(why) => failed(format!("failed to stat {}: {why}", shown.display())),
            Ok(found) if found.is_dir() && args.recursive => tree(call, args, found.dev(), (path, shown), &mut failed),
            Ok(found) if found.is_dir() => failed(format!("{} is a directory: -r rewrites its files", shown.display())),
            Ok(found) => rewrite(call, args, &found, (&path, shown)).unwrap_or_else(&mut failed),
        }
    }
    Ok(code)
}

/// Rewrites the files in and below a directory of the file system `device`. Goes on after a failure.
fn tree(call: &Call, args: &RewriteArgs, device: u64, (path, shown): (PathBuf, &Path), failed: &mut dyn FnMut(String)) {
    let mut dirs = vec![(path, shown.to_owned())];
    while let Some((path, shown)) = dirs.pop() {
        let entries = match std::fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(entries) => entries,
            Err(why) if why.kind() == io::ErrorKind::NotFound => continue,
            Err(why) => {
                failed(format!("failed to open directory {}: {why}", shown.display()));
                continue;
            }
        };
        for entry in entries {
            let path = entry.path();
            let shown = shown.join(entry.file_name());
            match std::fs::symlink_metadata(&path) {
                // It went while the directory was read.
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                Err(why) => failed(format!("failed to stat {}: {why}", shown.display())),
                Ok(found) if args.one_file_system && found.dev() != device => {}
                Ok(found) if found.is_dir() => dirs.push((path, shown)),
                Ok(found) if found.is_file() => {
                    rewrite(call, args, &found, (&path, &shown)).unwrap_or_else(&mut *failed);
                }
                Ok(_) => {}
            }
        }
    }
}

/// Rewrites a file.
fn rewrite(call: &Call, args: &RewriteArgs, found: &Metadata, (path, shown): (&Path, &Path)) -> Result<(), String> {
    if !found.is_file() {
        return Err(format!("{} is no regular file", shown.display()));
    }
    let file = OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY | libc::O_NOFOLLOW).open(path);
    let file = file.map_err(|why| format!("failed to open {}: {why}", shown.display()))?;
    let length = args.length.unwrap_or(u64::MAX).min(found.len().saturating_sub(args.offset));
    pieces(&file, args, length).map_err(|why| match why.raw_os_error() {
        Some(libc::ENOTTY) => format!("failed to rewrite {}: it is not on a mounted ZFS file system", shown.display()),
        _ => format!("failed to rewrite {}: {why}", shown.display()),
    })?;
    if args.verbose {
        outln!(call, "{}", shown.display());
    }
    Ok(())
}

/// Rewrites `length` bytes of a file from the offset on. A file without these is not ZFS's, or is too short: one request of nothing tells.
fn pieces(file: &File, args: &RewriteArgs, length: u64) -> io::Result<()> {
    let mut done = 0;
    loop {
        let piece = PIECE_BYTES.min(length - done);
        let request =
            Request { offset: args.offset.min(i64::MAX as u64) + done, length: piece.max(1), ..Request::default() };
        request.apply(file)?;
        done += piece;
        if done >= length {
            return Ok(());
        }
    }
}
