//! `zpool labelclear`.

use super::Lab;
use std::io::{Read, Seek, SeekFrom, Write};

#[test]
fn labelclear_overwrites_labels_and_nothing_else() {
    let lab = Lab::new();
    lab.ok("zpool export p");
    let open = || std::fs::File::options().read(true).write(true).open(lab.path("d0")).unwrap();
    // Other data at the start of the device, where its first two labels were.
    let data = vec![0xa5; 4 << 20];
    open().write_all(&data).unwrap();
    assert!(lab.fails("zpool labelclear d0").contains("use '-f'"), "its other labels are those of an exported pool");
    lab.ok("zpool labelclear -f d0");
    let mut kept = vec![0; data.len()];
    open().read_exact(&mut kept).unwrap();
    assert!(kept == data, "what is no label was overwritten");
    let mut end = Vec::new();
    let mut file = open();
    file.seek(SeekFrom::End(-(512 << 10))).unwrap();
    file.read_to_end(&mut end).unwrap();
    // The first 8 KiB of a label are space for a boot block.
    assert!(end.chunks(256 << 10).all(|label| label[8 << 10..].iter().all(|byte| *byte == 0)), "a label is left");
    assert!(lab.fails("zpool labelclear -f d0").contains("no label"));
    // The other device has four labels.
    lab.ok("zpool labelclear -f d1");
    assert!(lab.fails("zpool labelclear -f d1").contains("no label"));
    assert!(!lab.run("zdb -l d1").status.success());
    lab.ok("zpool create q d1");
}
