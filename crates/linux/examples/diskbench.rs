//! Benchmark of the disk interface on one file: sequential 1 MiB reads at depth 8 and random 8 KiB reads at depth 32.
//!
//! `diskbench FILE [seq|rand|both] [SECONDS]`, with `WEIR_IO` and `WEIR_DIRECT` as in production. Prints one line per
//! pattern: name, operations, MB/s (10⁶), operations per second. Compare with fio's `io_uring` engine on the same
//! file.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weir_machine::{Access, Disk, Machine};

struct Pattern {
    name: &'static str,
    len: usize,
    depth: usize,
    random: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("usage: diskbench FILE [seq|rand|both] [SECONDS]")?;
    let which = args.get(1).map_or("both", String::as_str);
    let seconds: u64 = args.get(2).map_or(Ok(5), |s| s.parse())?;
    let machine = weir_linux::machine()?;
    let disk = machine.disks.open(Path::new(path), Access::ReadOnly)?;
    for pattern in [
        Pattern { name: "seq", len: 1 << 20, depth: 8, random: false },
        Pattern { name: "rand", len: 8 << 10, depth: 32, random: true },
    ] {
        if which == "both" || which == pattern.name {
            let (ops, time) = machine.block_on(measure(&machine, &disk, &pattern, Duration::from_secs(seconds)));
            let rate = ops as f64 / time.as_secs_f64();
            println!("{} {ops} ops {:.0} MB/s {rate:.0} ops/s", pattern.name, rate * pattern.len as f64 / 1e6);
        }
    }
    Ok(())
}

async fn measure(machine: &Machine, disk: &Arc<dyn Disk>, pattern: &Pattern, limit: Duration) -> (u64, Duration) {
    let start = machine.clock.now();
    let next = Arc::new(AtomicU64::new(0));
    let count = Arc::new(AtomicU64::new(0));
    let blocks = disk.geometry().size_bytes / pattern.len as u64;
    let len = pattern.len;
    let random = pattern.random;
    let mut tasks = Vec::new();
    for _ in 0..pattern.depth {
        let machine = machine.clone();
        let disk = disk.clone();
        let next = next.clone();
        let count = count.clone();
        tasks.push(machine.tasks.clone().spawn(async move {
            let mut random_state = machine.entropy.u64() | 1;
            while machine.clock.now() - start < limit {
                let block = if random {
                    random_state = random_state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    (random_state >> 16) % blocks
                } else {
                    next.fetch_add(1, Ordering::Relaxed) % blocks
                };
                disk.read(block * len as u64, len).await.expect("a readable file");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for task in tasks {
        task.await.expect("the task ends");
    }
    (count.load(Ordering::Relaxed), machine.clock.now() - start)
}
