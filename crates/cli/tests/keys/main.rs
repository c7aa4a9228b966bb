//! Native encryption by command: datasets are made with keys of every format, from a pipe and from files; keys are
//! proven, loaded, unloaded and changed, also in a process that serves the pool, and at import. OpenZFS's zdb judges
//! (`WEIR_ZFS_TOOLS`), with the keys.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "tests run programs")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

const HEX: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const OTHER_HEX: &str = "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const PASSPHRASE: &str = "correct horse battery";
/// A raw key has any bytes: also those that end a line.
const RAW: &[u8; 32] = b"0123456789\nbcdef0123456789\0bcde\n";

/// A folder with a pool `p`, a mirror of two files, and files with keys.
struct Lab(tempfile::TempDir);

impl Lab {
    fn new() -> Lab {
        let lab = Lab(tempfile::tempdir().unwrap());
        for disk in ["d0", "d1"] {
            std::fs::File::create(lab.path(disk)).unwrap().set_len(128 << 20).unwrap();
        }
        for (file, key) in [("hex", HEX.as_bytes()), ("other", OTHER_HEX.as_bytes()), ("raw", RAW)] {
            std::fs::write(lab.path(file), key).unwrap();
        }
        std::fs::write(lab.path("pass"), format!("{PASSPHRASE}\n")).unwrap();
        lab.ok(&format!("zpool create p mirror {} {}", lab.path("d0").display(), lab.path("d1").display()), b"");
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `FILE:name` in a line stands for the place of a key.
    fn start(&self, line: &str, input: &[u8]) -> Child {
        let line = line.replace("FILE:", &format!("file://{}/", self.0.path().display()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(line.split_whitespace()).current_dir(self.0.path());
        command.env("WEIR_POOL_DIRS", self.0.path()).env("RUNTIME_DIRECTORY", self.0.path().join("weir"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that needs none may have ended before it was written.
        let _ = child.stdin.take().unwrap().write_all(input);
        child
    }

    fn run(&self, line: &str, input: &[u8]) -> Output {
        self.start(line, input).wait_with_output().unwrap()
    }

    fn ok(&self, line: &str, input: &[u8]) -> String {
        let out = self.run(line, input);
        let why = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{line}: {why}");
        String::from_utf8(out.stdout).unwrap() + &why
    }

    /// Demands that a command fails and says something.
    fn fails(&self, line: &str, input: &[u8], what: &str) {
        let out = self.run(line, input);
        let why = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && why.contains(what), "{line}: {:?}, {why}", out.status);
    }

    /// Output of zdb for the pool, if zdb is present.
    fn zdb(&self, args: &[&str]) -> Option<String> {
        let tools = std::env::var_os("WEIR_ZFS_TOOLS").map(PathBuf::from)?;
        let mut zdb = Command::new(tools.join("sbin/zdb"));
        zdb.env("LD_LIBRARY_PATH", tools.join("lib/x86_64-linux-gnu")).args(["-e", "-p"]).arg(self.0.path());
        let out = zdb.args(args).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "zdb {args:?}: {text}");
        Some(text)
    }

    /// The exported pool is sound; with its key, so is what each of these datasets holds.
    fn check(&self, keys: &[(&str, &str)]) {
        let Some(text) = self.zdb(&["-bcc", "p"]) else { return };
        assert!(text.contains("No leaks"), "{text}");
        for (dataset, key) in keys {
            let text = self.zdb(&["-K", key, "-dddd", dataset]).unwrap();
            let wrong = ["error", "couldn't", "failed"].iter().any(|word| text.contains(word));
            assert!(!wrong && text.contains("ZFS master node"), "{dataset}: {text}");
        }
    }

    /// Encryption roots with a key of each format.
    fn make_roots(&self) {
        let typed = format!("{PASSPHRASE}\n{PASSPHRASE}\n");
        self.ok("zfs create -o encryption=on -o keyformat=passphrase -o pbkdf2iters=100000 p/pass", typed.as_bytes());
        self.ok("zfs create -o encryption=aes-128-ccm -o keyformat=raw p/raw", RAW);
        self.ok("zfs create -o encryption=on -o keyformat=hex -o keylocation=FILE:hex p/hex", b"");
        self.ok("zfs create --key p/pass=FILE:pass p/pass/child", b"");
        self.ok("zfs create --key p/raw=FILE:raw -s -V 8M p/raw/volume", b"");
    }
}

#[test]
fn keys_are_made_proven_and_changed() {
    let lab = Lab::new();
    lab.make_roots();
    let new = "zfs create -o encryption=on -o keyformat=raw p/x";
    lab.fails(new, &RAW[..31], "Raw key too short");
    lab.fails(new, &[RAW, &b"x"[..]].concat(), "Raw key too long");
    lab.fails(new, b"", "no raw key on standard input");
    lab.fails("zfs create -o encryption=on -o keyformat=passphrase p/x", b"one phrase\nanother one\n", "do not match");
    lab.fails("zfs create p/pass/x", b"", "key");
    lab.ok("zfs load-key -n p/raw", RAW);
    assert_eq!(lab.ok("zfs load-key -n p/hex", b""), "1 / 1 key(s) successfully verified\n");
    lab.ok("zfs load-key -n p/pass", PASSPHRASE.as_bytes());
    lab.fails("zfs load-key -n p/pass", b"incorrect horse\n", "Incorrect key provided for 'p/pass'.");
    lab.fails(
        "zfs load-key -n p/pass/child",
        b"",
        "Keys must be loaded for encryption root of 'p/pass/child' (p/pass).",
    );
    assert!(lab.ok("zfs load-key -n -r -L FILE:hex p/hex", b"").contains("1 / 1 key(s) successfully verified"));
    assert_eq!(lab.ok("zfs get -H -o value encryptionroot p/raw/volume", b""), "p/raw\n");

    lab.ok("zfs change-key -o keyformat=hex -o keylocation=FILE:other --key p/pass=FILE:pass p/pass", b"");
    lab.ok("zfs load-key -n p/pass", b"");
    lab.ok("zfs change-key -l -o keyformat=raw -o keylocation=prompt p/hex", RAW);
    lab.ok("zfs load-key -n p/hex", RAW);
    lab.fails("zfs load-key -n p/hex", HEX.as_bytes(), "Raw key too long");
    lab.ok("zfs change-key -l -o keyformat=hex -o keylocation=FILE:hex p/hex", RAW);
    lab.ok("zpool export p", b"");
    lab.check(&[("p/pass", OTHER_HEX), ("p/pass/child", OTHER_HEX), ("p/hex", HEX)]);
}

#[test]
fn keys_are_asked_for_at_import() {
    let lab = Lab::new();
    lab.make_roots();
    lab.ok("zfs change-key --key p/pass=FILE:pass -o keylocation=FILE:pass -o keyformat=passphrase p/pass", b"");
    lab.ok("zpool export p", b"");
    assert!(lab.ok("zpool import -l p", RAW).contains("3 / 3 keys successfully loaded"));
    lab.ok("zpool export p", b"");
    let out = lab.run("zpool import -l p", &[7; 32]);
    let why = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(1) && why.contains("Incorrect key provided for 'p/raw'."), "{why}");
    assert!(why.contains("2 / 3 keys successfully loaded"), "{why}");
    // It is imported all the same, as by OpenZFS.
    lab.ok("zpool export p", b"");
    for line in ["zpool import -l", "zpool import -l -N p"] {
        assert_eq!(lab.run(line, b"").status.code(), Some(2), "{line}");
    }
    lab.check(&[("p/pass", PASSPHRASE), ("p/hex", HEX)]);
}

#[test]
fn a_server_loads_and_unloads_keys() {
    let lab = Lab::new();
    lab.make_roots();
    let status = |name: &str| lab.ok(&format!("zfs get -H -o value keystatus {name}"), b"");
    // The server is asked for the passphrase alone: it is the first to want a line, and nothing is left for the raw
    // key.
    let mut server = lab.start("serve -l --nfs-port 0 --nbd-port 0 p", format!("{PASSPHRASE}\n").as_bytes());
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"));
    assert_eq!([status("p/pass"), status("p/hex"), status("p/raw")], ["available\n", "available\n", "unavailable\n"]);
    lab.fails("zfs load-key p/raw", &[9; 32], "Incorrect key provided for 'p/raw'.");
    lab.ok("zfs load-key p/raw", RAW);
    lab.fails("zfs load-key p/raw", RAW, "Key already loaded for 'p/raw'.");
    assert_eq!(status("p/raw/volume"), "available\n");
    lab.ok("zfs create p/raw/new", b"");
    lab.ok("zfs unload-key p/hex", b"");
    lab.fails("zfs unload-key p/hex", b"", "Key already unloaded for 'p/hex'.");
    assert_eq!(status("p/hex"), "unavailable\n");
    lab.fails("zfs create p/hex/x", b"", "key");
    lab.ok("zfs load-key -a", b"");
    assert_eq!(status("p/hex"), "available\n");
    assert_eq!(lab.ok("zfs unload-key -r p/hex", b""), "1 / 1 key(s) successfully unloaded\n");
    assert_eq!(lab.ok("zfs unload-key -r p/hex", b""), "");
    // A pool without encrypted datasets that no process has open changes nothing.
    std::fs::File::create(lab.path("d2")).unwrap().set_len(128 << 20).unwrap();
    lab.ok(&format!("zpool create q {}", lab.path("d2").display()), b"");
    assert_eq!(lab.ok("zfs load-key -a", b""), "1 / 1 key(s) successfully loaded\n");
    lab.ok("zfs change-key -o keyformat=hex -o keylocation=FILE:other p/pass", b"");
    let typed = format!("{HEX}\n{HEX}\n");
    lab.ok("zfs create -o encryption=aes-192-gcm -o keyformat=hex p/typed", typed.as_bytes());
    lab.ok("zpool export -f p", b"");
    assert!(server.wait().unwrap().success());
    lab.check(&[("p/pass", OTHER_HEX), ("p/pass/child", OTHER_HEX), ("p/typed", HEX), ("p/hex", HEX)]);
}
