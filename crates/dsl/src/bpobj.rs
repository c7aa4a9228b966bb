//! Lists of block pointers (OpenZFS's bpobjs): blocks that wait to be freed, and the parts of deadlists.
//!
//! ```text
//!   bonus: header (count, sums)          data: pointers, 128 bytes each, appended at the end
//!      └─ object of sub-lists: numbers of further lists, whose sums are included in this list's
//! ```
//!
//! Pointers are stored without the fields that freeing does not need (checksum, payload), so that the list compresses.
//! A list is consumed from its end ([`take`]): its own pointers first, then those of its last sub-list, which is
//! removed when it is empty.
//!
//! *The empty list.* Most lists of most deadlists are empty, so a pool with `feature@empty_bpobj` shares one empty
//! list, counted by the feature's reference count. [`EmptyList`] carries its object number and the change of the count;
//! the caller that created the [`EmptyList`] adds that change to the feature's count.
//!
//! Sizes that depend on the vdevs (`dsize`: allocated bytes by the ratio of the vdev's parity) come from the caller.
//!
//! Only the syncer changes lists. Source: OpenZFS `module/zfs/bpobj.c`.

#[cfg(test)]
mod tests;

use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;
use weir_dmu::cycle_guard::CycleGuard;
use weir_dmu::error::ObjectError;
use weir_dmu::live::NewObject;
use weir_dmu::object::Object;
use weir_dmu::object_set::ObjectSet;
use weir_dmu::txg::Tx;
use weir_dmu::write_words;
use weir_format::dsl::{Bpobj, pool};
use weir_format::{BlockPointer, ObjectId, ObjectType, Txg};
use weir_machine::Request;

/// Size of a list's blocks in bytes.
const BLOCK_BYTES: u32 = 128 << 10;
/// 64-bit integers of a pointer.
const WORDS: u64 = 16;
/// Maximum depth of a chain of sub-lists.
const MAX_DEPTH: usize = 1 << 16;

/// Returns a pointer's allocated bytes as space accounting counts them (`bp_get_dsize`).
pub type Dsize<'a> = &'a (dyn Fn(&BlockPointer) -> u64 + Send + Sync);

/// Sizes of a list's pointers, in bytes. They are differences, so they wrap: frees in a livelist count negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Allocated.
    pub used_bytes: u64,
    /// After compression.
    pub compressed_bytes: u64,
    /// Before compression.
    pub uncompressed_bytes: u64,
}

impl Sums {
    /// The sizes of one pointer.
    pub fn of(pointer: &BlockPointer, dsize: Dsize<'_>) -> Self {
        let compressed_bytes = if pointer.is_embedded() { 0 } else { pointer.psize_bytes() };
        let metadata = pointer.level() > 0 || pointer.object_type().is_metadata();
        let uncompressed_bytes = if metadata { compressed_bytes } else { pointer.lsize_bytes() };
        Sums { used_bytes: dsize(pointer), compressed_bytes, uncompressed_bytes }
    }

    fn negated(self) -> Self {
        let mut out = Sums::default();
        out -= self;
        out
    }

    fn of_header(header: &Bpobj) -> Self {
        let (compressed_bytes, uncompressed_bytes) = header.sizes.unwrap_or_default();
        Sums { used_bytes: header.bytes, compressed_bytes, uncompressed_bytes }
    }

    fn add_to(self, header: &mut Bpobj) {
        header.bytes = header.bytes.wrapping_add(self.used_bytes);
        if let Some((compressed, uncompressed)) = &mut header.sizes {
            *compressed = compressed.wrapping_add(self.compressed_bytes);
            *uncompressed = uncompressed.wrapping_add(self.uncompressed_bytes);
        }
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.used_bytes = self.used_bytes.wrapping_add(other.used_bytes);
        self.compressed_bytes = self.compressed_bytes.wrapping_add(other.compressed_bytes);
        self.uncompressed_bytes = self.uncompressed_bytes.wrapping_add(other.uncompressed_bytes);
    }
}

impl SubAssign for Sums {
    fn sub_assign(&mut self, other: Self) {
        self.used_bytes = self.used_bytes.wrapping_sub(other.used_bytes);
        self.compressed_bytes = self.compressed_bytes.wrapping_sub(other.compressed_bytes);
        self.uncompressed_bytes = self.uncompressed_bytes.wrapping_sub(other.uncompressed_bytes);
    }
}

