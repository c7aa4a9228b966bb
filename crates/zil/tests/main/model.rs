//! Model of a pool that contains only a log: a simulated disk with log blocks, a syncer that writes headers, and a list
//! of the changes made.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use weir_blocks::{Blocks, ReadOptions, Tree, vdev::VdevSpec};
use weir_cache::Cache;
use weir_codec::Salt;
use weir_codec::checksum::embedded::{Verifier, seal_embedded};
use weir_dmu::{ObjectError, ObjectSet, Opening, Tx, TxgTracker};
use weir_format::cursor::{Cursor, Endian};
use weir_format::encoder::Encoder;
use weir_format::zil::{LogBody, ZilHeader};
use weir_format::{BlockPointer, ChecksumKind, Dva, ObjectId, ObjectType, ObjsetId, Txg};
use weir_machine::{Access, Buf, Disk, Machine, Request};
use weir_sim::Rng;
use weir_zil::pack::MIN_BLOCK_BYTES;
use weir_zil::{self, Claim, LogData, LogOpening, LogStore, LogWalk, Policy, SyncMode, Zil};

pub const PATH: &str = "/sim/log";
pub const DISK: u64 = 128 << 20;
const BLOCKS_START: u64 = 4 << 20;
const SECTOR: usize = 4096;
/// Number of header slots; each header is stored with its txg.
const HEADER_SLOTS: u64 = 64;
const MAGIC: u64 = 0x6d6f_6465_6c21;
const OWNER: ObjsetId = ObjsetId(54);

/// Change that a client made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Creation of a name.
    Create,
    /// Write of `bytes` bytes to an object, at an offset that is unique to this change.
    Write { object: u64, bytes: u64 },
}

#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub client: u64,
    pub op: Op,
    pub txg: Txg,
    /// Whether a later commit returned.
    pub acknowledged: bool,
}

/// Facts that only the test knows.
#[derive(Default)]
pub struct Known {
    pub changes: Vec<Change>,
    /// Txg in which each block was allocated, by the block's offset.
    pub allocated: BTreeMap<u64, Txg>,
    /// Txg that freed each block, by the block's offset.
    pub freed: BTreeMap<u64, Txg>,
    /// Number of allocations so far; `broken` is set when a planted fault has happened.
    pub allocations: u64,
    pub broken: bool,
    pub flushes: u64,
    pub writes: u64,
}

/// Probabilities of store faults, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub failed_writes: u64,
    pub failed_flushes: u64,
    pub failed_allocations: u64,
}

pub struct Pool {
    pub machine: Machine,
    pub disk: Arc<dyn Disk>,
    pub txgs: Arc<TxgTracker>,
    pub known: Mutex<Known>,
    rng: Mutex<Rng>,
    faults: Faults,
    next: AtomicU64,
}

/// Bytes of a change: any part of them differs from any other.
pub fn contents(change: usize, from: u64, bytes: u64) -> Bytes {
    (from..from + bytes).map(|at| (at ^ at >> 8 ^ (change as u64 * 37)) as u8).collect()
}

/// Offset of the range that is unique to the change.
pub fn offset_of(change: usize) -> u64 {
    (change as u64) << 24
}

impl Pool {
    pub fn new(machine: &Machine, seed: u64, faults: Faults) -> Arc<Self> {
        Pool::of(machine, seed, faults, Txg(9))
    }

