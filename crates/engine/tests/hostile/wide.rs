//! Crafted trees of block pointers that are larger than any pool: a few blocks, where each level is full of pointers to
//! the one block below. Listing such a tree ends soon with an error that names the object.

use super::Golden;
use super::drive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_blocks::fault_injection::{PointerForger, Stage};
use weir_dmu::{DataBlocks, ObjectError, Objects};
use weir_format::{BlockPointer, Dnode, Endian, ObjectId, ObjectType, Objset};
use weir_machine::Request;
use weir_pool::Pool;
use weir_pool::walk::{Claim, Prove, Root, Visit, VisitPosition, Walk};
use weir_sim::{SimWorld, Timing};

/// Bytes of every block of the crafted trees, and the number of pointers in a block.
const BLOCK_BYTES: u64 = 16 << 10;
const WIDTH: u64 = BLOCK_BYTES / BlockPointer::SIZE as u64;
/// Levels above the data: 2⁵⁶ blocks of data.
const TOP_LEVEL: u64 = 8;
/// Maximum steps of listing a tree: a few for each distinct block.
const MAX_STEPS: u64 = 200_000;

/// Birth txg that marks the crafted blocks.
const CRAFTED_BIRTH: u64 = 77_777;

/// Pointer to the one block of a level. The crafter supplies its contents, whatever is on the disk.
fn pointer(level: u64, kind: ObjectType, fill: u64) -> BlockPointer {
    const OFF: u64 = 2;
    let sectors = BLOCK_BYTES >> 9;
    let mut words = [0; 16];
    words[0] = sectors;
    words[1] = (level + 8) * sectors;
    words[6] =
        (sectors - 1) | (sectors - 1) << 16 | OFF << 32 | OFF << 40 | u64::from(kind.0) << 48 | level << 56 | 1 << 63;
    words[10] = CRAFTED_BIRTH;
    words[11] = fill;
    BlockPointer::from_words(words)
}

fn crafted(dnode: &Dnode) -> Dnode {
    let mut dnode = dnode.clone();
    dnode.levels = TOP_LEVEL as u8 + 1;
    dnode.indirect_shift = BLOCK_BYTES.trailing_zeros() as u8;
    dnode.data_block_bytes = BLOCK_BYTES as u32;
    dnode.max_block_id = u64::MAX >> 8;
    let top = pointer(TOP_LEVEL, dnode.object_type, WIDTH.saturating_pow(TOP_LEVEL as u32));
    dnode.block_pointers.iter_mut().for_each(|p| *p = top);
    dnode
}

/// Crafts the meta dnode: each leaf is the same block of dnodes. With `objects` it holds one object with an equally wide
/// data tree, otherwise none, which contradicts the fill counts.
fn crafter(armed: Arc<AtomicBool>, objects: bool) -> PointerForger {
    PointerForger::new(move |bp, stage, bytes| {
        if stage != Stage::Logical || !armed.load(Ordering::Relaxed) {
            return;
        }
        let child =
            |level: u64| pointer(level, bp.object_type(), WIDTH.saturating_pow(level as u32)).encode(Endian::Little);
        match (bp.object_type(), bp.level()) {
            (ObjectType::OBJSET, _) => {
                let mut set = Objset::decode(bytes, bp.endian()).unwrap();
                set.meta_dnode = set.meta_dnode.as_ref().map(crafted);
                bytes.copy_from_slice(&set.encode(bytes.len(), bp.endian()));
            }
            _ if bp.birth().0 != CRAFTED_BIRTH => {}
            (_, level @ 1..) => {
                let child = child(u64::from(level) - 1);
                bytes.chunks_exact_mut(BlockPointer::SIZE).for_each(|to| to.copy_from_slice(&child));
            }
            (ObjectType::DNODE, 0) => {
                bytes.fill(0);
                if objects {
                    let mut file = blank();
                    file.object_type = ObjectType::PLAIN_FILE_CONTENTS;
                    let file = crafted(&file).encode();
                    bytes[Dnode::SLOT..2 * Dnode::SLOT].copy_from_slice(&file);
                }
            }
            _ => {}
        }
    })
}

