//! Deadlists: the blocks that a dataset no longer refers to and that its newest snapshot refers to.
//!
//! A ZAP maps keys, which are txgs of earlier snapshots, to lists of block pointers ([`crate::bpobj`]). A block is in
//! the list of the greatest key below its birth txg. So all blocks of one list were born between the same two
//! snapshots, and when one of these is destroyed, whole lists change their owner.
//!
//! ```text
//!   snapshots:      10        20        30
//!   keys:        0       10        20        30
//!                │ born 1–10 │ 11–20 │ 21–30 │ later
//! ```
//!
//! The bonus area has the sums of all lists. Pools older than version 26 have a plain list instead: blocks can be
//! inserted into those, every other operation refuses them.
//!
//! Only the syncer changes deadlists. Source: OpenZFS `module/zfs/dsl_deadlist.c`.

use crate::bpobj::{self, Dsize, EmptyList, Sums};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dmu::error::ObjectError;
use weir_dmu::object::Object;
use weir_dmu::object_set::ObjectSet;
use weir_dmu::txg::Tx;
use weir_dmu::zap::{self, NewZap, Zap};
use weir_format::dsl::Deadlist;
use weir_format::{BlockPointer, Endian, ObjectId, ObjectType, Txg};
use weir_machine::Request;

/// Maximum accepted number of keys of a deadlist.
const MAX_KEYS: usize = 1 << 24;
const OLD: ObjectError = ObjectError::Unsupported { what: "a deadlist older than pool version 26" };

/// Lists of block pointers of a deadlist, by key.
pub type Lists = BTreeMap<Txg, ObjectId>;

/// Creates a deadlist without keys.
pub async fn create(rq: &Request, mos: &Arc<ObjectSet>, tx: &Tx) -> Result<ObjectId, ObjectError> {
    let bonus = Deadlist::default().encode(Endian::Little);
    zap::create(rq, mos, tx, &NewZap::new(ObjectType::DEADLIST).bonus(ObjectType::DEADLIST_HDR, bonus)).await
}

fn is_old(object: &Object) -> bool {
    object.dnode.object_type == ObjectType::BPOBJ
}

async fn load(rq: &Request, mos: &Arc<ObjectSet>, id: ObjectId) -> Result<(Arc<Object>, Deadlist), ObjectError> {
    let object = mos.object(rq, id).await?;
    if is_old(&object) {
        return Err(OLD);
    }
    let header = Deadlist::decode(object.dnode.bonus(), object.dnode.endian);
    let header = header.map_err(|e| ObjectError::decode(mos.place(id, 0, 0), e))?;
    Ok((object, header))
}

/// Adds to the sums in the header.
async fn account(rq: &Request, mos: &Arc<ObjectSet>, tx: &Tx, id: ObjectId, sums: Sums) -> Result<(), ObjectError> {
    let (object, old) = load(rq, mos, id).await?;
    let header = Deadlist {
        used_bytes: old.used_bytes.wrapping_add(sums.used_bytes),
        compressed_bytes: old.compressed_bytes.wrapping_add(sums.compressed_bytes),
        uncompressed_bytes: old.uncompressed_bytes.wrapping_add(sums.uncompressed_bytes),
    };
    mos.changes().set_bonus(rq, tx, id, ObjectType::DEADLIST_HDR, &header.encode(object.dnode.endian)).await
}

/// The lists by their keys.
pub async fn lists(rq: &Request, mos: &Arc<ObjectSet>, id: ObjectId) -> Result<Lists, ObjectError> {
    let (object, _) = load(rq, mos, id).await?;
    let place = mos.place(id, 0, 0);
    let mut out = Lists::new();
    for entry in Zap::of(rq, mos, object).await?.all(rq, MAX_KEYS).await? {
        // Only the canonical spelling of a key is accepted, because a removal looks for that one: otherwise a caller
        // that removes the entries one by one would never finish.
        let key = Deadlist::key(&entry.key.text()).filter(|key| zap::Key::of_int(*key) == entry.key);
        let (Some(key), Some(list)) = (key, entry.value.first()) else {
            return Err(ObjectError::Corrupt { place, why: "a malformed entry of a deadlist" });
        };
        out.insert(Txg(key), ObjectId(list));
    }
    Ok(out)
}