/// The pool's shared empty list, and the change of its reference count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmptyList {
    /// Whether the pool may have a shared empty list (`feature@empty_bpobj` is enabled).
    pub enabled: bool,
    /// Whether new lists count frees (`feature@livelist` is active): their headers are longer.
    pub counts_frees: bool,
    /// Object number of the shared list, if there is one now.
    pub object: Option<ObjectId>,
    /// References added, less those released. The caller adds it to the feature's count, and calls
    /// [`EmptyList::discard`] when the count reaches 0.
    pub references: i64,
}

impl EmptyList {
    pub(crate) fn is(&self, id: ObjectId) -> bool {
        self.object == Some(id)
    }

    /// Returns an empty list: the shared one, created if necessary, or a new one if the pool shares none.
    pub async fn acquire(&mut self, rq: &Request, mos: &Arc<ObjectSet>, tx: &Tx) -> Result<ObjectId, ObjectError> {
        if !self.enabled {
            return create(rq, mos, tx, self.counts_frees).await;
        }
        let id = match self.object {
            Some(id) => id,
            None => {
                let id = create(rq, mos, tx, self.counts_frees).await?;
                let directory = ObjectId(pool::DIRECTORY_OBJECT);
                weir_dmu::zap::put_word(rq, mos, tx, directory, pool::EMPTY_BPOBJ, id.0).await?;
                self.object = Some(id);
                id
            }
        };
        self.references += 1;
        Ok(id)
    }

    pub(crate) fn release(&mut self) {
        self.references -= 1;
    }

    /// Removes the shared list, to which no reference is left.
    pub async fn discard(&mut self, rq: &Request, mos: &Arc<ObjectSet>, tx: &Tx) -> Result<(), ObjectError> {
        if let Some(id) = self.object.take() {
            let directory = ObjectId(pool::DIRECTORY_OBJECT);
            weir_dmu::zap::remove_name(rq, mos, tx, directory, pool::EMPTY_BPOBJ).await?;
            mos.frees().remove(rq, tx, id).await?;
        }
        Ok(())
    }
}

/// Creates an unshared list; `counts_frees` if `feature@livelist` is active.
pub async fn create(rq: &Request, mos: &Arc<ObjectSet>, tx: &Tx, counts_frees: bool) -> Result<ObjectId, ObjectError> {
    let header = Bpobj {
        sizes: Some((0, 0)),
        sub_objects: Some((ObjectId(0), 0)),
        freed: counts_frees.then_some(0),
        ..Bpobj::default()
    };
    let new = NewObject::new(ObjectType::BPOBJ, BLOCK_BYTES);
    let new = new.bonus(ObjectType::BPOBJ_HDR, header.encode(weir_format::Endian::Little));
    mos.changes().create(rq, tx, &new).await
}

async fn load(rq: &Request, mos: &Arc<ObjectSet>, id: ObjectId) -> Result<(Arc<Object>, Bpobj), ObjectError> {
    let object = mos.object(rq, id).await?;
    if object.dnode.object_type != ObjectType::BPOBJ {
        return Err(ObjectError::Corrupt { place: mos.place(id, 0, 0), why: "not a list of block pointers" });
    }
    let header = header_of(mos, &object)?;
    Ok((object, header))
}

fn header_of(mos: &Arc<ObjectSet>, object: &Object) -> Result<Bpobj, ObjectError> {
    let header = Bpobj::decode(object.dnode.bonus(), object.dnode.endian);
    header.map_err(|e| ObjectError::decode(mos.place(object.id, 0, 0), e))
}

async fn store(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    object: &Object,
    header: &Bpobj,
) -> Result<(), ObjectError> {
    mos.changes().set_bonus(rq, tx, object.id, ObjectType::BPOBJ_HDR, &header.encode(object.dnode.endian)).await
}

/// Encodes a pointer in the form in which lists store it.
fn stored(pointer: &BlockPointer, freed: bool) -> [u64; 16] {
    let mut words = *pointer.words();
    if pointer.is_embedded() {
        let prop = words[6];
        let birth = words[10];
        words = [0; 16];
        (words[6], words[10]) = (prop, birth);
    } else if !pointer.is_dedup() {
        words[12..].fill(0);
    }
    words[11] = u64::from(freed);
    words
}

