//! Manifests: every golden is read, and its archive has the images that it names.

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
