//! `weir-judge`: runs one judge, prints a line per case, and `N passed, N failed, N skipped` at the end.

use std::process::ExitCode;

use weir_conformance::cases::{self, Via};
use weir_conformance::report::Report;
use weir_conformance::{
    JudgeError, bench, csi, faults, golden, guest, hostile, iscsi, kill, kill_serve, many_clients, object, old_pools,
    properties, readers, replicated, rescued, rewritten, sent, smb, streams, suites, zdb, ztest, zts,
};

const USAGE: &str = "\
weir-judge JUDGE

  golden [--via engine|fuse|nfs] [NAME...]  every golden pool against its manifest (fuse: `weir mount`; nfs: `weir serve`, NBD)
  golden-rw [--short] [--only] [NAME...]    every golden pool that may be written: imported, worked on, exported, compared
  bcc [NAME...]                             our zdb -bcc beside OpenZFS's on every golden pool
  properties [NAME...]                      what pools and datasets say of themselves beside OpenZFS's answers
  streams                                   send streams beside OpenZFS's zstream dump; made and received
  readers [NAME...]                         lamzfs and zfs-forensic-core beside the engine on some golden pools
  rescue [POOLS] [--seed N]                 golden pools that are damaged, and what weir rescue brings out of them (long form: 500)
  ztest [ROUNDS] [--keep]                   pools that OpenZFS's ztest made and was killed over: read, and written
  zts [--short] [--table] [GROUP...]        OpenZFS's functional test suite, which drives weir as zpool, zfs, zdb (root)
  old-pools [POOL...]                       the pools of OpenZFS's test package
  kill [ROUNDS]                             a program that is killed while it writes, and what it had promised
  faults                                    devices that hang, fail or have no room, below a server
  hostile-clients                           idle, half-sending and never-reading clients beside a good one
  clients                                   many NFS clients at once: fair, steady, and the sums of the accounts
  kill-serve [ROUNDS]                       a server that is killed while NFS and NBD clients write to it
  guest [--long] [--only nfs|nbd|iscsi|smb|daemon] the NFS, NBD, iSCSI and SMB clients of a Linux kernel in an emulated machine
  iscsi [--short] [SUITE...]                iscsi-test-cu, qemu and iscsi-ls against volumes as iSCSI targets
  suites [--long]                           other people's file system tests on a mounted pool: pjdfstest, fsx, stress-ng, a build
  csi                                       csi-sanity on `weir csi` with a daemon: file systems over NFS, volumes over iSCSI
  smb [--long]                              smbclient, smbcacls and smbtorture on `weir serve --smb`, beside the same smbd on another file system
  object [folder|versitygw|azurite...]      pools on object stores: filled, killed, trimmed, mixed with local devices; zdb on the objects
  replicate [HISTORIES] [--seed N]          weir replicate over connections that break at random bytes (long form: 1000)
  scan-bench [--prepare]                    long directories and lists of snapshots, and how their cost grows
  scale-bench [--most N]                    a daemon with 100, 1,000 and 10,000 datasets: times and memory (use a release build)
  memory-bench [--most SEGMENTS]            memory by the size of the pool, on simulated disks (use a release build)
  resilver-bench [--rounds N] [--only modelled|files]
                                            a disk is replaced: on modelled disks, and on files beside fio (use a release build)
  plan-bench [--rounds N]                   the planner's predictions beside measured loads (use a release build)
  read-bench [--prepare] [--only POOL]      reads beside fio, zdb and zfs-fuse, as ratios (use a release build)
  write-bench [--rounds N] [--only ROW]     writes beside fio and other file systems, as ratios (use a release build)
  serve-bench [--rounds N] [--only TEXT] [--mib N]
                                            NFS and NBD beside nfs-ganesha, nbdkit, qemu-nbd, as ratios (use a release build, as root)
  object-bench [--rounds N] [--mib N] [--only write|read|fsync]
                                            pools on versitygw beside that store by itself, as ratios (use a release build)
  compare-bench JUDGE [--rounds N] [--only TEXT]
                                            this build beside another build of Weir, whose weir-judge is named: interleaved
                                            rounds, 95 % intervals (use release builds)

