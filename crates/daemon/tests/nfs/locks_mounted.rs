//! Locks of an NFS client and of processes on a mount of the same files exclude each other. Skipped where there is no FUSE.

use crate::harness::*;
use crate::locks::Ask;
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use std::fs::File;
use std::io::ErrorKind;
use weir_daemon::fuse::{MountOptions, mount as mount_tree};
use weir_daemon::fuzz::lock_server;
use weir_linux::Production;
use weir_machine::MemoryStateFile;

const GRANTED: u32 = 0;
const DENIED: u32 = 1;
const BLOCKED: u32 = 3;

/// Waits until a condition holds, at most ten seconds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "not within 10 s: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn locks_of_a_client_and_of_a_mount_exclude_each_other() {
    let machine = Production::default().build().unwrap();
    let (server, tree) = lock_server(&machine, &MemoryStateFile::default());
    let dir = std::env::temp_dir().join(format!("weir-locks-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let root = rustix::process::geteuid().is_root();
    let options = MountOptions {
        source: "p".into(),
        allow_other: root,
        threads: 2,
        writable: true,
        exclusive: false,
        dev: false,
        suid: false,
        exec: true,
    };
    let mounted = match mount_tree(tree.clone(), machine.tasks.clone(), &dir, &options) {
        Ok(mounted) => mounted,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let handle = lookup(&server, &mount(&server, "/p").unwrap(), b"file").unwrap();
    let client = Ask::new("10.0.0.7", 1, &handle, (0, 0));
    let open = || File::options().read(true).write(true).open(dir.join("file")).unwrap();
    let refused = |locked: rustix::io::Result<()>| {
        let error = std::io::Error::from(locked.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    };

    let file = open();
    assert_eq!(client.lock(&server), GRANTED);
    refused(fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive));
    refused(flock(&file, FlockOperation::NonBlockingLockShared));
    assert_eq!(client.unlock(&server), GRANTED);
    fcntl_lock(&file, FlockOperation::NonBlockingLockShared).unwrap();
    assert_eq!(client.status(&server, 1), DENIED);
    assert_eq!(Ask { exclusive: false, ..client }.lock(&server), GRANTED, "both share");
    assert_eq!(client.unlock(&server), GRANTED);
    fcntl_lock(&file, FlockOperation::Unlock).unwrap();
    assert_eq!(client.status(&server, 1), GRANTED);

    // The kernel waits until the client has unlocked.
    assert_eq!(client.lock(&server), GRANTED);
    let waiting = {
        let file = open();
        std::thread::spawn(move || flock(&file, FlockOperation::LockExclusive).map(|()| file))
    };
    let next = Ask { blocks: true, ..Ask::new("10.0.0.8", 1, &handle, (0, 0)) };
    until("a request waits", || tree.locks().waiting() == 1);
    assert_eq!(client.unlock(&server), GRANTED);
    let locked = waiting.join().unwrap().unwrap();
    assert_eq!((client.lock(&server), next.lock(&server)), (DENIED, BLOCKED));
    // Closing the file releases its lock; the client that waits gets it.
    drop(locked);
    until("the lock of the closed file is released", || next.lock(&server) == GRANTED);
    assert_eq!(client.lock(&server), DENIED);
    drop(file);
    mounted.unmounter().unmount().unwrap();
    mounted.join().unwrap();
    std::fs::remove_dir(&dir).unwrap();
}
