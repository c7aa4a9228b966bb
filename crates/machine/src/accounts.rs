//! The accounts of a pool: totals of its requests, and what the bytes written to its devices were for.
//!
//! ```text
//!   a request ends ──── Accounts::record ──► by protocol and operation: bytes by source, time by stage, latency
//!                                       └──► by dataset and origin: bytes read, bytes written
//!   a block is written: WriteCost ─ drop ──► by content and copy; by txg; by dataset and origin
//! ```
//!
//! A block keeps the [`Origin`] (client and protocol) of its last writer from the dirty record to the txg that writes it,
//! so bytes written in syncing context are charged to the dataset and client that caused them.
//!
//! All totals are atomic registers. Recording takes no lock once a client or dataset has its registers, and a snapshot
//! delays no request; registers that are read one after the other may differ by requests that ended in between. The tables
//! have fixed sizes; what does not fit is recorded under [`Origin::OTHER`].

mod client;
mod device_bytes;
#[cfg(test)]
mod tests;
mod totals;

pub use client::{Client, Origin};
pub use device_bytes::{Content, DeviceBytes, Redundancy, Shares, WriteCost};
pub use totals::{LATENCY_CLASSES, RequestTotals};

use crate::lock::{Mutex, order};
use crate::request::{IS_ACCOUNTED, Operation, Protocol, Request, Source, Stage};
use crate::time::{Clock, Nanos};
use client::ClientIdentity;
use device_bytes::DeviceRegisters;
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use totals::OperationRegisters;

/// Maximum number of clients with an origin of their own.
const MAX_CLIENTS: usize = 4096;
/// Number of registers of datasets and origins; a power of two.
const ROWS: usize = 1024;
/// Number of txgs whose writes have registers of their own; a power of two.
const TXGS: usize = 32;
/// Number of copies of the registers of operations: threads use different ones.
const SHARDS: usize = 8;

/// Registers of one dataset and one origin.
#[derive(Default)]
struct Row {
    /// Dataset and origin, plus 1; 0 if the row is free.
    key: AtomicU64,
    requests: AtomicU64,
    answered_bytes: AtomicU64,
    written_bytes: AtomicU64,
    device: DeviceRegisters,
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
    /// Bytes answered.
    pub answered_bytes: u64,
    /// Bytes written by the client, before compression and redundancy.
    pub written_bytes: u64,
    /// Bytes written to devices for it.
    pub device: DeviceBytes,
}

/// Registers of the operations of one protocol, made when the protocol is first used.
type ProtocolRegisters = OnceLock<Box<[OperationRegisters]>>;

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
    shards: [[ProtocolRegisters; Protocol::ALL.len()]; SHARDS],
    rows: OnceLock<Box<[Row]>>,
    device: DeviceRegisters,
    txgs: [TxgRegisters; TXGS],
    last_synced: AtomicU64,
    clients: Mutex<Vec<Client>, { order::CLIENTS }>,
}

impl Default for Accounts {
    fn default() -> Self {
        Accounts {
            clock: None,
            shards: Default::default(),
            rows: OnceLock::new(),
            device: DeviceRegisters::default(),
            txgs: std::array::from_fn(|_| TxgRegisters::default()),
            last_synced: AtomicU64::default(),
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
    pub fn begin(&self, client: &Client, operation: Operation) -> Request {
        Request::new(client.clone(), operation).begun(self.now())
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
        let identity = ClientIdentity { origin, protocol, name: name.to_owned(), requests: AtomicU64::new(0) };
        let client = Client(Some(Arc::new(identity)));
        if !is_full {
            clients.push(client.clone());
        }
        client
    }

    /// Records a request that ends now.
    pub fn record(&self, request: &Request) {
        if !IS_ACCOUNTED {
            return;
        }
        let add = |register: &AtomicU64, n: u64| {
            if n != 0 {
                register.fetch_add(n, Ordering::Relaxed);
            }
        };
        let registers = self.registers(request.protocol());
        let Some(registers) = registers.get(request.operation.slot()) else { return };
        let mut answered = 0;
        for source in Source::ALL {
            let bytes = request.answered_bytes(source);
            answered += bytes;
            add(&registers.answered_bytes[source as usize], bytes);
            add(&registers.support_bytes[source as usize], request.support_bytes(source));
        }
        Stage::ALL.into_iter().for_each(|stage| add(&registers.stage_ns[stage as usize], request.stage_ns(stage)));
        add(&registers.requests, 1);
        add(&registers.written_bytes, request.written_bytes());
        add(&registers.device_ops, request.device_ops());
        let latency_ns = self.now().ns_since(request.begun);
        let class = (latency_ns.max(1).ilog2() as usize).min(LATENCY_CLASSES - 1);
        add(&registers.latency[class], 1);
        let row = self.row(request.target().dataset, request.origin());
        add(&row.requests, 1);
        add(&row.answered_bytes, answered);
        add(&row.written_bytes, request.written_bytes());
    }

    fn registers(&self, protocol: Protocol) -> &[OperationRegisters] {
        self.shards[shard()][protocol as usize]
            .get_or_init(|| (0..Operation::SLOTS).map(|_| OperationRegisters::default()).collect())
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
        let shards = self.shards.iter().filter_map(|shard| shard[protocol as usize].get());
        let all = shards.flat_map(|registers| registers.iter().enumerate());
        all.filter(|(slot, _)| wanted(*slot)).for_each(|(_, registers)| totals.record(registers));
        totals
    }

    /// The row of a dataset and an origin. Rows are found by linear probing; a row is never freed.
    fn row(&self, dataset: u64, origin: Origin) -> &Row {
        let rows = self.rows.get_or_init(|| (0..=ROWS).map(|_| Row::default()).collect());
        let key = (dataset << 16 | u64::from(origin.0)) + 1;
        let first = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        for row in (0..ROWS).filter_map(|step| rows.get((first + step) % ROWS)) {
            let mut owner = row.key.load(Ordering::Acquire);
            if owner == 0 {
                let claimed = row.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire);
                owner = claimed.map_or_else(|other| other, |_| key);
            }
            if owner == key {
                return row;
            }
        }
        // The last row is for what does not fit the table.
        &rows[ROWS]
    }

    /// Totals by dataset and client.
    pub fn datasets(&self) -> Vec<DatasetTotals> {
        let get = |register: &AtomicU64| register.load(Ordering::Relaxed);
        let clients = self.clients.lock().clone();
        let rows = self.rows.get().map_or(&[][..], |rows| rows);
        let used =
            rows.iter().enumerate().filter(|(n, row)| get(&row.key) != 0 || *n == ROWS && get(&row.requests) > 0);
        let totals = used.map(|(n, row)| {
            let key = get(&row.key).saturating_sub(1);
            let origin = if n == ROWS { Origin::OTHER } else { Origin((key & 0xffff) as u32) };
            let client = clients.iter().find(|client| client.origin() == origin);
            let (protocol, name) = match client {
                Some(client) => (client.protocol(), client.name()),
                None if origin == Origin::POOL => (Protocol::Internal, ""),
                None => (Protocol::Internal, "other"),
            };
            DatasetTotals {
                dataset: key >> 16,
                protocol,
                client: name.to_owned(),
                requests: get(&row.requests),
                answered_bytes: get(&row.answered_bytes),
                written_bytes: get(&row.written_bytes),
                device: row.device.snapshot(),
            }
        });
        totals.collect()
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
            self.row(dataset, *origin).device.add(content, &part);
        }
        if shares.is_empty() {
            self.row(dataset, Origin::POOL).device.add(content, &left);
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

/// The shard of the calling thread.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    })
}
