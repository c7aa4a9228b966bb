//! The accounts of a pool: totals of its requests, and what the bytes written to its devices were for.
//!
//! ```text
//!   a request ends ──── Accounts::record ──► by protocol and operation: bytes by source, time by stage, latency
//!                                       ├──► by dataset and origin: bytes read, bytes written
//!                                       └──► by file and origin, of those with the most bytes   ([`files`])
//!   a block is written: WriteCost ─ drop ──► by content and copy; by txg; by dataset and origin
//! ```
//!
//! A block keeps the [`Origin`] (client and protocol) of its last writer from the dirty record to the txg that writes it,
//! so bytes written in syncing context are charged to the dataset and client that caused them.
//!
//! All totals are registers that a snapshot reads without delaying a request; registers that are read one after the other
//! may differ by requests that ended in between. Recording takes no lock once a client or dataset has its registers, and
//! threads add to registers of their own ([`shard`]); the lock of a thread's files is contended by a look at them only. The tables have fixed sizes; what does not fit is recorded under
//! [`Origin::OTHER`].

mod client;
mod device_bytes;
mod files;
mod rows;
mod shard;
#[cfg(test)]
mod tests;
mod totals;

pub use client::{Client, Origin, RequestClient};
pub use device_bytes::{Content, DeviceBytes, Redundancy, Shares, WriteCost};
pub use files::{FileCounts, LISTED as LISTED_FILES};
pub use totals::{LATENCY_CLASSES, RequestTotals};

use crate::lock::{Mutex, order};
use crate::request::{ANSWERED, IS_ACCOUNTED, Operation, Protocol, Request, Target};
use crate::time::{Clock, Nanos};
use device_bytes::DeviceRegisters;
use files::{FileCounters, FileKey, FileTable};
use rows::{Owner, Rows};
use shard::{SHARDS, Shard};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use totals::OperationRegisters;

/// Maximum number of clients with an origin of their own.
const MAX_CLIENTS: usize = 4096;
/// Number of txgs whose writes have registers of their own; a power of two.
const TXGS: usize = 32;

/// Registers of the requests of one dataset and one origin.
#[derive(Default)]
struct RequestRow {
    requests: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    overlapping: AtomicU64,
    time_ns: AtomicU64,
    answered_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl DatasetTotals {
    /// Totals of an owner of registers, all 0.
    fn of(owner: Owner, clients: &[Client]) -> Self {
        let (dataset, origin) = owner.unwrap_or((0, Origin::OTHER));
        let (protocol, name) = name_of(origin, clients);
        DatasetTotals {
            dataset,
            protocol,
            client: name.to_owned(),
            requests: 0,
            reads: 0,
            writes: 0,
            overlapping: 0,
            time_ns: 0,
            answered_bytes: 0,
            written_bytes: 0,
            device: DeviceBytes::default(),
        }
    }
}

/// Protocol and name of an origin.
fn name_of(origin: Origin, clients: &[Client]) -> (Protocol, &str) {
    match clients.iter().find(|client| client.origin() == origin) {
        Some(client) => (client.protocol(), client.name()),
        None if origin == Origin::POOL => (Protocol::Internal, ""),
        None => (Protocol::Internal, "other"),
    }
}

/// The registers of requests. Each thread adds to those of its own shard.
#[derive(Default)]
struct RequestRegisters {
    /// By protocol, made when it is first used: by operation.
    operations: [OnceLock<Box<[OperationRegisters]>>; Protocol::ALL.len()],
    rows: Rows<RequestRow>,
    /// Made when it is first used, apart from the registers that other threads read.
    files: OnceLock<Box<Mutex<FileCounters>>>,
}

/// Totals of one dataset and one client.
#[derive(Clone, Debug)]
pub struct DatasetTotals {
    /// Number of the dataset's object set; 0 for requests without a dataset, and for the MOS.
    pub dataset: u64,
    /// Protocol of the client.
    pub protocol: Protocol,
    /// Address or user; `other` for clients beyond the table's capacity, empty for the pool itself.
    pub client: String,
    /// Requests that ended.
    pub requests: u64,
    /// Of these, reads of data.
    pub reads: u64,
    /// Of these, writes of data.
    pub writes: u64,
    /// Requests that began while another one of the same client was in progress.
    pub overlapping: u64,
    /// Sum of the times from beginning to end, in nanoseconds.
    pub time_ns: u64,
    /// Bytes answered.
    pub answered_bytes: u64,
    /// Bytes written by the client, before compression and redundancy.
    pub written_bytes: u64,
    /// Bytes written to devices for it.
    pub device: DeviceBytes,
}

/// Totals of one file and one client, since the file was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTotals {
    /// Number of the dataset's object set.
    pub dataset: u64,
    /// Number of the object: a file, or the contents of a volume.
    pub object: u64,
    /// Protocol of the client.
    pub protocol: Protocol,
    /// Address or user; as in [`DatasetTotals`].
    pub client: String,
    /// Tells the times apart that this file and client were listed: greater each time.
    pub entry: u64,
    /// Counts since it was listed.
    pub counts: FileCounts,
    /// Bytes that it had at most beside the counted ones, since the pool was opened.
    pub error_bytes: u64,
}

