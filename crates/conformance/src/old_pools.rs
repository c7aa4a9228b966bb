//! The pools of OpenZFS's own test package: versions 1 to 15 on one disk, stripes, mirrors and RAID-Z, with spares,
//! some damaged, encrypted in an early format, or of a version that does not exist.
//!
//! The labels determine which images belong to a pool, as OpenZFS's `zdb -l` reads them. OpenZFS's own zdb then
//! determines the expected result: where it can walk the pool, so must Weir, with the same figures and with every file
//! readable; where it refuses, Weir must refuse with a message and an exit code, and not crash.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::compare::Findings;
use crate::hash::hex_of_file;
use crate::report::{Report, side_by_side};
use crate::zdb::{Tools, compare, ours, output, theirs};
use crate::{JudgeError, io};

/// Zeros are left out in pieces of this many bytes.
const PIECE: usize = 64 << 10;

/// Runs every pool found in the tools' folder.
///
/// # Errors
/// If the tools are not there or bzip2(1) is missing.
pub fn run(wanted: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let tools = Tools::find()?;
    let mut archives = Vec::new();
    collect(&tools.tests(), &mut archives);
    archives.sort();
    if archives.is_empty() {
        return Err(JudgeError::Missing { what: "the zfs-test package holds no block files".to_string() });
    }
    let folder = tempfile::Builder::new().prefix("weir-old-pools-").tempdir().map_err(io("temporary folder"))?;
    let mut pools: Vec<_> = pools(&tools, &archives, folder.path())?.into_iter().collect();
    pools.retain(|(_, (name, _))| wanted.is_empty() || wanted.contains(name));
    side_by_side(
        &pools,
        |(guid, (name, images))| pool(&tools, folder.path(), guid, name, images),
        |(guid, (name, images)), outcome| report.book(&format!("{name} ({} of {guid})", names(images)), outcome),
    );
    Ok(())
}

/// Pools by GUID, with their names and images.
type Pools = BTreeMap<String, (String, Vec<PathBuf>)>;

fn pools(tools: &Tools, archives: &[PathBuf], folder: &Path) -> Result<Pools, JudgeError> {
    let mut pools = Pools::new();
    let mut unnamed = Vec::new();
    for archive in archives {
        let image = unpack(archive, folder)?;
        match identity(tools, &image)? {
            Some((guid, name)) => pools.entry(guid).or_insert((name, Vec::new())).1.push(image),
            None => unnamed.push(image),
        }
    }
    // A spare's label names no pool: it belongs to the images with a similar name. An image without any label is a
    // pool of its own, under its file's name.
    for image in unnamed {
        let alike = |other: &PathBuf| series(other) == series(&image);
        match pools.values_mut().find(|(_, images)| images.iter().any(alike)) {
            Some((_, images)) => images.push(image),
            None => {
                let name = stem(&image);
                pools.insert(format!("no label in {name}"), (name, vec![image]));
            }
        }
    }
    Ok(pools)
}

fn stem(image: &Path) -> String {
    image.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn series(image: &Path) -> String {
    stem(image).trim_end_matches(|last: char| last.is_ascii_digit()).to_string()
}

fn names(images: &[PathBuf]) -> String {
    let names = images.iter().filter_map(|image| image.file_name()).map(|name| name.to_string_lossy().into_owned());
    names.collect::<Vec<_>>().join(" ")
}

/// Returns the compressed images: all files in folders called `blockfiles`.
fn collect(folder: &Path, archives: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, archives);
        } else if path.extension().is_some_and(|ending| ending == "bz2")
            && path.parent().is_some_and(|parent| parent.ends_with("blockfiles"))
        {
            archives.push(path);
        }
    }
}

/// Unpacks an image and leaves its zeros as holes: together the images have 3.8 GB, nearly all of it zeros.
fn unpack(archive: &Path, folder: &Path) -> Result<PathBuf, JudgeError> {
    let image = folder.join(archive.file_stem().unwrap_or_default());
    let what = archive.display().to_string();
    let mut bzip2 = Command::new("bzip2");
    bzip2.arg("-dc").arg(archive).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut bzip2 = bzip2.spawn().map_err(io("bzip2"))?;
    let unpacked = match bzip2.stdout.take() {
        Some(from) => write_sparse(from, &image).map_err(io(&format!("{what} unpacked to {}", image.display()))),
        None => Ok(()),
    };
    let status = bzip2.wait().map_err(io("bzip2"))?;
    unpacked?;
    if status.success() { Ok(image) } else { Err(JudgeError::Unpack { archive: what }) }
}

fn write_sparse(mut from: impl Read, image: &Path) -> std::io::Result<()> {
    let mut out = File::create(image)?;
    let mut piece = Vec::with_capacity(PIECE);
    let mut size = 0;
    loop {
        piece.clear();
        let read = from.by_ref().take(PIECE as u64).read_to_end(&mut piece)?;
        if read == 0 {
            return out.set_len(size);
        }
        size += read as u64;
        if piece.iter().any(|byte| *byte != 0) {
            out.write_all(&piece)?;
        } else {
            out.seek(SeekFrom::Start(size))?;
        }
    }
}

/// GUID and name of the pool that an image belongs to, by OpenZFS's reading of its labels, if they name one.
fn identity(tools: &Tools, image: &Path) -> Result<Option<(String, String)>, JudgeError> {
    let printed = output(tools.program("sbin/zdb").arg("-l").arg(image))?;
    let text = String::from_utf8_lossy(&printed.stdout).into_owned();
    let field = |label: &str| text.lines().find_map(|line| line.trim().strip_prefix(label)).map(str::trim);
    Ok(field("pool_guid:")
        .zip(field("name:"))
        .map(|(guid, name)| (guid.to_string(), name.trim_matches('\'').to_string())))
}

fn pool(tools: &Tools, all: &Path, guid: &str, name: &str, images: &[PathBuf]) -> Result<Findings, JudgeError> {
    // A folder of its own, because two pools may have the same name.
    let folder = all.join(format!("pool-{}", guid.replace(' ', "-")));
    std::fs::create_dir(&folder).map_err(io("folder for a pool"))?;
    let mut hashes = Vec::new();
    for image in images {
        let place = folder.join(image.file_name().unwrap_or_default());
        std::fs::rename(image, &place).map_err(io("image"))?;
        let hash = hex_of_file(&place).map_err(io("image"))?;
        hashes.push((place, hash));
    }
    let expected = theirs(tools, &folder, name)?;
    let found = ours(&folder, name)?;
    let mut findings = compare(&found, &expected);
    if found.0 == 101 || found.0 < 0 || found.1.contains("panicked at") {
        findings.differs(format!("crashed with exit code {}", found.0));
    }
    if expected.0 == 0 {
        findings.absorb("", crate::engine::read_all(&folder, name)?);
    }
    for (place, hash) in hashes {
        if hex_of_file(&place).map_err(io("image"))? != hash {
            findings.differs(format!("{} was written to", place.display()));
        }
    }
    std::fs::remove_dir_all(&folder).map_err(io("folder of a pool"))?;
    Ok(findings)
}
