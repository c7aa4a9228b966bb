//! Observers of a pool's devices get each fault with the device and its offset.

use crate::store::*;
use std::sync::{Arc, Mutex};
use weir_blocks::fault_observer::FaultKind;
use weir_blocks::{Bookmark, FaultObserver, ReadOptions, VdevKind};
use weir_format::ObjsetId;
use weir_machine::Request;
use weir_sim::{Fault, Timing};

/// Kind of fault, leaf, offset and length on it; with the block's number if known.
type Fact = (&'static str, u64, u64, u64, Option<u64>);

/// Records the faults.
#[derive(Default)]
struct Recorder(Mutex<Vec<Fact>>);

impl FaultObserver for Recorder {
    fn fault(&self, fault: &weir_blocks::Fault<'_>) {
        let what = match fault.what {
            FaultKind::Checksum(_) => "checksum",
            FaultKind::Read(_) => "read",
            FaultKind::Write(_) => "write",
            FaultKind::Flush(_) => "flush",
            FaultKind::Lost(_) => "lost",
        };
        let (leaf, offset, size) = fault.spot.map_or((0, 0, 0), |s| (s.leaf, s.offset_bytes, s.size_bytes));
        self.0.lock().unwrap().push((what, leaf, offset, size, fault.about.origin.map(|origin| origin.block)));
    }
}

impl Recorder {
    /// Returns the faults since the last call, sorted.
    fn news(&self) -> Vec<Fact> {
        let mut all = std::mem::take(&mut *self.0.lock().unwrap());
        all.sort_unstable();
        all
    }
}

#[test]
fn an_observer_gets_the_device_and_the_offset() {
    let bench = Bench::new(7, 2, Timing::Nvme);
    let blocks = pool_of(&bench, VdevKind::Mirror, 12, 2, &[]);
    let synced_allocated = Arc::new(Recorder::default());
    blocks.tree().set_fault_observer(synced_allocated.clone());
    let guids: Vec<u64> = blocks.tree().health().iter().map(|leaf| leaf.guid).collect();
    let pointer = write(&bench, &blocks, &pattern(8192, 1), &options()).unwrap();
    blocks.synced(TXG, true);
    let at = FRONT + pointer.dva(0).offset_bytes;
    let size = pointer.psize_bytes().next_multiple_of(4096);
    let origin = Some(Bookmark { objset: ObjsetId(5), object: 6, level: 0, block: 7 });
    let options = ReadOptions { origin, ..ReadOptions::default() };
    let read = || {
        let rq = Request::internal("test");
        bench.world.run(blocks.read(&rq, &pointer, &options)).unwrap().map(drop)
    };
    read().unwrap();
    assert_eq!(synced_allocated.news(), []);
    bench.disks[0].lay(Fault::Rot { offset: at, len: size, bits: 99 });
    bench.disks[1].lay(Fault::Unreadable { offset: at, len: 4096 });
    read().unwrap_err();
    let wrong =
        [("checksum", guids[0], at, size, Some(7)), ("lost", 0, 0, 0, Some(7)), ("read", guids[1], at, size, Some(7))];
    assert_eq!(synced_allocated.news(), wrong);
    let gone = bench.disks[0].lay(Fault::Gone);
    let other = write(&bench, &blocks, &pattern(8192, 2), &crate::store::options()).unwrap();
    let place = FRONT + other.dva(0).offset_bytes;
    assert_eq!(synced_allocated.news(), [("write", guids[0], place, size, None)]);
    bench.disks[0].lift(gone);
    bench.disks[1].lay(Fault::FailNth { nth: 0, errno: 5 });
    // Now neither side keeps it.
    bench.world.run(async move { blocks.tree().flush().await }).unwrap().unwrap_err();
    assert_eq!(synced_allocated.news(), [("flush", guids[1], 0, 0, None)]);
}