/// The files with the most bytes of late, and the sum of all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesTotals {
    /// At most [`LISTED_FILES`] files, each with one client.
    pub files: Vec<FileTotals>,
    /// Counts that are in none of `files`.
    pub unlisted: FileCounts,
}

/// Bytes written to devices in one txg, and bytes acknowledged in it.
#[derive(Default)]
struct TxgRegisters {
    txg: AtomicU64,
    device: DeviceRegisters,
    unstable_bytes: AtomicI64,
}

/// The accounts of one pool.
pub struct Accounts {
    clock: Option<Clock>,
    shards: [RequestRegisters; SHARDS],
    device_rows: Rows<DeviceRegisters>,
    device: DeviceRegisters,
    txgs: [TxgRegisters; TXGS],
    last_synced: AtomicU64,
    files: Mutex<FileTable, { order::FILE_TABLE }>,
    clients: Mutex<Vec<Client>, { order::CLIENTS }>,
}

impl Default for Accounts {
    fn default() -> Self {
        Accounts {
            clock: None,
            shards: std::array::from_fn(|_| RequestRegisters::default()),
            device_rows: Rows::default(),
            device: DeviceRegisters::default(),
            txgs: std::array::from_fn(|_| TxgRegisters::default()),
            last_synced: AtomicU64::default(),
            files: Mutex::default(),
            clients: Mutex::default(),
        }
    }
}

impl Accounts {
    /// Accounts that measure the latency of requests with `clock`; without one ([`Accounts::default`]) it is 0.
    pub fn new(clock: &Clock) -> Self {
        Accounts { clock: Some(clock.clone()), ..Accounts::default() }
    }

    fn now(&self) -> Nanos {
        self.clock.as_ref().filter(|_| IS_ACCOUNTED).map_or(Nanos::default(), Clock::now)
    }

    /// A request of `client` that begins now.
    #[inline]
    pub fn begin(&self, client: &Client, operation: Operation) -> Request {
        Request::new_at(client, operation, self.now())
    }

    /// The client of a protocol with this address or user. The same name gives the same client.
    pub fn client(&self, protocol: Protocol, name: &str) -> Client {
        let mut clients = self.clients.lock();
        if let Some(known) = clients.iter().find(|c| c.protocol() == protocol && c.name() == name) {
            return known.clone();
        }
        // Clients beyond the capacity of the table have no totals of their own.
        let is_full = clients.len() >= MAX_CLIENTS;
        let origin = if is_full { Origin::OTHER } else { Origin(clients.len() as u32 + Origin::OTHER.0 + 1) };
        let client = Client::new(origin, protocol, name.to_owned());
        if !is_full {
            clients.push(client.clone());
        }
        client
    }

    /// Records a request that ends now. It counts as in progress until it is dropped: drop it before its answer is sent.
    #[inline]
    pub fn record(&self, request: &Request) {
        if IS_ACCOUNTED {
            self.record_totals(request);
        }
    }

