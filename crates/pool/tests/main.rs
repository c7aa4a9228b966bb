//! Malformed input: a device without a pool is refused with an error that says so, and nothing else happens.

use std::path::{Path, PathBuf};
use weir_machine::Machine;
use weir_pool::{OpenOptions, Pool, PoolError};

fn open(machine: &Machine, search: &Path) -> PoolError {
    let options = OpenOptions::new(vec![PathBuf::from(search)], "tank");
    machine.block_on(Pool::open(machine, &options)).expect_err("this is no pool")
}

/// Random bytes.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn what_is_no_pool_is_refused() {
    let machine = weir_linux::machine().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for len in [0usize, 1, 511, 4096, 256 << 10, (1 << 20) - 1, 1 << 20, (3 << 20) + 77] {
        std::fs::write(dir.path().join("noise.img"), noise(len)).unwrap();
        std::fs::write(dir.path().join("zero.img"), vec![0; len]).unwrap();
        let error = open(&machine, dir.path());
        assert!(matches!(error, PoolError::NothingFound { devices: 2, .. }), "{len} bytes: {error}");
    }
}

#[test]
fn what_is_not_there_is_named() {
    let machine = weir_linux::machine().unwrap();
    let error = open(&machine, Path::new("/no/such/folder"));
    assert!(matches!(error, PoolError::Disk { .. }), "{error}");
    assert_eq!(error.to_string(), "/no/such/folder: No such file or directory (os error 2)");
}