/// Appends pointers; with `freed`, as blocks of a livelist that were freed. Returns their sums.
///
/// # Errors
/// [`ObjectError::Unsupported`] for frees in a list that does not count them.
pub async fn push(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    pointers: &[BlockPointer],
    freed: bool,
    dsize: Dsize<'_>,
) -> Result<Sums, ObjectError> {
    let (object, mut header) = load(rq, mos, id).await?;
    let mut sums = Sums::default();
    pointers.iter().for_each(|p| sums += Sums::of(p, dsize));
    if freed {
        sums = sums.negated();
        let count =
            header.freed.ok_or(ObjectError::Unsupported { what: "a free in a list that does not count frees" })?;
        header.freed = Some(count.saturating_add(pointers.len() as u64));
    }
    let words: Vec<u64> = pointers.iter().flat_map(|p| stored(p, freed)).collect();
    write_words(rq, mos, tx, id, header.pointers.saturating_mul(WORDS), &words).await?;
    header.pointers = header.pointers.saturating_add(pointers.len() as u64);
    sums.add_to(&mut header);
    store(rq, mos, tx, &object, &header).await?;
    Ok(sums)
}

/// Sums of a list's pointers, its sub-lists included.
pub async fn space(rq: &Request, mos: &Arc<ObjectSet>, id: ObjectId) -> Result<Sums, ObjectError> {
    Ok(Sums::of_header(&load(rq, mos, id).await?.1))
}

/// Sums of those pointers that were born after `after` and not after `until`.
pub async fn space_range(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    id: ObjectId,
    after: Txg,
    until: Txg,
    dsize: Dsize<'_>,
) -> Result<Sums, ObjectError> {
    let mut sums = Sums::default();
    let mut walk = Walk::new(id);
    while let Some(pointers) = walk.next(rq, mos).await? {
        for pointer in pointers.iter().filter(|p| p.birth() > after && p.birth() <= until) {
            sums += Sums::of(pointer, dsize);
        }
    }
    Ok(sums)
}

/// Whether a list has neither pointers nor sub-lists.
pub async fn is_empty(rq: &Request, mos: &Arc<ObjectSet>, id: ObjectId) -> Result<bool, ObjectError> {
    Ok(holds_nothing(&load(rq, mos, id).await?.1))
}

fn holds_nothing(header: &Bpobj) -> bool {
    header.pointers == 0 && header.sub_objects.is_none_or(|(_, count)| count == 0)
}

/// Moves a list into another: it becomes a sub-list; if it is short, its contents are copied and it is removed. A
/// reference to the shared empty list is released.
pub async fn add_sub(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    sub: ObjectId,
    empty: &mut EmptyList,
) -> Result<(), ObjectError> {
    if empty.is(sub) {
        empty.release();
        return Ok(());
    }
    let (sub_object, mut sub_header) = load(rq, mos, sub).await?;
    if holds_nothing(&sub_header) {
        return destroy(rq, mos, tx, sub, empty).await;
    }
    let (object, mut header) = load(rq, mos, id).await?;
    let sums = Sums::of_header(&sub_header);
    let mut short = is_short(&sub_object);
    if let Some((list, count)) = sub_header.sub_objects.filter(|(list, _)| list.0 != 0) {
        let list_object = mos.object(rq, list).await?;
        if is_short(&list_object) {
            let below = mos.reader().read_words(rq, &list_object, 0, count).await?;
            push_subs(rq, mos, tx, &mut header, &below).await?;
            for moved in below {
                space(rq, mos, ObjectId(moved)).await?.negated().add_to(&mut sub_header);
            }
            sub_header.sub_objects = Some((ObjectId(0), 0));
            store(rq, mos, tx, &sub_object, &sub_header).await?;
            mos.frees().remove(rq, tx, list).await?;
        } else {
            short = false;
        }
    }
    if short {
        let words = mos.reader().read_words(rq, &sub_object, 0, sub_header.pointers.saturating_mul(WORDS)).await?;
        write_words(rq, mos, tx, id, header.pointers.saturating_mul(WORDS), &words).await?;
        header.pointers = header.pointers.saturating_add(words.len() as u64 / WORDS);
        if let (Some(freed), Some(more)) = (&mut header.freed, sub_header.freed) {
            *freed = freed.saturating_add(more);
        }
        mos.frees().remove(rq, tx, sub).await?;
    } else {
        push_subs(rq, mos, tx, &mut header, &[sub.0]).await?;
    }
    sums.add_to(&mut header);
    store(rq, mos, tx, &object, &header).await
}

