//! Manifests: every golden is read, and its archive has the images that it names. Memory: a large pool takes little.

use weir_conformance::golden::{Unpacked, folder, names};
use weir_conformance::manifest::Golden;

#[test]
fn every_manifest_is_understood() {
    let Some(folder) = folder() else {
        println!("skipped: no golden pools (set WEIR_GOLDEN to their folder)");
        return;
    };
    let names = names(&folder).unwrap();
    assert!(names.len() >= 60, "only {} goldens", names.len());
    for name in names {
        let golden = Golden::read(&folder, &name).unwrap();
        let state = golden.read_only_state().unwrap_or_else(|| panic!("{name} has no manifest"));
        assert!(!state.datasets.is_empty(), "{name}");
        for entry in state.datasets.iter().filter_map(|dataset| dataset.files.as_ref()).flatten() {
            assert!(entry.mode_bits().is_some(), "{name}: {:?}", entry.path);
        }
    }
}

#[test]
fn an_archive_unpacks_to_the_images_of_its_manifest() {
    let Some(folder) = folder() else {
        println!("skipped: no golden pools (set WEIR_GOLDEN to their folder)");
        return;
    };
    let golden = Golden::read(&folder, "cksum-a9").unwrap();
    let unpacked = Unpacked::new(&folder, "cksum-a9").unwrap();
    assert_eq!(unpacked.changed(&golden).unwrap(), Vec::<String>::new());
    let first = unpacked.path().join(&golden.devices[0].file);
    let mut bytes = std::fs::read(&first).unwrap();
    bytes[300_000] ^= 1;
    std::fs::write(&first, bytes).unwrap();
    assert_eq!(unpacked.changed(&golden).unwrap(), [golden.devices[0].file.clone()]);
}

/// 32 disks of 32 TiB, with metadata only: the processes that write to the pool and walk it fail beyond their limits of
/// memory. `cargo xtask bench memory` has the same with more segments and pointers.
#[test]
fn a_walk_over_a_pebibyte_takes_bounded_memory() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path().to_str().unwrap();
    let shape = "32,32,6400,65536";
    for step in ["prepare", "write", "walk"] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_weir-judge"));
        let output = child.args(["memory-bench-child", step, shape, home]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("peak") != (step == "prepare"), "{step}: {text}{errors}");
        println!("{step}: {text}");
    }
}
