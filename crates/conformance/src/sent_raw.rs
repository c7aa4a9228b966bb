//! Raw send streams, received by the program `weir` without the keys.
//!
//! ```text
//!   golden raw stream ─► weir zfs receive, into a pool without the key ─► weir zfs send -w: the golden stream, byte for byte
//!                                                                      ├► zdb -bcc
//!                                                                      └► with the key: the manifest's files
//!   cut and damaged streams ─► refused, and the datasets are as before; cut ones with -s are continued
//! ```

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use weir_pool::OpenOptions;

use crate::JudgeError;
use crate::compare::{self, Findings};
use crate::engine::{EngineTree, Opened};
use crate::manifest::Golden;
use crate::report::Report;
use crate::sent::{golden_stream, io, make_pool, must, zfs};
use crate::zdb::{Tools, fault};

/// The pool of the streams, and the dataset.
const POOL: &str = "g-enc";
const DATASET: &str = "g-enc/gcm256";
/// Golden streams in order, with the words of `zfs send` that make them, and the snapshot that they end with.
const STREAMS: [(&str, &[&str], &str); 2] = [
    ("enc-raw", &["-w", "g-enc/gcm256@s1"], "g-enc/gcm256@s1"),
    ("enc-raw-incr", &["-w", "-i", "@s1", "g-enc/gcm256@s2"], "g-enc/gcm256@s2"),
];

/// Receives raw streams: those of OpenZFS, and those that Weir makes of the golden pool in `sender`.
///
/// # Errors
/// If the golden pool or the program is not here.
pub fn run(folder: &Path, sender: &Path, report: &mut Report) -> Result<(), JudgeError> {
    let golden = Golden::read(folder, "enc")?;
    let work = tempfile::tempdir().map_err(|source| JudgeError::Io { what: "folder".into(), source })?;
    let place = |name: &str| work.path().join(name);
    report.book("receive raw goldens", goldens(folder, &golden, &place("goldens")));
    report.book("receive raw packages", package(&golden, sender, &place("package")));
    report.book("receive damaged raw streams", damaged(folder, &place("damaged")));
    report.book("continue raw streams", continued(folder, &golden, &place("continued")));
    Ok(())
}

/// Runs `zfs receive` with these bytes as input. Returns whether it succeeded and what it said.
fn receive(devices: &Path, words: &[&str], bytes: &[u8]) -> Result<(bool, String), JudgeError> {
    let file = devices.with_extension("stream");
    std::fs::write(&file, bytes).map_err(io(&file))?;
    let input = File::open(&file).map_err(io(&file))?;
    let mut command = zfs(devices, "receive", words)?;
    let done = command.stdin(input).output();
    let done = done.map_err(|source| JudgeError::Io { what: format!("{command:?}"), source })?;
    std::fs::remove_file(&file).map_err(io(&file))?;
    Ok((done.status.success(), String::from_utf8_lossy(&done.stderr).trim().to_owned()))
}

fn must_receive(findings: &mut Findings, devices: &Path, words: &[&str], bytes: &[u8]) -> Result<(), JudgeError> {
    let (is_received, said) = receive(devices, words, bytes)?;
    findings.facts += 1;
    findings.bytes += bytes.len() as u64;
    if !is_received {
        findings.differs(format!("receive {words:?}: {said}"));
    }
    Ok(())
}

fn goldens(folder: &Path, golden: &Golden, devices: &Path) -> Result<Findings, JudgeError> {
    let mut findings = Findings::default();
    make_pool(&mut findings, devices, POOL)?;
    for (name, words, _) in STREAMS {
        let bytes = golden_stream(folder, name)?;
        must_receive(&mut findings, devices, &["-u", DATASET], &bytes)?;
        if must(&mut findings, name, &mut zfs(devices, "send", words)?)? != bytes {
            findings.differs(format!("{name}: the received snapshot sends another raw stream"));
        }
    }
    clean(&mut findings, devices)?;
    look(&mut findings, golden, devices, &STREAMS.map(|(_, _, snapshot)| (snapshot, snapshot)))?;
    Ok(findings)
}

/// A package of encrypted datasets, of which the child has the key of its parent.
fn package(golden: &Golden, sender: &Path, devices: &Path) -> Result<Findings, JudgeError> {
    let mut findings = Findings::default();
    make_pool(&mut findings, devices, POOL)?;
    let words = ["-w", "-R", "g-enc/gcm256@s1"];
    let bytes = must(&mut findings, "send -w -R", &mut zfs(sender, "send", &words)?)?;
    must_receive(&mut findings, devices, &["-u", DATASET], &bytes)?;
    let words = ["-H", "-o", "value", "encryptionroot", "g-enc/gcm256/child"];
    let root = must(&mut findings, "get encryptionroot", &mut zfs(devices, "get", &words)?)?;
    if root != b"g-enc/gcm256\n" {
        findings.differs(format!("the child's encryption root is {}", String::from_utf8_lossy(&root).trim()));
    }
    clean(&mut findings, devices)?;
    let both = ["g-enc/gcm256@s1", "g-enc/gcm256/child@s1"].map(|name| (name, name));
    look(&mut findings, golden, devices, &both)?;
    Ok(findings)
}

