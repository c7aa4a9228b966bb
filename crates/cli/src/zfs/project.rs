//! `zfs project`: projects of files and directories, and the flag by which directories pass theirs on. It works on
//! files of a mounted file system, with the permissions of the caller.
//!
//! ```text
//!   zfs project [-d|-r] FILE|DIRECTORY…                      shows: project, P if it is passed on, name
//!   zfs project -p ID [-s] [-r], -s [-p ID] [-r]             sets; `-s`: directories pass it on
//!   zfs project -c [-0] [-d|-r] [-p ID]                      names files with another project or flag
//!   zfs project -C [-k] [-r]                                 clears, `-k`: the flag alone
//! ```
//!
//! Without `-p`, `-s` and `-c` take the project that the named directory has. Source: OpenZFS's manual page
//! `zfs-project(8)`.

use crate::args::CommandLine;
use crate::call::{Call, errln};
use crate::failure::{FAILED, Failure};
use clap::Parser;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use weir_linux::file_flags::FileFlags;

/// Show, check, set or clear the project of files and directories.
#[derive(Debug, Parser)]
#[command(
    name = "zfs project",
    override_usage = "zfs project [-d|-r] FILE|DIRECTORY…\n       zfs project -p ID [-r] [-s] FILE|DIRECTORY…\n       zfs project -c [-0] [-d|-r] [-p ID] FILE|DIRECTORY…\n       zfs project -C [-k] [-r] FILE|DIRECTORY…"
)]
pub struct ProjectArgs {
    /// Check the project and the flag, and print the names of files that differ
    #[arg(short)]
    check: bool,
    /// With -c: end each name with a NUL and print nothing else
    #[arg(short = '0')]
    nul: bool,
    /// Clear the inherit flag and the project
    #[arg(short = 'C')]
    clear: bool,
    /// With -C: keep the project
    #[arg(short)]
    keep: bool,
    /// Show or check the directory itself, not the files in it
    #[arg(short)]
    directory: bool,
    /// Apply to all files and directories below as well
    #[arg(short)]
    recursive: bool,
    /// Project to set or to check
    #[arg(short, value_name = "ID")]
    project: Option<String>,
    /// Set the inherit flag
    #[arg(short = 's')]
    inherit: bool,
    /// Files and directories
    #[arg(value_name = "FILE|DIRECTORY")]
    files: Vec<OsString>,
}

/// Action on each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// Shows the project.
    Show,
    /// Names the file if its project or flag differs; with `bare`, only the name and a NUL.
    Check { bare: bool },
    /// Sets the project and, with `inherit`, the flag.
    Set { inherit: bool },
    /// Clears the flag and, unless `keep`, the project.
    Clear { keep: bool },
}

impl Deed {
    fn of(args: &ProjectArgs) -> Result<Self, Failure> {
        let misused = |what: &str| Err(ProjectArgs::misused(what));
        let sets = args.project.is_some() || args.inherit;
        match (args.check, args.clear) {
            (true, true) => return misused("'-c' and '-C' cannot be given together"),
            (true, false) if args.inherit => return misused("'-s' cannot be given with '-c'"),
            (false, true) if sets => return misused("'-p' and '-s' cannot be given with '-C'"),
            _ => {}
        }
        let looks = args.check || !sets && !args.clear;
        if args.nul && !args.check {
            return misused("'-0' is for '-c' alone");
        }
        if args.keep && !args.clear {
            return misused("'-k' is for '-C' alone");
        }
        if args.directory && (!looks || args.recursive) {
            return misused("'-d' is for showing and '-c', without '-r'");
        }
        Ok(match (args.check, args.clear, sets) {
            (true, ..) => Deed::Check { bare: args.nul },
            (_, true, _) => Deed::Clear { keep: args.keep },
            (.., true) => Deed::Set { inherit: args.inherit },
            _ => Deed::Show,
        })
    }

    fn only_looks(self) -> bool {
        matches!(self, Deed::Show | Deed::Check { .. })
    }

    /// New flags of a file, whose project should be `project`; `None` if nothing changes.
    fn change(self, found: FileFlags, project: u32) -> Option<FileFlags> {
        let mut new = found;
        match self {
            Deed::Show | Deed::Check { .. } => {}
            Deed::Set { inherit } => {
                new.project = project;
                new.flags |= if inherit { FileFlags::PROJECT_INHERIT } else { 0 };
            }
            Deed::Clear { keep } => {
                new.flags &= !FileFlags::PROJECT_INHERIT;
                new.project = if keep { found.project } else { 0 };
            }
        }
        (new != found).then_some(new)
    }
}

/// Runs the command.
pub fn run(call: &Call, args: &ProjectArgs) -> Result<u8, Failure> {
    // Files are changed with the caller's permissions, not with those of the process that has the pool open.
    if call.process().is_some() {
        return Err(Failure::failed("'zfs project' is not done by another process"));
    }
    let deed = Deed::of(args)?;
    let wanted = match &args.project {
        None => None,
        Some(text) => Some(project(text)?),
    };
    if args.files.is_empty() {
        return Err(ProjectArgs::misused("missing file or directory target(s)"));
    }
    let mut code = 0;
    for word in &args.files {
        if let Err(why) = target(call, args, deed, wanted, Path::new(word)) {
            errln!(call, "{why}");
            code = FAILED;
        }
    }
    Ok(code)
}