The golden pools are in WEIR_GOLDEN (else ../shared/golden beside the workspace), OpenZFS's tools in WEIR_ZFS_TOOLS
(else target/judges/zfs), Weir's binary is WEIR_BIN (else beside this program).
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut report = Report::default();
    if let [judge, what, devices, pool] = arguments.as_slice()
        && judge == "read-bench-child"
    {
        return bench::read_child::main(what, devices, pool);
    }
    if let [judge, what, folder, layout, mib] = arguments.as_slice()
        && judge == "write-bench-child"
    {
        return bench::write_child::main(what, folder, layout, mib);
    }
    if let [judge, what, mib, folder] = arguments.as_slice()
        && judge == "mounted-bench-child"
    {
        return bench::mounted::main(what, mib, folder);
    }
    if let [judge, step, shape, home] = arguments.as_slice()
        && judge == "memory-bench-child"
    {
        return bench::memory::main(step, shape, home);
    }
    if let [judge, rest @ ..] = arguments.as_slice()
        && judge == "resilver-bench-child"
    {
        return bench::resilver::main(rest);
    }
    if let [judge, what] = arguments.as_slice()
        && judge == "mounted-weir-child"
    {
        return bench::compare::mounted_main(what);
    }
    if let [judge, rest @ ..] = arguments.as_slice()
        && judge == "serve-bench-child"
    {
        return bench::serve::nfs_load::main(rest);
    }
    if let [judge, rest @ ..] = arguments.as_slice()
        && judge == "object-bench-child"
    {
        return bench::object_child::main(rest);
    }
    if let [judge, folder, life] = arguments.as_slice()
        && judge == "kill-child"
    {
        return kill::child(folder, life);
    }
    if let [judge, rest @ ..] = arguments.as_slice()
        && judge == "object-child"
    {
        return object::child::main(rest);
    }
    let outcome = match arguments.split_first() {
        Some((judge, rest)) => run(judge, rest, &mut report),
        None => Err(Stop::Usage),
    };
    match outcome {
        Ok(()) => {}
        Err(Stop::Usage) => {
            print!("{USAGE}");
            return ExitCode::from(2);
        }
        Err(Stop::Judge(JudgeError::Missing { what })) => report.skip(&arguments.join(" "), &what),
        Err(Stop::Judge(error)) => report.fail(&arguments.join(" "), &[error.to_string()]),
    }
    if report.close() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

enum Stop {
    Usage,
    Judge(JudgeError),
}

impl From<JudgeError> for Stop {
    fn from(error: JudgeError) -> Stop {
        Stop::Judge(error)
    }
}

fn run(judge: &str, rest: &[String], report: &mut Report) -> Result<(), Stop> {
    let folder = || {
        golden::folder().ok_or_else(|| JudgeError::Missing { what: "no golden pools (set WEIR_GOLDEN)".to_string() })
    };
    match judge {
        "golden" => {
            let (via, names) = match rest {
                [flag, via, names @ ..] if flag == "--via" => (Via::named(via).ok_or(Stop::Usage)?, names),
                names => (Via::Engine, names),
            };
            cases::run(&folder()?, names, via, report)?;
        }
        "golden-rw" => rewritten::run(&folder()?, rest, report)?,
        "bcc" => zdb::run(&folder()?, rest, report)?,
        "kill" => kill::run(rest, report)?,
        "kill-serve" => kill_serve::run(rest, report)?,
        "faults" => faults::run(report)?,
        "guest" => guest::run(rest, report)?,
        "hostile-clients" => hostile::run(rest, report)?,
        "clients" => many_clients::run(report)?,
        "iscsi" => iscsi::run(rest, report)?,
        "read-bench" => bench::read::run(rest, report)?,
        "write-bench" => bench::write::run(rest, report)?,
        "compare-bench" => bench::compare::run(rest, report)?,
        "serve-bench" => bench::serve::run(rest, report)?,
        "scan-bench" => bench::scan::run(rest, report)?,
        "scale-bench" => bench::scale::run(rest, report)?,
        "plan-bench" => bench::plan::run(rest, report)?,
        "resilver-bench" => bench::resilver::run(rest, report)?,
        "memory-bench" => bench::memory::run(rest, report)?,
        "object-bench" => bench::object::run(rest, report)?,
        "readers" => readers::run(&folder()?, rest, report)?,
        "rescue" => rescued::run(&folder()?, rest, report)?,
        "properties" => properties::run(&folder()?, rest, report)?,
        "suites" => suites::run(rest, report)?,
        "csi" => csi::run(report)?,
        "object" => object::run(rest, report)?,
        "replicate" => replicated::run(rest, report)?,
        "smb" => smb::run(rest, report)?,
        "streams" => {
            streams::run(&folder()?, report)?;
            sent::run(&folder()?, report)?;
        }
        "ztest" => ztest::run(rest, report)?,
        "zts" => zts::run(rest, report)?,
        "old-pools" => old_pools::run(rest, report)?,
        _ => return Err(Stop::Usage),
    }
    Ok(())
}
