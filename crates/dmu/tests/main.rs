//! Object sets on a simulated disk: built by hand, read, then damaged at random.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::sync::Arc;
use std::time::Duration;
use weir_blocks::{Blocks, CacheClass, Tree, vdev::VdevSpec};
use weir_cache::Cache;
use weir_codec::Salt;
use weir_dmu::zap::{Match, Zap};
use weir_dmu::{ObjectError, ObjectSet, Opening, Seek};
use weir_format::zap::{MicroEntry, MicroZap, NormFlags};
use weir_format::{BlockPointer, Endian, ObjectId, ObjectType};
use weir_machine::{Access, Buf, Request};
use weir_sim::{SimWorld, Timing};

const FRONT: u64 = 4 << 20;
const DISK: u64 = 16 << 20;
const SPACE: u64 = 8 << 20;

/// Consecutive blocks without checksums, because an attacker could compute valid ones.
#[derive(Clone, Default)]
struct Image(Vec<u8>);

impl Image {
    fn put(&mut self, bytes: &[u8], kind: ObjectType, level: u8, fill: u64) -> BlockPointer {
        let (at, len) = (self.0.len() as u64, bytes.len().next_multiple_of(512) as u64);
        self.0.extend_from_slice(bytes);
        self.0.resize((at + len) as usize, 0);
        let sectors = len >> 9;
        let mut words = [0; 16];
        words[0] = sectors;
        words[1] = at >> 9;
        words[6] = (sectors - 1) | (sectors - 1) << 16 | 2 << 32 | 2 << 40;
        words[6] |= u64::from(kind.0) << 48 | u64::from(level) << 56 | 1 << 63;
        words[10] = 1;
        words[11] = fill;
        BlockPointer::from_words(words)
    }
}

struct NewDnode {
    kind: ObjectType,
    block_bytes: u32,
    levels: u8,
    last_block: u64,
    pointer: BlockPointer,
}

impl NewDnode {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 512];
        out[..8].copy_from_slice(&[self.kind.0, 10, self.levels, 1, 0, 0, 0, 1]);
        out[8..10].copy_from_slice(&((self.block_bytes >> 9) as u16).to_le_bytes());
        out[16..24].copy_from_slice(&self.last_block.to_le_bytes());
        out[64..192].copy_from_slice(&self.pointer.encode(Endian::Little));
        out
    }
}

fn indirect(pointers: &[(usize, BlockPointer)]) -> Vec<u8> {
    let mut out = vec![0; 1024];
    for (index, pointer) in pointers {
        out[index * 128..][..128].copy_from_slice(&pointer.encode(Endian::Little));
    }
    out
}

/// Object 1: a file of 512-byte blocks under three levels, with data in the blocks 0, 9 and 63. Object 2: a micro ZAP.
/// Object 3: a file whose indirect block leads to itself one level up.
fn sample() -> (Image, BlockPointer) {
    let mut image = Image::default();
    let file = ObjectType::PLAIN_FILE_CONTENTS;
    let data = |image: &mut Image, byte: u8| image.put(&[byte; 512], file, 0, 1);
    let a = data(&mut image, 1);
    let b = data(&mut image, 2);
    let c = data(&mut image, 3);
    let l1 = [image.put(&indirect(&[(0, a)]), file, 1, 1), image.put(&indirect(&[(1, b)]), file, 1, 1)];
    let last = image.put(&indirect(&[(7, c)]), file, 1, 1);
    let l2 = image.put(&indirect(&[(0, l1[0]), (1, l1[1]), (7, last)]), file, 2, 3);
    let entries: Vec<String> = (0..100).map(|n| format!("name{n}")).collect();
    let entries: Vec<_> =
        (0..).zip(&entries).map(|(value, name)| MicroEntry { name: name.as_bytes(), value, cd: 0 }).collect();
    let zap = MicroZap::encode(7, NormFlags(NormFlags::TO_UPPER), &entries, 8192, Endian::Little).unwrap();
    let zap = image.put(&zap, ObjectType::DIRECTORY_CONTENTS, 0, 1);
    let forged = image.put(&indirect(&[(0, l2)]), file, 2, 1);
    let dnodes = [
        NewDnode { kind: file, block_bytes: 512, levels: 3, last_block: 63, pointer: l2 },
        NewDnode { kind: ObjectType::DIRECTORY_CONTENTS, block_bytes: 8192, levels: 1, last_block: 0, pointer: zap },
        NewDnode { kind: file, block_bytes: 512, levels: 3, last_block: 63, pointer: forged },
    ];
    let mut block = vec![0; 512];
    dnodes.iter().for_each(|d| block.extend(d.encode()));
    block.resize(16384, 0);
    let pointer = image.put(&block, ObjectType::DNODE, 0, 3);
    let meta = NewDnode { kind: ObjectType::DNODE, block_bytes: 16384, levels: 1, last_block: 0, pointer };
    let mut header = meta.encode();
    header.resize(1024, 0);
    header[704] = 2;
    let root = image.put(&header, ObjectType::OBJSET, 0, 3);
    (image, root)
}

