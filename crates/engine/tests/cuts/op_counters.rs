//! Counts of each kind of operation in the histories, because a kind that no longer occurs is not tested.

use crate::states::Shared;
use std::collections::BTreeMap;

/// All kinds. The last five are observations: discards by the disks, opened pools with cloned blocks, pools that were
/// rewound, slow I/Os, and devices that hung and were taken out of service.
const KINDS: [&str; 43] = [
    "create",
    "mkdir",
    "remove",
    "rename",
    "exchange",
    "link",
    "truncate",
    "mode",
    "owner",
    "xattr-set",
    "xattr-remove",
    "punch",
    "rewrite",
    "zero",
    "copy",
    "write",
    "commit-file",
    "commit-all",
    "user-quota",
    "snapshot",
    "snapshot-destroy",
    "rollback",
    "dataset-create",
    "dataset-destroy",
    "dataset-rename",
    "clone",
    "promote",
    "bookmark",
    "bookmark-destroy",
    "quota",
    "hold",
    "release",
    "volume-write",
    "volume-zero",
    "volume-clone",
    "volume-flush",
    "volume-resize",
    "key-change",
    DISCARDS,
    SHARED,
    REWOUND,
    SLOW_IOS,
    HUNG,
];

/// Ranges discarded by the disks.
pub const DISCARDS: &str = "discards";
/// Opened pools with cloned blocks.
pub const SHARED: &str = "pools-sharing";

/// Opened pools that were rewound to an older txg.
pub const REWOUND: &str = "rewound";

/// Operations of devices that were slow.
pub const SLOW_IOS: &str = "slow-ios";
/// Devices that hung and were taken out of service.
pub const HUNG: &str = "devices-hung";

/// Cuts of a run in which each kind must occur at least [`MIN_TIMES`] times.
const ENOUGH_CUTS: u64 = 20_000;
const MIN_TIMES: u64 = 1;

/// Number of operations of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpCounters(BTreeMap<&'static str, u64>);

impl OpCounters {
    /// Adds `times` operations of a kind.
    pub fn add(&mut self, kind: &'static str, times: u64) {
        debug_assert!(KINDS.contains(&kind), "{kind}");
        *self.0.entry(kind).or_default() += times;
    }

    pub fn add_all(&mut self, other: &OpCounters) {
        other.0.iter().for_each(|(kind, times)| self.add(kind, *times));
    }

    /// Parses the text of [`OpCounters::words`]; other words are ignored.
    pub fn read(text: &str) -> Self {
        let mut counters = OpCounters::default();
        for (kind, times) in text.split_whitespace().filter_map(|word| word.split_once('=')) {
            if let (Some(kind), Ok(times)) = (KINDS.iter().find(|known| **known == kind), times.parse()) {
                counters.add(kind, times);
            }
        }
        counters
    }

    pub fn words(&self) -> String {
        let words: Vec<String> = KINDS.iter().map(|kind| format!("{kind}={}", self.of(kind))).collect();
        words.join(" ")
    }

    fn of(&self, kind: &str) -> u64 {
        self.0.get(kind).copied().unwrap_or(0)
    }

    /// Prints all counts.
    ///
    /// # Panics
    /// If a kind is missing after enough cuts.
    pub fn assert_all_occurred(&self, cuts: u64) {
        let counts: Vec<String> = KINDS.iter().map(|kind| format!("{kind} {}", self.of(kind))).collect();
        println!("operations: {}", counts.join(", "));
        let rare: Vec<&&str> = KINDS.iter().filter(|kind| self.of(kind) < MIN_TIMES).collect();
        assert!(cuts < ENOUGH_CUTS || rare.is_empty(), "fewer than {MIN_TIMES} of {rare:?} in {cuts} cuts");
    }
}

/// Handle with which a client counts its operations.
#[derive(Clone, Default)]
pub struct Counter(pub Shared<OpCounters>);

impl Counter {
    pub fn did(&self, kind: &'static str) {
        self.0.lock().unwrap().add(kind, 1);
    }
}

#[test]
fn counters_survive_the_text_format() {
    let mut counters = OpCounters::default();
    counters.add("promote", 3);
    counters.add("write", 70);
    assert_eq!(OpCounters::read(&format!("1 2 3 {}", counters.words())).words(), counters.words());
    counters.assert_all_occurred(100);
    assert!(std::panic::catch_unwind(|| counters.assert_all_occurred(ENOUGH_CUTS)).is_err());
}
