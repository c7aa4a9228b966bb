//! OpenZFS's zdb as a judge of pools on real files. `WEIR_ZFS_TOOLS` names the folder with its programs.
#![allow(clippy::disallowed_methods, reason = "judges run other programs")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The judge, if it is there; else a line says that it was left out.
pub fn tools() -> Option<PathBuf> {
    let folder = std::env::var_os("WEIR_ZFS_TOOLS").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: WEIR_ZFS_TOOLS does not name a folder with OpenZFS's programs");
    }
    folder
}

/// Runs zdb on the pool whose devices are in `dir`: its exit code and all that it said.
pub fn zdb(tools: &Path, dir: &Path, args: &[&str]) -> (i32, String) {
    let libraries = tools.join("lib/x86_64-linux-gnu");
    let output = Command::new("timeout")
        .arg("600")
        .arg(tools.join("sbin/zdb"))
        .env("LD_LIBRARY_PATH", libraries)
        .args(["-e", "-p"])
        .arg(dir)
        .args(args)
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap_or(-1), text)
}

/// Demands that zdb reads all of the pool and finds each block allocated exactly once.
pub fn assert_clean(dir: &Path, pool: &str) {
    let Some(tools) = tools() else { return };
    let (code, text) = zdb(&tools, dir, &["-bcc", pool]);
    assert!(code == 0 && text.contains("No leaks"), "zdb -bcc {pool} in {}: exit {code}\n{text}", dir.display());
    // Every pointer of every object; zdb cannot read what is encrypted that far.
    let counted = zdb(&tools, dir, &["-d", pool]).1;
    let is_encrypted = counted.contains("encryption feature") && !counted.contains("encryption feature refcount of 0");
    let level = if is_encrypted { "-dddd" } else { "-ddddddd" };
    let (code, text) = zdb(&tools, dir, &[level, pool]);
    // Hard links whose parent is another by now.
    let is_usual = code == 0 || code == 3 && text.contains("possibly leaked");
    let wrong: Vec<&str> = text.lines().filter(|line| line.contains("does not match bookmark")).take(3).collect();
    let end = &text[text.len().saturating_sub(4000)..];
    assert!(is_usual && wrong.is_empty(), "zdb {level} {pool}: exit {code}\n{wrong:#?}\n{end}");
}

/// Demands that zdb, with the user's key, finds no error in an encrypted dataset.
pub fn assert_opened(dir: &Path, key: &str, dataset: &str) {
    let Some(tools) = tools() else { return };
    let (code, text) = zdb(&tools, dir, &["-K", key, "-dddd", dataset]);
    let wrong = ["error", "couldn't", "failed"].iter().any(|word| text.contains(word));
    assert!(code == 0 && !wrong, "zdb -K … -dddd {dataset}: exit {code}\n{}", &text[text.len().saturating_sub(4000)..]);
}

/// Output of zdb, with the key, for a file of an encrypted file system; `None` if zdb is absent.
pub fn file_with_key(dir: &Path, key: &str, dataset: &str, path: &str) -> Option<Vec<u8>> {
    let tools = tools()?;
    let copy = dir.join("copied-by-zdb");
    let (code, text) = zdb(&tools, dir, &["-K", key, "-r", dataset, path, copy.to_str().unwrap()]);
    assert!(code == 0, "zdb -K … -r {dataset} {path}: exit {code}\n{text}");
    let bytes = std::fs::read(&copy).unwrap();
    std::fs::remove_file(&copy).unwrap();
    Some(bytes)
}

/// Whether zdb finds nothing wrong; true if it is not there.
pub fn is_clean(dir: &Path, pool: &str) -> bool {
    tools().is_none_or(|tools| {
        let (code, text) = zdb(&tools, dir, &["-bcc", pool]);
        code == 0 && text.contains("No leaks")
    })
}

/// Words of zdb for unreferenced objects and wrong counts.
const WRONG: [&str; 3] = ["leaked", "mismatch", "incorrect"];

/// Demands that every object of the MOS is referred to, and that features are counted as they are used.
pub fn assert_counted(dir: &Path, pool: &str) {
    let Some(tools) = tools() else { return };
    let (code, text) = zdb(&tools, dir, &["-d", pool]);
    let wrong = WRONG.iter().any(|word| text.contains(word));
    assert!(code == 0 && !wrong, "zdb -d {pool} in {}: exit {code}\n{text}", dir.display());
}