/// Whether the data of an object fits into one block.
fn is_short(object: &Object) -> bool {
    object.span_bytes() <= object.block_bytes()
}

/// Appends object numbers of lists to a list's sub-lists.
async fn push_subs(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    header: &mut Bpobj,
    subs: &[u64],
) -> Result<(), ObjectError> {
    let old = ObjectError::Unsupported { what: "a list of block pointers older than pool version 26" };
    let (list, count) = header.sub_objects.filter(|_| header.sizes.is_some()).ok_or(old)?;
    let list = match list {
        ObjectId(0) => mos.changes().create(rq, tx, &NewObject::new(ObjectType::BPOBJ_SUBOBJ, BLOCK_BYTES)).await?,
        list => list,
    };
    write_words(rq, mos, tx, list, count, subs).await?;
    header.sub_objects = Some((list, count.saturating_add(subs.len() as u64)));
    Ok(())
}

/// Removes up to `max` pointers from a list, and every sub-list that is found empty. Returns no pointers if the list is
/// empty. Pointers that are marked [`BlockPointer::is_free_marked`] are frees.
pub async fn take(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    max: u64,
    dsize: Dsize<'_>,
) -> Result<Vec<BlockPointer>, ObjectError> {
    let mut path = vec![id];
    loop {
        let last = path.last().copied().unwrap_or(id);
        let (object, header) = load(rq, mos, last).await?;
        if header.pointers > 0 {
            let out = take_own(rq, mos, tx, &object, header, max.max(1)).await?;
            let mut sums = Sums::default();
            for pointer in &out {
                let one = Sums::of(pointer, dsize);
                sums += if pointer.is_free_marked() { one } else { one.negated() };
            }
            for list in path {
                let (object, mut header) = load(rq, mos, list).await?;
                sums.add_to(&mut header);
                store(rq, mos, tx, &object, &header).await?;
            }
            return Ok(out);
        }
        if let Some((list, count)) = header.sub_objects.filter(|(list, count)| list.0 != 0 && *count > 0) {
            let list = mos.object(rq, list).await?;
            let below = mos.reader().read_words(rq, &list, count - 1, 1).await?.first().map(|n| ObjectId(*n));
            match below.filter(|below| !path.contains(below) && path.len() < MAX_DEPTH) {
                Some(below) => path.push(below),
                None => {
                    return Err(ObjectError::Corrupt {
                        place: mos.place(last, 0, 0),
                        why: "a list has no such sub-list",
                    });
                }
            }
            continue;
        }
        path.pop();
        let Some(parent) = path.last().copied() else { return Ok(Vec::new()) };
        drop_last_sub(rq, mos, tx, parent, last, &header).await?;
    }
}

/// Removes the last sub-list of `parent`, which is empty.
async fn drop_last_sub(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    parent: ObjectId,
    sub: ObjectId,
    header: &Bpobj,
) -> Result<(), ObjectError> {
    if let Some((list, _)) = header.sub_objects.filter(|(list, _)| list.0 != 0) {
        mos.frees().remove(rq, tx, list).await?;
    }
    mos.frees().remove(rq, tx, sub).await?;
    let (object, mut header) = load(rq, mos, parent).await?;
    if let Some((list, count)) = &mut header.sub_objects {
        *count = count.saturating_sub(1);
        mos.frees().punch(rq, tx, *list, count.saturating_mul(8), 8).await?;
    }
    store(rq, mos, tx, &object, &header).await
}

/// Removes up to `max` of a list's own pointers. The sums are not changed.
async fn take_own(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    object: &Arc<Object>,
    mut header: Bpobj,
    max: u64,
) -> Result<Vec<BlockPointer>, ObjectError> {
    // No more than one read returns.
    let count = header.pointers.min(max).min(POINTERS_PER_READ);
    let first = header.pointers - count;
    let words = mos.reader().read_words(rq, object, first.saturating_mul(WORDS), count * WORDS).await?;
    let (pointers, _) = words.as_chunks::<{ WORDS as usize }>();
    if pointers.len() as u64 != count {
        let place = mos.place(object.id, 0, 0);
        return Err(ObjectError::Corrupt { place, why: "a list is shorter than its header says" });
    }
    let mut out = without_holes(mos, object.id, pointers)?;
    out.reverse();
    header.pointers = first;
    let frees = out.iter().filter(|p| p.is_free_marked()).count() as u64;
    header.freed = header.freed.map(|freed| freed.saturating_sub(frees));
    mos.frees().punch(rq, tx, object.id, first.saturating_mul(WORDS * 8), u64::MAX).await?;
    store(rq, mos, tx, object, &header).await?;
    Ok(out)
}