fn project(text: &str) -> Result<u32, Failure> {
    let hex = text.strip_prefix("0x").map(|digits| u32::from_str_radix(digits, 16));
    let parsed = hex.unwrap_or_else(|| text.parse());
    parsed
        .ok()
        .filter(|id| *id != u32::MAX)
        .ok_or_else(|| ProjectArgs::misused(&format!("invalid project ID '{text}'")))
}

/// Applies the action to one operand, and to the files in it if it is a directory.
fn target(call: &Call, args: &ProjectArgs, deed: Deed, wanted: Option<u32>, shown: &Path) -> Result<(), String> {
    let path = call.path(shown);
    let failed = |why: io::Error| format!("cannot stat '{}': {why}", shown.display());
    let kind = std::fs::metadata(&path).map_err(failed)?.file_type();
    if !kind.is_dir() && !kind.is_file() {
        return Err(format!("'{}': only files and directories have projects", shown.display()));
    }
    if !kind.is_dir() && (args.recursive || args.directory) {
        return Err(format!("'{}' is no directory", shown.display()));
    }
    let project = match (wanted, deed) {
        (Some(project), _) => project,
        (None, Deed::Set { .. } | Deed::Check { .. }) => flags_of(&path, shown)?.1.project,
        (None, _) => 0,
    };
    one(call, deed, project, &path, shown)?;
    let looks_in = deed.only_looks() && !args.directory || args.recursive;
    if !kind.is_dir() || !looks_in {
        return Ok(());
    }
    let mut dirs = vec![(path, shown.to_owned())];
    while let Some((path, shown)) = dirs.pop() {
        let mut below = inside(call, deed, project, &path, &shown)?;
        if args.recursive {
            // The stack pops the last first.
            below.reverse();
            dirs.append(&mut below);
        }
    }
    Ok(())
}

/// Applies the action to all files of a directory, and returns its directories: their paths, and the paths to show.
fn inside(call: &Call, deed: Deed, project: u32, path: &Path, shown: &Path) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let failed = |why: io::Error| format!("cannot read directory '{}': {why}", shown.display());
    let entries: Result<Vec<_>, _> = std::fs::read_dir(path).map_err(failed)?.collect();
    let mut entries = entries.map_err(failed)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut dirs = Vec::new();
    for entry in entries {
        let kind = entry.file_type().map_err(failed)?;
        let path = entry.path();
        let shown = shown.join(entry.file_name());
        if !kind.is_dir() && !kind.is_file() {
            continue;
        }
        match one(call, deed, project, &path, &shown) {
            // It went while the directory was read.
            Err(_) if !path.exists() => continue,
            done => done?,
        }
        if kind.is_dir() {
            dirs.push((path, shown));
        }
    }
    Ok(dirs)
}

fn flags_of(path: &Path, shown: &Path) -> Result<(File, FileFlags), String> {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_NOFOLLOW);
    let file = options.open(path).map_err(|why| format!("cannot open '{}': {why}", shown.display()))?;
    let failed = |why: io::Error| format!("cannot get the project of '{}': {why}", shown.display());
    let flags = FileFlags::of(&file).map_err(failed)?;
    Ok((file, flags))
}

/// Applies the action to one file.
fn one(call: &Call, deed: Deed, project: u32, path: &Path, shown: &Path) -> Result<(), String> {
    let (file, found) = flags_of(path, shown)?;
    let inherits = found.flags & FileFlags::PROJECT_INHERIT != 0;
    let name = shown.display();
    match deed {
        Deed::Show => {
            call.print(format_args!("{:5} {} {name}\n", found.project, if inherits { 'P' } else { '-' }));
        }
        Deed::Check { .. } if found.project == project && inherits => {}
        Deed::Check { bare: true } => call.print(format_args!("{name}\0")),
        Deed::Check { bare: false } => {
            if found.project != project {
                let is = found.project;
                call.print(format_args!("{name} - project ID is not set properly ({is}/{project})\n"));
            }
            if !inherits {
                call.print(format_args!("{name} - project inherit flag is not set\n"));
            }
        }
        Deed::Set { .. } | Deed::Clear { .. } => {
            if let Some(new) = deed.change(found, project) {
                let failed = |why: io::Error| format!("cannot set the project of '{name}': {why}");
                new.set(&file).map_err(failed)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deed(line: &[&str]) -> Result<Deed, Failure> {
        Deed::of(&ProjectArgs::parse_line(&line.iter().map(OsString::from).collect::<Vec<_>>()).unwrap())
    }

    #[test]
    fn options_that_go_together() {
        for bad in [&["-c", "-C", "a"][..], &["-cs", "a"], &["-Cs", "a"], &["-0", "a"], &["-k", "a"], &["-dr", "a"]] {
            assert!(deed(bad).is_err(), "{bad:?}");
        }
        assert!(deed(&["-ds", "a"]).is_err() && deed(&["-Cp", "1", "a"]).is_err());
        assert_eq!(deed(&["-rsp", "7", "a"]).unwrap(), Deed::Set { inherit: true });
        assert_eq!(deed(&["-c0", "-p", "7", "a"]).unwrap(), Deed::Check { bare: true });
        assert_eq!(deed(&["-Ck", "a"]).unwrap(), Deed::Clear { keep: true });
        assert_eq!(deed(&["-d", "a"]).unwrap(), Deed::Show);
        assert_eq!((project("0x10").ok(), project("9").ok()), (Some(16), Some(9)));
        assert!(project("4294967295").is_err() && project("-1").is_err());
    }
}
