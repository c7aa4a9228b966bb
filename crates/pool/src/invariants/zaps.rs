//! Invariants of ZAPs: of the MOS, and directories, attributes and accounting of file systems.
//!
//! ```text
//!   micro   one block · no name twice · no (hash, cd) twice
//!   fat     table: each leaf in the run of pointers of its prefix · sums · blocks below zap_freeblk
//!   leaf    chunks: free, or of one entry · each entry in the chain of its hash, which is that of its name
//! ```
//!
//! Source: OpenZFS `module/zfs/zap_fat.c` (`zap_expand_leaf`, `zap_table_grow`), `zap_leaf.c`, `zap_micro.c`.

use super::{Part, Report};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_dmu::zap::name::normalize;
use weir_dmu::{Object, ObjectSet};
use weir_format::zap::{BlockKind, FatHeader, Leaf, LeafEntry, MicroZap, NormFlags, ZapFlags, hash_bytes, hash_words};
use weir_format::{Cursor, Endian};
use weir_machine::Request;

/// Maximum log2 of the number of pointers of a table that is checked.
const MAX_TABLE_SHIFT: u32 = 24;

/// Checks one ZAP.
pub(super) async fn check(rq: &Request, set: &Arc<ObjectSet>, object: &Arc<Object>, report: &mut Report) {
    let place = format!("object set {} object {}", set.id(), object.id.0.cast_signed());
    let read = set.reader().read_ordered_block(rq, object, 0).await;
    let Some(first) = report.readable(Part::Zap, &place, read) else { return };
    let Some((bytes, endian)) = first else {
        // A ZAP that was created and never written.
        let is_empty = object.dnode.max_block_id == 0;
        report.demand(is_empty, Part::Zap, &place, || "its first block is a hole".into());
        return;
    };
    let zap = Zap { rq, set, object, place, report };
    match BlockKind::of(&bytes, endian) {
        Ok(BlockKind::Micro) => zap.check_micro(&bytes, endian),
        Ok(BlockKind::Header) => zap.check_fat(&bytes, endian).await,
        Ok(BlockKind::Leaf) => zap.report.add(Part::Zap, &zap.place, "it begins with a leaf"),
        Err(error) => zap.report.add(Part::Zap, &zap.place, error),
    }
}

struct Zap<'a> {
    rq: &'a Request,
    set: &'a Arc<ObjectSet>,
    object: &'a Arc<Object>,
    place: String,
    report: &'a mut Report,
}

/// Hash by which a name is found.
fn hash_of(name: &[u8], salt: u64, flags: ZapFlags, norm: NormFlags) -> u64 {
    hash_bytes(salt, flags, &normalize(name, norm).unwrap_or(name.into()))
}

