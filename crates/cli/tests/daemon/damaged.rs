//! Pools with damaged datasets: the others are served, and the damaged one is named.

use crate::{Site, text};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::Stdio;

/// Offset of a vdev's blocks on its device.
const FRONT_BYTES: u64 = 4 << 20;

impl Site {
    /// Overwrites every copy of the blocks on `d0` whose lines of `zdb -dddddd DATASET OBJECT` begin with a word.
    fn damage(&self, dataset: &str, object: u64, first_word: &str) {
        let shown = self.ok(&format!("zdb -dddddd -e -p . {dataset} {object}"));
        let disk = std::fs::File::options().write(true).open(self.path("d0")).unwrap();
        let lines = shown.lines().filter(|line| line.trim_start().starts_with(first_word));
        let places: Vec<&str> = lines.flat_map(|line| line.split("DVA[").skip(1)).collect();
        assert!(!places.is_empty(), "{shown}");
        for place in places {
            let offset = place.split(':').nth(1).unwrap();
            let offset = FRONT_BYTES + u64::from_str_radix(offset, 16).unwrap();
            disk.write_all_at(&[0xa5; 4096], offset).unwrap();
        }
    }

    /// Output and errors of `weir serve`, until it is ready.
    fn served(&self) -> (String, String) {
        let mut command = self.command("serve -d . --nfs-port 0 --nbd-port 0 p");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let lines: Vec<String> = lines.take_while(|line| line != "ready").collect();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let errors = text(&child.wait_with_output().unwrap().stderr);
        (lines.join("\n"), errors)
    }
}

#[test]
fn a_damaged_file_system_does_not_keep_the_others_from_being_served() {
    // The object set itself, and the master node in it.
    for (object, first_word) in [(1, "Dataset"), (1, "0 L0")] {
        let site = Site::new(1);
        site.ok("zpool create p d0");
        for name in ["p/bad", "p/bad/child", "p/good"] {
            site.ok(&format!("zfs create -o sharenfs=on --dir . {name}"));
        }
        site.ok("zpool sync -d . p");
        site.damage("p/bad", object, first_word);

        let (out, errors) = site.served();
        assert!(errors.contains("'p/bad' is damaged and not served: object set"), "{errors}");
        assert_eq!(errors.matches("'p/bad' is damaged").count(), 1, "{errors}");
        for name in ["/p /mnt", "/p/good /mnt", "/p/bad/child /mnt"] {
            assert!(out.contains(name), "{name}: {out}{errors}");
        }
        assert!(!out.contains("/p/bad /mnt"), "{out}");

        let _running = site.start();
        assert_eq!(site.status("/pools/p/exports"), serde_json::json!(["p/bad/child", "p/good"]));
        let why = site.status("/pools/p/damaged/p~1bad");
        assert!(why.as_str().is_some_and(|why| why.contains("is damaged: fletcher4")), "{why}");
        let shown = site.ok("daemon status");
        assert!(shown.contains("  p/bad: damaged, not served: object set"), "{shown}");
        let (mut nfs, child) = (site.nfs(), "/p/bad/child");
        nfs.mount(child).unwrap();
        assert!(nfs.mount("/p/bad").is_err(), "nothing is seen in place of what is damaged");
        let listed = site.command("zfs list -H -o name").output().unwrap();
        assert_eq!(text(&listed.stdout), "p\np/bad/child\np/good\n");
        assert!(text(&listed.stderr).starts_with("cannot open 'p/bad': object set"), "{}", text(&listed.stderr));
    }
}
