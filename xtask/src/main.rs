//! Development tasks: `cargo xtask {demo,tidy,check,test,sim,fuzz,bench,judge,package,picture}`.
//!
//! Each task is a thin caller of cargo or of a binary of this workspace; CI runs only these. This crate depends on
//! nothing but a JSON reader, so that a task starts quickly and builds even when the engine does not. Tasks that need
//! the engine (golden pools, fuzz bodies, benchmarks) run as a child process whose last line `N passed, N failed, N
//! skipped` is parsed.

mod bench;
mod bench_kernels;
mod check;
mod conformance;
mod demo;
mod failures;
mod fuzz;
mod judge;
mod licences;
mod outcomes;
mod package;
mod picture;
mod process;
mod sim;
mod test;
mod tidy;
mod types;
mod words;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask TASK

  demo [--once]             unpack a pool created by OpenZFS; find, verify, list and serve it
  tidy                      layering, file and function lengths, unfinished work, module docs, words
  check                     format, clippy with warnings denied, licences, tidy
  test [--fast | --complete] [TEST-ARGS]
                            unit, integration and documentation tests, then the golden pools; --complete also runs
                            `fuzz --seconds 1` and a short form of `sim`; ends with the totals
  sim [--long] [--cuts N] [--errors N] [--seed S] [--at MOMENT] [--zdb EVERY] [--state FILE] [SIM-ARGS]
                            the simulator: seeds, doubled runs, the canary; power cuts of whole pools: 20,000, or a
                            million that can be interrupted and resumed (--long); zdb checks one of EVERY;
                            device errors: 10,000, or a million (--long)
  fuzz [--seconds S] [--target NAME] [--with-tests]  every fuzz target on mutated seeds, S seconds each (stable
                            compiler); --with-tests builds what `test` needs, for a run of both
  fuzz --long [--seconds S] [--target NAME]  the same, coverage guided (cargo-fuzz, nightly compiler)
  bench scan [--prepare]    long directories and snapshot lists, and how their cost grows
  bench read [--prepare] [--only CASE] reads compared with fio, zdb and zfs-fuse, as ratios
  bench write [--rounds N] [--only ROW] writes compared with fio and other file systems, as ratios
  bench serve [--rounds N] [--only TEXT] the servers compared with others on the same disk, as ratios
  bench locks               the locks of the hot paths: how often taken, held and waited for
  bench compare OTHER       this build compared with another build's weir-judge
  bench accounting          processor time of accounting requests, compared with a build without it
  bench memory [--most N]   memory of import, writing and verification by the size of the pool
  bench kernels             RAID-Z parity compared with raidz_test -B, one core each
  package [deb] [rpm] [oci] [--profile NAME]  packages in target/packages (with cargo-deb, cargo-generate-rpm)
  picture [FOLDER]          docs/pictures/demo.svg, from a run of the release build in FOLDER (/srv/weir-demo)
  judge package [--profile NAME]  these packages: lintian, rpm, the image unpacked, a clean Debian root
  judge --fetch             unpack OpenZFS's own tools into target/judges/zfs (nothing is installed)
  judge JUDGE [ARGS]        golden | golden-rw | ztest | old-pools | bcc | kill | kill-serve | faults | rescue | hostile-clients | clients | guest | smb | csi | suites | streams | readers | iscsi (see `judge help`)
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let outcome = match task.as_str() {
        "tidy" => tidy::run(),
        "check" => check::run(),
        "test" => test::run(&rest),
        "sim" => sim::run(&rest),
        "fuzz" => fuzz::run(&rest),
        "bench" => bench::run(&rest),
        "judge" => judge::run(&rest),
        "demo" => demo::run(&rest),
        "package" => package::run(&rest),
        "picture" => picture::run(&rest),
        "" | "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(format!("no task is named {other:?}\n\n{USAGE}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
