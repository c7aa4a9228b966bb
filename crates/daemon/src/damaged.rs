//! The datasets of a pool that are damaged so that they cannot be served, each with the reason.
//!
//! One damaged dataset must not keep the others from being served. It is logged once, `weir daemon status` names it, and
//! every access of clients to it fails.

use std::collections::BTreeMap;
use weir_machine::lock::{Mutex, MutexGuard};

/// Damaged datasets by name.
#[derive(Debug, Default)]
pub struct DamagedDatasets(Mutex<BTreeMap<String, String>>);

impl DamagedDatasets {
    fn names(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock()
    }

    /// Records a damaged dataset with the reason; logs it if it is new.
    pub(crate) fn note(&self, name: &str, why: &str) {
        debug_assert!(!name.is_empty() && !why.is_empty());
        let known = self.names().insert(name.to_owned(), why.to_owned());
        if known.is_none() {
            tracing::error!("'{name}' is damaged and not served: {why}");
        }
    }

    /// Forgets a dataset that could be opened.
    pub(crate) fn forget(&self, name: &str) {
        if self.names().remove(name).is_some() {
            tracing::info!("'{name}' can be read again, and is served");
        }
    }

    /// Forgets the datasets that do not exist any more.
    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.names().retain(|name, _| exists(name));
    }

    /// Damaged datasets by name, with the reasons.
    pub fn all(&self) -> BTreeMap<String, String> {
        self.names().clone()
    }

    /// Why a dataset is not served.
    pub fn reason(&self, name: &str) -> Option<String> {
        self.names().get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_that_is_gone_or_whole_again_is_not_listed() {
        let damaged = DamagedDatasets::default();
        damaged.note("p/a", "unreadable");
        damaged.note("p/b", "unreadable");
        damaged.note("p/c", "unreadable");
        damaged.forget("p/a");
        damaged.retain(|name| name != "p/b");
        assert_eq!(damaged.all().into_keys().collect::<Vec<_>>(), ["p/c"]);
        assert_eq!((damaged.reason("p/c").as_deref(), damaged.reason("p/a")), (Some("unreadable"), None));
    }
}
