//! Loads of clients: which operations, of which size, how many at a time.

/// Order of the operations of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after the other; at the end from the beginning.
    Sequential,
    /// Anywhere in the file, with the same probability.
    Random,
}

/// A load: the same for each client.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Clients, each with a link of its own if the server has one.
    pub clients: usize,
    /// Threads of each client, each with a file (or a part of a volume) of its own.
    pub threads: usize,
    /// Operations that a thread has outstanding at a time.
    pub depth: usize,
    /// Bytes of an operation.
    pub operation_bytes: u64,
    /// Share of reads, in percent of the operations.
    pub read_percent: u64,
    /// Order of the operations.
    pub order: Order,
    /// Bytes of the file of each thread.
    pub file_bytes: u64,
    /// Each write is stable before it is acknowledged.
    pub stable: bool,
    /// The load goes to one volume instead of files.
    pub volume: bool,
    /// Read the files once before the measurement, so that the ARC holds what it can.
    pub warm: bool,
    /// Overwrites of random records before the measurement, as a multiple of the records of all files: fragmentation, because
    /// neighbours of a file are no longer neighbours on a disk. Only for loads that read; 0: files as they were first written.
    pub overwrites: f64,
    /// Virtual seconds of the load before the measurement.
    pub ramp_seconds: f64,
    /// Virtual seconds of the measurement.
    pub seconds: f64,
    /// Rate of each client's own link in Gbit/s; none: as the server's.
    pub client_gbit: Option<f64>,
    /// Work of the client for each operation in microseconds, in which its thread asks for nothing (signatures, think time).
    pub client_us: f64,
}

impl Workload {
    /// One client with one thread that reads 128 KiB after 128 KiB of a file of 1 GiB, one at a time.
    pub fn sequential_read() -> Self {
        Workload {
            clients: 1,
            threads: 1,
            depth: 1,
            operation_bytes: 128 << 10,
            read_percent: 100,
            order: Order::Sequential,
            file_bytes: 1 << 30,
            stable: false,
            volume: false,
            warm: false,
            overwrites: 0.0,
            ramp_seconds: 1.0,
            seconds: 5.0,
            client_gbit: None,
            client_us: 0.0,
        }
    }

    /// The same, writing.
    pub fn sequential_write() -> Self {
        Workload { read_percent: 0, ..Self::sequential_read() }
    }

    /// Operations outstanding at most.
    pub fn outstanding(&self) -> usize {
        self.clients * self.threads * self.depth
    }

    /// Bytes of all files.
    pub fn working_set_bytes(&self) -> u64 {
        (self.clients * self.threads) as u64 * self.file_bytes
    }

    /// Whether some operations are reads.
    pub fn reads(&self) -> bool {
        self.read_percent > 0
    }

    /// Whether records are read: by reads, or by writes anywhere that replace a part of a record. The files are then written before
    /// the load begins.
    pub fn reads_records(&self, record_bytes: u64) -> bool {
        self.reads() || self.order == Order::Random && self.operation_bytes < record_bytes
    }
}
