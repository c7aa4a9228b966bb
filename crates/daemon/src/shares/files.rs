//! The rules of the file systems, as every call on a file looks them up.

use super::{DatasetShares, Sharing};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dsl::props::DatasetKind;
use weir_front::files::FileError;
use weir_front::shares::Names;
use weir_front::{ExportRules, FileRules, Host, Permission};
use weir_machine::lock::RwLock;

/// A shared file system.
#[derive(Clone, Debug)]
struct SharedFiles {
    /// Name of the file system, and its mount point without the first slash.
    paths: [String; 2],
    rules: Arc<FileRules>,
}

#[derive(Default)]
struct Rules {
    everything: Option<ExportRules>,
    /// Rules by the ID of the file system or snapshot.
    by_id: BTreeMap<u64, Arc<FileRules>>,
    /// Shared file systems by ID.
    file_systems: BTreeMap<u64, SharedFiles>,
}

/// The rules of the file systems of a pool. At first nothing is shared.
#[derive(Default)]
pub struct FileShares(RwLock<Arc<Rules>>);

impl FileShares {
    /// Everything is shared by these rules.
    pub fn everything(rules: ExportRules) -> Self {
        let shares = FileShares::default();
        shares.set(Rules { everything: Some(rules), ..Rules::default() });
        shares
    }

    fn rules(&self) -> Arc<Rules> {
        self.0.read().clone()
    }

    fn set(&self, rules: Rules) {
        *self.0.write() = Arc::new(rules);
    }

    /// Replaces the rules; the flags of a dataset tell whether it is treated as mounted, and whether nothing may change it.
    pub(super) fn apply<'a>(
        &self,
        sharing: &Sharing,
        datasets: impl Iterator<Item = (&'a DatasetShares, bool, bool)>,
        names: &Names,
    ) {
        let mut rules = Rules::default();
        match sharing {
            Sharing::Nothing => {}
            Sharing::Everything(all) => rules.everything = Some(all.clone()),
            Sharing::ByProperties => {
                let is_shared = |(shares, is_mounted, _): &(&DatasetShares, bool, bool)| {
                    *is_mounted && shares.kind == DatasetKind::Filesystem && !shares.nfs.is_off()
                };
                for (shares, _, is_readonly) in datasets.filter(is_shared) {
                    let own = Arc::new(shares.nfs.rules(names, is_readonly));
                    let mount_point = shares.mount.path().unwrap_or_default().trim_matches('/').to_owned();
                    let paths = [shares.dataset.clone(), mount_point];
                    rules.file_systems.insert(shares.id, SharedFiles { paths, rules: own.clone() });
                    rules.by_id.extend(shares.snapshots.iter().map(|(_, id)| (*id, own.clone())));
                    rules.by_id.insert(shares.id, own);
                }
            }
        }
        debug_assert!(rules.everything.is_none() || rules.by_id.is_empty(), "two policies");
        self.set(rules);
    }

    /// Permission of a host in a file system or snapshot.
    ///
    /// # Errors
    /// [`FileError::Stale`] if it is not shared at all, [`FileError::Denied`] if it is not shared with the host.
    pub fn permit(&self, id: u64, host: Host) -> Result<Permission, FileError> {
        let rules = self.0.read();
        if let Some(everything) = &rules.everything {
            return Ok(everything.permit(host));
        }
        let own = rules.by_id.get(&id).ok_or(FileError::Stale)?;
        own.permit(host).ok_or(FileError::Denied)
    }

    /// Mount points of the file systems that are shared with a host, without the first slash; `None` if everything is.
    pub fn paths(&self, host: Host) -> Option<Vec<String>> {
        let rules = self.rules();
        if rules.everything.is_some() {
            return None;
        }
        let shared = rules.file_systems.values().filter(|shared| shared.rules.permit(host).is_some());
        let mut paths: Vec<String> = shared.map(|shared| shared.paths[1].clone()).collect();
        paths.sort();
        Some(paths)
    }

    /// The ID of the file system, shared with a host, whose mount point is the longest that a path begins with; and the rest
    /// of the path.
    pub fn mounted_at<'a>(&self, host: Host, path: &'a [u8]) -> Option<(u64, &'a [u8])> {
        let rules = self.rules();
        let shared = rules.file_systems.iter().filter(|(_, shared)| shared.rules.permit(host).is_some());
        let at = shared.filter_map(|(id, shared)| {
            let mount_point = shared.paths[1].as_bytes();
            let rest = path.strip_prefix(mount_point)?;
            (rest.is_empty() || mount_point.is_empty() || rest.starts_with(b"/")).then_some((
                mount_point.len(),
                *id,
                rest,
            ))
        });
        at.max_by_key(|(len, ..)| *len).map(|(_, id, rest)| (id, rest))
    }

    /// Names of all file systems that are shared with any host; `None` if everything is shared.
    pub fn names(&self) -> Option<Vec<String>> {
        let rules = self.rules();
        let names = || rules.file_systems.values().map(|shared| shared.paths[0].clone()).collect();
        rules.everything.is_none().then(names)
    }
}
