//! Bytes by file and client, with the error of each row.

use crate::sample::dataset_name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use weir_machine::Accounts;
use weir_machine::accounts::FileCounts;

/// Requests that read or wrote a file, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileBytes {
    /// Requests.
    pub requests: u64,
    /// Bytes answered.
    pub read_bytes: u64,
    /// Bytes written by clients, before compression and redundancy.
    pub written_bytes: u64,
}

impl From<FileCounts> for FileBytes {
    fn from(counts: FileCounts) -> Self {
        let FileCounts { requests, read_bytes, written_bytes } = counts;
        FileBytes { requests, read_bytes, written_bytes }
    }
}

impl FileBytes {
    /// Bytes read and written.
    pub fn total(self) -> u64 {
        self.read_bytes.saturating_add(self.written_bytes)
    }

    fn add(&mut self, other: FileBytes) {
        self.requests = self.requests.saturating_add(other.requests);
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
    }

    #[must_use]
    fn since(self, before: FileBytes) -> FileBytes {
        FileBytes {
            requests: self.requests.saturating_sub(before.requests),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
        }
    }
}

/// One file and one client of it. Read and written bytes together are from the counted ones to `error_bytes` more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileTotals {
    /// Name of the dataset, as in the rows of clients.
    pub dataset: String,
    /// Number of its object set.
    pub objset: u64,
    /// Number of the object: a file, or the contents of a volume.
    pub object: u64,
    /// Path from the root of the file system, or `(volume)`; bytes that are not UTF-8 are replaced. `None` if it was not looked up,
    /// or not found.
    #[serde(default)]
    pub path: Option<String>,
    /// Protocol.
    pub protocol: String,
    /// Address or user, as in the rows of clients.
    pub client: String,
    /// Tells the times apart that the file was listed for this client: greater each time.
    pub entry: u64,
    /// Counts since it was listed.
    pub counted: FileBytes,
    /// Bytes that it had at most beside the counted ones.
    pub error_bytes: u64,
}

/// The files with the most bytes of late, each with one client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileTable {
    /// At most 256 rows; those of an interval in the order of their bytes.
    pub rows: Vec<FileTotals>,
    /// Counts that are in no row.
    pub unlisted: FileBytes,
}

impl FileTable {
    /// The files of a pool; `names` has the names of datasets by object set.
    pub(crate) fn of(accounts: &Accounts, names: &BTreeMap<u64, String>) -> Self {
        let totals = accounts.files();
        let unlisted = FileBytes::from(totals.unlisted);
        let row = |file: weir_machine::accounts::FileTotals| FileTotals {
            dataset: dataset_name(names, file.dataset),
            objset: file.dataset,
            object: file.object,
            path: None,
            protocol: file.protocol.name().to_owned(),
            client: file.client,
            entry: file.entry,
            counted: file.counts.into(),
            // No file can lack more than all that is in no row.
            error_bytes: file.error_bytes.min(unlisted.total()),
        };
        FileTable { rows: totals.files.into_iter().map(row).collect(), unlisted }
    }

    fn all(&self) -> FileBytes {
        let mut all = self.unlisted;
        self.rows.iter().for_each(|row| all.add(row.counted));
        all
    }

    /// Counts between two tables of a pool; without the earlier one, since it was opened. The greatest first.
    ///
    /// A row that was listed all the time has the bytes of the interval, with the error that was added in it. A file that was
    /// listed in it may have had bytes of the interval before; they are among those in no row, which bound its error.
    pub(crate) fn between(before: Option<&FileTable>, after: &FileTable) -> Self {
        let empty = FileTable::default();
        let before = before.unwrap_or(&empty);
        let earlier: BTreeMap<u64, &FileTotals> = before.rows.iter().map(|row| (row.entry, row)).collect();
        let since = |now: &FileTotals| {
            let (counted, error_bytes) =
                earlier.get(&now.entry).map_or_else(Default::default, |was| (was.counted, was.error_bytes));
            FileTotals {
                counted: now.counted.since(counted),
                error_bytes: now.error_bytes.saturating_sub(error_bytes),
                ..now.clone()
            }
        };
        let mut rows: Vec<FileTotals> = after.rows.iter().map(since).filter(|row| row.counted.requests > 0).collect();
        let mut unlisted = after.all().since(before.all());
        rows.iter().for_each(|row| unlisted = unlisted.since(row.counted));
        rows.iter_mut().for_each(|row| row.error_bytes = row.error_bytes.min(unlisted.total()));
        rows.sort_by_key(|row| (std::cmp::Reverse(row.counted.total()), row.objset, row.object));
        FileTable { rows, unlisted }
    }