/// Streams that are cut, or of which one byte is changed, change nothing.
fn damaged(folder: &Path, devices: &Path) -> Result<Findings, JudgeError> {
    let mut findings = Findings::default();
    make_pool(&mut findings, devices, POOL)?;
    let [full, incremental] = [golden_stream(folder, STREAMS[0].0)?, golden_stream(folder, STREAMS[1].0)?];
    let listing = |findings: &mut Findings| {
        let words = ["-H", "-p", "-r", "-t", "all", "-o", "name,guid,encryption,encryptionroot", POOL];
        must(findings, "list", &mut zfs(devices, "list", &words)?)
    };
    for (round, stream) in [&full, &incremental].into_iter().enumerate() {
        let before = listing(&mut findings)?;
        for n in 1..8 {
            let at = stream.len() * n / 8;
            let cut = stream.get(..at).unwrap_or_default().to_vec();
            let mut changed = stream.clone();
            changed.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 0x10);
            for (what, bytes) in [("cut", cut), ("changed", changed)] {
                let (is_received, _) = receive(devices, &["-u", DATASET], &bytes)?;
                findings.facts += 1;
                if is_received {
                    findings.differs(format!("a stream {what} at byte {at} was received"));
                }
                if listing(&mut findings)? != before {
                    findings.differs(format!("a stream {what} at byte {at} changed the datasets"));
                }
            }
        }
        if round == 0 {
            must_receive(&mut findings, devices, &["-u", DATASET], &full)?;
        }
    }
    // What contradicts the datasets is refused.
    for (words, bytes, why) in [
        (["-u", DATASET], &full, "exists\nmust specify -F to overwrite it"),
        (["-uF", DATASET], &full, "zfs receive -F cannot be used to destroy an encrypted filesystem"),
        (["-u", "g-enc/none"], &incremental, "destination 'g-enc/none' does not exist"),
    ] {
        let (is_received, said) = receive(devices, &words, bytes)?;
        findings.facts += 1;
        if is_received || !said.contains(why) {
            findings.differs(format!("receive {words:?}: {said}"));
        }
    }
    must_receive(&mut findings, devices, &["-u", DATASET], &incremental)?;
    clean(&mut findings, devices)?;
    Ok(findings)
}

/// Streams that end early are continued where they ended, several times.
fn continued(folder: &Path, golden: &Golden, devices: &Path) -> Result<Findings, JudgeError> {
    let mut findings = Findings::default();
    make_pool(&mut findings, devices, POOL)?;
    let sender = devices.with_extension("sender");
    make_pool(&mut findings, &sender, POOL)?;
    for (name, _, _) in STREAMS {
        must_receive(&mut findings, &sender, &["-u", DATASET], &golden_stream(folder, name)?)?;
    }
    for (name, _, _) in STREAMS {
        let mut bytes = golden_stream(folder, name)?;
        for _ in 0..3 {
            let cut = bytes.get(..bytes.len() * 2 / 5).unwrap_or_default();
            receive(devices, &["-s", "-u", DATASET], cut)?;
            let words = ["-H", "-o", "value", "receive_resume_token", DATASET];
            let token = must(&mut findings, "get token", &mut zfs(devices, "get", &words)?)?;
            let token = String::from_utf8_lossy(&token).trim().to_owned();
            if token.len() < 10 {
                // So little was received that nothing is left to continue.
                break;
            }
            bytes = must(&mut findings, "send -w -t", &mut zfs(&sender, "send", &["-w", "-t", &token])?)?;
        }
        must_receive(&mut findings, devices, &["-s", "-u", DATASET], &bytes)?;
    }
    for (name, words, _) in STREAMS {
        if must(&mut findings, name, &mut zfs(devices, "send", words)?)? != golden_stream(folder, name)? {
            findings.differs(format!("{name}: the snapshot that was received in parts sends another raw stream"));
        }
    }
    clean(&mut findings, devices)?;
    look(&mut findings, golden, devices, &STREAMS.map(|(_, _, snapshot)| (snapshot, snapshot)))?;
    Ok(findings)
}

/// Asks OpenZFS's zdb, if it is here, and that of Weir.
fn clean(findings: &mut Findings, devices: &Path) -> Result<(), JudgeError> {
    if let Some(found) = Tools::find().ok().map(|tools| fault(&tools, devices, POOL)).transpose()?.flatten() {
        findings.differs(format!("zdb -bcc: {found}"));
    }
    let mut command = std::process::Command::new(crate::process::weir()?);
    must(findings, "zdb --invariants", command.args(["zdb", "--invariants", "-p"]).arg(devices).arg(POOL))?;
    Ok(())
}

/// Compares snapshots with those of the manifest, with the keys.
fn look(
    findings: &mut Findings,
    golden: &Golden,
    devices: &Path,
    snapshots: &[(&str, &str)],
) -> Result<(), JudgeError> {
    let state = golden.final_state().ok_or_else(|| JudgeError::Missing { what: "no manifest".to_owned() })?;
    let mut options = OpenOptions::new(vec![devices.to_path_buf()], POOL);
    let key = golden.keys.get("gcm256").ok_or_else(|| JudgeError::Missing { what: "no key".to_owned() })?;
    options.keys = vec![(DATASET.to_owned(), key.typed().as_bytes().to_vec())];
    let opened = Opened::new(&options)?;
    for (found, like) in snapshots {
        let Some(expected) = state.datasets.iter().find(|dataset| dataset.name == *like) else {
            findings.differs(format!("the manifest has no {like}"));
            continue;
        };
        let mut files = expected.files.clone().unwrap_or_default();
        // The space that a file takes depends on the pool.
        for file in &mut files {
            file.blocks512 = None;
            file.mass.iter_mut().flat_map(|mass| &mut mass.first).for_each(|one| one.blocks512 = None);
        }
        match opened.file_system(found) {
            Ok(of) => {
                let mut tree = EngineTree::new(opened.machine().clone(), of);
                findings.absorb(&format!("{found}:"), compare::tree(&mut tree, &files, &BTreeSet::new()));
            }
            Err(error) => findings.differs(format!("{found}: {error}")),
        }
    }
    Ok(())
}
