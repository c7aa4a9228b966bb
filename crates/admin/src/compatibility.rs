//! Features of a new pool: by name, and by `compatibility` sets, which are files with one feature name per line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use weir_format::features::by_name;

/// Where OpenZFS looks for sets.
const FOLDERS: [&str; 2] = ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
/// The longest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 16;

/// Sets that need no file: the features that each release of OpenZFS on Linux added to those of the release before.
const RELEASES: &[(&str, &[&str])] = &[
    (
        "openzfs-2.0-linux",
        &[
            "allocation_classes",
            "async_destroy",
            "bookmark_v2",
            "bookmark_written",
            "bookmarks",
            "device_rebuild",
            "device_removal",
            "edonr",
            "embedded_data",
            "empty_bpobj",
            "enabled_txg",
            "encryption",
            "extensible_dataset",
            "filesystem_limits",
            "hole_birth",
            "large_blocks",
            "large_dnode",
            "livelist",
            "log_spacemap",
            "lz4_compress",
            "multi_vdev_crash_dump",
            "obsolete_counts",
            "project_quota",
            "redacted_datasets",
            "redaction_bookmarks",
            "resilver_defer",
            "sha512",
            "skein",
            "spacemap_histogram",
            "spacemap_v2",
            "userobj_accounting",
            "zpool_checkpoint",
            "zstd_compress",
        ],
    ),
    ("openzfs-2.1-linux", &["draid"]),
    ("openzfs-2.2-linux", &["blake3", "block_cloning", "head_errlog", "vdev_zaps_v2", "zilsaxattr"]),
];

/// The features that a value of the property `compatibility` allows; `None` for all.
///
/// # Errors
/// Errors if it names a set that does not exist, or that is malformed.
pub fn compatible_features(value: &str) -> Result<Option<BTreeSet<String>>, String> {
    match value {
        "off" | "" => return Ok(None),
        "legacy" => return Ok(Some(BTreeSet::new())),
        _ => {}
    }
    let mut allowed: Option<BTreeSet<String>> = None;
    for name in value.split(',') {
        let own = set(name)?;
        allowed = Some(match allowed {
            None => own,
            Some(allowed) => allowed.intersection(&own).cloned().collect(),
        });
    }
    Ok(allowed)
}

/// Reads one set from a file, or else from the table of releases.
fn set(name: &str) -> Result<BTreeSet<String>, String> {
    let named = Path::new(name);
    if name.is_empty() || name == "." || name == ".." || (name.contains('/') && !named.is_absolute()) {
        return Err(format!("'{name}' is no name of a set"));
    }
    let places: Vec<PathBuf> = match named.is_absolute() {
        true => vec![named.to_path_buf()],
        false => FOLDERS.iter().map(|folder| Path::new(folder).join(named)).collect(),
    };
    let Some(place) = places.iter().find(|place| place.is_file()) else {
        return release(name).ok_or_else(|| format!("there is no such set as '{name}'"));
    };
    if std::fs::metadata(place).is_ok_and(|m| m.len() > MAX_FILE_BYTES) {
        return Err(format!("{} is too long for a set of features", place.display()));
    }
    let text = std::fs::read_to_string(place).map_err(|error| format!("{}: {error}", place.display()))?;
    read(&text).map_err(|word| format!("{}: unknown feature '{word}'", place.display()))
}

/// The features in a file: separated by blanks or commas, `#` begins a comment.
fn read(text: &str) -> Result<BTreeSet<String>, String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let words = lines.flat_map(|line| line.split([' ', '\t', ','])).filter(|word| !word.is_empty());
    words.map(|word| by_name(word).map(|_| word.to_owned()).ok_or_else(|| word.to_owned())).collect()
}

fn release(name: &str) -> Option<BTreeSet<String>> {
    let name = if name.ends_with("-linux") { name.to_owned() } else { format!("{name}-linux") };
    let at = RELEASES.iter().position(|(release, _)| *release == name)?;
    Some(RELEASES.iter().take(at + 1).flat_map(|(_, more)| *more).map(|f| (*f).to_owned()).collect())
}

/// Adds a feature to those of a new pool, or removes it: `feature@NAME=enabled` or `disabled`.
///
/// # Errors
/// The reason why the name or the value is invalid.
pub fn choose_feature(features: &mut Vec<String>, name: &str, value: &str) -> Result<(), String> {
    if by_name(name).is_none() {
        return Err(format!("invalid feature '{name}'"));
    }
    match value {
        "enabled" if features.iter().any(|feature| feature == name) => {}
        "enabled" => features.push(name.to_owned()),
        "disabled" => features.retain(|feature| feature != name),
        _ => {
            return Err(format!(
                "property 'feature@{name}' can only be set to 'enabled' or 'disabled' at creation time"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_files_or_releases() {
        assert_eq!(compatible_features("off"), Ok(None));
        assert_eq!(compatible_features("legacy"), Ok(Some(BTreeSet::new())));
        let older = compatible_features("openzfs-2.1-linux").unwrap().unwrap();
        assert!(older.contains("draid") && older.contains("lz4_compress") && !older.contains("blake3"));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mine");
        std::fs::write(&file, "# mine\nlz4_compress, draid\nblake3 # new\n").unwrap();
        let file = file.display().to_string();
        let mine = compatible_features(&file).unwrap().unwrap();
        assert_eq!(mine.into_iter().collect::<Vec<_>>(), ["blake3", "draid", "lz4_compress"]);
        let both = compatible_features(&format!("{file},openzfs-2.1-linux")).unwrap().unwrap();
        assert_eq!(both.into_iter().collect::<Vec<_>>(), ["draid", "lz4_compress"]);
        std::fs::write(dir.path().join("bad"), "bogus").unwrap();
        let bad = dir.path().join("bad").display().to_string();
        assert!(compatible_features(&bad).unwrap_err().contains("unknown feature 'bogus'"));
        assert!(compatible_features("../x").is_err());
        for (_, features) in RELEASES {
            assert!(features.iter().all(|feature| by_name(feature).is_some()));
        }
    }
}