async fn open(world: SimWorld, image: Image, root: BlockPointer) -> Result<Arc<ObjectSet>, ObjectError> {
    world.add_disk("/d", DISK, 512, Timing::Nvme);
    let machine = world.machine();
    let disk = machine.disks.open("/d".as_ref(), Access::ReadWrite).unwrap();
    disk.write(FRONT, Buf::copy_from(&image.0)).await.unwrap();
    let leaf = VdevSpec::leaf(0, 1, "d", Some(disk)).top(9, SPACE);
    let blocks = Arc::new(Blocks::new(&machine, Tree::new(vec![leaf], &machine.clock).unwrap(), Salt::none()));
    let cache = Cache::new(machine, blocks, 4 << 20);
    ObjectSet::open(&Request::internal("test"), cache, root, Opening::default()).await
}

fn with_sample<T: 'static, F: Future<Output = T> + 'static>(
    test: impl FnOnce(Arc<ObjectSet>, Request) -> F + 'static,
) -> T {
    let world = SimWorld::new(1);
    let (image, root) = sample();
    let inner = world.clone();
    world
        .run(async move {
            let set = open(inner, image, root).await.unwrap();
            test(set, Request::internal("test")).await
        })
        .unwrap()
}

#[test]
fn bytes_come_through_levels_and_holes_are_zeros() {
    with_sample(|set, rq| async move {
        let file = set.object(&rq, ObjectId(1)).await.unwrap();
        let end = 64 * 512 - 100;
        let all = set.reader().read(&rq, &file, 0, 1 << 20, end).await.unwrap();
        assert_eq!(all.len() as u64, end, "clipped at the end that the reader knows");
        let byte = |at: usize| match at / 512 {
            0 => 1,
            9 => 2,
            63 => 3,
            _ => 0,
        };
        assert!(all.iter().enumerate().all(|(at, b)| *b == byte(at)));
        let part = set.reader().read(&rq, &file, 9 * 512 - 3, 7, end).await.unwrap();
        assert_eq!(&part[..], [0, 0, 0, 2, 2, 2, 2]);
        assert!(set.reader().read(&rq, &file, end, 10, end).await.unwrap().is_empty());
        let words = set.reader().read_words(&rq, &file, 63, 2).await.unwrap();
        assert_eq!(words, [0x0101_0101_0101_0101, 0]);
    });
}

/// The property `prefetch` decides which objects are read ahead.
#[test]
fn files_are_read_ahead_if_their_dataset_says_so() {
    for (class, expected) in [(CacheClass::All, true), (CacheClass::Metadata, false), (CacheClass::None, false)] {
        let prefetches = with_sample(move |set, rq| async move {
            set.set_prefetch_class(class);
            let file = set.object(&rq, ObjectId(1)).await.unwrap();
            let before = set.cache().stats().prefetches;
            for at in [0, 2048] {
                set.reader().read(&rq, &file, at, 2048, 64 * 512).await.unwrap();
            }
            set.cache().machine().clock.sleep(Duration::from_secs(1)).await;
            set.cache().stats().prefetches - before
        });
        assert_eq!(prefetches > 0, expected, "{class:?}: {prefetches}");
    }
}

