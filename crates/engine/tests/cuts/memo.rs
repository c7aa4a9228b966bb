//! Cache of the results of earlier cuts of a history.
//!
//! Most cuts differ from others only in bytes that an import does not read: in blocks of a txg that no uberblock points to,
//! and in ranges that the import writes before it reads them. The operations on a pool after a cut depend only on the
//! bytes that they read (and on the random order of tasks). Therefore a cut that left the same bytes in the read set as an
//! earlier cut is not opened: the contents found after the earlier cut are judged for the later moment.
//!
//! One of [`PROBE_INTERVAL`] equivalent cuts is opened nevertheless, and must have the same contents. This checks the
//! assumption in every run.

use crate::drive::{Judged, number};
use crate::judge::{Found, Way, look};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use weir_sim::{Cut, ReadSet};

/// Maximum cuts in the cache: the latest, because later cuts of a history leave other bytes.
const MAX_REMEMBERED_CUTS: usize = 48;
/// Equivalent cuts per cut that is opened nevertheless, unless `WEIR_SIM_PROBES` is set.
const PROBE_INTERVAL: u64 = 32;

struct Seen {
    cut: Cut,
    way: Way,
    read_set: ReadSet,
    found: Arc<Found>,
}

/// Cache of the cuts of one history, with counts.
#[derive(Default)]
pub struct Memo {
    seen: Mutex<VecDeque<Arc<Seen>>>,
    /// Pools that were opened.
    opened: AtomicU64,
    /// Opened pools with cloned blocks.
    sharing: AtomicU64,
    /// Opened pools that were rewound.
    rewound: AtomicU64,
}

impl Memo {
    /// Number of opened pools that were rewound to an older txg.
    pub fn rewound(&self) -> u64 {
        self.rewound.load(Ordering::Relaxed)
    }

    /// Number of opened pools.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Number of opened pools with cloned blocks.
    pub fn sharing(&self) -> u64 {
        self.sharing.load(Ordering::Relaxed)
    }

    /// Returns the contents of the pool that a cut left, from the cache if possible.
    pub fn look(&self, known: &Judged, cut: Cut, way: Way) -> Result<Arc<Found>, String> {
        let seen: Vec<Arc<Seen>> = self.seen.lock().unwrap().iter().cloned().collect();
        let like = seen.iter().find(|seen| seen.way == way && seen.cut.is_equivalent(&cut, &seen.read_set));
        let is_probe = cut
            .fingerprint()
            .first()
            .is_some_and(|print| print % number("WEIR_SIM_PROBES", PROBE_INTERVAL).max(1) == 0);
        if let Some(seen) = like.filter(|_| !is_probe) {
            return Ok(seen.found.clone());
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        let world = cut.world();
        world.track_reads();
        let found = Arc::new(look(known, &world, way)?);
        self.sharing.fetch_add(found.shares().into(), Ordering::Relaxed);
        self.rewound.fetch_add(found.before.into(), Ordering::Relaxed);
        if let Some(seen) = like {
            let same = *seen.found == *found;
            return same
                .then_some(found)
                .ok_or_else(|| "two pools with equal read sets have different contents".to_owned());
        }
        let new = Seen { cut, way, read_set: world.take_read_set(), found };
        let mut seen = self.seen.lock().unwrap();
        let found = new.found.clone();
        seen.push_front(Arc::new(new));
        seen.truncate(MAX_REMEMBERED_CUTS);
        Ok(found)
    }
}