/// Makes a key lead to `list`.
async fn point(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    key: Txg,
    list: ObjectId,
) -> Result<(), ObjectError> {
    zap::put_int(rq, mos, tx, id, key.0, list.0).await
}

fn no_key(mos: &ObjectSet, id: ObjectId) -> ObjectError {
    ObjectError::Corrupt { place: mos.place(id, 0, 0), why: "a deadlist has no key that is old enough" }
}

/// Inserts blocks, each under its birth txg. Returns their sums.
pub async fn insert(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    pointers: &[BlockPointer],
    dsize: Dsize<'_>,
    empty: &mut EmptyList,
) -> Result<Sums, ObjectError> {
    let object = mos.object(rq, id).await?;
    if is_old(&object) {
        return bpobj::push(rq, mos, tx, id, pointers, false, dsize).await;
    }
    if pointers.is_empty() {
        return Ok(Sums::default());
    }
    let lists = lists(rq, mos, id).await?;
    let mut by_key: BTreeMap<Txg, Vec<BlockPointer>> = BTreeMap::new();
    for pointer in pointers {
        let key = lists.range(..pointer.birth()).next_back().ok_or_else(|| no_key(mos, id))?.0;
        by_key.entry(*key).or_default().push(*pointer);
    }
    let mut sums = Sums::default();
    for (key, pointers) in by_key {
        let mut list = lists.get(&key).copied().ok_or_else(|| no_key(mos, id))?;
        if empty.is(list) {
            list = bpobj::create(rq, mos, tx, empty.counts_frees).await?;
            empty.release();
            point(rq, mos, tx, id, key, list).await?;
        }
        sums += bpobj::push(rq, mos, tx, list, &pointers, false, dsize).await?;
    }
    account(rq, mos, tx, id, sums).await?;
    Ok(sums)
}

/// Adds a key, greater than all existing ones, with an empty list.
pub async fn add_key(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    key: Txg,
    empty: &mut EmptyList,
) -> Result<(), ObjectError> {
    load(rq, mos, id).await?;
    let list = empty.acquire(rq, mos, tx).await?;
    zap::insert(rq, mos, tx, id, &zap::Key::of_int(key.0), &zap::Value::word(list.0)).await
}

/// Merges a list into the list of another key.
async fn join(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    into: (Txg, ObjectId),
    list: ObjectId,
    empty: &mut EmptyList,
) -> Result<(), ObjectError> {
    let (key, own) = into;
    if !empty.is(own) {
        return bpobj::add_sub(rq, mos, tx, own, list, empty).await;
    }
    empty.release();
    point(rq, mos, tx, id, key, list).await
}

/// Removes a key, which must not be the first, after its snapshot is destroyed. Its blocks move to the key before it.
/// Old deadlists have no keys.
pub async fn remove_key(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    key: Txg,
    empty: &mut EmptyList,
) -> Result<(), ObjectError> {
    if is_old(&*mos.object(rq, id).await?) {
        return Ok(());
    }
    let lists = lists(rq, mos, id).await?;
    let list = lists.get(&key).copied().ok_or_else(|| no_key(mos, id))?;
    let (before, own) = lists.range(..key).next_back().ok_or_else(|| no_key(mos, id))?;
    join(rq, mos, tx, id, (*before, *own), list, empty).await?;
    zap::remove_int(rq, mos, tx, id, key.0).await.map(|_| ())
}

/// Removes a key with its list. The blocks are the caller's responsibility; the sums are not changed.
pub async fn drop_key(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    (key, list): (Txg, ObjectId),
    empty: &mut EmptyList,
) -> Result<(), ObjectError> {
    bpobj::destroy(rq, mos, tx, list, empty).await?;
    zap::remove_int(rq, mos, tx, id, key.0).await.map(|_| ())
}

/// Creates a deadlist with the keys of `id` that are below `until`, each with an empty list.
pub async fn clone_until(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    until: Txg,
    empty: &mut EmptyList,
) -> Result<ObjectId, ObjectError> {
    let lists = lists(rq, mos, id).await?;
    let new = create(rq, mos, tx).await?;
    for key in lists.range(..until).map(|(key, _)| *key) {
        add_key(rq, mos, tx, new, key, empty).await?;
    }
    Ok(new)
}

