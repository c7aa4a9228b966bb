//! Tests on the pools of versions 1 to 15 and the deduplicated send streams in OpenZFS's `zfs-test` package.
//! `WEIR_ZFS_TOOLS` names the folder that OpenZFS's packages were unpacked into; without it, the tests print one line
//! and are skipped.

use crate::labels::{LabelScan, scan};
use crate::streams;
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_format::cursor::Endian;

fn archives() -> Option<Vec<PathBuf>> {
    let Some(root) = std::env::var_os("WEIR_ZFS_TOOLS").map(PathBuf::from) else {
        eprintln!("skipped: WEIR_ZFS_TOOLS does not name a folder with OpenZFS's zfs-test package");
        return None;
    };
    let mut todo = vec![root];
    let mut out = vec![];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap() {
                t if t.is_dir() => todo.push(entry.path()),
                t if t.is_file() && entry.path().extension().is_some_and(|e| e == "bz2") => out.push(entry.path()),
                _ => {}
            }
        }
    }
    out.sort();
    Some(out)
}

fn unpack(path: &Path) -> Vec<u8> {
    let out = Command::new("bzip2").arg("-dc").arg(path).output().unwrap();
    assert!(out.status.success(), "bzip2 of {}", path.display());
    out.stdout
}

#[test]
fn old_pools_decode() {
    let Some(archives) = archives() else { return };
    let mut pools = 0;
    let mut labels = 0;
    let mut uberblocks = 0;
    let mut versions = std::collections::BTreeSet::new();
    let mut big_endian = 0;
    for path in archives.iter().filter(|p| !p.to_string_lossy().ends_with(".zsend.bz2")) {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, unpack(path)).unwrap();
        let mut found = LabelScan::default();
        scan(&image, &mut found);
        eprintln!("{}: {} labels", path.file_name().unwrap().to_string_lossy(), found.configs.len());
        big_endian += found.uberblocks.iter().filter(|u| u.endian == Endian::Big).count();
        versions.extend(found.configs.iter().filter_map(|c| c.get_u64("version")));
        pools += usize::from(!found.configs.is_empty());
        labels += found.configs.len();
        uberblocks += found.uberblocks.len();
    }
    eprintln!(
        "{pools} devices, {labels} labels, {uberblocks} uberblocks ({big_endian} big-endian), versions {versions:?}"
    );
    assert!(pools >= 50 && big_endian > 0 && (1..=15).all(|v| versions.contains(&v)));
}

#[test]
fn old_streams_parse() {
    let Some(archives) = archives() else { return };
    let tools = PathBuf::from(std::env::var_os("WEIR_ZFS_TOOLS").unwrap());
    let mut parsed = 0;
    for path in archives.iter().filter(|p| p.to_string_lossy().ends_with(".zsend.bz2")) {
        let bytes = unpack(path);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("stream");
        std::fs::write(&file, &bytes).unwrap();
        let libraries = tools.join("lib/x86_64-linux-gnu");
        let mut zstream = Command::new(tools.join("sbin/zstream"));
        let dump = zstream.arg("dump").arg(&file).env("LD_LIBRARY_PATH", libraries).output().unwrap();
        assert!(dump.status.success(), "zstream dump of {}", path.display());
        streams::check(&bytes, &String::from_utf8_lossy(&dump.stdout), &path.to_string_lossy());
        parsed += 1;
    }
    assert!(parsed >= 2);
}
