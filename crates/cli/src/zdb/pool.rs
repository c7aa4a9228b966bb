//! The options of zdb that open the pool.

use super::{SPEC, blocks, copy, extras, invariants, objects, text};
use crate::args::Args;
use crate::failure::Failure;
use crate::pools::{keys, search_paths};
use weir_format::Txg;
use weir_machine::{Machine, Request};
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
    if args.has('r') {
        let [_, path, dest] = &args.words[..] else { return Err(SPEC.misused("-r takes DATASET PATH DEST")) };
        return copy::run(machine, &pool, &target, &path.to_string_lossy(), &dest.to_string_lossy());
    }
    if args.has('u') {
        print!("\nUberblock:\n{}\n", text::uberblock(&pool.uberblock));
    }
    if args.has('C') {
        print!("\nMOS Configuration:\n{}\n", pool.config.list.to_text(8));
    }
    windows(machine, &pool, args)?;
    let mut code = 0;
    if args.has('d') {
        code = objects::run(machine, &pool, &target, args)?;
    }
    if args.has('b') || args.has('c') {
        code = code.max(blocks::run(machine, &pool, args)?);
    }
    if args.has('I') {
        code = code.max(invariants::run(machine, &pool)?);
    }
    Ok(code)
}

/// The smaller options.
fn windows(machine: &Machine, pool: &Pool, args: &Args) -> Result<(), Failure> {
    let rq = Request::internal("zdb");
    if args.has('m') {
        extras::metaslabs(pool, true);
    }
    if args.has('D') {
        extras::dedup(pool);
    }
    if args.has('i') {
        machine.block_on(extras::logs(&rq, pool))?;
    }
    if args.has('h') {
        machine.block_on(extras::history(&rq, pool))?;
    }
    if args.has('s') {
        extras::devices(pool);
    }
    Ok(())
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
    options.keys = keys(std::path::Path::new(""), args.values('K'))?;
    Ok(options)
}
