//! The page's modules, run by node; a browser is not needed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Command;

#[test]
fn modules_of_the_page_pass_their_tests() {
    // Node 20 has the test runner that is used, and takes modules with the ending .js if the directory says so.
    let version = Command::new("node").arg("--version").output().ok().filter(|out| out.status.success());
    let version = version.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    let major = version.trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < 20) {
        println!("skipped: node 20 is not installed");
        return;
    }
    // Node looks for the type of .js files in a package.json beside them, which the repository does not need otherwise.
    let folder = tempfile::tempdir().unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (from, to) in [("page", "page"), ("tests", "tests")] {
        std::fs::create_dir(folder.path().join(to)).unwrap();
        for entry in std::fs::read_dir(here.join(from)).unwrap().flatten() {
            std::fs::copy(entry.path(), folder.path().join(to).join(entry.file_name())).unwrap();
        }
    }
    std::fs::write(folder.path().join("package.json"), r#"{"type": "module"}"#).unwrap();
    let out = Command::new("node").arg("tests/page.mjs").current_dir(folder.path()).output().unwrap();
    assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
}
