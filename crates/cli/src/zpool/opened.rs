//! The pools that a command is about: all that the given folders hold, or those named, each opened for reading, or seen as this process has it open.

use crate::args::Args;
use crate::call::{Call, complain};
use crate::failure::Failure;
use crate::pools::{self, Seen, search};
use weir_pool::assemble::state;
use weir_pool::{OpenOptions, assemble, scan};

/// Memory for each pool's cache: only metadata is read.
const ARC_BYTES: u64 = 64 << 20;

/// Pools opened, and whether some could not be.
pub struct OpenedPools {
    /// Those that could be opened, by name.
    pub pools: Vec<Seen>,
    /// One line for each that could not.
    pub failures: Vec<String>,
}

impl OpenedPools {
    /// Opens the pools `named`, or all.
    pub fn open(call: &Call, args: &Args, named: &[String]) -> Result<Self, Failure> {
        let machine = call.machine()?;
        let paths = search(call, args.values('d'))?;
        let assembly = assemble(machine.block_on(scan(machine, &paths))?);
        let mut wanted = Vec::new();
        let mut failures = Vec::new();
        let live = || assembly.pools.values().filter(|p| p.config.state != state::DESTROYED);
        for name in named {
            let mut found = live().filter(|p| p.config.name == *name || p.config.guid.to_string() == *name).peekable();
            if found.peek().is_none() {
                failures.push(format!("cannot open '{name}': no such pool"));
            }
            wanted.extend(found.map(|p| (p.config.name.clone(), p.config.guid)));
        }
        if named.is_empty() {
            wanted.extend(live().map(|p| (p.config.name.clone(), p.config.guid)));
            wanted.sort_unstable();
        }
        drop(assembly);
        let mut pools = Vec::new();
        for (name, guid) in wanted {
            let mut options = OpenOptions::new(paths.clone(), guid.to_string());
            options.arc_bytes = ARC_BYTES;
            match pools::look(call, &options) {
                Ok(pool) => pools.push(pool),
                Err(mut failure) => match failure.take_elsewhere() {
                    Some(elsewhere) => return Err(Failure::elsewhere(&name, elsewhere)),
                    None => failures.push(format!("cannot open '{name}': {failure}")),
                },
            }
        }
        Ok(OpenedPools { pools, failures })
    }

    /// Tells what could not be opened; the exit code.
    pub fn close(&self, call: &Call) -> u8 {
        for line in &self.failures {
            complain!(call, "{line}");
        }
        u8::from(!self.failures.is_empty())
    }
}

/// The words of a command line as text.
pub fn words(args: &Args) -> Vec<String> {
    args.words.iter().map(|w| w.to_string_lossy().into_owned()).collect()
}
