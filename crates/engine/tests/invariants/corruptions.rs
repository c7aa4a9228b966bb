//! Corrupted pools: the check reports the class of each single change.

use crate::check;
use std::path::PathBuf;
use weir_blocks::fault_injection::{PointerForger, Stage};
use weir_dmu::live::{NewObject, SpaceReserve};
use weir_dmu::{ObjectSet, zap};
use weir_dsl::sync_tasks::snapshot;
use weir_engine::TxgSync;
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_format::{BlockPointer, ObjectType};
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::invariants::Part;

const BLOCK_BYTES: u64 = 16 << 10;
/// Bytes of a dnode slot.
const SLOT: usize = 512;
/// Object type of the test's files; no other object of the pool has it.
const FILE: ObjectType = ObjectType::PLAIN_FILE_CONTENTS;

/// Number of entries that requires a fat ZAP with several leaves.
const NAMES: u64 = 3000;

async fn write(set: &std::sync::Arc<ObjectSet>, id: weir_format::ObjectId, blocks: std::ops::Range<u64>, byte: u8) {
    let rq = &Request::internal("test");
    let tx = set.begin(rq, (blocks.end - blocks.start) * BLOCK_BYTES, SpaceReserve::Normal).await.unwrap();
    for block in blocks {
        let bytes: Vec<u8> = (0..BLOCK_BYTES).map(|i| byte.wrapping_add((i * block % 251) as u8) | 1).collect();
        set.writes().write(rq, &tx, id, block * BLOCK_BYTES, &bytes).await.unwrap();
    }
}

