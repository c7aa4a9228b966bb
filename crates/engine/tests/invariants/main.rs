//! The check of invariants: pools that OpenZFS wrote pass it, and each class of faults is found in a pool that was
//! corrupted to have it. Each corruption changes a few bytes of decoded blocks, after their checksums are verified.
#![allow(clippy::disallowed_methods, reason = "tests make files and run tar")]
#![allow(clippy::unwrap_used, reason = "a failed setup step fails the test")]

mod corruptions;

use std::path::{Path, PathBuf};
use std::process::Command;
use weir_blocks::fault_injection::PointerForger;
use weir_machine::{Machine, Request};
use weir_pool::invariants::Report;
use weir_pool::{OpenOptions, Pool, PoolError};

/// Opens the pool in `dir`, with a corrupter if there is one, and checks its invariants.
async fn check(machine: &Machine, dir: &Path, forger: Option<PointerForger>) -> Result<Report, PoolError> {
    let options = OpenOptions { forger, ..OpenOptions::new(vec![dir.to_owned()], "") };
    let pool = Pool::open(machine, &options).await?;
    Ok(weir_pool::invariants::check_invariants(&pool, &Request::internal("test")).await?)
}

fn goldens() -> Vec<(String, PathBuf)> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    let folder = std::env::var_os("WEIR_GOLDEN").map_or(beside, PathBuf::from);
    let Ok(files) = std::fs::read_dir(&folder) else {
        eprintln!("skipped: no golden pools at {} (set WEIR_GOLDEN)", folder.display());
        return Vec::new();
    };
    let mut out: Vec<(String, PathBuf)> = files
        .filter_map(|file| {
            let path = file.ok()?.path();
            let name = path.file_name()?.to_str()?.strip_suffix(".tar.zst")?.to_owned();
            Some((name, path))
        })
        .collect();
    out.sort();
    out
}

#[test]
fn pools_of_openzfs_hold_all_invariants() {
    let machine = weir_linux::machine().unwrap();
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (name, archive) in goldens() {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let unpack = "zstd -dc \"$0\" | tar -xSf - -C \"$1\"";
        let status = Command::new("sh").args(["-c", unpack]).arg(&archive).arg(dir.path()).status().unwrap();
        assert!(status.success(), "unpacking {name}");
        match machine.block_on(check(&machine, dir.path(), None)) {
            Ok(report) => {
                checked += 1;
                let lines: Vec<String> = report.findings.iter().take(6).map(ToString::to_string).collect();
                if !report.is_clean() {
                    wrong.push(format!("{name}: {} findings\n  {}", report.count, lines.join("\n  ")));
                }
            }
            Err(error) => eprintln!("{name} is skipped: {error}"),
        }
    }
    println!("{checked} pools were checked");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
