//! Directories at which file systems are mounted: made when they are missing, and removed when they are empty and belong to the
//! pool's names, as OpenZFS does (`remove_mountpoint` in `lib/libzfs/libzfs_mount.c`).

use std::io;
use std::path::{Path, PathBuf};
use weir_daemon::DatasetShares;
use weir_dsl::props::DatasetKind;

/// Directories that were made for a mount, parents first.
pub(super) struct Made(Vec<PathBuf>);

impl Made {
    /// Makes a directory, with its parents, unless it is there.
    ///
    /// # Errors
    /// If that fails. What was made before is removed again.
    pub(super) fn at(path: &Path) -> io::Result<Made> {
        let mut made = Made(Vec::new());
        let mut missing: Vec<&Path> = path.ancestors().take_while(|above| !above.exists()).collect();
        while let Some(next) = missing.pop() {
            match std::fs::create_dir(next) {
                Ok(()) => made.0.push(next.to_owned()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && next.is_dir() => {}
                Err(error) => {
                    made.remove();
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    /// Removes what was made, because nothing is mounted there.
    pub(super) fn remove(self) {
        remove(self.0);
    }
}

/// Mount points that follow the names of the pool and its file systems (`mountpoint` is not set on the dataset itself).
pub fn by_name<'a>(all: impl Iterator<Item = &'a DatasetShares>) -> Vec<PathBuf> {
    let of_names = all.filter(|shares| shares.kind == DatasetKind::Filesystem && !shares.is_mountpoint_set);
    let mut paths: Vec<PathBuf> = of_names.filter_map(|shares| shares.mount.path().map(PathBuf::from)).collect();
    paths.sort();
    paths
}

/// Removes empty directories, the deepest first. Parents precede their children.
pub fn remove(points: Vec<PathBuf>) {
    for point in points.into_iter().rev() {
        // One that is in use, not empty, or not there stays as it is.
        let _ = std::fs::remove_dir(point);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_removed_and_nothing_else() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir(top.path().join("there")).unwrap();
        let deep = top.path().join("there/a/b");
        let made = Made::at(&deep).unwrap();
        assert!(deep.is_dir());
        made.remove();
        assert!(!top.path().join("there/a").exists() && top.path().join("there").is_dir());
        let made = Made::at(&deep).unwrap();
        std::fs::write(top.path().join("there/a/file"), "x").unwrap();
        made.remove();
        assert!(top.path().join("there/a/file").exists() && !deep.exists(), "what is not empty stays");
        assert!(Made::at(&top.path().join("there/a/file/below")).is_err());
    }

    #[test]
    fn mount_points_that_were_chosen_stay() {
        let mut chosen = DatasetShares::mounted_at("t", 1, "/srv/t", false);
        chosen.is_mountpoint_set = true;
        let all = [
            chosen,
            DatasetShares::mounted_at("t/b", 3, "/srv/t/b", true),
            DatasetShares::mounted_at("t/a", 2, "/srv/t/a", true),
        ];
        assert_eq!(by_name(all.iter()), [Path::new("/srv/t/a"), Path::new("/srv/t/b")]);
    }
}
