//! Invariants of dnodes and block pointers of all object sets.
//!
//! ```text
//!   pointer   level, size and type of its position · not born after its parent block · fill: the sum below it
//!   dnode     sizes, levels, flags · used: the sum of its blocks · no block beyond the last
//!   header    fill of the root pointer · flags of accounting
//! ```
//!
//! Holes with a birth have the level of their position and, above data, its size: `dbuf_handle_indirect_hole` makes the
//! pointers of a block from them.
//!
//! In a head or later snapshot, blocks of dnodes that are not younger than the previous snapshot are skipped, because
//! they belong to that snapshot. In an encrypted object set without its key, dnodes and pointers are checked, contents
//! are not.
//!
//! Source: OpenZFS `module/zfs/dbuf.c` (`dbuf_write_ready`, `dbuf_handle_indirect_hole`), `dnode.c` (`dnode_verify`,
//! `dnode_allocate`), `dnode_sync.c` (`dnode_sync`, `dnode_increase_indirection`), `dmu_objset.c`
//! (`dmu_objset_write_ready`, `dmu_objset_userused_enabled`).

use super::{Part, Report, zaps};
use crate::open::Pool;
use crate::roots::roots;
use crate::walk::Root;
use futures_util::stream::{self, StreamExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dmu::{ErrorLocation, Object, ObjectError, ObjectSet, Opening, TreeGeometry};
use weir_dsl::bpobj::Sums;
use weir_format::{BlockPointer, Dnode, DnodeFlags, ObjectId, ObjectType, Objset, ObjsetId, ObjsetKind, Txg};
use weir_machine::Request;

/// Maximum number of objects that are checked at the same time.
const MAX_CONCURRENT_READS: usize = 16;
/// Maximum size of a data block in bytes.
const MAX_BLOCK_BYTES: u32 = 16 << 20;
/// Maximum log2 of an indirect block's size.
const MAX_INDIRECT_SHIFT: u8 = 24;
/// Flags of a dnode that is accounted by user.
const ACCOUNTED: u8 = DnodeFlags::USERUSED_ACCOUNTED | DnodeFlags::USEROBJUSED_ACCOUNTED;

/// Blocks of an object set that were born since its previous snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Born {
    /// `None` if a block could not be read.
    pub sums: Option<Sums>,
}

impl Born {
    const NOTHING: Born = Born { sums: Some(Sums { used_bytes: 0, compressed_bytes: 0, uncompressed_bytes: 0 }) };

    fn add(&mut self, other: Born) {
        match (&mut self.sums, other.sums) {
            (Some(sums), Some(more)) => *sums += more,
            _ => self.sums = None,
        }
    }
}

/// Checks the object sets of a pool: the MOS, heads and snapshots. Returns the sums of blocks born in each.
pub(super) async fn check(
    rq: &Request,
    pool: &Pool,
    report: &mut Report,
) -> Result<BTreeMap<ObjsetId, Born>, ObjectError> {
    let (roots, bad) = roots(rq, &pool.mos).await?;
    report.demand(bad == 0, Part::Dnode, "MOS", || format!("{bad} datasets without a dataset in their bonus area"));
    let mut born = BTreeMap::new();
    for root in roots {
        born.insert(root.objset, check_root(rq, pool, &root, report).await);
    }
    Ok(born)
}

/// One object set.
struct Set<'a> {
    pool: &'a Pool,
    set: Arc<ObjectSet>,
    /// Blocks born up to this txg belong to the previous snapshot.
    after: Txg,
}

async fn check_root(rq: &Request, pool: &Pool, root: &Root, report: &mut Report) -> Born {
    let pointer = root.pointer;
    if pointer.is_hole() || pointer.birth() <= root.after {
        return Born::NOTHING;
    }
    let place = format!("object set {}", root.objset);
    let newest = pool.uberblock.txg;
    report.demand(pointer.logical_birth() <= newest, Part::Pointer, &place, || {
        format!("its header is of txg {}, later than the pool's {newest}", pointer.logical_birth())
    });
    let found = (pointer.level(), pointer.object_type());
    report.demand(found == (0, ObjectType::OBJSET), Part::Pointer, &place, || {
        format!("its pointer is of level {} and type {}", found.0, found.1.name())
    });
    let opening = Opening { id: root.objset, ..Opening::default() };
    let opened = if root.objset == ObjsetId::MOS {
        Ok(pool.mos.set.clone())
    } else {
        ObjectSet::open(rq, pool.cache.clone(), pointer, opening).await
    };
    let Some(set) = report.readable(Part::Pointer, &place, opened) else { return Born { sums: None } };
    let set = Set { pool, set, after: root.after };
    set.check_header(&place, &pointer, report);
    let mut born = Born { sums: Some(set.sums_of(&pointer)) };
    born.add(set.check_meta(rq, report).await);
    let header = &set.set.root().header;
    let special = [
        (Objset::USERUSED_OBJECT, &header.user_used),
        (Objset::GROUPUSED_OBJECT, &header.group_used),
        (Objset::PROJECTUSED_OBJECT, &header.project_used),
    ];
    for (id, dnode) in special {
        if let Some(dnode) = dnode {
            let (found, more) = set.check_object(rq, ObjectId(id), dnode).await;
            report.merge(found);
            born.add(more);
        }
    }
    born
}