impl Zap<'_> {
    fn demand(&mut self, holds: bool, what: impl FnOnce() -> String) {
        self.report.demand(holds, Part::Zap, &self.place, what);
    }

    fn check_micro(mut self, bytes: &[u8], endian: Endian) {
        let last = self.object.dnode.max_block_id;
        self.demand(last == 0, || format!("a micro ZAP with blocks up to {last}"));
        let Ok(micro) = MicroZap::decode(bytes, endian) else { return };
        let mut names = BTreeSet::new();
        let mut places = BTreeSet::new();
        for entry in micro.entries() {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            self.demand(entry.fits(), || format!("a name of {} bytes", entry.name.len()));
            self.demand(names.insert(entry.name), || format!("{name:?} twice"));
            let hash = hash_of(entry.name, micro.salt, ZapFlags::default(), micro.norm);
            self.demand(places.insert((hash, entry.cd)), || format!("{name:?}: cd {} twice for its hash", entry.cd));
        }
    }

    async fn check_fat(mut self, first: &Bytes, endian: Endian) {
        let header = match FatHeader::decode(first, endian) {
            Ok(header) => header,
            Err(error) => return self.report.add(Part::Zap, &self.place, error),
        };
        let free = header.free_block;
        let last = self.object.dnode.max_block_id;
        self.demand(free <= last.saturating_add(1), || format!("zap_freeblk {free}, the last block is {last}"));
        let table = &header.table;
        self.demand(table.first_block.saturating_add(table.blocks) <= free, || {
            format!("a table up to block {}, zap_freeblk {free}", table.first_block + table.blocks)
        });
        let Some(pointers) = self.table(&header, first, endian).await else { return };
        let mut counted = Counted::default();
        let mut index = 0;
        while let Some(leaf) = pointers.get(index).copied() {
            let run = pointers.iter().skip(index).take_while(|pointer| **pointer == leaf).count();
            self.demand(leaf < free && leaf != 0, || format!("a leaf in block {leaf}, zap_freeblk {free}"));
            if !counted.leaves.insert(leaf) {
                self.demand(false, || format!("the leaf in block {leaf} in two places of the table"));
            } else if !self.check_leaf(&header, leaf, (index, run), &mut counted).await {
                return;
            }
            index += run;
        }
        let (leaves, entries) = (counted.leaves.len() as u64, counted.entries);
        self.demand(header.leaves == leaves, || format!("zap_num_leafs {}, the table has {leaves}", header.leaves));
        self.demand(header.entries == entries, || {
            format!("zap_num_entries {}, the leaves have {entries}", header.entries)
        });
    }

    /// Returns the pointer table; `None` if it cannot be read, or is being grown.
    async fn table(&mut self, header: &FatHeader, first: &Bytes, endian: Endian) -> Option<Vec<u64>> {
        if header.table.shift > MAX_TABLE_SHIFT || header.table.next_block != 0 {
            return None;
        }
        if header.is_embedded() {
            return (0..header.table_len()).map(|i| header.embedded_pointer(first, endian, i).ok()).collect();
        }
        let mut out = Vec::new();
        for block in header.table.first_block..header.table.first_block + header.table.blocks {
            let read = self.set.reader().read_ordered_block(self.rq, self.object, block).await;
            let (bytes, endian) = self.report.readable(Part::Zap, &self.place, read)??;
            let mut cursor = Cursor::new(&bytes, endian, "ZAP pointer table");
            out.extend(std::iter::from_fn(|| cursor.u64().ok()));
        }
        Some(out)
    }

    /// Checks a leaf, to which `run` (first index, number) pointers of the table lead. Returns false if it cannot be
    /// read.
    async fn check_leaf(
        &mut self,
        header: &FatHeader,
        number: u64,
        run: (usize, usize),
        counted: &mut Counted,
    ) -> bool {
        let place = format!("{} leaf in block {number}", self.place);
        let read = self.set.reader().read_ordered_block(self.rq, self.object, number).await;
        let Some(found) = self.report.readable(Part::Zap, &place, read) else { return false };
        let Some((bytes, endian)) = found else {
            self.report.add(Part::Zap, place, "a hole");
            return false;
        };
        let leaf = match Leaf::decode(&bytes, endian) {
            Ok(leaf) => leaf,
            Err(error) => {
                self.report.add(Part::Zap, place, error);
                return false;
            }
        };
        let index = run.0 as u64;
        let pointers = run.1 as u64;
        let (prefix, len) = (leaf.header.prefix, u32::from(leaf.header.prefix_len));
        let shift = header.table.shift;
        let is_right = len <= shift && pointers == 1 << (shift - len) && index == prefix << (shift - len);
        self.report.demand(is_right, Part::Zap, &place, || {
            format!("prefix {prefix:#x} of {len} bits, but {pointers} pointers from {index} on lead to it")
        });
        if let Some(fault) = leaf.fault(if header.flags.uint64_key() { 8 } else { 1 }) {
            self.report.add(Part::Zap, &place, fault);
            return true;
        }
        counted.entries += u64::from(leaf.header.entries);
        for entry in leaf.entries().flatten() {
            let hash = key_hash(header, &leaf, &entry);
            let is_right = hash == Some(entry.hash);
            self.report.demand(is_right, Part::Zap, &place, || {
                format!("an entry of hash {:#x}, its name's is {hash:x?}", entry.hash)
            });
        }
        true
    }
}

/// Sums over the leaves.
#[derive(Default)]
struct Counted {
    leaves: BTreeSet<u64>,
    entries: u64,
}

/// Hash of an entry's key; `None` if the key is missing.
fn key_hash(header: &FatHeader, leaf: &Leaf<'_>, entry: &LeafEntry) -> Option<u64> {
    if header.flags.uint64_key() {
        return Some(hash_words(header.salt, header.flags, &leaf.key_words(entry).ok()?));
    }
    Some(hash_of(&leaf.name(entry).ok()?, header.salt, header.flags, header.norm))
}
