//! An NFSv3 client that loads a server: the same program for Weir and for its peers.
//!
//! Each thread has a connection and one call in progress, like a Linux client with `nconnect`. Sequential work is handed out
//! in pieces of 1 MiB from one counter; random work lasts a fixed time.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::kill::mixed;
use crate::nfs::{Handle, NfsTree};
use crate::tree::TreeError;

use super::super::{Measured, SELF, cpu_seconds};

/// Size of a sequential READ or WRITE.
const PIECE_BYTES: usize = 1 << 20;
/// Size of a random READ or WRITE.
const RANDOM_BYTES: usize = 4 << 10;
/// Connections of sequential and of random work.
const SEQUENTIAL_CONNECTIONS: u64 = 4;
const RANDOM_CONNECTIONS: u64 = 16;
/// Time of random work.
const RANDOM_TIME: Duration = Duration::from_secs(5);

/// A load on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Unstable WRITEs from the beginning to the end, then COMMIT.
    Write,
    /// READs from the beginning to the end.
    Read,
    /// READs of 4 KiB anywhere.
    RandomRead,
    /// Unstable WRITEs of 4 KiB anywhere, then COMMIT.
    RandomWrite,
}

impl Load {
    const ALL: [Load; 4] = [Load::Write, Load::Read, Load::RandomRead, Load::RandomWrite];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Load::Write => "write",
            Load::Read => "read",
            Load::RandomRead => "random-read",
            Load::RandomWrite => "random-write",
        }
    }
}

/// Runs the client as a process of its own and prints its figures: LOAD, NFS address, MOUNT address, path, file name, MiB.
pub fn main(arguments: &[String]) -> ExitCode {
    let run = || -> Result<Measured, String> {
        let [load, nfs, mount, path, name, mib] = arguments else { return Err("six arguments are needed".into()) };
        let load = Load::ALL.into_iter().find(|l| l.name() == load).ok_or_else(|| format!("unknown load {load}"))?;
        let address = |text: &String| text.parse::<SocketAddr>().map_err(|error| format!("{text}: {error}"));
        let file = File { nfs: address(nfs)?, mount: address(mount)?, path, name: name.as_bytes() };
        let mib: u64 = mib.parse().map_err(|error| format!("{mib}: {error}"))?;
        file.load(load, mib << 20).map_err(|error| error.to_string())
    };
    match run() {
        Ok(measured) => {
            println!("{}", measured.to_line());
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// The file that is loaded.
struct File<'a> {
    nfs: SocketAddr,
    mount: SocketAddr,
    path: &'a str,
    name: &'a [u8],
}

impl File<'_> {
    fn connect(&self) -> Result<(NfsTree, Handle), TreeError> {
        let mut tree = NfsTree::mount(self.nfs, self.mount, self.path)?;
        let handle = match tree.named(self.name)? {
            Some(handle) => handle,
            None => tree.made(self.name)?,
        };
        Ok((tree, handle))
    }

    fn load(&self, load: Load, size_bytes: u64) -> Result<Measured, TreeError> {
        let random = matches!(load, Load::RandomRead | Load::RandomWrite);
        let count = if random { RANDOM_CONNECTIONS } else { SEQUENTIAL_CONNECTIONS };
        // The first one creates the file before the others look for it.
        let mut connections = Vec::new();
        for _ in 0..count {
            connections.push(self.connect()?);
        }
        let next = AtomicU64::new(0);
        let operations = AtomicU64::new(0);
        let begun = Instant::now();
        let results: Vec<Result<(), TreeError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..)
                .zip(connections)
                .map(|(seed, (tree, handle))| {
                    let mut worker = Worker { tree, handle, size_bytes, next: &next, operations: &operations };
                    scope.spawn(move || if random { worker.random(load, begun, seed) } else { worker.sequential(load) })
                })
                .collect();
            let died = |_| Err(TreeError::Other("a client thread panicked".to_string()));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect()
        });
        results.into_iter().collect::<Result<(), _>>()?;
        if matches!(load, Load::Write | Load::RandomWrite) {
            let (mut tree, handle) = self.connect()?;
            tree.commit(&handle)?;
        }
        let operations = operations.into_inner();
        let each = if random { RANDOM_BYTES } else { PIECE_BYTES } as u64;
        Ok(Measured {
            bytes: operations * each,
            operations,
            seconds: begun.elapsed().as_secs_f64(),
            peak_bytes: 0,
            cpu_seconds: cpu_seconds(SELF),
        })
    }
}

/// One connection at work.
struct Worker<'a> {
    tree: NfsTree,
    handle: Handle,
    size_bytes: u64,
    next: &'a AtomicU64,
    operations: &'a AtomicU64,
}

impl Worker<'_> {
    fn sequential(&mut self, load: Load) -> Result<(), TreeError> {
        let mut data = random_bytes(PIECE_BYTES, 7);
        loop {
            let offset = self.next.fetch_add(PIECE_BYTES as u64, Ordering::Relaxed);
            if offset >= self.size_bytes {
                return Ok(());
            }
            if load == Load::Write {
                // No two pieces are equal, so that deduplication would not help.
                data[..8].copy_from_slice(&offset.to_le_bytes());
                self.tree.write(&self.handle, offset, &data, false)?;
            } else {
                self.read(offset, PIECE_BYTES)?;
            }
            self.operations.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn random(&mut self, load: Load, begun: Instant, seed: u64) -> Result<(), TreeError> {
        let data = random_bytes(RANDOM_BYTES, seed);
        let mut state = seed << 40;
        while begun.elapsed() < RANDOM_TIME {
            state += 1;
            let offset = mixed(state) % (self.size_bytes / RANDOM_BYTES as u64) * RANDOM_BYTES as u64;
            if load == Load::RandomWrite {
                self.tree.write(&self.handle, offset, &data, false)?;
            } else {
                self.read(offset, RANDOM_BYTES)?;
            }
            self.operations.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn read(&mut self, offset: u64, bytes: usize) -> Result<(), TreeError> {
        let count = u32::try_from(bytes).map_err(|error| TreeError::Other(error.to_string()))?;
        let got = self.tree.read_once(&self.handle, offset, count)?;
        if got == bytes {
            Ok(())
        } else {
            Err(TreeError::Other(format!("READ of {bytes} bytes at {offset}: {got} bytes")))
        }
    }
}

fn random_bytes(count: usize, seed: u64) -> Vec<u8> {
    (0..count as u64 / 8).flat_map(|n| mixed(seed << 48 | n).to_le_bytes()).collect()
}
