//! Passes over the free space of devices: `zpool initialize`, `zpool trim`.

use super::*;
use std::os::unix::fs::MetadataExt;

impl Lab {
    /// Bytes that a file occupies.
    fn allocated(&self, disk: &str) -> u64 {
        let file = std::fs::File::open(self.path(disk)).unwrap();
        file.sync_all().unwrap();
        file.metadata().unwrap().blocks() * 512
    }
}

#[test]
fn free_space_is_initialized_and_trimmed() {
    let lab = Lab::new();
    let before = lab.allocated("d0");
    // Nothing has the pool open: it is done when the command returns.
    lab.ok("zpool initialize p d0");
    assert!(lab.allocated("d0") > 200 << 20 && lab.allocated("d1") < 100 << 20, "{before}");
    let status = lab.ok("zpool status -i p");
    assert!(status.contains("(100% initialized, completed at ") && status.contains("(uninitialized)"), "{status}");
    assert!(!lab.ok("zpool status p").contains("initialized"));
    check(lab.0.path());
    lab.ok("zpool initialize -u p d0");
    assert_eq!(lab.ok("zpool status -i p").matches("(uninitialized)").count(), 2);
    lab.ok("zpool trim p");
    assert!(lab.allocated("d0") < 100 << 20);
    assert_eq!(lab.ok("zpool status -t p").matches("(100% trimmed, completed at ").count(), 2);
    check(lab.0.path());
    for disk in ["r0", "r1", "r2"] {
        std::fs::File::create(lab.path(disk)).unwrap().set_len(128 << 20).unwrap();
    }
    lab.ok("zpool create q raidz1 r0 r1 r2");
    lab.ok("zfs create q/a");
    lab.ok("zpool initialize q");
    assert!(["r0", "r1", "r2"].iter().all(|disk| lab.allocated(disk) > 100 << 20));
    lab.ok("zpool scrub q");
    assert!(lab.ok("zpool status q").contains("with 0 errors"));
    check_pool(lab.0.path(), "q");
}

#[test]
fn a_pass_is_suspended_and_goes_on_also_after_the_server_was_killed() {
    let lab = Lab::new();
    let mut server = lab.serve();
    assert!(lab.fails("zpool trim -s p").contains("there is no active trim"));
    assert!(lab.fails("zpool initialize -c p d0").contains("there is no active initialization"));
    lab.ok("zpool trim -r 1M p d0");
    assert!(lab.fails("zpool trim p d0").contains("currently trimming"));
    let status = lab.ok("zpool status p");
    assert!(status.contains("(trimming)"), "{status}");
    lab.ok("zpool trim -s p");
    let status = lab.ok("zpool status -t p");
    assert!(status.contains("% trimmed, suspended, started at ") && status.contains("(untrimmed)"), "{status}");
    // The rate is kept.
    lab.ok("zpool trim p d0");
    server.kill().unwrap();
    server.wait().unwrap();
    let server = lab.serve();
    assert!(lab.ok("zpool status p").contains("(trimming)"), "{}", lab.ok("zpool status p"));
    lab.ok("zpool trim -c p d0");
    assert_eq!(lab.ok("zpool status -t p").matches("(untrimmed)").count(), 2);
    lab.ok("zfs create p/a");
    lab.ok("zpool trim p");
    lab.ok("zpool wait -t trim p");
    assert_eq!(lab.ok("zpool status -t p").matches("(100% trimmed").count(), 2);
    lab.ok("zpool initialize -w p");
    lab.ok("zfs create p/b");
    assert_eq!(lab.ok("zpool status -i p").matches("(100% initialized").count(), 2);
    end(server);
    check(lab.0.path());
}

/// Commands that wait for a pass hold one of the process's 64 permits. A client that is interrupted gives it back at once.
#[test]
fn waits_of_interrupted_clients_delay_no_command() {
    let lab = Lab::new();
    let server = lab.serve();
    lab.ok("zpool trim -r 1M p d0");
    let waits = ["zpool wait -t trim p", "zpool trim -w -r 1M p d1"];
    // One command starts the pass over the other device and waits; 64 more wait without an interval.
    let start = |n: usize| lab.weir(waits[usize::from(n == 0)]).stdout(Stdio::null()).spawn().unwrap();
    let mut waiting: Vec<Child> = (0..=64).map(start).collect();
    crate::wait_ms(1500);
    for client in &mut waiting {
        assert!(client.try_wait().unwrap().is_none(), "a wait ended while devices are trimmed");
        client.kill().unwrap();
        client.wait().unwrap();
    }
    let mut list = lab.weir("zpool list -H -o name p").stdout(Stdio::null()).spawn().unwrap();
    let ended = (0..100).find_map(|_| {
        crate::wait_ms(100);
        list.try_wait().unwrap()
    });
    if ended.is_none() {
        list.kill().unwrap();
    }
    assert!(ended.is_some_and(|status| status.success()), "`zpool list` waits for commands of clients that are gone");
    assert!(lab.ok("zpool status p").contains("(trimming)"), "the passes go on");
    lab.ok("zpool trim -c p");
    end(server);
}
