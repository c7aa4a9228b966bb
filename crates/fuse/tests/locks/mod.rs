//! Locks of two processes on a mount, and a mount whose server died. The other process is this program again; a variable of
//! its environment is its role.

use crate::{mounted_beside, mounted_tree, writable_file_systems, writable_tree};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use weir_files::tree::Tree;
use weir_linux::Production;

/// Role of the other process: `server PATH`, or `locker PATH`.
const ROLE: &str = "WEIR_TEST_ROLE";

/// Body of the other process; without a role, it does nothing.
#[test]
fn other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.split_once(' ').unwrap() {
        ("server", path) => {
            let machine = Production::default().build().unwrap();
            let mounted = mounted_tree(&machine, writable_tree(), Path::new(path), true);
            println!("answer {}", if mounted.is_some() { "mounted" } else { "no fuse" });
            std::process::abort();
        }
        (_, path) => {
            let file = File::options().read(true).write(true).open(path).unwrap();
            for line in std::io::stdin().lines() {
                let answer = match line.unwrap().as_str() {
                    "fcntl" => fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive),
                    "fcntl shared" => fcntl_lock(&file, FlockOperation::NonBlockingLockShared),
                    "fcntl wait" => fcntl_lock(&file, FlockOperation::LockExclusive),
                    "fcntl unlock" => fcntl_lock(&file, FlockOperation::Unlock),
                    "flock" => flock(&file, FlockOperation::NonBlockingLockExclusive),
                    "close another" => {
                        drop(File::open(path).unwrap());
                        Ok(())
                    }
                    other => panic!("{other}"),
                };
                println!("answer {}", answer.map_or_else(name, |()| "ok".into()));
            }
        }
    }
}

/// Name of an error.
fn name(error: Errno) -> String {
    match error {
        Errno::AGAIN => "AGAIN".into(),
        Errno::DEADLK => "DEADLK".into(),
        other => other.to_string(),
    }
}

/// The other process.
struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str, path: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "locks::other_process", "--nocapture"])
            .env(ROLE, format!("{role} {}", path.display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Other { child, input, output }
    }

    fn say(&mut self, what: &str) {
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the process ended");
            // The test runner writes before it on the same line.
            if let Some((_, answer)) = line.trim_end().split_once("answer ") {
                return answer.to_owned();
            }
        }
    }

    fn ask(&mut self, what: &str) -> String {
        self.say(what);
        self.answer()
    }

    fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Waits until a condition holds, at most ten seconds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "not within 10 s: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn processes_lock_files_of_a_mount() {
    let machine = Production::default().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (opener, exports) = writable_file_systems();
    // With a clock, signals of processes that wait are seen.
    let tree = std::sync::Arc::new(Tree::with_clock(opener, exports, machine.clock.clone()));
    let Some(mounted) = mounted_beside(&machine, tree.clone(), dir.path(), true, true) else { return };
    let path = dir.path().join("file");
    std::fs::write(&path, b"x").unwrap();
    let [mut one, mut two] = [(); 2].map(|()| Other::start("locker", &path));
    assert_eq!(
        (one.ask("fcntl"), two.ask("fcntl"), two.ask("fcntl shared")),
        ("ok".into(), "AGAIN".into(), "AGAIN".into())
    );
    assert_eq!((one.ask("fcntl shared"), two.ask("fcntl shared")), ("ok".into(), "ok".into()), "downgraded");
    // Both want it exclusive: the second request can never be granted.
    one.say("fcntl wait");
    until("the first waits", || tree.locks().waiting() == 1);
    assert_eq!(two.ask("fcntl wait"), "DEADLK");
    assert_eq!(two.ask("fcntl unlock"), "ok");
    assert_eq!(one.answer(), "ok");
    // A process that closes any descriptor of a file loses its locks on it.
    assert_eq!(
        (two.ask("fcntl"), one.ask("close another"), two.ask("fcntl")),
        ("AGAIN".into(), "ok".into(), "ok".into())
    );
    assert_eq!(
        (one.ask("flock"), two.ask("fcntl unlock"), one.ask("flock")),
        ("AGAIN".into(), "ok".into(), "ok".into())
    );
    // A process that waits can be killed.
    two.say("fcntl wait");
    until("the second waits", || tree.locks().waiting() == 1);
    two.child.kill().unwrap();
    two.child.wait().unwrap();
    until("no request waits", || tree.locks().waiting() == 0);
    one.end();
    until("no lock stays", || tree.locks().is_empty());
    mounted.unmounter().unmount().unwrap();
    mounted.join().unwrap();
}

/// Where no other front end serves the pool, the kernel keeps the locks.
#[test]
fn the_kernel_keeps_the_locks_of_an_exclusive_mount() {
    let machine = Production::default().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (opener, exports) = writable_file_systems();
    let tree = std::sync::Arc::new(Tree::with_clock(opener, exports, machine.clock.clone()));
    let Some(mounted) = mounted_tree(&machine, tree.clone(), dir.path(), true) else { return };
    let path = dir.path().join("file");
    std::fs::write(&path, b"x").unwrap();
    let [mut one, mut two] = [(); 2].map(|()| Other::start("locker", &path));
    assert_eq!((one.ask("fcntl"), two.ask("fcntl")), ("ok".into(), "AGAIN".into()));
    assert!(tree.locks().is_empty());
    assert_eq!((one.ask("close another"), two.ask("fcntl")), ("ok".into(), "ok".into()));
    assert_eq!((one.ask("flock"), two.ask("flock")), ("ok".into(), "AGAIN".into()));
    one.end();
    assert_eq!(two.ask("flock"), "ok");
    two.end();
    mounted.unmounter().unmount().unwrap();
    mounted.join().unwrap();
}

#[test]
fn a_mount_of_a_dead_server_is_replaced() {
    let machine = Production::default().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut other = Other::start("server", dir.path());
    if other.answer() != "mounted" {
        return eprintln!("skipped: no FUSE");
    }
    other.child.wait().unwrap();
    until("its server is dead", || rustix::fs::statfs(dir.path()).err() == Some(Errno::NOTCONN));
    let mounted = mounted_tree(&machine, writable_tree(), dir.path(), true).expect("the dead mount is in the way");
    assert!(std::fs::read_dir(dir.path()).unwrap().count() > 0);
    // A mount with a living server is left alone.
    assert!(!weir_fuse::unmount_stale("p").contains(&dir.path().to_path_buf()));
    assert!(rustix::fs::statfs(dir.path()).is_ok());
    mounted.unmounter().unmount().unwrap();
    mounted.join().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
