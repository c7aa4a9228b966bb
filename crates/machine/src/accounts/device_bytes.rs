//! Bytes written to devices: their registers, and the cost of one block's write.

use super::{Accounts, Origin};
use crate::request::IS_ACCOUNTED;
use std::sync::atomic::{AtomicU64, Ordering};

/// Contents of bytes that are written to devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// Blocks of files and volumes.
    Data,
    /// All other blocks of object sets, and gang headers.
    Metadata,
    /// Blocks of the intent log.
    IntentLog,
    /// Labels and uberblocks.
    Label,
    /// Blocks of any kind that were written again in place of wrong bytes.
    Repair,
    /// Ranges of a vdev that is being removed, written to other vdevs.
    Removal,
    /// Sectors of a RAID-Z vdev that is being expanded, written to their new places.
    Expansion,
}

impl Content {
    /// All contents, in the order of their discriminants.
    pub const ALL: [Content; 7] = [
        Content::Data,
        Content::Metadata,
        Content::IntentLog,
        Content::Label,
        Content::Repair,
        Content::Removal,
        Content::Expansion,
    ];

    /// The content's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Content::Data => "data",
            Content::Metadata => "metadata",
            Content::IntentLog => "intent log",
            Content::Label => "labels",
            Content::Repair => "repair",
            Content::Removal => "removal",
            Content::Expansion => "expansion",
        }
    }
}

/// Reason for the bytes of one device write, beside their content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Redundancy {
    /// The first copy.
    First,
    /// Another copy: another DVA, or another side of a mirror.
    Copy,
    /// RAID-Z or dRAID parity.
    Parity,
    /// Zeros up to whole sectors or rows.
    Padding,
}

impl Redundancy {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Redundancy; 4] = [Redundancy::First, Redundancy::Copy, Redundancy::Parity, Redundancy::Padding];

    /// The reason's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Redundancy::First => "first copy",
            Redundancy::Copy => "copies",
            Redundancy::Parity => "parity",
            Redundancy::Padding => "padding",
        }
    }
}

/// Bytes written to devices, by content and redundancy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes([[u64; Redundancy::ALL.len()]; Content::ALL.len()]);

impl DeviceBytes {
    /// Bytes of one content and reason.
    pub fn of(&self, content: Content, redundancy: Redundancy) -> u64 {
        self.0[content as usize][redundancy as usize]
    }

    /// Bytes of one content.
    pub fn of_content(&self, content: Content) -> u64 {
        self.0[content as usize].iter().sum()
    }

    /// All bytes.
    pub fn total(&self) -> u64 {
        self.0.iter().flatten().sum()
    }
}

#[derive(Default)]
pub(super) struct DeviceRegisters([[AtomicU64; Redundancy::ALL.len()]; Content::ALL.len()]);

impl DeviceRegisters {
    pub(super) fn add(&self, content: Content, bytes: &[u64; Redundancy::ALL.len()]) {
        for (register, bytes) in self.0[content as usize].iter().zip(bytes).filter(|(_, bytes)| **bytes > 0) {
            register.fetch_add(*bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn clear(&self) {
        self.0.iter().flatten().for_each(|register| register.store(0, Ordering::Relaxed));
    }

    pub(super) fn snapshot(&self) -> DeviceBytes {
        DeviceBytes(std::array::from_fn(|c| std::array::from_fn(|r| self.0[c][r].load(Ordering::Relaxed))))
    }
}

/// The origins of the bytes of one block, with the number of bytes of each. A block of the intent log may hold records
/// of several clients; the bytes written to devices are divided in proportion.
pub type Shares = smallvec::SmallVec<[(Origin, u64); 1]>;

/// Bytes that the write of one block costs on all devices. They are charged when the value is dropped, so that a write
/// that fails half-way is charged for the half that was written.
pub struct WriteCost<'a> {
    pub(super) accounts: &'a Accounts,
    pub(super) content: Content,
    pub(super) txg: u64,
    pub(super) dataset: u64,
    pub(super) shares: Shares,
    pub(super) bytes: [AtomicU64; Redundancy::ALL.len()],
}

impl WriteCost<'_> {
    /// Records a device write of `bytes`, the last `padding` of which are zeros up to whole rows.
    pub fn wrote(&self, redundancy: Redundancy, bytes: u64, padding: u64) {
        debug_assert!(padding <= bytes, "{padding} bytes of padding in a write of {bytes}");
        if IS_ACCOUNTED {
            let padding = padding.min(bytes);
            self.bytes[redundancy as usize].fetch_add(bytes - padding, Ordering::Relaxed);
            self.bytes[Redundancy::Padding as usize].fetch_add(padding, Ordering::Relaxed);
        }
    }
}

impl Drop for WriteCost<'_> {
    fn drop(&mut self) {
        let bytes = std::array::from_fn(|n| self.bytes.get(n).map_or(0, |b| b.load(Ordering::Relaxed)));
        if bytes != [0; Redundancy::ALL.len()] {
            self.accounts.charge(self.content, self.txg, self.dataset, &self.shares, bytes);
        }
    }
}
