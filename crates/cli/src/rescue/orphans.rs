//! Copies objects whose names are lost: `lost+found/object-N` of their dataset.

use super::copy::{Ranges, Source, copy as copy_blocks};
use super::dest::{Destination, directory};
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dmu::ObjectSet;
use weir_files::{FileKind, FileSystem, Identity};
use weir_format::{ObjectId, ObjectType, ObjsetKind};
use weir_machine::{Machine, Request};
use weir_pool::survivors::{BlockListing, Listed, Survivor, View};

/// Entries that are read at once.
const BATCH: usize = 256;

/// A set of numbers, which takes about one bit for each of adjacent ones.
#[derive(Debug, Default)]
pub struct Bits(BTreeMap<u64, [u64; 16]>);

impl Bits {
    /// Adds a number; returns whether it was not there.
    pub fn insert(&mut self, number: u64) -> bool {
        let words = self.0.entry(number / 1024).or_default();
        let word = (number / 64 % 16) as usize;
        let bit = 1 << (number % 64);
        let is_new = words.get(word).is_some_and(|word| word & bit == 0);
        words.iter_mut().skip(word).take(1).for_each(|word| *word |= bit);
        is_new
    }

    /// Whether a number is there.
    pub fn contains(&self, number: u64) -> bool {
        let word = self.0.get(&(number / 1024)).and_then(|words| words.get((number / 64 % 16) as usize));
        word.is_some_and(|word| word & 1 << (number % 64) != 0)
    }
}

/// Copies the files of a dataset that no directory names.
///
/// # Errors
/// Errors of writing.
pub async fn copy(
    rq: &Request,
    machine: &Machine,
    view: &View,
    one: &Survivor,
    to: &mut Destination,
) -> Result<(), Failure> {
    let Ok(set) = view.open(rq, &one.dataset).await else { return Ok(()) };
    if set.kind() != ObjsetKind::Zfs || set.is_locked() {
        return Ok(());
    }
    let Some(meta) = set.meta() else { return Ok(()) };
    let identity = Identity { name: one.name.clone(), is_snapshot: one.dataset.is_snapshot(), ..Identity::default() };
    let files = FileSystem::open(rq, set.clone(), identity).await.ok();
    let mut named = Bits::default();
    if let Some(files) = &files {
        list(rq, files, &mut named).await;
    }
    let mut listing = BlockListing::default();
    loop {
        let block = match listing.next(rq, &set, &meta).await {
            Listed::Block(block) => block,
            Listed::Lost(..) => continue,
            Listed::End => return Ok(()),
        };
        let Ok(dnodes) = set.dnodes().in_block(rq, block).await else { continue };
        for (id, dnode) in dnodes {
            let is_file = dnode.is_ok_and(|dnode| dnode.object_type == ObjectType::PLAIN_FILE_CONTENTS);
            if is_file && !named.contains(id.0) {
                object(rq, machine, (&set, files.as_deref()), (id, &one.name), to).await?;
            }
        }
    }
}

/// Lists the objects that directories name.
async fn list(rq: &Request, files: &FileSystem, named: &mut Bits) {
    let mut to_list = vec![files.root()];
    named.insert(files.root().0);
    while let Some(at) = to_list.pop() {
        let mut cookie = 0;
        while let Ok(entries) = files.directories().read_dir(rq, at, cookie, BATCH).await {
            for entry in &entries {
                if named.insert(entry.object.0) && entry.kind == Some(FileKind::Directory) {
                    to_list.push(entry.object);
                }
            }
            match entries.last() {
                Some(last) if entries.len() == BATCH => cookie = last.cookie,
                _ => break,
            }
        }
    }
}

async fn object(
    rq: &Request,
    machine: &Machine,
    (set, files): (&Arc<ObjectSet>, Option<&FileSystem>),
    (id, dataset): (ObjectId, &str),
    to: &mut Destination,
) -> Result<(), Failure> {
    let key = format!("{dataset}:/lost+found/object-{id}");
    let Ok(object) = set.object(rq, id).await else { return to.lacks("lost", &key, "", "its dnode cannot be read") };
    let known = match files {
        Some(files) => files.attrs().get(rq, id).await.ok(),
        None => None,
    };
    let all_blocks = object.dnode.max_block_id.saturating_add(1).saturating_mul(object.block_bytes());
    let size_bytes = known.map_or(all_blocks, |a| a.size_bytes).min(i64::MAX as u64);
    let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("cannot make {key}: {error}"));
    let within = to.dataset(dataset)?;
    let within = directory(&within, b"lost+found").map_err(|e| failed(&e))?;
    let name = format!("object-{id}").into_bytes();
    if Destination::kind_of(&within, &name).is_some() {
        return Ok(());
    }
    let file = to.part()?;
    if let Err(error) = file.set_len(size_bytes) {
        return to.lacks("lost", &key, "", &format!("a file of {size_bytes} bytes cannot be made here: {error}"));
    }
    let source = Source { rq, machine, set, object, size_bytes };
    let lost = copy_blocks(&source, &Ranges::first(size_bytes), &file, to).await?;
    if lost.0.is_empty() {
        to.place(&within, &name)?;
        return to.is_whole(&key);
    }
    to.lacks("partial", &key, "", &lost.to_text())?;
    to.place(&within, &name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_remembered() {
        let mut bits = Bits::default();
        for number in [0, 63, 64, 1023, 1024, u64::MAX] {
            assert!(!bits.contains(number) && bits.insert(number) && !bits.insert(number) && bits.contains(number));
        }
        assert!(!bits.contains(1) && !bits.contains(1025));
    }
}
