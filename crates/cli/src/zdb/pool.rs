//! The options of zdb that open the pool.

use super::{SPEC, blocks, text};
use crate::args::Args;
use crate::failure::Failure;
use crate::pools::search_paths;
use weir_format::Txg;
use weir_machine::Machine;
use weir_pool::{OpenOptions, Pool, Rewind};

/// Opens the pool that the first word names and shows what the options say.
pub fn run(machine: &Machine, args: &Args) -> Result<u8, Failure> {
    let Some(target) = args.word(0) else {
        return Err(SPEC.misused("name a pool"));
    };
    let pool_name = target.split(['/', '@']).next().unwrap_or(&target).to_owned();
    let options = options(args, pool_name)?;
    let pool = machine.block_on(Pool::open(machine, &options))?;
    for warning in &pool.warnings {
        eprintln!("{warning}");
    }
    if args.has('u') {
        print!("\nUberblock:\n{}\n", text::uberblock(&pool.uberblock));
    }
    if args.has('C') {
        print!("\nMOS Configuration:\n{}\n", pool.config.list.to_text(8));
    }
    if args.has('b') || args.has('c') {
        return blocks::run(machine, &pool, args);
    }
    Ok(0)
}

/// Which pool, and how.
fn options(args: &Args, pool: String) -> Result<OpenOptions, Failure> {
    let mut options = OpenOptions::new(search_paths(args.values('p'))?, pool);
    if args.has('F') {
        options.rewind = Rewind::Auto;
    }
    if let Some(txg) = args.value('t') {
        let txg =
            txg.parse().map_err(|_| SPEC.misused(&format!("-t takes a transaction group's number, not '{txg}'")))?;
        options.rewind = Rewind::Before(Txg(txg));
    }
    options.checkpoint = args.has('k');
    Ok(options)
}
