//! Record of a sequential rebuild, in the ZAP of the top-level vdev (`VDEV_TOP_ZAP_VDEV_REBUILD_PHYS`).
//!
//! Source: OpenZFS `include/sys/vdev_rebuild.h` (`vdev_rebuild_phys_t`), `include/sys/fs/zfs.h` (`vdev_rebuild_state_t`).

use crate::Txg;

/// Name of the record in the ZAP of the top-level vdev.
pub const VDEV_REBUILD: &str = "org.openzfs:vdev_rebuild";

/// State of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RebuildState {
    /// There was none.
    #[default]
    None,
    /// In progress.
    Active,
    /// Ended before all was copied.
    Canceled,
    /// All was copied.
    Complete,
}

impl RebuildState {
    fn of_word(word: u64) -> Option<Self> {
        match word {
            0 => Some(RebuildState::None),
            1 => Some(RebuildState::Active),
            2 => Some(RebuildState::Canceled),
            3 => Some(RebuildState::Complete),
            _ => None,
        }
    }

    /// Name in `zpool status -j`.
    pub fn name(self) -> &'static str {
        match self {
            RebuildState::None => "NONE",
            RebuildState::Active => "ACTIVE",
            RebuildState::Canceled => "CANCELED",
            RebuildState::Complete => "COMPLETE",
        }
    }
}

/// The record of a rebuild. Offsets and sizes are in bytes of the top-level vdev's space, times in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildPhys {
    /// State.
    pub state: RebuildState,
    /// All allocated ranges before this offset have been copied.
    pub last_offset_bytes: u64,
    /// First txg that devices lack.
    pub min_txg: Txg,
    /// Last txg that devices lack.
    pub max_txg: Txg,
    /// Time of the beginning.
    pub start_time_s: u64,
    /// Time of the end; 0 before.
    pub end_time_s: u64,
    /// Time spent, in milliseconds, over all imports.
    pub scan_time_ms: u64,
    /// Allocated bytes of the ranges up to the position.
    pub scanned_bytes: u64,
    /// Bytes of the ranges that were copied; the others are on no device that lacks blocks.
    pub issued_bytes: u64,
    /// Bytes that were written to devices.
    pub rebuilt_bytes: u64,
    /// Estimated value of `scanned_bytes` at the end.
    pub estimated_bytes: u64,
    /// Ranges that could not be copied, and flushes that failed.
    pub errors: u64,
}

impl RebuildPhys {
    /// Words on disk (`REBUILD_PHYS_ENTRIES`).
    pub const WORDS: usize = 12;

    /// From the words of the ZAP entry; `None` if there are too few, or the state is unknown.
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let w: &[u64; Self::WORDS] = words.get(..Self::WORDS)?.try_into().ok()?;
        Some(RebuildPhys {
            state: RebuildState::of_word(w[0])?,
            last_offset_bytes: w[1],
            min_txg: Txg(w[2]),
            max_txg: Txg(w[3]),
            start_time_s: w[4],
            end_time_s: w[5],
            scan_time_ms: w[6],
            scanned_bytes: w[7],
            issued_bytes: w[8],
            rebuilt_bytes: w[9],
            estimated_bytes: w[10],
            errors: w[11],
        })
    }

    /// The words of the ZAP entry.
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        [
            self.state as u64,
            self.last_offset_bytes,
            self.min_txg.0,
            self.max_txg.0,
            self.start_time_s,
            self.end_time_s,
            self.scan_time_ms,
            self.scanned_bytes,
            self.issued_bytes,
            self.rebuilt_bytes,
            self.estimated_bytes,
            self.errors,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_decoded_as_it_was_encoded_and_one_of_an_unknown_state_is_none() {
        let words = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let phys = RebuildPhys::from_words(&words).unwrap();
        assert_eq!((phys.state, phys.last_offset_bytes, phys.errors), (RebuildState::Active, 2, 12));
        assert_eq!(phys.to_words(), words);
        assert_eq!(RebuildPhys::from_words(&words[..11]), None);
        assert_eq!(RebuildPhys::from_words(&[4; 12]), None);
    }
}
