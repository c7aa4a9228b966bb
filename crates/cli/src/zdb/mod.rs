//! `weir zdb`: looking into a pool.
//!
//! The options are zdb's; the text is ours where it reads better, with zdb's own words on the lines that scripts read.
//! Exit codes: 0 all is well, 1 something could not be done, 2 misused, or leaks or broken invariants found, 3 blocks that
//! cannot be read.

mod blocks;
mod copy;
mod extras;
mod invariants;
mod label;
mod objects;
mod pool;
mod select;
pub(crate) mod text;

pub use text::{date, stamp};

use crate::args::{Args, Spec};
use crate::failure::Failure;
use std::ffi::OsString;

const SPEC: Spec = Spec {
    command: "zdb",
    letters: "AbcCdDeFGhiklLmNp:PqrsSt:uvXK:",
    long: &[
        ("all-reconstruction", 'Y'),
        ("block-stats", 'b'),
        ("checksum", 'c'),
        ("config", 'C'),
        ("datasets", 'd'),
        ("dedup-stats", 'D'),
        ("exported", 'e'),
        ("automatic-rewind", 'F'),
        ("history", 'h'),
        ("intent-logs", 'i'),
        ("checkpointed-state", 'k'),
        ("label", 'l'),
        ("disable-leak-tracking", 'L'),
        ("metaslabs", 'm'),
        ("path", 'p'),
        ("parseable", 'P'),
        ("skip-label", 'q'),
        ("copy-object", 'r'),
        ("io-stats", 's'),
        ("txg", 't'),
        ("uberblock", 'u'),
        ("verbose", 'v'),
        ("key", 'K'),
        ("invariants", 'I'),
    ],
    usage: "zdb [-e] [-p DIR] [-AbcCdDFhikLmsuv] [-t TXG] POOL[/DATASET] [OBJECT | PATH] | zdb --invariants [-e] [-p DIR] POOL | zdb -l [-qu] DEVICE | zdb -r DATASET PATH DEST",
};

/// Runs the command.
pub fn run(line: Vec<OsString>) -> Result<u8, Failure> {
    let args = SPEC.parse(line)?;
    let machine = weir_linux::machine()?;
    if args.has('l') {
        return label::run(&machine, &device(&args)?, &args);
    }
    pool::run(&machine, &args)
}

fn device(args: &Args) -> Result<std::path::PathBuf, Failure> {
    match &args.words[..] {
        [device] => Ok(device.into()),
        [] => Err(SPEC.misused("-l needs a device")),
        _ => Err(SPEC.misused("-l takes one device")),
    }
}