    fn record_totals(&self, request: &Request) {
        let shard = Shard::of_thread();
        let add = |register: &AtomicU64, n: u64| shard.add(register, n);
        let Some(RequestRegisters { operations, rows, files }) = self.shards.get(shard.number()) else { return };
        let registers = operations[request.protocol() as usize]
            .get_or_init(|| (0..Operation::SLOTS).map(|_| OperationRegisters::default()).collect());
        let Some(registers) = registers.get(request.operation.slot()) else { return };
        let mut answered = 0;
        for (slot, sum) in request.used() {
            answered += if ANSWERED.contains(&slot) { sum } else { 0 };
            add(&registers.slots[slot], sum);
        }
        add(&registers.requests, 1);
        let latency_ns = self.now().ns_since(request.begun);
        let class = (latency_ns.max(1).ilog2() as usize).min(LATENCY_CLASSES - 1);
        add(&registers.latency[class], 1);
        let Target { dataset, object, .. } = request.target();
        let written = request.written_bytes();
        if object > 0 && (answered | written) > 0 {
            let key = FileKey { dataset, object, origin: request.origin() };
            files.get_or_init(Box::default).lock().record(key, answered, written);
        }
        let row = rows.of(dataset, request.origin());
        add(&row.requests, 1);
        add(&row.reads, u64::from(request.operation == Operation::Read));
        add(&row.writes, u64::from(request.operation == Operation::Write));
        add(&row.overlapping, u64::from(request.is_overlapping));
        add(&row.time_ns, latency_ns);
        add(&row.answered_bytes, answered);
        add(&row.written_bytes, written);
    }

    /// Totals of the requests of a protocol.
    pub fn protocol(&self, protocol: Protocol) -> RequestTotals {
        self.sum(protocol, |_| true)
    }

    /// Totals of the requests of one operation of a protocol.
    pub fn operation(&self, protocol: Protocol, operation: Operation) -> RequestTotals {
        let slot = operation.slot();
        self.sum(protocol, |other| other == slot)
    }

    fn sum(&self, protocol: Protocol, wanted: impl Fn(usize) -> bool) -> RequestTotals {
        let mut totals = RequestTotals::default();
        let shards = self.shards.iter().filter_map(|shard| shard.operations[protocol as usize].get());
        let all = shards.flat_map(|registers| registers.iter().enumerate());
        all.filter(|(slot, _)| wanted(*slot)).for_each(|(_, registers)| totals.record(registers));
        totals
    }

    /// Totals by dataset and client.
    pub fn datasets(&self) -> Vec<DatasetTotals> {
        let get = |register: &AtomicU64| register.load(Ordering::Relaxed);
        let clients = self.clients.lock().clone();
        let mut totals: BTreeMap<Owner, DatasetTotals> = BTreeMap::new();
        for (owner, row) in self.shards.iter().flat_map(|shard| shard.rows.used()) {
            let totals = totals.entry(owner).or_insert_with(|| DatasetTotals::of(owner, &clients));
            totals.requests += get(&row.requests);
            totals.reads += get(&row.reads);
            totals.writes += get(&row.writes);
            totals.overlapping += get(&row.overlapping);
            totals.time_ns += get(&row.time_ns);
            totals.answered_bytes += get(&row.answered_bytes);
            totals.written_bytes += get(&row.written_bytes);
        }
        for (owner, device) in self.device_rows.used() {
            totals.entry(owner).or_insert_with(|| DatasetTotals::of(owner, &clients)).device = device.snapshot();
        }
        let is_used = |(owner, totals): &(Owner, DatasetTotals)| {
            owner.is_some() || totals.requests > 0 || totals.device.total() > 0
        };
        totals.into_iter().filter(is_used).map(|(_, totals)| totals).collect()
    }

    /// Totals of the files with the most bytes of late, by client.
    pub fn files(&self) -> FilesTotals {
        let clients = self.clients.lock().clone();
        let mut table = self.files.lock();
        let counters = self.shards.iter().filter_map(|shard| shard.files.get());
        let taken: Vec<_> = counters.map(|counters| counters.lock().take()).collect();
        table.add(&taken, self.now());
        let total = |(key, file): (&FileKey, &files::ListedFile)| {
            let (protocol, client) = name_of(key.origin, &clients);
            FileTotals {
                dataset: key.dataset,
                object: key.object,
                protocol,
                client: client.to_owned(),
                entry: file.entry,
                counts: file.counts,
                error_bytes: file.error_bytes,
            }
        };
        FilesTotals { files: table.files().map(total).collect(), unlisted: table.unlisted() }
    }

