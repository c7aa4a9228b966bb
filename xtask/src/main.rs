//! Chores around the code: `cargo xtask {demo,tidy,check,test,sim,fuzz,bench,judge}`.
//!
//! Each chore is a thin caller of cargo or of a binary of this workspace; CI calls only these. This crate depends on
//! nothing but a JSON reader so that a chore starts at once, and so that it still builds when the engine does not.
//! What needs the engine (golden pools, fuzz bodies, benchmarks) lives in `weir-judges`, and is started from here as
//! a process whose closing line `N passed, N failed, N skipped` is read back.

mod bench;
mod bench_kernels;
mod check;
mod demo;
mod fuzz;
mod judge;
mod licences;
mod process;
mod test;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask CHORE

  demo [--once]             unpack a pool that OpenZFS made; find, verify, list and serve it
  tidy                      layering table, file and function lengths, leftovers, module theory
  check                     format, clippy with warnings denied, licences, tidy
  test [--fast] [TEST-ARGS] unit, integration and documentation tests, then the golden pools; closes with the sums
  sim [--long] [--cuts N] [--seed S] [--at MOMENT] [--zdb EVERY] [--state FILE] [SIM-ARGS]
                            the simulator: seeds, doubled runs, the canary; power cuts of whole pools: 20,000, or a
                            million that may be stopped and go on (--long); zdb judges one of EVERY
  fuzz [--seconds S] [--target NAME]   every decoder's fuzz body on mutated seeds, S seconds each (stable compiler)
  fuzz --long [--seconds S] [--target NAME]  the same guided by coverage (cargo-fuzz, nightly compiler)
  bench scan [--prepare]    long directories and lists of snapshots, and how their cost grows
  bench read [--prepare] [--only CASE] reads beside fio, zdb and zfs-fuse, as ratios
  bench write [--rounds N] [--only ROW] writes beside fio and other file systems, as ratios
  bench kernels             RAID-Z parity beside raidz_test -B, one core each
  judge --fetch             unpack OpenZFS's own tools into target/judges/zfs (nothing is installed)
  judge JUDGE [ARGS]        golden | golden-rw | ztest | old-pools | bcc | kill | kill-serve | suites | streams | readers (see `judge help`)
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let chore = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let outcome = match chore.as_str() {
        "tidy" => tidy::run(),
        "check" => check::run(),
        "test" => test::run(&rest),
        "sim" => test::sim(&rest),
        "fuzz" => fuzz::run(&rest),
        "bench" => bench::run(&rest),
        "judge" => judge::run(&rest),
        "demo" => demo::run(&rest),
        "" | "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(format!("no chore is called {other:?}\n\n{USAGE}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
