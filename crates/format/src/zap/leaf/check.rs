//! The chunks of a leaf: each is free and in the free list, or belongs to one entry.
//!
//! OpenZFS takes all of this for granted where it changes a leaf (`module/zfs/zap_leaf.c`: `zap_leaf_chunk_alloc`,
//! `zap_leaf_chunk_free`, `zap_entry_create`).

use super::{ARRAY, ARRAY_BYTES, CHAIN_END, CHUNK, Leaf, LeafEntry, LeafHeader};
use crate::cursor::Cursor;
use crate::zap::WHAT;
use std::collections::BTreeSet;

/// The type of a free chunk.
const FREE: u8 = 253;
/// Flag of a leaf whose chains are sorted by cd.
const CD_SORTED: u8 = 1;

impl Leaf<'_> {
    /// Describes the first inconsistency of the leaf; `None` if it is sound. `key_int_bytes` is the integer size of the
    /// ZAP's keys: 1 for names, else 8. The caller tests the hashes of names.
    pub fn fault(&self, key_int_bytes: usize) -> Option<String> {
        self.check(key_int_bytes).err()
    }

    fn check(&self, key_int_bytes: usize) -> Result<(), String> {
        let mut owner: Vec<bool> = vec![false; self.chunks()];
        self.check_free_list(&mut owner)?;
        let mut entries = 0u64;
        let mut seen = BTreeSet::new();
        for bucket in 0..1usize << (self.shift - 5) {
            let mut next = self.first_of(bucket);
            let mut last_cd = 0;
            while next != CHAIN_END {
                take(&mut owner, next, "entry")?;
                let entry = self.entry_at(next).map_err(|error| error.to_string())?;
                self.check_entry(&entry, (bucket, key_int_bytes), &mut owner)?;
                if !seen.insert((entry.hash, entry.cd)) {
                    return Err(format!("two entries of hash {:#x} and cd {}", entry.hash, entry.cd));
                }
                if self.header.flags & CD_SORTED != 0 && entry.cd < last_cd {
                    return Err(format!("chain {bucket}: cd {} after {last_cd}", entry.cd));
                }
                last_cd = entry.cd;
                entries += 1;
                next = entry.next;
            }
        }
        if entries != u64::from(self.header.entries) {
            return Err(format!("lh_nentries {}, the chains have {entries}", self.header.entries));
        }
        match owner.iter().position(|taken| !taken) {
            Some(chunk) => Err(format!("chunk {chunk} is neither free nor an entry's")),
            None => Ok(()),
        }
    }

    fn first_of(&self, bucket: usize) -> u16 {
        let mut c = Cursor::new(self.block, self.endian, WHAT);
        c.skip(super::HEADER + 2 * bucket).and_then(|()| c.u16()).unwrap_or(CHAIN_END)
    }

    fn check_free_list(&self, owner: &mut [bool]) -> Result<(), String> {
        let mut next = self.header.free_list;
        let mut count = 0u64;
        while next != CHAIN_END {
            take(owner, next, "free list")?;
            let chunk = self.chunk(next).map_err(|error| error.to_string())?;
            if chunk.first() != Some(&FREE) {
                return Err(format!("chunk {next} of the free list has type {:?}", chunk.first()));
            }
            count += 1;
            next = self.next_of(next)?;
        }
        match u64::from(self.header.free_chunks) {
            free if free == count => Ok(()),
            free => Err(format!("lh_nfree {free}, the free list has {count}")),
        }
    }

    /// The link at the end of a free or an array chunk.
    fn next_of(&self, chunk: u16) -> Result<u16, String> {
        let bytes = self.chunk(chunk).map_err(|error| error.to_string())?;
        let mut c = Cursor::new(bytes, self.endian, WHAT);
        c.skip(CHUNK - 2).and_then(|()| c.u16()).map_err(|error| error.to_string())
    }

    fn check_entry(
        &self,
        entry: &LeafEntry,
        (bucket, key_int_bytes): (usize, usize),
        owner: &mut [bool],
    ) -> Result<(), String> {
        let hash = entry.hash;
        if !self.owns(hash) {
            let LeafHeader { prefix, prefix_len, .. } = self.header;
            return Err(format!("hash {hash:#x} in the leaf of prefix {prefix:#x}, {prefix_len} bits"));
        }
        let bits = self.shift - 5;
        let drop = 64 - bits - u32::from(self.header.prefix_len).min(64 - bits);
        let right = (hash >> drop) & ((1 << bits) - 1);
        if right != bucket as u64 {
            return Err(format!("hash {hash:#x} in chain {bucket}, not {right}"));
        }
        let name_bytes = usize::from(entry.name_ints) * key_int_bytes;
        self.check_array(entry.name_chunk, name_bytes, owner)?;
        self.check_array(entry.value_chunk, usize::from(entry.value_ints) * usize::from(entry.int_size), owner)
    }

    fn check_array(&self, first: u16, bytes: usize, owner: &mut [bool]) -> Result<(), String> {
        let mut next = first;
        for _ in 0..bytes.div_ceil(ARRAY_BYTES) {
            take(owner, next, "array")?;
            let chunk = self.chunk(next).map_err(|error| error.to_string())?;
            if chunk.first() != Some(&ARRAY) {
                return Err(format!("chunk {next} of an array has type {:?}", chunk.first()));
            }
            next = self.next_of(next)?;
        }
        if next != CHAIN_END {
            return Err(format!("an array of {bytes} bytes goes on at chunk {next}"));
        }
        Ok(())
    }
}

/// Takes a chunk for one owner.
fn take(owner: &mut [bool], chunk: u16, what: &str) -> Result<(), String> {
    match owner.get_mut(usize::from(chunk)) {
        Some(taken) if !*taken => {
            *taken = true;
            Ok(())
        }
        Some(_) => Err(format!("chunk {chunk} twice: in the {what} and elsewhere")),
        None => Err(format!("{what}: there is no chunk {chunk}")),
    }
}
