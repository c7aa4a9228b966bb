//! Rows: registers of one dataset and one origin, found without a lock.

use super::client::Origin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of rows; a power of two.
const ROWS: usize = 1024;

/// A dataset and an origin; none of them for what did not fit the table.
pub(super) type Owner = Option<(u64, Origin)>;

/// A table of rows that is made when it is first used. A row is never freed.
pub(super) struct Rows<T>(OnceLock<Box<[Row<T>]>>);

struct Row<T> {
    /// Dataset and origin, plus 1; 0 if the row is free.
    key: AtomicU64,
    registers: T,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Rows(OnceLock::new())
    }
}

impl<T: Default> Rows<T> {
    /// The registers of a dataset and an origin, found by linear probing.
    pub(super) fn of(&self, dataset: u64, origin: Origin) -> &T {
        let row = || Row { key: AtomicU64::new(0), registers: T::default() };
        let rows = self.0.get_or_init(|| (0..=ROWS).map(|_| row()).collect());
        let key = (dataset << 16 | u64::from(origin.0)) + 1;
        let first = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        for row in (0..ROWS).filter_map(|step| rows.get((first + step) % ROWS)) {
            let mut owner = row.key.load(Ordering::Acquire);
            if owner == 0 {
                let claimed = row.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire);
                owner = claimed.map_or_else(|other| other, |_| key);
            }
            if owner == key {
                return &row.registers;
            }
        }
        // The last row is for what does not fit the table.
        &rows[ROWS].registers
    }

    /// The rows in use, with their owners.
    pub(super) fn used(&self) -> impl Iterator<Item = (Owner, &T)> {
        let rows = self.0.get().map_or(&[][..], |rows| rows);
        rows.iter().enumerate().filter_map(|(n, row)| match row.key.load(Ordering::Acquire) {
            _ if n == ROWS => Some((None, &row.registers)),
            0 => None,
            key => Some((Some(((key - 1) >> 16, Origin(((key - 1) & 0xffff) as u32))), &row.registers)),
        })
    }
}
