//! `cargo xtask package {deb,rpm,oci}`: packages of the program with its manual pages and completions.
//!
//! ```text
//!   cargo build ─► target/package/weir, man/, completions/, links/ ─┬─► cargo-deb           target/packages/*.deb
//!                                                                   ├─► cargo-generate-rpm  target/packages/*.rpm
//!                                                                   └─► oci.rs              target/packages/*.oci.tar
//! ```
//!
//! The metadata of .deb and .rpm are in `crates/cli/Cargo.toml`; units, scripts and the default configuration in
//! `packaging/`. The staged files are the same for all three, whatever the profile of the build. `WEIR_BIN` names a program that
//! was built before, which is packaged instead.

mod judge;
mod oci;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{Outcome, cargo, must, on_path, target, top};

pub use judge::run as judge;

/// Names under which the program answers as OpenZFS's tools.
const LINKS: [&str; 4] = ["zpool", "zfs", "zdb", "zstream"];
/// Name under which `mount(8)` calls the program for `mount -t zfs`.
const MOUNT_HELPER: &str = "mount.zfs";
/// Shells whose completions are packaged, and the name of the file for a program.
const SHELLS: [(&str, &str, &str); 3] = [("bash", "", ".bash"), ("zsh", "_", ""), ("fish", "", ".fish")];

/// Kind of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Debian package.
    Deb,
    /// RPM package.
    Rpm,
    /// OCI image, as an archive of its layout.
    Oci,
}

impl Kind {
    /// All kinds, with the word of the command line and the program that makes the package.
    const ALL: [(&'static str, Kind, Option<&'static str>); 3] = [
        ("deb", Kind::Deb, Some("cargo-deb")),
        ("rpm", Kind::Rpm, Some("cargo-generate-rpm")),
        ("oci", Kind::Oci, None),
    ];
}

/// Entry point of the task.
pub fn run(arguments: &[String]) -> Outcome {
    let (kinds, profile) = parsed(arguments)?;
    let stage = stage(&profile)?;
    for kind in kinds {
        for file in make(kind, &stage)? {
            println!("{}", file.display());
        }
    }
    Ok(())
}

/// Kinds and profile of a command line; all kinds and `release` by default.
fn parsed(arguments: &[String]) -> Result<(Vec<Kind>, String), String> {
    let mut kinds = Vec::new();
    let mut profile = "release".to_string();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if word == "--profile" {
            profile = words.next().ok_or("package: --profile needs a name")?.clone();
            continue;
        }
        let known = Kind::ALL.iter().find(|(name, ..)| name == word);
        let (_, kind, _) = known.ok_or_else(|| format!("package: deb, rpm or oci, not {word:?}"))?;
        kinds.push(*kind);
    }
    if kinds.is_empty() {
        kinds.extend(Kind::ALL.map(|(_, kind, _)| kind));
    }
    Ok((kinds, profile))
}

/// Describes an error of a file.
fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Creates an empty folder in place of whatever is there.
fn empty(folder: &Path) -> Outcome {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| failed(folder, &error))?;
    }
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))
}

/// Standard output of a program that must succeed.
fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let done = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if done.status.success() {
        return Ok(done.stdout);
    }
    let why = String::from_utf8_lossy(&done.stderr).into_owned();
    Err(format!("{command:?}: {}: {}", done.status, why.trim()))
}

/// The program of this profile: built now, unless `WEIR_BIN` names one that was built before.
fn program(profile: &str) -> Result<PathBuf, String> {
    if let Some(built) = std::env::var_os("WEIR_BIN").map(PathBuf::from) {
        let is_there = built.is_file();
        return if is_there { Ok(built) } else { Err(format!("WEIR_BIN: {} is no file", built.display())) };
    }
    must("build weir", &mut cargo(&["build", "--quiet", "--profile", profile, "-p", "weir", "--bin", "weir"]))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(target().join(folder).join("weir"))
}

/// Builds the program, and lays out what the packages contain.
fn stage(profile: &str) -> Result<PathBuf, String> {
    let built = program(profile)?;
    // The metadata name this folder below the workspace, wherever cargo builds.
    let stage = top().join("target/package");
    empty(&stage)?;
    let weir = stage.join("weir");
    output(Command::new("strip").arg("--strip-unneeded").arg("-o").arg(&weir).arg(&built))?;
    for name in ["man", "completions", "links"] {
        empty(&stage.join(name))?;
    }
    output(Command::new(&weir).arg("man").arg(stage.join("man")))?;
    for program in ["weir"].iter().chain(&LINKS) {
        for (shell, before, after) in SHELLS {
            // The script calls the program by the name that the user types, not by this build's path.
            let script = output(Command::new(&weir).args(["completions", shell, program]))?;
            let file = stage.join("completions").join(format!("{before}{program}{after}"));
            fs::write(&file, script).map_err(|error| failed(&file, &error))?;
        }
    }
    for name in LINKS.iter().chain([&MOUNT_HELPER]) {
        let link = stage.join("links").join(name);
        std::os::unix::fs::symlink("../bin/weir", &link).map_err(|error| failed(&link, &error))?;
    }
    for name in LINKS {
        let page = stage.join("links").join(format!("{name}.8"));
        fs::write(&page, format!(".so man1/weir-{name}.1\n")).map_err(|error| failed(&page, &error))?;
    }
    Ok(stage)
}

/// The program that makes a kind of package, if it is absent.
fn missing(kind: Kind) -> Option<&'static str> {
    let (.., program) = Kind::ALL.iter().find(|(_, known, _)| *known == kind)?;
    (*program).filter(|program| !on_path(program))
}

/// Makes one kind of package; returns its files.
fn make(kind: Kind, stage: &Path) -> Result<Vec<PathBuf>, String> {
    if let Some(program) = missing(kind) {
        return Err(format!("package: {program} is not installed (cargo install {program})"));
    }
    let folder = top().join("target/packages");
    fs::create_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
    let into = folder.display().to_string();
    match kind {
        Kind::Deb => {
            let mut files = Vec::new();
            for variant in [&[][..], &["--variant", "zfs-links"]] {
                let mut command = cargo(&["deb", "--no-build", "--no-strip", "-p", "weir", "--output", &into]);
                let made = output(command.args(variant))?;
                // Its last line is the file.
                let text = String::from_utf8_lossy(&made).into_owned();
                files.push(PathBuf::from(text.lines().last().unwrap_or_default()));
            }
            Ok(files)
        }
        Kind::Rpm => {
            let file = folder.join(format!("weir-{}.x86_64.rpm", env!("CARGO_PKG_VERSION")));
            let mut command = cargo(&["generate-rpm", "-p", "crates/cli", "--payload-compress", "zstd", "-o"]);
            output(command.arg(&file))?;
            Ok(vec![file])
        }
        Kind::Oci => {
            let file = folder.join(format!("weir-{}.oci.tar", env!("CARGO_PKG_VERSION")));
            oci::write(stage, &file)?;
            Ok(vec![file])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_profile_are_read_from_the_command_line() {
        let words = |text: &str| text.split_whitespace().map(ToString::to_string).collect::<Vec<_>>();
        let (kinds, profile) = parsed(&words("rpm --profile dev deb")).unwrap();
        assert_eq!((kinds, profile.as_str()), (vec![Kind::Rpm, Kind::Deb], "dev"));
        assert_eq!(parsed(&[]).unwrap().0.len(), Kind::ALL.len());
        assert!(parsed(&words("msi")).is_err());
        assert!(parsed(&words("--profile")).is_err());
    }
}