/// Creates a pool with a two-level file with a hole, a fat ZAP, a snapshot and blocks freed since the snapshot.
fn pool(machine: &Machine) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("corruptions");
    let _absent = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("d0");
    std::fs::File::create(&path).unwrap().set_len(96 << 20).unwrap();
    let leaves = vec![NewLeaf { path, is_file: true }];
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves };
    machine.block_on(async {
        let engine = Engine::create(machine, &CreateOptions::new("tank", vec![top])).await.unwrap();
        let rq = &Request::internal("test");
        let set = engine.open_set(rq, "tank", None).await.unwrap();
        let tx = set.begin(rq, 1 << 20, SpaceReserve::Normal).await.unwrap();
        let file = set.changes().create(rq, &tx, &NewObject::new(FILE, BLOCK_BYTES as u32)).await.unwrap();
        let names = zap::create(rq, &set, &tx, &zap::NewZap::new(ObjectType::DIRECTORY_CONTENTS)).await.unwrap();
        for n in 0..NAMES {
            zap::put_word(rq, &set, &tx, names, &format!("name {n}"), n).await.unwrap();
        }
        drop(tx);
        write(&set, file, 0..150, 3).await;
        engine.sync().await.unwrap();
        engine
            .sync_task(|syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    Ok(snapshot::snapshot(&mut syncing.change, &["tank@s".to_owned()], &[]).await.map(drop)?)
                })
            })
            .await
            .unwrap();
        write(&set, file, 20..30, 90).await;
        engine.stop().await.unwrap();
    });
    dir
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn add(bytes: &mut [u8], at: usize, n: u64) {
    let sum = word(bytes, at).wrapping_add(n);
    bytes[at..at + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Changes indirect blocks of files.
fn indirect(change: fn(&mut [u8])) -> PointerForger {
    PointerForger::new(move |pointer: &BlockPointer, stage, bytes: &mut [u8]| {
        if stage == Stage::Logical && pointer.level() == 1 && pointer.object_type() == FILE {
            change(bytes);
        }
    })
}

/// Changes dnodes with an object type or bonus type of `kind`. `change` gets the dnode and the offset of its bonus area.
fn dnode(kind: ObjectType, change: fn(&mut [u8], usize)) -> PointerForger {
    PointerForger::new(move |pointer: &BlockPointer, stage, bytes: &mut [u8]| {
        if stage != Stage::Logical || pointer.level() != 0 || pointer.object_type() != ObjectType::DNODE {
            return;
        }
        for slot in bytes.chunks_exact_mut(SLOT) {
            if slot[0] != 0 && (slot[0] == kind.0 || slot[4] == kind.0) {
                // The bonus area follows the block pointers.
                let bonus = 64 + 128 * usize::from(slot[3]);
                change(slot, bonus);
            }
        }
    })
}

/// Renames every entry that begins with `name` in ZAPs of the MOS.
fn renamed(name: &'static [u8]) -> PointerForger {
    PointerForger::new(move |pointer: &BlockPointer, stage, bytes: &mut [u8]| {
        if stage == Stage::Logical && pointer.level() == 0 {
            let places: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(name)).collect();
            places.into_iter().for_each(|at| bytes[at] = b'x');
        }
    })
}

/// Changes blocks of ZAPs whose first word is `first`.
fn zap_block(first: u64, change: fn(&mut [u8])) -> PointerForger {
    PointerForger::new(move |pointer: &BlockPointer, stage, bytes: &mut [u8]| {
        let is_zap = pointer.level() == 0 && pointer.object_type() == ObjectType::DIRECTORY_CONTENTS;
        if stage == Stage::Logical && is_zap && word(bytes, 0) == first {
            change(bytes);
        }
    })
}

const LEAF: u64 = 1 << 63;
const HEADER: u64 = (1 << 63) + 1;

/// Returns for each corruption its name, the class of faults, a part of the finding's text, and the corrupter.
fn corruptions() -> Vec<(&'static str, Part, &'static str, PointerForger)> {
    let mut all = vec![
        ("level of a pointer", Part::Pointer, "pointer of level 2", indirect(|b| b[55] = b[55] & !31 | 2)),
        ("size of a pointer", Part::Pointer, "a pointer to", indirect(|b| b[48] ^= 1)),
        ("birth of a pointer", Part::Pointer, "born in txg", indirect(|b| add(b, 80, 1 << 20))),
        ("type of a pointer", Part::Pointer, "type ", indirect(|b| b[54] = ObjectType::ZVOL.0)),
        ("fill of a data block", Part::Pointer, "fill 2", indirect(|b| add(b, 128 * 2 + 88, 1))),
        (
            "hole of a lower level",
            Part::Pointer,
            "pointer of level 0",
            dnode(FILE, |d, _| {
                d[64..192].fill(0);
                // A hole of 16 KiB at level 0, born in txg 1.
                d[64 + 48] = 31;
                d[64 + 54] = FILE.0;
                d[64 + 80] = 1;
            }),
        ),
        ("used bytes", Part::Dnode, "its blocks take", dnode(FILE, |d, _| add(d, 24, 512))),
        ("last block", Part::Pointer, "beyond the object's last block", dnode(FILE, |d, _| d[16..24].fill(0))),
        ("levels", Part::Dnode, "do not reach block", dnode(FILE, |d, _| add(d, 16, 1 << 30))),
        ("bonus without a type", Part::Dnode, "bonus type", dnode(FILE, |d, _| d[10] = 8)),
        ("accounting in the MOS", Part::Dnode, "user accounting", dnode(ObjectType::DSL_DIR, |d, _| d[7] |= 2)),
        ("entries of a ZAP", Part::Zap, "zap_num_entries", zap_block(HEADER, |b| add(b, 72, 1))),
        ("leaves of a ZAP", Part::Zap, "zap_num_leafs", zap_block(HEADER, |b| add(b, 64, 1))),
        ("free block of a ZAP", Part::Zap, "zap_freeblk", zap_block(HEADER, |b| add(b, 56, 1 << 20))),
        ("table of a ZAP", Part::Zap, "lead to it", zap_block(LEAF, |b| add(b, 16, 1))),
        ("free chunks of a leaf", Part::Zap, "lh_nfree", zap_block(LEAF, |b| b[28] ^= 1)),
        ("entries of a leaf", Part::Zap, "lh_nentries", zap_block(LEAF, |b| b[30] ^= 1)),
        ("salt of a ZAP", Part::Zap, "an entry of hash", zap_block(HEADER, |b| add(b, 80, 2))),
        ("used by a directory", Part::Dsl, "used ", dnode(ObjectType::DSL_DIR, |d, bonus| add(d, bonus + 40, 512))),
        ("parent of a directory", Part::Dsl, "parent", dnode(ObjectType::DSL_DIR, |d, bonus| add(d, bonus + 16, 1))),
        (
            "children of a snapshot",
            Part::Dsl,
            "children",
            dnode(ObjectType::DSL_DATASET, |d, bonus| add(d, bonus + 40, 1)),
        ),
        (
            "txg of a snapshot",
            Part::Dsl,
            "that one was made in",
            dnode(ObjectType::DSL_DATASET, |d, bonus| add(d, bonus + 16, 1)),
        ),
    ];
    all.extend(more_corruptions());
    all
}

/// Corruptions of object sets, space maps and DSL objects.
fn more_corruptions() -> Vec<(&'static str, Part, &'static str, PointerForger)> {
    vec![
        (
            "referenced bytes",
            Part::Dsl,
            "refers to",
            dnode(ObjectType::DSL_DATASET, |d, bonus| add(d, bonus + 72, 512)),
        ),
        ("unique bytes", Part::Dsl, "unique", dnode(ObjectType::DSL_DATASET, |d, bonus| add(d, bonus + 96, 512))),
        (
            "sums of a deadlist",
            Part::Deadlist,
            "its lists have",
            dnode(ObjectType::DEADLIST_HDR, |d, bonus| add(d, bonus, 512)),
        ),
        (
            "sums of a list",
            Part::Deadlist,
            "its pointers and lists have",
            dnode(ObjectType::BPOBJ_HDR, |d, bonus| add(d, bonus + 8, 512)),
        ),
        (
            "pointers of a list",
            Part::Deadlist,
            "pointers",
            dnode(ObjectType::BPOBJ_HDR, |d, bonus| add(d, bonus, 1 << 20)),
        ),
        (
            "histogram",
            Part::SpaceMap,
            "smp_histogram",
            dnode(ObjectType::SPACE_MAP_HEADER, |d, bonus| add(d, bonus + 64 + 8 * 18, 1)),
        ),
        (
            "sum of a space map",
            Part::SpaceMap,
            "smp_alloc",
            dnode(ObjectType::SPACE_MAP_HEADER, |d, bonus| add(d, bonus + 16, 512)),
        ),
        (
            "header of a space map",
            Part::Feature,
            "spacemap_histogram",
            dnode(ObjectType::SPACE_MAP_HEADER, |d, _| d[10..12].copy_from_slice(&24u16.to_le_bytes())),
        ),
        ("disabled feature in use", Part::Feature, "counted 0", renamed(b"com.delphix:spacemap_")),
    ]
}

#[test]
fn each_corruption_is_found() {
    let machine = weir_linux::machine().unwrap();
    let dir = pool(&machine);
    let sound = machine.block_on(check(&machine, &dir, None)).unwrap();
    assert!(sound.is_clean(), "before the corruption: {:#?}", sound.findings);
    let mut not_found = Vec::new();
    for (name, part, words, forger) in corruptions() {
        match machine.block_on(check(&machine, &dir, Some(forger))) {
            Ok(report) => {
                let found = report.findings.iter().any(|f| f.part == part && f.to_string().contains(words));
                if !found {
                    let all: Vec<String> = report.findings.iter().take(4).map(ToString::to_string).collect();
                    not_found.push(format!("{name}: not found; {} findings {all:#?}", report.count));
                }
            }
            Err(error) => not_found.push(format!("{name}: {error}")),
        }
    }
    assert!(not_found.is_empty(), "{}", not_found.join("\n"));
    std::fs::remove_dir_all(&dir).unwrap();
}