/// Dnode with one block pointer.
fn blank() -> Dnode {
    let mut bytes = [0; Dnode::SLOT];
    // Object type, indirect block shift, levels, number of pointers; sectors of a data block.
    bytes[..4].copy_from_slice(&[ObjectType::PLAIN_FILE_CONTENTS.0, 14, 1, 1]);
    bytes[8] = 1;
    Dnode::decode(&bytes, Endian::Little).unwrap().unwrap()
}

/// Counts the blocks that a traversal visits.
#[derive(Default)]
struct Count(u64);

impl Visit for Count {
    fn block(&mut self, _: &VisitPosition, _: &BlockPointer) -> bool {
        self.0 += 1;
        true
    }
    fn claim(&mut self, _: &VisitPosition, _: &BlockPointer, _: Claim) {}
    fn unreadable(&mut self, _: &VisitPosition, _: &BlockPointer, _: &weir_blocks::BlockError) {}
}

fn assert_two_places(error: &ObjectError, object: ObjectId) {
    let text = error.to_string();
    let names = matches!(error, ObjectError::Corrupt { place, .. } if place.object == object);
    assert!(names && text.contains("two places"), "{text}");
}

/// Runs `ask` on a pool whose file system trees are replaced by crafted ones after it is opened.
fn with_crafted_trees(objects: bool, ask: impl AsyncFnOnce(&Request, &Pool)) {
    let Some(golden) = Golden::unpack("single-a9") else { return };
    let world = SimWorld::new(1);
    world.limit_steps(MAX_STEPS);
    for device in &golden.devices {
        world.add_image(Path::new("/sim").join(device), &golden.folder.path().join(device), Timing::Nvme).unwrap();
    }
    let armed = Arc::new(AtomicBool::new(false));
    let mut options = drive::options(Path::new("/sim"), &golden.pool, &golden.keys);
    options.forger = Some(crafter(armed.clone(), objects));
    let machine = world.machine();
    let ran = world.run(async {
        let pool = Pool::open(&machine, &options).await.unwrap();
        armed.store(true, Ordering::Relaxed);
        ask(&Request::internal("wide"), &pool).await;
    });
    ran.unwrap();
}

#[test]
fn false_fill_counts_are_not_followed_endlessly() {
    with_crafted_trees(false, async |rq, pool| {
        let set = pool.object_set(rq, "g-single-a9/child").await.unwrap();
        let error = set.dnodes().next_object(rq, ObjectId(1)).await.unwrap_err();
        assert!(error.to_string().contains("wrong fill counts"), "{error}");
        let error = Objects::of(&set).next(rq).await.unwrap_err();
        assert_two_places(&error, ObjectId(0));
    });
}

#[test]
fn a_tree_wider_than_the_pool_is_listed_once() {
    with_crafted_trees(true, async |rq, pool| {
        let set = pool.object_set(rq, "g-single-a9/child").await.unwrap();
        assert_eq!(set.dnodes().next_object(rq, ObjectId(1)).await.unwrap(), Some(ObjectId(1)));
        let mut objects = Objects::of(&set);
        let mut found = 0;
        let error = loop {
            match objects.next(rq).await {
                Ok(next) => found += u64::from(next.unwrap().1.is_ok()),
                Err(error) => break error,
            }
        };
        assert_two_places(&error, ObjectId(0));
        assert_eq!(found, WIDTH, "the children of one indirect block");
        let file = set.object(rq, ObjectId(1)).await.unwrap();
        let mut blocks = DataBlocks::of(&set, &file);
        let mut found = 0;
        let error = loop {
            match blocks.next(rq).await {
                Ok(next) => found += next.map_or(0, |_| 1),
                Err(error) => break error,
            }
        };
        assert_two_places(&error, ObjectId(1));
        assert_eq!(found, WIDTH);
    });
}

#[test]
fn a_traversal_reads_each_indirect_block_once() {
    with_crafted_trees(true, async |rq, pool| {
        let set = pool.object_set(rq, "g-single-a9/child").await.unwrap();
        let machine = pool.machine.clone();
        let blocks = pool.blocks.clone();
        let walk = Walk { machine, blocks, prove: Prove::Nothing, log_before: weir_format::Txg(u64::MAX) };
        let root = Root { objset: set.id(), pointer: set.pointer(), after: weir_format::Txg(0), log: false };
        let mut count = Count::default();
        walk.run(vec![root], &mut count).await;
        assert!(count.0 > WIDTH && count.0 < 40 * WIDTH, "{} blocks", count.0);
    });
}
