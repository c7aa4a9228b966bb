//! The pools that are being opened now: each by one task or command at a time. Commands about such a pool wait for the outcome.
//!
//! Invariant: a pool is in this table from before its devices are looked for until it is in the table of the process, or could
//! not be opened. So a pool that is in neither table is not open, and no task is about to open it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Clock, Nanos};

/// Maximum time that a command waits for a pool that is being opened.
const OPENING_TIME: Duration = Duration::from_secs(60);
/// Time between two looks whether pools are still being opened.
const OPENING_POLL: Duration = Duration::from_millis(20);

/// Why a command about a pool that is being opened is given up.
pub(super) fn still_opening() -> String {
    let waited = OPENING_TIME.as_secs();
    format!(
        "the pool is still being opened, and nothing was changed; 'weir daemon status' shows for how long (waited {waited} s)"
    )
}

/// A pool that is being opened.
#[derive(Clone, Debug)]
pub struct OpeningPool {
    /// Name of the pool.
    pub name: String,
    /// When that began.
    pub since: Nanos,
}

/// The pools that are being opened, by GUID.
#[derive(Default)]
pub struct OpeningPools {
    pools: Mutex<BTreeMap<u64, OpeningPool>, { order::OPENING_POOLS }>,
}

/// Keeps a pool in the table while it is being opened.
pub struct OpeningGuard {
    table: Arc<OpeningPools>,
    guid: u64,
}

impl Drop for OpeningGuard {
    fn drop(&mut self) {
        let before = self.table.pools().remove(&self.guid);
        debug_assert!(before.is_some(), "one guard has a pool");
    }
}

impl OpeningPools {
    fn pools(&self) -> MutexGuard<'_, BTreeMap<u64, OpeningPool>> {
        self.pools.lock()
    }

    /// Begins to open a pool, unless another task does, or `is_wanted` says that it is not to be opened any more.
    pub fn begin(
        self: &Arc<Self>,
        guid: u64,
        pool: OpeningPool,
        is_wanted: impl FnOnce() -> bool,
    ) -> Option<OpeningGuard> {
        let mut pools = self.pools();
        if pools.contains_key(&guid) || !is_wanted() {
            return None;
        }
        pools.insert(guid, pool);
        Some(OpeningGuard { table: self.clone(), guid })
    }

    /// Runs `work` unless the pool is being opened: no task begins to open it meanwhile.
    pub fn unless_opening<T>(&self, guid: u64, work: impl FnOnce() -> T) -> Option<T> {
        let pools = self.pools();
        if pools.contains_key(&guid) { None } else { Some(work()) }
    }

    /// All of them, by GUID.
    pub fn all(&self) -> BTreeMap<u64, OpeningPool> {
        self.pools().clone()
    }

    /// Waits while a pool with one of these names or GUIDs, or any pool if there are none, is being opened or among those of
    /// `expected`, which are about to be; at most [`OPENING_TIME`].
    ///
    /// # Errors
    /// The name of the first that is not open by then.
    pub async fn until_opened(
        &self,
        clock: &Clock,
        pools: &[String],
        expected: impl Fn() -> Vec<(u64, String)>,
    ) -> Result<(), String> {
        let is_meant = |guid: u64, name: &str| {
            pools.is_empty() || pools.iter().any(|pool| pool == name || *pool == guid.to_string())
        };
        let begun = clock.now();
        loop {
            let opening = self.all().into_iter().map(|(guid, pool)| (guid, pool.name));
            let found = opening.chain(expected()).find(|(guid, name)| is_meant(*guid, name));
            let Some((_, name)) = found else { return Ok(()) };
            if clock.now().since(begun) >= OPENING_TIME {
                return Err(name);
            }
            clock.sleep(OPENING_POLL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_pool_is_opened_by_one_and_awaited_by_others() {
        let table = Arc::new(OpeningPools::default());
        let pool = || OpeningPool { name: "tank".into(), since: Nanos(5) };
        let guard = table.begin(7, pool(), || true).unwrap();
        assert!(table.begin(7, pool(), || true).is_none(), "a second one");
        assert!(table.begin(8, pool(), || false).is_none(), "forgotten meanwhile");
        assert_eq!(table.unless_opening(7, || 1), None);
        let machine = weir_linux::machine().unwrap();
        let has_ended = |name: &str| {
            let names = [name.to_owned()];
            machine.block_on(async { table.until_opened(&machine.clock, &names, Vec::new).now_or_never().is_some() })
        };
        assert!(["tank", "7"].into_iter().all(|name| !has_ended(name)));
        assert!(has_ended("other"));
        drop(guard);
        assert!(["tank", "7"].into_iter().all(has_ended));
        assert_eq!((table.unless_opening(7, || 1), table.all().len()), (Some(1), 0));
    }
}
