//! `cargo xtask demo`: Weir's main commands on a real pool, for users who have none at hand.
//!
//! Unpacks a pool created by OpenZFS into `target/demo`: a golden pool if available, else one from OpenZFS's test
//! package. Then finds, verifies, lists and serves it; each step prints the command that a user would type.

use crate::judge;
use crate::process::{Outcome, cargo, golden, must, target};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The golden pool: RAID-Z2 of four disks with the full mix of contents.
const GOLDEN: (&str, &str) = ("raidz2-4-a9", "g-raidz2-4-a9");
/// The images of a RAID-Z pool of version 3 in the test package.
const PACKAGED: [&str; 3] = ["zfs-pool-v3raidz1.dat", "zfs-pool-v3raidz2.dat", "zfs-pool-v3raidz3.dat"];
/// Folder of the pools in the test package.
const PACKAGE_FOLDER: &str = "share/zfs/zfs-tests/tests/functional/cli_root/zpool_upgrade/blockfiles";

/// Entry point of the task. `--once` exits before serving.
pub fn run(arguments: &[String]) -> Outcome {
    let folder = target().join("demo");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let pool = prepare(&folder)?;
    must("build", cargo(&["build", "--release", "--quiet", "-p", "weir"]).arg("--bin").arg("weir"))?;
    let weir = target().join("release/weir");
    let folder = folder.display().to_string();
    let run = |words: &[&str]| {
        must(
            &format!("WEIR_POOL_DIRS={folder} weir {}", words.join(" ")),
            Command::new(&weir).args(words).env("WEIR_POOL_DIRS", &folder),
        )
    };
    run(&["zpool", "import"])?;
    let pool = if pool.is_empty() { pool_name(&weir, &folder)? } else { pool };
    run(&["zdb", "-e", "-bcc", &pool])?;
    run(&["zfs", "list", "-t", "all", "-r", &pool])?;
    if arguments.iter().any(|a| a == "--once") {
        return Ok(());
    }
    run(&["serve", "--nfs-port", "0", "--nbd-port", "0", &pool])
}

/// Unpacks the pool unless it exists; returns its name, or an empty string if it is unknown.
fn prepare(folder: &Path) -> Result<String, String> {
    if let Some(goldens) = golden() {
        let archive = goldens.join(format!("{}.tar.zst", GOLDEN.0));
        if !folder.join("d0.img").is_file() {
            let unpack = format!("zstd -dcq {} | tar -xSf - -C {}", shell_quoted(&archive), shell_quoted(folder));
            must("unpack a golden pool", Command::new("sh").arg("-c").arg(unpack))?;
        }
        return Ok(GOLDEN.1.to_owned());
    }
    judge::fetch(false)?;
    let tools = judge::tools().ok_or("OpenZFS's tools could not be fetched, and there are no golden pools")?;
    let source = ["", "usr"].iter().map(|p| tools.join(p).join(PACKAGE_FOLDER)).find(|p| p.is_dir());
    let source = source.ok_or_else(|| format!("{}: no {PACKAGE_FOLDER} there", tools.display()))?;
    for name in PACKAGED {
        let from = source.join(format!("{name}.bz2"));
        let to = folder.join(name);
        if !to.is_file() {
            let unpack = format!("bzip2 -dc {} > {}", shell_quoted(&from), shell_quoted(&to));
            must(&format!("unpack {name}"), Command::new("sh").arg("-c").arg(unpack))?;
        }
    }
    Ok(String::new())
}

/// Name of the pool that `weir zpool import` finds.
fn pool_name(weir: &PathBuf, folder: &str) -> Result<String, String> {
    let out = Command::new(weir)
        .args(["zpool", "import", "-d", folder])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{}: {error}", weir.display()))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let name = text.lines().find_map(|line| line.trim().strip_prefix("pool:"));
    name.map(|n| n.trim().to_owned()).ok_or_else(|| format!("no pool was pool_name in {folder}"))
}

/// Quotes a path for the shell.
fn shell_quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}
