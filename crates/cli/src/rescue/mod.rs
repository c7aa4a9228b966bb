//! `weir rescue`: copies everything that can be read out of a pool that cannot be imported.
//!
//! ```text
//!   states of the pool, the newest first          [`weir_pool::survivors`]
//!     └─ datasets, snapshots
//!          └─ files, by their names               [`walk`]     what is whole already is skipped
//!               └─ blocks                         [`copy`]     lost ones stay holes, and are listed
//!   at the end: objects without a name, where a directory is lost     lost+found
//!
//!   DEST/pool%a@s/…                    the files of pool/a@s (a volume is one file)
//!   DEST/.weir-rescue/missing/…        one record for each file or directory that is not whole      [`dest`]
//!   DEST/.weir-rescue/report.tsv       one line for each file: whole, partial, lost
//! ```
//!
//! The next older state is looked at only if something of the newer ones is missing; datasets that have not changed between two
//! states are looked at once. A file that is partial is completed from an older state if it has the same generation, size and
//! time there.
//!
//! *Resumption.* A file gets its name in DEST when it is complete, or when its record of what it lacks exists. So a second run
//! skips what is there without a record, and tries the rest again.
//!
//! *Memory.* One path, the blocks that are being read, and the ranges of one file; for the objects without a name one bit for each
//! object. The pool's devices are open for reading only.

use crate::args::CommandLine;
mod copy;
mod dest;
mod orphans;
mod walk;

use crate::failure::{FAILED, Failure};
use crate::options::PoolDirs;
use crate::pools;
use clap::Parser;
use dest::Destination;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use weir_dsl::Dataset;
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::OpenOptions;
use weir_pool::survivors::{Survivor, Survivors, View};

/// Memory for blocks that are read twice, in bytes.
const ARC_BYTES: u64 = 64 << 20;
/// Maximum number of missing files that are named at the end; the report names all.
const MAX_NAMED: usize = 100;

/// Copy everything that can be read out of a pool that cannot be imported.
///
/// Nothing is written to the pool. Missing disks, damaged labels, uberblocks and metadata are passed over as far as anything can be
/// read without them; older states of the pool make up for what the newest one lacks. A run that was interrupted goes on where it
/// was. Exit code: 0 everything was copied, 1 something is missing or the command failed, 2 invalid command line.
#[derive(Debug, Parser)]
#[command(
    name = "weir rescue",
    override_usage = "weir rescue [-q] [--no-snapshots] [-d DIR]… [--key DATASET=SOURCE]… POOL DEST"
)]
pub struct RescueArgs {
    #[command(flatten)]
    places: PoolDirs,
    /// Key of an encrypted dataset: DATASET=file://FILE or DATASET=HEX; may be repeated
    #[arg(long = "key", value_name = "DATASET=SOURCE")]
    keys: Vec<OsString>,
    /// Leave out snapshots
    #[arg(long)]
    no_snapshots: bool,
    /// Show no progress
    #[arg(short = 'q')]
    quiet: bool,
    /// Name or GUID of the pool
    #[arg(value_name = "POOL")]
    pool: String,
    /// Directory for the files; it is made if it does not exist
    #[arg(value_name = "DEST")]
    destination: PathBuf,
}

/// Runs the command.
pub fn run(args: &RescueArgs) -> Result<u8, Failure> {
    let machine = crate::stores::machine().map_err(|error| Failure::failed(error.to_string()))?;
    let here = std::env::current_dir().map_err(|error| Failure::failed(format!("the working directory: {error}")))?;
    if args.pool.is_empty() {
        return Err(RescueArgs::misused("the name of the pool is empty"));
    }
    let mut options = OpenOptions::new(pools::search_paths(&args.places.dirs), args.pool.clone());
    options.arc_bytes = ARC_BYTES;
    options.keys = pools::keys(&here, &args.keys)?;
    // Without such a pool, no directory is made.
    let survivors = machine.block_on(Survivors::find(&machine, &options))?;
    let mut destination = Destination::open(&args.destination)?;
    let mut rescue = Rescue {
        machine: &machine,
        args,
        seen: BTreeSet::new(),
        names: BTreeMap::new(),
        problems: BTreeSet::new(),
        opened: 0,
    };
    machine.block_on(rescue.run(&survivors, &mut destination))?;
    rescue.finish(&mut destination)
}

/// Whether a dataset is a snapshot, also if its name is lost: only a snapshot has a next snapshot or head.
///
/// Source: OpenZFS `include/sys/dsl_dataset.h` (`dsl_dataset_phys_t`, `ds_next_snap_obj`).
fn is_snapshot(dataset: &Dataset) -> bool {
    dataset.is_snapshot() || dataset.phys.next_snapshot != ObjectId(0)
}

