//! Bad input: whatever is called a device, the commands end with 1 or 2 and a clear line, soon, and never in a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]
#![allow(clippy::disallowed_methods, reason = "a process is given real time")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use weir_codec::checksum::Verifier;
use weir_codec::checksum::embedded::seal_embedded;
use weir_format::label::{CONFIG, LABEL_BYTES};
use weir_format::nvlist::{NvList, NvValue};
use weir_format::{ChecksumKind, Endian};

/// Longest that one command may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs `weir` in an address space of 4 GiB and waits for it.
fn weir(words: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 4194304; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_weir")]).args(words);
    command.env_remove("WEIR_POOL_DIRS").env_remove("RUST_BACKTRACE");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("weir {words:?} takes more than {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// The command fails as a command should; gives what it says.
fn fails(words: &[&str]) -> String {
    let out = weir(words);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(matches!(out.status.code(), Some(1 | 2)), "weir {words:?}: {:?}\n{said}", out.status);
    assert!(!said.contains("panicked") && !said.contains("RUST_BACKTRACE"), "weir {words:?}: {said}");
    let lines = said.lines().count();
    assert!((1..=8).contains(&lines), "weir {words:?} says {lines} lines:\n{said}");
    said
}

/// All three commands on an image that is alone in its folder.
fn all_fail(folder: &Path, image: &Path) {
    let dir = folder.to_str().unwrap();
    let image = image.to_str().unwrap();
    let said = fails(&["zdb", "-l", image]);
    assert!(said.contains(image), "the file is named: {said}");
    fails(&["zpool", "import", "-d", dir]);
    fails(&["zpool", "import", "-d", image]);
    fails(&["zdb", "-e", "-p", dir, "-u", "nopool"]);
    let said = fails(&["zdb", "-e", "-p", dir, "-bcc", "nopool"]);
    assert!(said.contains(dir), "the place is named: {said}");
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn image(folder: &Path, bytes: &[u8]) -> PathBuf {
    let path = folder.join("image");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Bytes without order, the same each time.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    out.truncate(len);
    out
}

#[test]
fn images_of_nothing_and_of_noise() {
    for len in [0, 1, 100, 511, 128 << 10, 256 << 10, (256 << 10) + 1, 1 << 20, 3 << 20] {
        for bytes in [vec![0; len], vec![0xff; len], noise(len)] {
            let folder = folder();
            let image = image(folder.path(), &bytes);
            all_fail(folder.path(), &image);
        }
    }
}

#[test]
fn a_folder_of_junk() {
    let folder = folder();
    let path = folder.path();
    std::fs::write(path.join("notes.txt"), "not a disk").unwrap();
    std::fs::write(path.join("\u{1b}[31m\n"), noise(5000)).unwrap();
    std::fs::create_dir(path.join("folder")).unwrap();
    std::os::unix::fs::symlink("nowhere", path.join("dangling")).unwrap();
    std::os::unix::fs::symlink(".", path.join("circle")).unwrap();
    assert!(Command::new("mkfifo").arg(path.join("pipe")).status().unwrap().success());
    let dir = path.to_str().unwrap();
    fails(&["zpool", "import", "-d", dir]);
    fails(&["zdb", "-e", "-p", dir, "-u", "nopool"]);
    for name in ["folder", "dangling", "circle", "pipe", "absent"] {
        let device = path.join(name);
        let said = fails(&["zdb", "-l", device.to_str().unwrap()]);
        assert!(said.contains(name), "{name} is named: {said}");
    }
    let absent = path.join("absent");
    assert!(fails(&["zpool", "import", "-d", absent.to_str().unwrap()]).contains("absent"));
}

/// A device whose first label says what `config` says, rightly sealed.
fn labelled(config: &NvList) -> Vec<u8> {
    let mut device = vec![0; 4 * LABEL_BYTES as usize + (8 << 20)];
    let area = &mut device[CONFIG];
    let packed = config.encode_xdr();
    assert!(packed.len() < area.len() - 40, "it fits");
    area[..packed.len()].copy_from_slice(&packed);
    let verifier = Verifier::Label { offset_bytes: CONFIG.start as u64 };
    seal_embedded(ChecksumKind::Label, Endian::Little, verifier, area).unwrap();
    device
}

fn vdev(kind: &str, numbers: &[(&str, u64)]) -> NvList {
    let mut list = NvList::new();
    list.set("type", kind);
    for (name, number) in [("id", 0), ("guid", 7), ("ashift", 9), ("asize", 8 << 20)].iter().chain(numbers) {
        list.set(name, NvValue::Uint64(*number));
    }
    list
}

fn config(tree: NvList, numbers: &[(&str, u64)]) -> NvList {
    let mut list = NvList::new();
    list.set("name", "nopool");
    let usual = [("version", 5000), ("state", 1), ("txg", 4), ("pool_guid", 5), ("guid", 7), ("top_guid", 7)];
    for (name, number) in usual.iter().chain(&[("vdev_children", 1)]).chain(numbers) {
        list.set(name, NvValue::Uint64(*number));
    }
    list.set("vdev_tree", NvValue::List(tree));
    list
}

/// Labels that are sealed as they should be and lie.
fn hostile_labels() -> Vec<NvList> {
    let mut out = vec![NvList::new()];
    for shift in [0, 1, 63, 64, 255, u64::MAX] {
        out.push(config(vdev("file", &[("ashift", shift)]), &[]));
    }
    for number in [0, 1, 255, u64::from(u32::MAX), u64::MAX] {
        for name in ["id", "guid", "asize", "metaslab_shift", "metaslab_array", "is_log"] {
            out.push(config(vdev("file", &[(name, number)]), &[]));
        }
        for name in ["version", "state", "txg", "pool_guid", "guid", "top_guid", "vdev_children"] {
            out.push(config(vdev("file", &[]), &[(name, number)]));
        }
        let parts = ["draid_ndata", "draid_nspares", "draid_ngroups"].map(|name| (name, number));
        for kind in ["raidz", "draid", "mirror", "dspare", "hole", "indirect", "root", "", "\u{1b}[31m"] {
            let mut tree = vdev(kind, &[("nparity", number)]);
            parts.iter().for_each(|(name, n)| tree.set(name, NvValue::Uint64(*n)));
            out.push(config(tree.clone(), &[]));
            tree.set("children", NvValue::ListArray(vec![vdev("file", &[])]));
            out.push(config(tree, &[]));
        }
    }
    for depth in [5, 25, 200] {
        let nest = |inner, _| {
            let mut tree = vdev("mirror", &[]);
            tree.set("children", NvValue::ListArray(vec![inner]));
            tree
        };
        out.push(config((0..depth).fold(vdev("file", &[]), nest), &[]));
    }
    out
}

#[test]
fn labels_that_lie() {
    for (index, list) in hostile_labels().iter().enumerate() {
        let folder = folder();
        let image = image(folder.path(), &labelled(list));
        let dir = folder.path().to_str().unwrap();
        let device = image.to_str().unwrap();
        // The label itself is sound, and may be shown; nothing behind it can be opened.
        for words in [&["zdb", "-l", device][..], &["zdb", "-l", "-u", device], &["zpool", "import", "-d", dir]] {
            let out = weir(words);
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(matches!(out.status.code(), Some(0..=2)), "{index}: {words:?}: {:?} {said}", out.status);
            assert!(!said.contains("panicked"), "{index}: {words:?}: {said}");
        }
        fails(&["zdb", "-e", "-p", dir, "-u", "nopool"]);
    }
}