/// Sums of all blocks.
pub async fn space(rq: &Request, mos: &Arc<ObjectSet>, id: ObjectId) -> Result<Sums, ObjectError> {
    if is_old(&*mos.object(rq, id).await?) {
        return bpobj::space(rq, mos, id).await;
    }
    let (_, header) = load(rq, mos, id).await?;
    let Deadlist { used_bytes, compressed_bytes, uncompressed_bytes } = header;
    Ok(Sums { used_bytes, compressed_bytes, uncompressed_bytes })
}

/// Sums of the blocks that were born after `after` and not after `until`, both of them keys (`until` may be
/// `Txg(u64::MAX)`).
pub async fn space_range(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    id: ObjectId,
    after: Txg,
    until: Txg,
    dsize: Dsize<'_>,
) -> Result<Sums, ObjectError> {
    if is_old(&*mos.object(rq, id).await?) {
        return bpobj::space_range(rq, mos, id, after, until, dsize).await;
    }
    let mut sums = Sums::default();
    if after >= until {
        return Ok(sums);
    }
    // Most keys share the empty list, whose sums are 0; each different list is read once.
    let mut empty_list: Option<ObjectId> = None;
    for list in lists(rq, mos, id).await?.range(after..until).map(|(_, list)| *list) {
        if empty_list != Some(list) {
            let own = bpobj::space(rq, mos, list).await?;
            empty_list = if own == Sums::default() { Some(list) } else { empty_list };
            sums += own;
        }
    }
    Ok(sums)
}

/// Moves all blocks of the deadlist `other` into `id`; `other` has no keys afterwards.
pub async fn merge(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    other: ObjectId,
    dsize: Dsize<'_>,
    empty: &mut EmptyList,
) -> Result<(), ObjectError> {
    if is_old(&*mos.object(rq, other).await?) {
        // Take all of it first: in malformed input the inserts may go to this very list.
        let mut all = Vec::new();
        loop {
            let pointers = bpobj::take(rq, mos, tx, other, u64::MAX, dsize).await?;
            if pointers.is_empty() {
                return insert(rq, mos, tx, id, &all, dsize, empty).await.map(drop);
            }
            all.extend(pointers);
        }
    }
    let mut own = lists(rq, mos, id).await?;
    for (key, list) in lists(rq, mos, other).await? {
        let sums = bpobj::space(rq, mos, list).await?;
        let (at, into) = own.range(..=key).next_back().ok_or_else(|| no_key(mos, id))?;
        let at = *at;
        let into = *into;
        join(rq, mos, tx, id, (at, into), list, empty).await?;
        if empty.is(into) {
            own.insert(at, list);
        }
        account(rq, mos, tx, id, sums).await?;
        zap::remove_int(rq, mos, tx, other, key.0).await?;
    }
    let (object, _) = load(rq, mos, other).await?;
    let cleared = Deadlist::default().encode(object.dnode.endian);
    mos.changes().set_bonus(rq, tx, other, ObjectType::DEADLIST_HDR, &cleared).await
}

/// Moves the blocks that were born after the key `after` to the list `to`, from which they are freed; their keys are
/// removed.
pub async fn move_bpobj(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    to: ObjectId,
    after: Txg,
    empty: &mut EmptyList,
) -> Result<(), ObjectError> {
    for (key, list) in lists(rq, mos, id).await?.split_off(&after) {
        let mut less = Sums::default();
        less -= bpobj::space(rq, mos, list).await?;
        bpobj::add_sub(rq, mos, tx, to, list, empty).await?;
        account(rq, mos, tx, id, less).await?;
        zap::remove_int(rq, mos, tx, id, key.0).await?;
    }
    Ok(())
}

/// Removes a deadlist with all its lists. The blocks that its pointers refer to stay.
pub async fn destroy(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    empty: &mut EmptyList,
) -> Result<(), ObjectError> {
    if is_old(&*mos.object(rq, id).await?) {
        return bpobj::destroy(rq, mos, tx, id, empty).await;
    }
    for list in lists(rq, mos, id).await?.into_values() {
        bpobj::destroy(rq, mos, tx, list, empty).await?;
    }
    mos.frees().remove(rq, tx, id).await
}