#[test]
fn seeks_are_exact_to_the_block() {
    with_sample(|set, rq| async move {
        let file = set.object(&rq, ObjectId(1)).await.unwrap();
        let end = 64 * 512;
        let mut found = Vec::new();
        for (from, what) in [
            (0, Seek::Data),
            (5, Seek::Hole),
            (512, Seek::Data),
            (9 * 512 + 7, Seek::Data),
            (10 * 512, Seek::Data),
            (63 * 512, Seek::Hole),
        ] {
            found.push(set.reader().seek(&rq, &file, from, end, what).await.unwrap());
        }
        let block = |n: u64| Some(n * 512);
        assert_eq!(found, [block(0), block(1), block(9), Some(9 * 512 + 7), block(63), None]);
    });
}

#[test]
fn a_pointer_of_another_level_is_found_out() {
    with_sample(|set, rq| async move {
        let file = set.object(&rq, ObjectId(3)).await.unwrap();
        let read = set.reader().read(&rq, &file, 0, 512, 512).await;
        assert!(matches!(&read, Err(e) if e.is_corrupt()), "{read:?}");
        assert!(set.reader().seek(&rq, &file, 0, 1 << 15, Seek::Data).await.is_err());
    });
}

#[test]
fn a_micro_zap_pages_by_cookie_and_folds_case() {
    with_sample(|set, rq| async move {
        let zap = Zap::open(&rq, &set, ObjectId(2)).await.unwrap();
        let value = zap.lookup(&rq, b"NAME7", Match::Normalized).await.unwrap();
        assert_eq!(value.and_then(|v| v.first()), Some(7));
        assert_eq!(zap.lookup(&rq, b"NAME7", Match::Exact).await.unwrap(), None);
        let mut seen = Vec::new();
        let mut cookie = 0;
        loop {
            let page = zap.entries(&rq, cookie, 7).await.unwrap();
            let Some(last) = page.last() else { break };
            cookie = last.cookie;
            seen.extend(page.iter().map(|e| e.value.words[0]));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>(), "each entry once");
    });
}

#[test]
fn free_numbers_are_no_objects_and_the_rest_is_found_in_order() {
    with_sample(|set, rq| async move {
        for id in [4, 31, 32, 1 << 40, u64::MAX - 5] {
            let object = set.object(&rq, ObjectId(id)).await.map(|_| ());
            assert!(matches!(&object, Err(e) if e.is_absent()), "{id}: {object:?}");
        }
        let mut all = Vec::new();
        let mut next = ObjectId(0);
        while let Some(id) = set.dnodes().next_object(&rq, next).await.unwrap() {
            all.push(id.0);
            next = ObjectId(id.0 + 1);
        }
        assert_eq!(all, [1, 2, 3]);
    });
}

/// Calls every reader; errors are accepted, panics are not.
async fn read_everything(set: &Arc<ObjectSet>, rq: &Request) {
    for id in 0..5 {
        let Ok(object) = set.object(rq, ObjectId(id)).await else { continue };
        let _ = set.reader().read(rq, &object, 0, 1 << 16, u64::MAX).await;
        let _ = set.reader().read(rq, &object, object.span_bytes().saturating_sub(5), 1 << 12, u64::MAX).await;
        for what in [Seek::Data, Seek::Hole] {
            let _ = set.reader().seek(rq, &object, 600, u64::MAX, what).await;
        }
        let _ = set.reader().read_spill(rq, &object).await;
        if let Ok(zap) = Zap::of(rq, set, object).await {
            let _ = zap.lookup(rq, b"name3", Match::Normalized).await;
            let _ = zap.lookup_words(rq, &[1, 2]).await;
            let _ = zap.all(rq, 1000).await;
        }
    }
    let _ = set.dnodes().next_object(rq, ObjectId(2)).await;
}

#[test]
fn whatever_the_bytes_are_nothing_panics_and_everything_ends() {
    let (clean, root) = sample();
    let mut x = 0x2545_f491_4f6c_dd1du64;
    let mut next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    for _ in 0..400 {
        let mut image = clean.clone();
        for _ in 0..1 + next() % 12 {
            // Damages pointers and headers, mostly in fields that matter.
            let at = (next() % image.0.len() as u64) as usize;
            image.0[at] = if next() % 2 == 0 { next() as u8 } else { 1 << (next() % 8) };
        }
        let world = SimWorld::new(next());
        let inner = world.clone();
        let job = async move {
            let rq = Request::internal("test");
            if let Ok(set) = open(inner, image, root).await {
                read_everything(&set, &rq).await;
            }
        };
        world.run(job).unwrap();
    }
}