    /// Pool whose last synced txg is `synced`.
    pub fn of(machine: &Machine, seed: u64, faults: Faults, synced: Txg) -> Arc<Self> {
        let disk = machine.disks.open(PATH.as_ref(), Access::ReadWrite).unwrap();
        Arc::new(Pool {
            machine: machine.clone(),
            disk,
            txgs: TxgTracker::new(synced),
            known: Mutex::default(),
            rng: Mutex::new(Rng::new(seed)),
            faults,
            next: AtomicU64::new(HEADER_SLOTS * SECTOR as u64),
        })
    }

    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap()
    }

    /// Number of block writes and of flushes so far.
    pub fn counts(&self) -> (u64, u64) {
        let known = self.known();
        (known.writes, known.flushes)
    }

    fn chance(&self, percent: u64) -> bool {
        percent > 0 && self.rng.lock().unwrap().chance(percent, 100)
    }

    pub fn log(self: &Arc<Self>, header: ZilHeader) -> Arc<Zil> {
        Zil::new(LogOpening {
            accounts: Arc::default(),
            machine: self.machine.clone(),
            set: OWNER,
            txgs: self.txgs.clone(),
            store: Arc::new(Store(self.clone())),
            data: Arc::new(Store(self.clone())),
            policy: Policy { sync: SyncMode::Standard, ..Policy::default() },
            header,
        })
    }

    /// Logs a change of a client.
    pub fn change(&self, zil: &Zil, tx: &Tx, client: u64, op: Op) -> usize {
        let number = {
            let mut known = self.known();
            known.changes.push(Change { client, op, txg: tx.txg(), acknowledged: false });
            known.changes.len() - 1
        };
        match op {
            Op::Create => {
                let name = format!("{number}");
                let body = LogBody::Link { dir: ObjectId(34), object: ObjectId(client), name: name.as_bytes() };
                zil.log(tx, ObjectId(client), &body);
            }
            Op::Write { object, bytes } => {
                zil.log_write(tx, ObjectId(object), offset_of(number), &contents(number, 0, bytes), 128 << 10);
            }
        }
        number
    }

    /// Changes that a commit starting now makes stable.
    pub fn committed_by(&self, object: Option<u64>) -> Vec<usize> {
        let concerns = |change: &Change| match change.op {
            Op::Create => true,
            Op::Write { object: of, .. } => object.is_none_or(|object| object == of),
        };
        let known = self.known();
        (0..known.changes.len()).filter(|n| concerns(&known.changes[*n])).collect()
    }

    pub fn acknowledge(&self, due: Vec<usize>) {
        let mut known = self.known();
        due.into_iter().for_each(|n| known.changes[n].acknowledged = true);
    }

    /// Syncs one txg.
    pub async fn sync(self: &Arc<Self>, zil: &Arc<Zil>) {
        let txg = self.txgs.quiesce().await;
        let sync = zil.sync(txg).await;
        for pointer in &sync.frees {
            assert!(pointer.birth() <= txg, "freed before it was allocated: {pointer:?}");
            let twice = self.known().freed.insert(pointer.dva(0).offset_bytes, txg);
            assert_eq!(twice, None, "freed twice");
        }
        let mut e = Encoder::new(Endian::Little);
        e.words(&[MAGIC, txg.0]);
        sync.header.encode(&mut e);
        e.pad_to(SECTOR);
        self.disk
            .write(BLOCKS_START + txg.0 % HEADER_SLOTS * SECTOR as u64, Buf::copy_from(&e.finish()))
            .await
            .unwrap();
        self.disk.flush().await.unwrap();
        self.txgs.synced(txg);
        zil.synced(txg);
    }

    /// Syncs txgs indefinitely.
    pub async fn syncer(self: Arc<Self>, zil: Arc<Zil>) {
        loop {
            let wait = Duration::from_micros(self.rng.lock().unwrap().below(20_000));
            let timer = std::pin::pin!(self.machine.clock.sleep(wait));
            let wanted = std::pin::pin!(self.txgs.sync_requested());
            futures_util::future::select(timer, wanted).await;
            self.sync(&zil).await;
        }
    }
}

/// The pool as the log's store and as its data.
struct Store(Arc<Pool>);

fn no_space() -> ObjectError {
    ObjectError::NoSpace { bytes: 0 }
}

impl LogStore for Store {
    fn allocate(
        &self,
        size_bytes: u64,
        txg: Txg,
        checksum: [u64; 4],
    ) -> BoxFuture<'_, Result<BlockPointer, ObjectError>> {
        Box::pin(async move {
            if self.0.chance(self.0.faults.failed_allocations) {
                return Err(no_space());
            }
            assert!(size_bytes >= MIN_BLOCK_BYTES && size_bytes.is_multiple_of(MIN_BLOCK_BYTES));
            let offset_bytes = self.0.next.fetch_add(size_bytes, Ordering::Relaxed);
            assert!(BLOCKS_START + offset_bytes + size_bytes <= DISK, "the disk is too small for this test");
            let mut known = self.0.known();
            known.allocations += 1;
            known.allocated.insert(offset_bytes, txg);
            let mut words = [0; 16];
            let dva = Dva { vdev: 0, offset_bytes, asize_bytes: size_bytes, gang: false, grid: 0 };
            [words[0], words[1]] = dva.to_words();
            let sectors = (size_bytes >> 9) - 1;
            words[6] = sectors | sectors << 16 | 2 << 32 | (ChecksumKind::Zilog2 as u64) << 40;
            words[6] |= u64::from(ObjectType::INTENT_LOG.0) << 48 | 1 << 63;
            words[10] = txg.0;
            words[12..].copy_from_slice(&checksum);
            Ok(BlockPointer::from_words(words))
        })
    }

    fn write<'a>(
        &'a self,
        _: &'a Request,
        pointer: &'a BlockPointer,
        mut bytes: Vec<u8>,
        _: weir_machine::accounts::Shares,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            self.0.known().writes += 1;
            if self.0.chance(self.0.faults.failed_writes) {
                self.0.known().broken = true;
                return Err(no_space());
            }
            assert!(bytes.len() as u64 <= pointer.lsize_bytes());
            let verifier = Verifier::Log { checksum: pointer.checksum(), with_mac: false };
            seal_embedded(ChecksumKind::Zilog2, Endian::Little, verifier, &mut bytes).unwrap();
            self.0.disk.write(BLOCKS_START + pointer.dva(0).offset_bytes, Buf::copy_from(&bytes)).await.unwrap();
            Ok(())
        })
    }

    fn flush<'a>(&'a self, _: &'a Request, vdevs: Option<&'a BTreeSet<u32>>) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            assert!(vdevs.is_none_or(|vdevs| vdevs.contains(&0)), "a flush omits a vdev to which blocks were written");
            self.0.known().flushes += 1;
            if self.0.chance(self.0.faults.failed_flushes) {
                self.0.known().broken = true;
                return Err(no_space());
            }
            self.0.disk.flush().await.unwrap();
            Ok(())
        })
    }
}

