//! Decodes every intent log record still on the disks of pools with logs, and encodes it again.

use crate::golden;
use std::collections::BTreeMap;
use weir_format::cursor::Endian;
use weir_format::zil::{NewRecord, TxType, ZilBlock, ZilChain};
use weir_format::{ChecksumKind, Dva};

const SECTOR: usize = 512;
/// Byte offset in a block of the magic number of the self-checksum, in the chain at the block's start.
const MAGIC_AT: usize = 144;
const MAGIC: u64 = 0x0210_da7a_b10c_7a11;

/// Counts the records in a log block by type; `None` if the bytes are not a complete log block.
fn records(block: &[u8], seen: &mut BTreeMap<TxType, usize>) -> Option<usize> {
    let zil = ZilBlock::decode(block, ChecksumKind::Zilog2, Endian::Little).ok()?;
    let records: Vec<_> = zil.records().collect::<Result<_, _>>().ok()?;
    for record in &records {
        let body = record.body().ok()?;
        let ignore_case = record.ignore_case;
        let txg = record.txg;
        let seq = record.seq;
        let again = NewRecord { body: &body, ignore_case, txg, seq }.encode(Endian::Little);
        assert_eq!(again, record.raw, "{body:?}");
        assert_eq!(body.tx_type(), record.tx_type);
        *seen.entry(record.tx_type).or_default() += 1;
    }
    Some(records.len())
}

#[test]
fn records_of_golden_logs_round_trip() {
    let Some(folder) = golden::folder() else { return };
    let mut seen = BTreeMap::new();
    let mut blocks = 0;
    for name in ["zil-main", "zil-slog"] {
        let images = golden::unpack(&folder, name);
        for image in std::fs::read_dir(images.path()).unwrap() {
            let disk = std::fs::read(image.unwrap().path()).unwrap();
            for at in (0..disk.len().saturating_sub(ZilChain::SIZE)).step_by(SECTOR) {
                let magic = u64::from_le_bytes(disk[at + MAGIC_AT..at + MAGIC_AT + 8].try_into().unwrap());
                let used = u64::from_le_bytes(disk[at + MAGIC_AT - 8..at + MAGIC_AT].try_into().unwrap()) as usize;
                let next = Dva::from_words(
                    u64::from_le_bytes(disk[at + 8..at + 16].try_into().unwrap()),
                    u64::from_le_bytes(disk[at + 16..at + 24].try_into().unwrap()),
                );
                let plausible = next.vdev < 8 && next.asize_bytes <= 128 << 10 && used > ZilChain::SIZE;
                if magic == MAGIC && plausible && at + used <= disk.len() {
                    blocks += usize::from(records(&disk[at..at + used], &mut seen).is_some());
                }
            }
        }
    }
    println!("{blocks} log blocks, records by type {seen:?}");
    assert!(blocks > 100);
    for kind in [TxType::Create, TxType::Mkdir, TxType::Symlink, TxType::Remove, TxType::Rmdir, TxType::Link] {
        assert!(seen.contains_key(&kind), "no {kind:?}");
    }
    for kind in [TxType::Rename, TxType::Write, TxType::Truncate, TxType::SetAttr, TxType::SetSaXattr] {
        assert!(seen.contains_key(&kind), "no {kind:?}");
    }
}