/// The pointers of a list, none of which may be a hole: in malformed input a sparse list of holes could be too long to
/// count.
pub(crate) fn without_holes(
    mos: &Arc<ObjectSet>,
    id: ObjectId,
    words: &[[u64; 16]],
) -> Result<Vec<BlockPointer>, ObjectError> {
    let pointers: Vec<BlockPointer> = words.iter().map(|words| BlockPointer::from_words(*words)).collect();
    match pointers.iter().any(BlockPointer::is_hole) {
        true => Err(ObjectError::Corrupt { place: mos.place(id, 0, 0), why: "a list of block pointers with a hole" }),
        false => Ok(pointers),
    }
}

/// Pointers read at a time.
const POINTERS_PER_READ: u64 = 8192;

/// Iterates over all pointers of a list and its sub-lists; changes nothing.
#[derive(Clone, Debug)]
pub struct Walk {
    /// Lists not visited yet.
    lists: Vec<ObjectId>,
    at: u64,
    seen: usize,
    trail: CycleGuard,
}

impl Walk {
    /// Starts at the beginning of `id`.
    pub fn new(id: ObjectId) -> Self {
        Walk { lists: vec![id], at: 0, seen: 0, trail: CycleGuard::default() }
    }

    /// The next pointers; `None` at the end.
    pub async fn next(&mut self, rq: &Request, mos: &Arc<ObjectSet>) -> Result<Option<Vec<BlockPointer>>, ObjectError> {
        while let Some(id) = self.lists.last().copied() {
            if self.at == 0 {
                self.trail.step(mos, id)?;
            }
            let (object, header) = load(rq, mos, id).await?;
            let count = header.pointers.saturating_sub(self.at).min(POINTERS_PER_READ);
            let words = mos.reader().read_words(rq, &object, self.at.saturating_mul(WORDS), count * WORDS).await?;
            let (pointers, _) = words.as_chunks::<{ WORDS as usize }>();
            if !pointers.is_empty() {
                self.at += pointers.len() as u64;
                return without_holes(mos, id, pointers).map(Some);
            }
            self.lists.pop();
            self.at = 0;
            self.seen += 1;
            let subs = subs_of(rq, mos, &header).await?;
            if self.seen + self.lists.len() + subs.len() > MAX_LISTS {
                let place = mos.place(id, 0, 0);
                return Err(ObjectError::Corrupt { place, why: "more sub-lists than the maximum" });
            }
            self.lists.extend(subs);
        }
        Ok(None)
    }
}

/// Maximum accepted number of sub-lists of a list, nested ones included.
const MAX_LISTS: usize = 1 << 24;

async fn subs_of(rq: &Request, mos: &Arc<ObjectSet>, header: &Bpobj) -> Result<Vec<ObjectId>, ObjectError> {
    let Some((list, count)) = header.sub_objects.filter(|(list, count)| list.0 != 0 && *count > 0) else {
        return Ok(Vec::new());
    };
    let list = mos.object(rq, list).await?;
    Ok(mos.reader().read_words(rq, &list, 0, count).await?.into_iter().map(ObjectId).collect())
}

/// Removes a list with all its sub-lists. The blocks of its pointers stay. A reference to the shared empty list is
/// released.
pub async fn destroy(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    empty: &mut EmptyList,
) -> Result<(), ObjectError> {
    if empty.is(id) {
        empty.release();
        return Ok(());
    }
    let mut lists = vec![id];
    while let Some(id) = lists.pop() {
        let (_, header) = load(rq, mos, id).await?;
        lists.extend(subs_of(rq, mos, &header).await?);
        if let Some((list, _)) = header.sub_objects.filter(|(list, _)| list.0 != 0) {
            mos.frees().remove(rq, tx, list).await?;
        }
        mos.frees().remove(rq, tx, id).await?;
    }
    Ok(())
}
