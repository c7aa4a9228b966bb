//! The uberblock (`struct uberblock`, OpenZFS `include/sys/uberblock_impl.h`): the root of a pool at one txg.
//!
//! ```text
//!   0 magic 0x00bab10c · 8 version · 16 txg · 24 sum of all vdev GUIDs · 32 time (s)
//!  40 block pointer to the MOS (128)
//! 168 software version · 176 MMP magic · 184 MMP delay (ns) · 192 MMP config · 200 checkpoint txg · 208 reflow info
//!   … the last 40 bytes of the ring slot hold the self-checksum (see crate::label)
//! ```
//!
//! The byte order is detected from the magic number. A slot that was never used may have a valid self-checksum and a
//! zero magic number, since new labels are written so. Old software left the words from 168 on zero.

use crate::blkptr::BlockPointer;
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::ids::Txg;
use std::time::Duration;

/// A decoded uberblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uberblock {
    /// Byte order of the host that wrote the uberblock.
    pub endian: Endian,
    /// On-disk version: 1–28, or 5000 with feature flags.
    pub version: u64,
    /// The txg that the uberblock completes.
    pub txg: Txg,
    /// Sum of the GUIDs of all vdevs, modulo 2^64.
    pub guid_sum: u64,
    /// Time of writing, in seconds since 1970.
    pub timestamp_s: u64,
    /// Pointer to the meta object set.
    pub root: BlockPointer,
    /// Highest pool version that the writing software supported.
    pub software_version: u64,
    /// Multi-modifier protection; `None` if the writer did not support it.
    pub mmp: Option<Mmp>,
    /// In a checkpointed uberblock, its txg when the checkpoint was taken; else 0.
    pub checkpoint_txg: Txg,
    /// Progress of a RAID-Z expansion.
    pub reflow: Reflow,
}

/// The multi-modifier protection (MMP) fields of an uberblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mmp {
    /// Nanoseconds since the last MMP write; 0 means that protection is off.
    pub delay_ns: u64,
    /// The raw configuration word.
    pub config: u64,
}

impl Mmp {
    /// Milliseconds between heartbeats by default (`MMP_DEFAULT_INTERVAL`).
    pub const INTERVAL_MS: u64 = 1000;
    /// Intervals without a heartbeat after which the writer suspends its pool by default (`MMP_DEFAULT_FAIL_INTERVALS`).
    pub const FAIL_INTERVALS: u16 = 10;

    /// The fields of a host that writes heartbeats as by default. `delay_ns` are the nanoseconds between them as of late, not 0;
    /// `sequence` distinguishes the heartbeats of one second.
    ///
    /// Source: OpenZFS `include/sys/uberblock_impl.h` (`MMP_SEQ_SET`, `MMP_INTERVAL_SET`, `MMP_FAIL_INT_SET`).
    pub fn heartbeat(delay_ns: u64, sequence: u16) -> Self {
        const ALL_VALID: u64 = 1 | 2 | 4;
        let config =
            u64::from(Self::FAIL_INTERVALS) << 48 | u64::from(sequence) << 32 | Self::INTERVAL_MS << 8 | ALL_VALID;
        Mmp { delay_ns: delay_ns.max(1), config }
    }

    /// These fields with another sequence number.
    #[must_use]
    pub fn with_sequence(self, sequence: u16) -> Self {
        let config = self.config & !(0xffff << 32) | u64::from(sequence) << 32 | 2;
        Mmp { config, ..self }
    }

    /// Milliseconds between MMP writes, if the field is valid.
    pub fn write_interval_ms(self) -> Option<u64> {
        (self.config & 1 != 0).then_some((self.config >> 8) & 0xff_ffff)
    }

    /// How long an importer must watch the uberblocks before it may import: a host that has the pool imported writes
    /// within that time, or has suspended the pool. One second to ten minutes (`spa_activity_check_duration`).
    pub fn activity_check_duration(self) -> Duration {
        const INTERVALS: u32 = 20;
        const MAX_DURATION: Duration = Duration::from_secs(600);
        let interval = Duration::from_millis(self.write_interval_ms().unwrap_or(1000));
        let time = match self.fail_intervals() {
            Some(fails) if fails > 0 => interval.saturating_mul(2 * u32::from(fails)),
            _ => interval.saturating_add(Duration::from_nanos(self.delay_ns)).saturating_mul(INTERVALS),
        };
        time.clamp(Duration::from_secs(1), MAX_DURATION)
    }

    /// Sequence number of the MMP write within its second, if the field is valid.
    pub fn sequence(self) -> Option<u16> {
        (self.config & 2 != 0).then_some((self.config >> 32) as u16)
    }

    /// Number of failed write intervals after which the writer suspends its pool, if the field is valid.
    pub fn fail_intervals(self) -> Option<u16> {
        (self.config & 4 != 0).then_some((self.config >> 48) as u16)
    }
}