impl Set<'_> {
    fn sums_of(&self, pointer: &BlockPointer) -> Sums {
        Sums::of(pointer, &|pointer| self.pool.blocks.dsize_bytes(pointer))
    }

    fn check_header(&self, place: &str, pointer: &BlockPointer, report: &mut Report) {
        let root = self.set.root();
        let tops = root.header.meta_dnode.iter().flat_map(|meta| &meta.block_pointers);
        let fill = tops.map(fill_of).fold(0, u64::saturating_add);
        report.demand(pointer.fill() == fill, Part::Pointer, place, || {
            format!("fill {} of its header's pointer, its meta dnode's pointers have {fill}", pointer.fill())
        });
        let (kind, flags) = (root.header.kind, root.header.flags);
        let is_accounted = flags & (Objset::USER_ACCOUNTING | Objset::OBJECT_ACCOUNTING) != 0;
        report.demand(!is_accounted || kind != ObjsetKind::Meta, Part::Dnode, place, || {
            format!("flags {flags:#x}: user accounting in a set of kind {}", kind.name())
        });
    }

    /// Checks the meta dnode and all dnodes that do not belong to the previous snapshot.
    async fn check_meta(&self, rq: &Request, report: &mut Report) -> Born {
        let Some(meta) = self.set.meta() else { return Born::NOTHING };
        let mut blocks = Vec::new();
        let mut each = |number, pointer: &BlockPointer| {
            if pointer.birth() > self.after {
                blocks.push((number, *pointer));
            }
        };
        let mut born = Tree::of(self, &meta).walk(rq, report, &mut each).await;
        check_dnode(self, ObjectId(0), &meta.dnode, report);
        for (number, pointer) in blocks {
            let read = self.set.dnodes().in_block(rq, number).await;
            let Some(dnodes) = report.readable(Part::Dnode, self.place(ObjectId(0)), read) else {
                born.sums = None;
                continue;
            };
            report.demand(pointer.fill() == dnodes.len() as u64, Part::Pointer, self.place(ObjectId(0)), || {
                format!("block {number}: fill {}, but {} dnodes", pointer.fill(), dnodes.len())
            });
            let checks = dnodes.into_iter().map(|(id, dnode)| async move {
                match dnode {
                    Ok(dnode) => self.check_object(rq, id, &dnode).await,
                    Err(error) => {
                        let mut report = Report::default();
                        report.add(Part::Dnode, self.place(id), error);
                        (report, Born { sums: None })
                    }
                }
            });
            let mut checks = stream::iter(checks.collect::<Vec<_>>()).buffered(MAX_CONCURRENT_READS);
            while let Some((found, more)) = checks.next().await {
                report.merge(found);
                born.add(more);
            }
        }
        born
    }

    fn place(&self, id: ObjectId) -> String {
        format!("object set {} object {}", self.set.id(), id.0.cast_signed())
    }

    async fn check_object(&self, rq: &Request, id: ObjectId, dnode: &Dnode) -> (Report, Born) {
        let mut report = Report::default();
        check_dnode(self, id, dnode, &mut report);
        let object = Arc::new(Object::new(id, dnode.clone()));
        let born = Tree::of(self, &object).walk(rq, &mut report, &mut |_, _| ()).await;
        if dnode.object_type.is_zap() && !self.set.is_locked() && report.is_clean() {
            zaps::check(rq, &self.set, &object, &mut report).await;
        }
        (report, born)
    }
}