impl LogData for Store {
    fn read<'a>(
        &'a self,
        _: &'a Request,
        _: ObjectId,
        offset: u64,
        length: u64,
    ) -> BoxFuture<'a, Result<Option<Bytes>, ObjectError>> {
        let change = (offset >> 24) as usize;
        let bytes = contents(change, offset - offset_of(change), length);
        Box::pin(async move {
            self.0.machine.clock.sleep(Duration::from_micros(3)).await;
            Ok(Some(bytes))
        })
    }
}

/// State found on the disk after the power failed.
pub struct Found {
    /// Last synced txg.
    pub txg: Txg,
    pub header: ZilHeader,
    /// Names made, in the order of the log.
    pub created: Vec<usize>,
    /// Number of logged bytes of each write.
    pub written: BTreeMap<usize, u64>,
    /// Offsets of the blocks that the log points to.
    pub blocks: BTreeSet<u64>,
    pub claim: Option<Claim>,
}

fn blocks_on(machine: &Machine, disk: Arc<dyn Disk>) -> Arc<Blocks> {
    let leaf = VdevSpec::leaf(0, 1, "d", Some(disk)).top(12, DISK - BLOCKS_START - (1 << 20));
    Arc::new(Blocks::new(machine, Tree::new(vec![leaf], &machine.clock).unwrap(), Salt::none()))
}

/// Object set that owns the log; it has no objects.
pub async fn owner(machine: &Machine) -> Arc<ObjectSet> {
    let disk = machine.disks.open(PATH.as_ref(), Access::ReadOnly).unwrap();
    let cache = Cache::new(machine.clone(), blocks_on(machine, disk), 1 << 20);
    let opening = Opening { id: OWNER, ..Opening::default() };
    ObjectSet::open(&Request::internal("test"), cache, BlockPointer::HOLE, opening).await.unwrap()
}

/// Reads the state from the disk, with nothing in memory.
pub async fn recover(machine: &Machine) -> Found {
    let disk = machine.disks.open(PATH.as_ref(), Access::ReadOnly).unwrap();
    let mut txg = Txg(9);
    let mut header = ZilHeader::default();
    for slot in 0..HEADER_SLOTS {
        let bytes = disk.read(BLOCKS_START + slot * SECTOR as u64, SECTOR).await.unwrap();
        let mut c = Cursor::new(bytes.as_ref(), Endian::Little, "header");
        let [magic, of] = c.words().unwrap();
        if magic == MAGIC && of > txg.0 {
            (txg, header) = (Txg(of), ZilHeader::decode(&mut c).unwrap());
        }
    }
    let blocks = blocks_on(machine, disk);
    let rq = Request::internal("test");
    let options = ReadOptions::default();
    let claim = weir_zil::claim(&rq, &blocks, &options, &header, Txg(txg.0 + 1)).await.unwrap();
    let mut found = Found { txg, header, created: vec![], written: BTreeMap::new(), blocks: BTreeSet::new(), claim };
    let mut walk = LogWalk::over(blocks, options, &found.header);
    let mut last = 0;
    while let Some(pointer) = walk.ahead() {
        found.blocks.insert(pointer.dva(0).offset_bytes);
        let Some(block) = walk.next(&rq).await.unwrap() else { break };
        for record in block.records().unwrap() {
            assert!(record.seq > last, "records are numbered in order");
            last = record.seq;
            match record.body().unwrap() {
                LogBody::Link { name, .. } => {
                    found.created.push(std::str::from_utf8(name).unwrap().parse().unwrap());
                }
                LogBody::Write(write) => {
                    let change = (write.offset >> 24) as usize;
                    let data = write.data.unwrap();
                    assert_eq!(data, contents(change, write.offset - offset_of(change), write.length));
                    *found.written.entry(change).or_default() += write.length;
                }
                other => panic!("unexpected record {other:?}"),
            }
        }
    }
    found
}