/// Progress of a RAID-Z expansion's reflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reflow {
    /// State of the scratch area: 0 not in use, 1 valid, 2–4 invalid after being synced.
    pub scratch_state: u16,
    /// Bytes of the vdev's allocatable space that have been moved to the new layout.
    pub offset_bytes: u64,
}

impl Reflow {
    /// From the word in the uberblock.
    pub fn from_word(word: u64) -> Self {
        Reflow { scratch_state: (word >> 55) as u16, offset_bytes: (word & ((1 << 55) - 1)) << 9 }
    }

    /// The word in the uberblock.
    pub fn to_word(self) -> u64 {
        u64::from(self.scratch_state) << 55 | (self.offset_bytes >> 9) & ((1 << 55) - 1)
    }
}

impl Uberblock {
    /// The magic number.
    pub const MAGIC: u64 = 0x00ba_b10c;
    /// The magic number of the MMP fields.
    pub const MMP_MAGIC: u64 = 0xa11c_ea11;
    /// Size of the fields in bytes.
    pub const SIZE: usize = 216;

    /// Decodes the uberblock at the start of a ring slot.
    pub fn decode(slot: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "uberblock";
        let raw = Cursor::new(slot, Endian::Little, WHAT).array::<8>()?;
        let endian = match (u64::from_le_bytes(raw), u64::from_be_bytes(raw)) {
            (Self::MAGIC, _) => Endian::Little,
            (_, Self::MAGIC) => Endian::Big,
            (found, _) => return Err(DecodeError::Magic { what: WHAT, found }),
        };
        let mut c = Cursor::new(slot, endian, WHAT);
        c.skip(8)?;
        let [version, txg, guid_sum, timestamp_s] = c.words()?;
        let root = BlockPointer::decode(&mut c)?;
        let [software_version, mmp_magic, delay_ns, config, checkpoint, reflow] = c.words()?;
        Ok(Uberblock {
            endian,
            version,
            txg: Txg(txg),
            guid_sum,
            timestamp_s,
            root,
            software_version,
            mmp: (mmp_magic == Self::MMP_MAGIC).then_some(Mmp { delay_ns, config }),
            checkpoint_txg: Txg(checkpoint),
            reflow: Reflow::from_word(reflow),
        })
    }

    /// Encodes the fields; the caller pads the slot with zeros up to the self-checksum.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new(self.endian);
        e.words(&[Self::MAGIC, self.version, self.txg.0, self.guid_sum, self.timestamp_s]);
        e.words(self.root.words());
        let (magic, mmp) = self.mmp.map_or((0, Mmp::default()), |m| (Self::MMP_MAGIC, m));
        e.words(&[
            self.software_version,
            magic,
            mmp.delay_ns,
            mmp.config,
            self.checkpoint_txg.0,
            self.reflow.to_word(),
        ]);
        e.finish()
    }

    /// Sort key for the selection of the active uberblock: the highest txg, then the latest time, then the highest
    /// MMP sequence.
    pub fn rank(&self) -> (Txg, u64, u16) {
        (self.txg, self.timestamp_s, self.mmp.and_then(Mmp::sequence).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mmp_and_reflow_words() {
        let mmp = Mmp { delay_ns: 0, config: 0x0014_0003_0003_e807 };
        assert_eq!((mmp.write_interval_ms(), mmp.sequence(), mmp.fail_intervals()), (Some(1000), Some(3), Some(20)));
        assert_eq!(mmp.activity_check_duration(), Duration::from_secs(40));
        let heartbeat = Mmp::heartbeat(0, 7);
        assert_eq!((heartbeat.write_interval_ms(), heartbeat.fail_intervals()), (Some(1000), Some(10)));
        assert_eq!((heartbeat.sequence(), heartbeat.with_sequence(9).sequence()), (Some(7), Some(9)));
        assert_eq!((heartbeat.delay_ns, heartbeat.activity_check_duration()), (1, Duration::from_secs(20)));
        assert_eq!(Mmp { config: 0, delay_ns: u64::MAX }.activity_check_duration(), Duration::from_secs(600));
        assert_eq!(Mmp { config: 0xff00, delay_ns: 1 }.write_interval_ms(), None);
        let reflow = Reflow::from_word(2 << 55 | 0x10);
        assert_eq!((reflow.scratch_state, reflow.offset_bytes), (2, 0x2000));
        assert_eq!(reflow.to_word(), 2 << 55 | 0x10);
    }

    proptest! {
        #[test]
        fn bytes_round_trip(words in proptest::collection::vec(any::<u64>(), 27), mmp: bool) {
            for endian in [Endian::Little, Endian::Big] {
                let mut words = words.clone();
                words[0] = Uberblock::MAGIC;
                words[22] = Uberblock::MMP_MAGIC;
                if !mmp {
                    words[22..25].fill(0);
                }
                let mut e = Encoder::new(endian);
                e.words(&words);
                let bytes = e.finish();
                let ub = Uberblock::decode(&bytes).unwrap();
                prop_assert_eq!(ub.endian, endian);
                prop_assert_eq!(ub.encode(), bytes);
            }
        }
    }
}