/// A run of the command.
struct Rescue<'a> {
    machine: &'a Machine,
    args: &'a RescueArgs,
    /// Datasets that were looked at: hashes of their name and their root.
    seen: BTreeSet<u64>,
    /// Names of datasets by their number and GUID: an older state may have lost the names.
    names: BTreeMap<(u64, u64), String>,
    /// Lines about what is missing of the pool as a whole.
    problems: BTreeSet<String>,
    /// Number of states that could be opened.
    opened: u64,
}

impl Rescue<'_> {
    async fn run(&mut self, survivors: &Survivors, to: &mut Destination) -> Result<(), Failure> {
        let rq = Request::internal("rescue");
        let mut newest = None;
        for uberblock in survivors.uberblocks() {
            let view = match survivors.view(&uberblock).await {
                Ok(view) => view,
                Err(error) => {
                    self.problems.insert(format!("txg {}: {error}", uberblock.txg));
                    continue;
                }
            };
            self.opened += 1;
            let is_whole = self.state(&rq, &view, to).await?;
            newest.get_or_insert(view);
            if is_whole && !to.has_missing()? {
                return Ok(());
            }
        }
        let Some(newest) = newest else {
            let why = self.problems.iter().next().cloned().unwrap_or_else(|| "it has no uberblock".into());
            return Err(Failure::failed(format!(
                "cannot rescue '{}': no state of it can be read: {why}",
                survivors.name()
            )));
        };
        for one in newest.datasets.iter().filter(|one| self.wants(one)) {
            to.begin_dataset(true);
            if to.lacks_names(&one.name)? {
                orphans::copy(&rq, self.machine, &newest, one, to).await?;
            }
        }
        Ok(())
    }

    fn wants(&self, one: &Survivor) -> bool {
        !(self.args.no_snapshots && is_snapshot(&one.dataset))
    }

    /// Copies what one state has. Returns whether all its datasets are known by name.
    async fn state(&mut self, rq: &Request, view: &View, to: &mut Destination) -> Result<bool, Failure> {
        let txg = view.uberblock.txg;
        let is_first = self.opened == 1;
        self.problems.extend(view.problems.iter().filter(|_| is_first).cloned());
        let wanted: Vec<&Survivor> = view.datasets.iter().filter(|one| self.wants(one)).collect();
        let total = wanted.iter().map(|one| one.dataset.phys.uncompressed_bytes).fold(0, u64::saturating_add);
        to.begin_state(txg, total, self.args.quiet, self.machine.clock.now());
        for one in wanted {
            let identity = (one.dataset.id.0, one.dataset.phys.guid);
            let is_new = !self.names.contains_key(&identity);
            let name = self.names.entry(identity).or_insert_with(|| one.name.clone()).clone();
            if name != one.name && name.contains('%') && !one.name.contains('%') {
                self.problems.insert(format!("{name}: its name was {} in txg {txg}", one.name));
            }
            let one = &Survivor { name, dataset: one.dataset.clone() };
            to.begin_dataset(is_new);
            let root = one.dataset.phys.pointer.words();
            let mut text = one.name.clone().into_bytes();
            text.extend(root.iter().flat_map(|word| word.to_le_bytes()));
            if self.seen.insert(dest::hash(&text)) {
                walk::dataset(rq, self.machine, view, one, to).await?;
            }
        }
        Ok(view.problems.is_empty())
    }

    /// Prints what is missing, and returns the exit code.
    fn finish(&self, to: &mut Destination) -> Result<u8, Failure> {
        let missing = to.finish()?;
        for problem in &self.problems {
            eprintln!("{problem}");
        }
        for line in missing.lines.iter().take(MAX_NAMED) {
            println!("{line}");
        }
        let more = missing.lines.len().saturating_sub(MAX_NAMED);
        if more > 0 {
            println!("… and {more} more: see {}", to.report().display());
        }
        // Files of datasets and directories that cannot be read cannot be counted.
        let uncounted = if self.problems.is_empty() {
            ""
        } else {
            "; what is lost by the problems on standard error is not counted"
        };
        println!("{} whole, {} partial, {} lost{uncounted}", to.whole(), missing.partial, missing.lost);
        println!("report: {}", to.report().display());
        let is_complete = missing.lines.is_empty() && self.problems.is_empty();
        Ok(if is_complete { 0 } else { FAILED })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::dsl::DslDataset;

    #[test]
    fn a_snapshot_whose_name_is_lost_is_one() {
        let of = |name: &str, next: u64| {
            let phys = DslDataset { next_snapshot: ObjectId(next), ..DslDataset::default() };
            is_snapshot(&Dataset { id: ObjectId(63), name: name.into(), dir: ObjectId(2), phys, extensible: true })
        };
        assert!(of("p/a@s", 54) && of("p%63", 54));
        assert!(!of("p/a", 0) && !of("p%63", 0));
    }
}