/// Checks the fields of a dnode by themselves.
fn check_dnode(set: &Set<'_>, id: ObjectId, dnode: &Dnode, report: &mut Report) {
    let place = set.place(id);
    let mut demand = |holds: bool, what: &dyn Fn() -> String| report.demand(holds, Part::Dnode, &place, what);
    demand(dnode.object_type.is_valid(), &|| format!("type {} is none", dnode.object_type.0));
    demand(dnode.bonus_type.is_valid(), &|| format!("bonus type {} is none", dnode.bonus_type.0));
    let block_bytes = dnode.data_block_bytes;
    demand((512..=MAX_BLOCK_BYTES).contains(&block_bytes), &|| format!("data blocks of {block_bytes} bytes"));
    let shift = dnode.indirect_shift;
    demand(shift <= MAX_INDIRECT_SHIFT, &|| format!("indirect blocks of 2^{shift} bytes"));
    // `dnode_allocate`: an SA bonus may be empty.
    let (bonus, bonus_len) = (dnode.bonus_type, dnode.bonus_len);
    let fits = bonus == ObjectType::SA || (bonus == ObjectType::NONE) == (bonus_len == 0);
    demand(fits, &|| format!("bonus type {} of {bonus_len} bytes", bonus.name()));
    let top = TreeGeometry::of(dnode).number_at(dnode.levels - 1, dnode.max_block_id);
    demand(top < dnode.block_pointers.len() as u64, &|| {
        let (levels, tops) = (dnode.levels, dnode.block_pointers.len());
        format!("{levels} levels below {tops} pointers do not reach block {}", dnode.max_block_id)
    });
    if let Some(spill) = &dnode.spill {
        demand(!spill.is_hole(), &|| "the flag of a spill block, and no spill block".into());
    }
    check_accounted(set, id, dnode, report);
}

/// Checks the flags of user accounting: only in file systems, on all objects once the header says that accounting is
/// complete, and never on the objects in the header.
fn check_accounted(set: &Set<'_>, id: ObjectId, dnode: &Dnode, report: &mut Report) {
    let header = &set.set.root().header;
    let is_special = id.0 == 0 || id.0 >= Objset::PROJECTUSED_OBJECT;
    let may = header.kind == ObjsetKind::Zfs && header.user_used.is_some() && !is_special;
    let has = dnode.flags.0 & ACCOUNTED;
    let kind = header.kind.name();
    // In an object set that was received raw, accounting begins when it is mounted.
    if set.set.is_encrypted() {
        return;
    }
    report.demand(may || has == 0, Part::Dnode, set.place(id), || {
        format!("flags {:#x}: user accounting counted it, in a set of kind {kind}", dnode.flags.0)
    });
    let mut needed = 0;
    if header.flags & Objset::USER_ACCOUNTING != 0 {
        needed |= DnodeFlags::USERUSED_ACCOUNTED;
    }
    if header.flags & Objset::OBJECT_ACCOUNTING != 0 {
        needed |= DnodeFlags::USEROBJUSED_ACCOUNTED;
    }
    report.demand(!may || has & needed == needed, Part::Dnode, set.place(id), || {
        format!("flags {:#x}: accounting is complete, but did not count it", dnode.flags.0)
    });
}

/// Contribution of a pointer to the fill count above it.
fn fill_of(pointer: &BlockPointer) -> u64 {
    if pointer.is_hole() { 0 } else { pointer.fill() }
}

/// The tree of one object.
struct Tree<'a> {
    set: &'a Set<'a>,
    object: &'a Arc<Object>,
    place: String,
    /// Allocated bytes of the blocks, without parity.
    used_bytes: u64,
    /// Those of them that were born since the previous snapshot.
    born: Sums,
    /// Whether a block could not be read, so that the sums are incomplete.
    is_partial: bool,
}

/// A pointer and its position in a tree.
struct Step {
    pointer: BlockPointer,
    level: u8,
    number: u64,
    /// Birth of the parent block; for pointers in a dnode, the pool's txg.
    holder: Txg,
}

impl<'a> Tree<'a> {
    fn of(set: &'a Set<'a>, object: &'a Arc<Object>) -> Self {
        Tree { set, object, place: set.place(object.id), used_bytes: 0, born: Sums::default(), is_partial: false }
    }

    /// Checks all pointers; calls `each` for those of data blocks.
    async fn walk(
        mut self,
        rq: &Request,
        report: &mut Report,
        each: &mut (dyn FnMut(u64, &BlockPointer) + Send),
    ) -> Born {
        let dnode = &self.object.dnode;
        let holder = self.set.set.pointer().logical_birth();
        let level = dnode.levels - 1;
        let tops = (0..).zip(&dnode.block_pointers);
        let mut steps: Vec<Step> =
            tops.map(|(number, pointer)| Step { pointer: *pointer, level, number, holder }).collect();
        steps.reverse();
        while let Some(step) = steps.pop() {
            if step.pointer.is_null() || !self.check_pointer(&step, report) || step.pointer.is_hole() {
                continue;
            }
            self.count(&step.pointer);
            if step.level == 0 {
                each(step.number, &step.pointer);
                continue;
            }
            match self.below(rq, &step, report).await {
                Some(below) => steps.extend(below.into_iter().rev()),
                None => self.is_partial = true,
            }
        }
        if let Some(spill) = dnode.spill.filter(|spill| !spill.is_hole()) {
            self.check_spill(&spill, report);
            self.count(&spill);
        }
        let used = dnode.used_bytes();
        let sum = self.used_bytes;
        report.demand(self.is_partial || used == sum, Part::Dnode, &self.place, || {
            format!("used {used} bytes, its blocks take {sum}")
        });
        Born { sums: (!self.is_partial).then_some(self.born) }
    }

