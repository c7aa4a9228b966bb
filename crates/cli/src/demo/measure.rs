//! Measures writes and reads for a few seconds: their rates, and the share of reads from each cache or device.

use super::sample::{files, noise};
use crate::failure::Failure;
use crate::units::human_bytes;
use bytes::Bytes;
use std::time::Duration;
use weir_files::tree::{Node, Tree};
use weir_files::{Cred, FileError, New, NewKind, WriteAt};
use weir_machine::{Machine, Request, Source};

/// Maximum duration of each measurement.
const EACH: Duration = Duration::from_millis(1500);
/// Maximum size of the measured file.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Names of the measured files, chosen so that no user's file has them.
const LARGE_NAME: &[u8] = b".weir-demo.large";
const SMALL_NAME: &[u8] = b".weir-demo.small";
const LARGE: usize = 1 << 20;
const SMALL: usize = 4096;

/// Result of a measurement.
struct Measured {
    bytes: u64,
    operations: u64,
    elapsed: Duration,
}

impl Measured {
    fn line(&self, what: &str) -> String {
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        let rate = human_bytes((self.bytes as f64 / seconds) as u64);
        let each = self.elapsed.as_secs_f64() * 1e6 / (self.operations.max(1)) as f64;
        let operations = self.operations as f64 / seconds;
        format!("{what:<34} {rate:>7}/s  {operations:>8.0} operations/s  {each:>8.0} µs each")
    }
}

/// Runs the measurements and prints each result.
pub async fn run(machine: &Machine, tree: &Tree) -> Result<(), Failure> {
    measure(machine, tree).await.map_err(|error| Failure::failed(format!("weir demo: measuring: {error}")))
}

async fn measure(machine: &Machine, tree: &Tree) -> Result<(), FileError> {
    let cred = Cred::root();
    let rq = &Request::internal("demo");
    let top = files(rq, tree).await?;
    // A killed run may have left the files behind.
    let new = New { exclusive: false, ..New::of(NewKind::Regular, 0o644) };
    let (large, _) = tree.create(rq, &cred, top, LARGE_NAME, &new).await?;
    let (small, _) = tree.create(rq, &cred, top, SMALL_NAME, &new).await?;
    println!("measured in this process, without a protocol:");
    let written = write(machine, tree, (rq, &cred), large, LARGE, false).await?;
    println!("{}", written.line("writing 1 MiB pieces, then a sync"));
    let synced = write(machine, tree, (rq, &cred), small, SMALL, true).await?;
    println!("{}", synced.line("writing 4 KiB, each synced (log)"));
    let rq = &Request::internal("demo");
    let read = read(machine, tree, rq, large).await?;
    println!("{}", read.line("reading it back, 1 MiB pieces"));
    println!("  of the bytes read: {}", sources(rq));
    for name in [LARGE_NAME, SMALL_NAME] {
        tree.remove(rq, &cred, top, name).await?;
    }
    tree.sync(rq, top).await
}

async fn write(
    machine: &Machine,
    tree: &Tree,
    (rq, cred): (&Request, &Cred),
    node: Node,
    piece: usize,
    each_synced: bool,
) -> Result<Measured, FileError> {
    // Incompressible data, so that compression does not raise the rates.
    let data = Bytes::from(noise(piece as u64, 4 * piece));
    let began = machine.clock.now();
    let mut bytes = 0;
    let mut operations = 0;
    while machine.clock.now().since(began) < EACH && bytes < MAX_FILE_BYTES {
        let from = (operations as usize % 4) * piece;
        tree.write(rq, cred, node, WriteAt::Offset(bytes), data.slice(from..from + piece)).await?;
        if each_synced {
            tree.sync(rq, node).await?;
        }
        bytes += piece as u64;
        operations += 1;
    }
    tree.sync(rq, node).await?;
    Ok(Measured { bytes, operations, elapsed: machine.clock.now().since(began) })
}

async fn read(machine: &Machine, tree: &Tree, rq: &Request, node: Node) -> Result<Measured, FileError> {
    let size_bytes = tree.attributes(rq, node).await?.size_bytes;
    let began = machine.clock.now();
    let mut bytes = 0u64;
    let mut operations = 0;
    // A read from memory hands out references to cached blocks. Copying them, as for a client, makes the rate
    // realistic.
    let mut client = Vec::with_capacity(LARGE);
    while machine.clock.now().since(began) < EACH && size_bytes != 0 {
        let pieces = tree.read(rq, node, bytes % size_bytes, LARGE).await?;
        client.clear();
        pieces.iter().for_each(|piece| client.extend_from_slice(piece));
        bytes += std::hint::black_box(&client).len() as u64;
        operations += 1;
    }
    Ok(Measured { bytes, operations, elapsed: machine.clock.now().since(began) })
}

/// Text of the bytes read by source.
fn sources(rq: &Request) -> String {
    let parts = [
        ("cache", Source::ArcDemand),
        ("cache, read ahead", Source::ArcPrefetch),
        ("dirty data", Source::Dirty),
        ("disks", Source::Disk),
        ("holes", Source::Hole),
    ];
    let given = parts.map(|(name, source)| (name, rq.read_bytes(source))).into_iter().filter(|(_, bytes)| *bytes != 0);
    let texts: Vec<String> = given.map(|(name, bytes)| format!("{} from {name}", human_bytes(bytes))).collect();
    if texts.is_empty() { "none".into() } else { texts.join(", ") }
}
