//! Devices of pools that are imported while no process has them open.

use super::Lab;

/// A pool that was not exported keeps its devices, although no process has it open: the next command opens the pool.
#[test]
fn force_takes_no_device_of_a_pool_that_is_not_exported() {
    let lab = Lab::new(4);
    lab.ok("zpool create p mirror D0 D1");
    lab.ok("zfs create p/a");
    lab.ok("zpool create q D2");
    for line in ["zpool create -f r D0", "zpool add -f q D0", "zpool attach -f q D2 D1", "zpool replace -f q D2 D1"] {
        let (code, said) = lab.fails(line);
        assert!(code == 1 && said.contains("is part of active pool 'p'"), "{line}: {said}");
    }
    for device in ["D0", "D1"] {
        let (code, said) = lab.fails(&format!("zpool labelclear -f {device}"));
        assert!(code == 1 && said.contains("is a member of active pool \"p\""), "{said}");
    }
    lab.ok("zfs list p/a");
    // A pool that cannot be opened can be neither exported nor destroyed.
    lab.ok("zpool create s D3");
    let file = std::fs::File::options().write(true).open(lab.dir.path().join("d3")).unwrap();
    // Labels stay; all else is zero: 4 MiB at the start, two labels at the end.
    let len = file.metadata().unwrap().len();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0; (len as usize) - (5 << 20)], 4 << 20).unwrap();
    lab.ok("zpool labelclear -f D3");
}