    fn count(&mut self, pointer: &BlockPointer) {
        let sums = self.set.sums_of(pointer);
        self.used_bytes += sums.used_bytes;
        if pointer.birth() > self.set.after && !pointer.is_redacted() {
            self.born += sums;
        }
    }

    fn block_place(&self, step: &Step) -> String {
        format!("{} level {} block {}", self.place, step.level, step.number)
    }

    /// Checks a pointer that is not null. Returns false if the block below cannot be checked.
    fn check_pointer(&self, step: &Step, report: &mut Report) -> bool {
        let Step { pointer, level, number, holder } = step;
        let dnode = &self.object.dnode;
        let mut holds = true;
        let mut demand = |is_right: bool, what: &dyn Fn() -> String| {
            holds &= is_right;
            report.demand(is_right, Part::Pointer, self.block_place(step), what);
        };
        demand(pointer.level() == *level, &|| format!("a pointer of level {}", pointer.level()));
        let birth = pointer.logical_birth();
        demand(birth <= *holder, &|| format!("born in txg {birth}, the block that holds it in {holder}"));
        let lsize = if *level == 0 { u64::from(dnode.data_block_bytes) } else { 1 << dnode.indirect_shift };
        // The block size of an object without blocks may change while its holes stay.
        if *level > 0 || !pointer.is_hole() {
            demand(pointer.lsize_bytes() == lsize, &|| {
                format!("a pointer to {} bytes, not {lsize}", pointer.lsize_bytes())
            });
        }
        if pointer.is_hole() {
            return holds;
        }
        demand(pointer.object_type() == dnode.object_type, &|| {
            format!("type {}, the object is {}", pointer.object_type().name(), dnode.object_type.name())
        });
        if *level == 0 {
            let last = dnode.max_block_id;
            demand(*number <= last, &|| format!("beyond the object's last block, {last}"));
            if dnode.object_type != ObjectType::DNODE {
                demand(pointer.fill() == 1, &|| format!("fill {}, of a data block", pointer.fill()));
            }
        } else {
            demand(!pointer.is_embedded(), &|| "an indirect block in its pointer".into());
        }
        holds
    }

    fn check_spill(&self, spill: &BlockPointer, report: &mut Report) {
        let dnode = &self.object.dnode;
        let found = (spill.level(), spill.object_type());
        let is_right = found.0 == 0 && (found.1 == dnode.bonus_type || found.1 == dnode.object_type);
        report.demand(is_right, Part::Pointer, format!("{} spill block", self.place), || {
            format!("level {}, type {}", found.0, found.1.name())
        });
        report.demand(spill.fill() == 1, Part::Pointer, format!("{} spill block", self.place), || {
            format!("fill {}", spill.fill())
        });
    }

    /// Returns the pointers in an indirect block that are not null; `None` if it cannot be read.
    async fn below(&self, rq: &Request, step: &Step, report: &mut Report) -> Option<Vec<Step>> {
        let set = &self.set.set;
        let place = ErrorLocation { objset: set.id(), object: self.object.id, level: step.level, block: step.number };
        let read = set.cache().read(rq, &step.pointer, set.options()).await;
        let read = read.map_err(|error| ObjectError::Block { place, error });
        let bytes = report.readable(Part::Pointer, self.block_place(step), read)?;
        let pointers: Vec<(usize, BlockPointer)> = BlockPointer::in_block(&bytes, step.pointer.endian()).collect();
        let fill = pointers.iter().map(|(_, pointer)| fill_of(pointer)).fold(0, u64::saturating_add);
        let found = step.pointer.fill();
        report.demand(found == fill, Part::Pointer, self.block_place(step), || {
            format!("fill {found}, the pointers in it have {fill}")
        });
        let has_any = pointers.iter().any(|(_, pointer)| !pointer.is_hole());
        report.demand(has_any, Part::Pointer, self.block_place(step), || "a block of holes alone".into());
        let count = (bytes.len() / BlockPointer::SIZE) as u64;
        let holder = step.pointer.logical_birth();
        let first = step.number.saturating_mul(count);
        let level = step.level - 1;
        let step = |(at, pointer)| Step { pointer, level, number: first.saturating_add(at as u64), holder };
        Some(pointers.into_iter().map(step).collect())
    }
}
