//! What earlier cuts of a history have shown: not to be shown again.
//!
//! Most cuts differ from others only where nobody looks: in blocks of a group that no uberblock leads to, and in places
//! that an import writes before it reads them. What is done to a pool after a cut depends on nothing but the bytes that it
//! reads (and on chance, which picks who runs first), so a cut that left the same bytes *there* as an earlier one needs no
//! world of its own: what the earlier one held is held against what was known at its moment.
//!
//! One of [`PROBES`] of these is opened all the same, and has to hold just that: the proof that this is sound is repeated in
//! every run.

use crate::drive::{Judged, number};
use crate::judge::{Found, Way, look};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use weir_sim::{Cut, ReadSet};

/// Cuts that are remembered: the latest, for as a history goes on its cuts leave other bytes.
const KEPT: usize = 48;
/// Of so many cuts that are like one before, one is opened, if `WEIR_SIM_PROBES` does not say otherwise.
const PROBES: u64 = 32;

struct Seen {
    cut: Cut,
    way: Way,
    read_set: ReadSet,
    found: Arc<Found>,
}

/// Cuts of one history.
#[derive(Default)]
pub struct Memo {
    seen: Mutex<VecDeque<Arc<Seen>>>,
    /// Pools that were opened.
    opened: AtomicU64,
    /// Those of them in which blocks have several owners.
    sharing: AtomicU64,
    /// Those of them that were rewound.
    rewound: AtomicU64,
}

impl Memo {
    /// Those of them that were rewound to an older group.
    pub fn rewound(&self) -> u64 {
        self.rewound.load(Ordering::Relaxed)
    }

    /// Pools that were opened.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Those of them in which copies share blocks.
    pub fn sharing(&self) -> u64 {
        self.sharing.load(Ordering::Relaxed)
    }

    /// What the pool holds that a cut has left.
    pub fn look(&self, known: &Judged, cut: Cut, way: Way) -> Result<Arc<Found>, String> {
        let seen: Vec<Arc<Seen>> = self.seen.lock().unwrap().iter().cloned().collect();
        let like = seen.iter().find(|seen| seen.way == way && seen.cut.is_equivalent(&cut, &seen.read_set));
        let is_probe =
            cut.fingerprint().first().is_some_and(|print| print % number("WEIR_SIM_PROBES", PROBES).max(1) == 0);
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
            return same.then_some(found).ok_or_else(|| "two pools that read alike are not alike".to_owned());
        }
        let (new, mut seen) = (Seen { cut, way, read_set: world.take_read_set(), found }, self.seen.lock().unwrap());
        let found = new.found.clone();
        seen.push_front(Arc::new(new));
        seen.truncate(KEPT);
        Ok(found)
    }
}
