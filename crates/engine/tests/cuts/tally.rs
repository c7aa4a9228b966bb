//! How often each kind of operation happened in the histories that were cut: a kind that no longer occurs is not tested.

use crate::states::Shared;
use std::collections::BTreeMap;

/// All kinds. The last are not done but met: discards at the disks; opened pools in which blocks have several owners; those
/// that were rewound.
const KINDS: [&str; 39] = [
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
    "volume-flush",
    "volume-resize",
    "key-change",
    DISCARDS,
    SHARED,
    REWOUND,
];

/// Ranges that disks were told to forget.
pub const DISCARDS: &str = "discards";
/// Opened pools with blocks that copies share.
pub const SHARED: &str = "pools-sharing";

/// Opened pools that were rewound to an older group.
pub const REWOUND: &str = "rewound";

/// In a run of this many cuts each kind occurs at least [`LEAST`] times.
const ENOUGH_CUTS: u64 = 20_000;
const LEAST: u64 = 1;

/// How often each kind happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// It happened so many times.
    pub fn add(&mut self, kind: &'static str, times: u64) {
        debug_assert!(KINDS.contains(&kind), "{kind}");
        *self.0.entry(kind).or_default() += times;
    }

    pub fn add_all(&mut self, other: &Tally) {
        other.0.iter().for_each(|(kind, times)| self.add(kind, *times));
    }

    /// What [`Tally::words`] wrote; other words count for nothing.
    pub fn read(text: &str) -> Self {
        let mut tally = Tally::default();
        for (kind, times) in text.split_whitespace().filter_map(|word| word.split_once('=')) {
            if let (Some(kind), Ok(times)) = (KINDS.iter().find(|known| **known == kind), times.parse()) {
                tally.add(kind, times);
            }
        }
        tally
    }

    pub fn words(&self) -> String {
        let words: Vec<String> = KINDS.iter().map(|kind| format!("{kind}={}", self.of(kind))).collect();
        words.join(" ")
    }

    fn of(&self, kind: &str) -> u64 {
        self.0.get(kind).copied().unwrap_or(0)
    }

    /// Prints all counts; after enough cuts no kind may be missing.
    pub fn demand_all(&self, cuts: u64) {
        let counts: Vec<String> = KINDS.iter().map(|kind| format!("{kind} {}", self.of(kind))).collect();
        println!("operations: {}", counts.join(", "));
        let rare: Vec<&&str> = KINDS.iter().filter(|kind| self.of(kind) < LEAST).collect();
        assert!(cuts < ENOUGH_CUTS || rare.is_empty(), "fewer than {LEAST} of {rare:?} in {cuts} cuts");
    }
}

/// A client's hand on the counts.
#[derive(Clone, Default)]
pub struct Counter(pub Shared<Tally>);

impl Counter {
    pub fn did(&self, kind: &'static str) {
        self.0.lock().unwrap().add(kind, 1);
    }
}

#[test]
fn what_was_counted_is_read_back() {
    let mut tally = Tally::default();
    tally.add("promote", 3);
    tally.add("write", 70);
    assert_eq!(Tally::read(&format!("1 2 3 {}", tally.words())).words(), tally.words());
    tally.demand_all(100);
    assert!(std::panic::catch_unwind(|| tally.demand_all(ENOUGH_CUTS)).is_err());
}