    /// Begins the write of a block: its content, the txg that writes it, the object set that it belongs to, and the
    /// origins of its bytes.
    pub fn write_cost(&self, content: Content, txg: u64, dataset: u64, shares: Shares) -> WriteCost<'_> {
        WriteCost { accounts: self, content, txg, dataset, shares, bytes: Default::default() }
    }

    fn charge(&self, content: Content, txg: u64, dataset: u64, shares: &Shares, bytes: [u64; Redundancy::ALL.len()]) {
        self.device.add(content, &bytes);
        if let Some(registers) = self.txg(txg) {
            registers.device.add(content, &bytes);
        }
        let all: u64 = shares.iter().map(|(_, share)| share).sum();
        let mut left = bytes;
        for (n, (origin, share)) in shares.iter().enumerate() {
            let part = match n + 1 == shares.len() || all == 0 {
                true => std::mem::take(&mut left),
                false => std::array::from_fn(|r| {
                    let part = (u128::from(bytes[r]) * u128::from(*share) / u128::from(all)) as u64;
                    left[r] -= part;
                    part
                }),
            };
            self.device_rows.of(dataset, *origin).add(content, &part);
        }
        if shares.is_empty() {
            self.device_rows.of(dataset, Origin::POOL).add(content, &left);
        }
    }

    /// The registers of `txg`; `None` if they are used by a later one already.
    fn txg(&self, txg: u64) -> Option<&TxgRegisters> {
        let registers = self.txgs.get(txg as usize % TXGS)?;
        let known = registers.txg.load(Ordering::Acquire);
        if known < txg && registers.txg.compare_exchange(known, txg, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            registers.device.clear();
            registers.unstable_bytes.store(0, Ordering::Relaxed);
        }
        (registers.txg.load(Ordering::Acquire) == txg).then_some(registers)
    }

    /// Bytes written to devices since the pool was opened.
    pub fn device_bytes(&self) -> DeviceBytes {
        self.device.snapshot()
    }

    /// Bytes written to devices by recent txgs, oldest first.
    pub fn device_bytes_by_txg(&self) -> Vec<(u64, DeviceBytes)> {
        let registers = self.txgs.iter().map(|r| (r.txg.load(Ordering::Acquire), r.device.snapshot()));
        let mut all: Vec<_> = registers.filter(|(txg, bytes)| *txg > 0 && bytes.total() > 0).collect();
        all.sort_by_key(|(txg, _)| *txg);
        all
    }

    /// Records bytes written by clients in `txg` that are not stable yet.
    pub fn became_unstable(&self, txg: u64, bytes: u64) {
        self.add_unstable(txg, bytes as i64);
    }

    /// Records bytes of `txg` that the intent log made stable before the txg synced.
    pub fn became_stable(&self, txg: u64, bytes: u64) {
        self.add_unstable(txg, -(bytes as i64));
    }

    fn add_unstable(&self, txg: u64, bytes: i64) {
        if !IS_ACCOUNTED || txg <= self.last_synced.load(Ordering::Acquire) {
            return;
        }
        if let Some(registers) = self.txg(txg) {
            registers.unstable_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Records that `txg` has synced: all its bytes are stable.
    pub fn synced(&self, txg: u64) {
        self.last_synced.fetch_max(txg, Ordering::AcqRel);
        if let Some(registers) = self.txg(txg) {
            registers.unstable_bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Bytes that clients wrote and that a power cut now would lose: those of txgs that have not synced, less those that
    /// the intent log has made stable.
    pub fn unstable_bytes(&self) -> u64 {
        // A commit that ended just after its txg had synced may leave less than zero.
        let of =
            |registers: &TxgRegisters| u64::try_from(registers.unstable_bytes.load(Ordering::Relaxed)).unwrap_or(0);
        self.txgs.iter().map(of).sum()
    }
}