    /// Leaves the first `rows` rows; what was counted for others is in none.
    pub fn truncate(&mut self, rows: usize) {
        let rest = self.rows.split_off(rows.min(self.rows.len()));
        rest.iter().for_each(|row| self.unlisted.add(row.counted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_machine::{Operation, Protocol, Source, Target};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Between any two looks, a file had at least the counted bytes, at most the error more, and all bytes are somewhere.
        #[test]
        fn rows_of_an_interval_keep_their_bound(
            looks in proptest::collection::vec(proptest::collection::vec((0u64..600, 1u64..9000), 0..900), 2..6),
            first in 0usize..5,
        ) {
            let accounts = Accounts::default();
            let client = accounts.client(Protocol::Nfs3, "10.0.0.1");
            let mut exact: BTreeMap<u64, u64> = BTreeMap::new();
            let mut seen = Vec::new();
            for look in looks {
                for (object, bytes) in look {
                    // Low numbers are frequent.
                    let object = object % (object / 9 + 1) + 1;
                    let rq = accounts.begin(&client, Operation::Read);
                    rq.set_target(Target { dataset: 54, object, ..Target::default() });
                    rq.answer(Source::Disk, bytes);
                    accounts.record(&rq);
                    *exact.entry(object).or_default() += bytes;
                }
                seen.push((FileTable::of(&accounts, &BTreeMap::new()), exact.clone()));
            }
            let (after, bytes_after) = seen.last().unwrap();
            let (before, bytes_before) = &seen[first % (seen.len() - 1)];
            let table = FileTable::between(Some(before), after);
            let of = |object| bytes_after.get(object).unwrap_or(&0) - bytes_before.get(object).unwrap_or(&0);
            let all: u64 = bytes_after.keys().map(of).sum();
            prop_assert_eq!(table.all().total(), all);
            for row in &table.rows {
                let counted = row.counted.total();
                let exact = of(&row.object);
                prop_assert!((counted..=counted + row.error_bytes).contains(&exact), "{row:?}: {exact}");
            }
            let mut part = table.clone();
            part.truncate(3);
            prop_assert_eq!((part.rows.len(), part.all()), (table.rows.len().min(3), table.all()));
        }
    }

    #[test]
    fn a_file_that_was_listed_all_the_time_has_no_error_of_the_time_before() {
        let counted = |requests, read_bytes| FileBytes { requests, read_bytes, written_bytes: 0 };
        let row = |entry, requests, read_bytes, error_bytes| FileTotals {
            objset: 54,
            object: entry,
            entry,
            counted: counted(requests, read_bytes),
            error_bytes,
            ..FileTotals::default()
        };
        let before = FileTable { rows: vec![row(1, 9, 900, 50), row(2, 1, 10, 0)], unlisted: counted(4, 60) };
        let after = FileTable { rows: vec![row(1, 11, 1300, 50), row(3, 1, 500, 70)], unlisted: counted(6, 75) };
        let table = FileTable::between(Some(&before), &after);
        // The bytes of file 2 are in no row any more; they are not of the interval.
        assert_eq!(table.rows, [row(3, 1, 500, 5), row(1, 2, 400, 0)]);
        assert_eq!(table.unlisted, counted(1, 5));
        assert_eq!(FileTable::between(None, &after).all(), after.all());
    }
}
