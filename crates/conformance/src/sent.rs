//! Send streams, made and received by the program `weir`.
//!
//! ```text
//!   golden pool ─► weir zfs send ─► the golden stream, byte for byte (but for embedded spill blocks)
//!   golden stream ─► weir zfs receive, into a new pool ─► the manifest's files ─► zdb -bcc
//!                                  └► weir zfs send ─► weir zfs receive, into another pool ─► the same
//! ```
//!
//! OpenZFS 2.4 sends a spill block that is embedded in its pointer, with `-e`, as a WRITE_EMBEDDED record beyond the end of
//! the object. Weir sends it as a SPILL record, as without `-e`, so these streams are compared without both.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use weir_format::stream::{Record, StreamReader, Unchecked};
use weir_pool::OpenOptions;

use crate::JudgeError;
use crate::compare::{self, Findings};
use crate::engine::{EngineTree, Opened};
use crate::golden::Unpacked;
use crate::manifest::Golden;
use crate::process::weir;
use crate::report::Report;
use crate::sent_raw;
use crate::zdb::{Tools, fault, output};

/// The golden pool of the streams.
const GOLDEN: &str = "snaps";
/// The golden pool of encrypted datasets.
const ENCRYPTED: &str = "enc";
/// Golden streams that Weir makes, with the words of `zfs send`.
const SENT: &[(&str, &[&str])] = &[
    ("snaps-full", &["g-snaps/d@s2"]),
    ("snaps-incr", &["-i", "@s2", "g-snaps/d@s4"]),
    ("snaps-incr-book", &["-i", "g-snaps/d#b2", "g-snaps/d@s4"]),
    ("snaps-incr-all", &["-I", "@s1", "g-snaps/d@s5"]),
    ("snaps-incr-c", &["-c", "-i", "@s4", "g-snaps/d@s5"]),
    ("snaps-clone-origin", &["-i", "g-snaps/d@s2", "g-snaps/c2@cs1"]),
    ("snaps-full-e", &["-e", "g-snaps/d@s1"]),
    ("snaps-full-Lec", &["-L", "-e", "-c", "g-snaps/d@s5"]),
    ("snaps-props", &["-p", "g-snaps/promoted@p1"]),
    ("snaps-repl", &["-R", "g-snaps/promoted@q"]),
    ("snaps-redacted", &["--redact", "rbm", "g-snaps/redact@base"]),
];
/// Raw golden streams that Weir makes without the keys of their pool.
const SENT_RAW: &[(&str, &[&str])] =
    &[("enc-raw", &["-w", "g-enc/gcm256@s1"]), ("enc-raw-incr", &["-w", "-i", "@s1", "g-enc/gcm256@s2"])];
/// Golden streams that are received in this order, the dataset that they are received into, and the snapshot of the
/// golden pool that the received one equals.
const RECEIVED: &[(&str, &str, &str)] = &[
    ("snaps-full", "r/d@s2", "g-snaps/d@s2"),
    ("snaps-incr", "r/d@s4", "g-snaps/d@s4"),
    ("snaps-incr-c", "r/d@s5", "g-snaps/d@s5"),
    ("snaps-clone-origin", "r/c2@cs1", "g-snaps/c2@cs1"),
    ("snaps-full-e", "r/e@s1", "g-snaps/d@s1"),
    ("snaps-incr-all", "r/e@s5", "g-snaps/d@s5"),
    ("snaps-full-Lec", "r/l@s5", "g-snaps/d@s5"),
    ("snaps-props", "r/p@p1", "g-snaps/promoted@p1"),
    ("snaps-repl", "r/promoted@q", "g-snaps/promoted@q"),
];
/// Size of a new pool's device.
const DEVICE_BYTES: u64 = 256 << 20;

/// Makes and receives the streams of the goldens.
///
/// # Errors
/// If the golden pool or the program is not here.
pub fn run(folder: &Path, report: &mut Report) -> Result<(), JudgeError> {
    let golden = Golden::read(folder, GOLDEN)?;
    let unpacked = Unpacked::new(folder, GOLDEN)?;
    for (name, words) in SENT {
        report.book(&format!("send {name}"), sent(folder, unpacked.path(), name, words));
    }
    let encrypted = Unpacked::new(folder, ENCRYPTED)?;
    for (name, words) in SENT_RAW {
        report.book(&format!("send {name}"), sent(folder, encrypted.path(), name, words));
    }
    let work = tempfile::tempdir().map_err(|source| JudgeError::Io { what: "folder".into(), source })?;
    let [first, second] = ["first", "second"].map(|name| work.path().join(name));
    sent_raw::run(folder, encrypted.path(), report)?;
    report.book("receive goldens", received(folder, &golden, &first, None));
    report.book("send and receive again", received(folder, &golden, &second, Some(&first)));
    Ok(())
}

pub(crate) fn io(what: &Path) -> impl Fn(std::io::Error) -> JudgeError + '_ {
    move |source| JudgeError::Io { what: what.display().to_string(), source }
}

pub(crate) fn golden_stream(folder: &Path, name: &str) -> Result<Vec<u8>, JudgeError> {
    let file = folder.join("streams").join(format!("{name}.zstream.zst"));
    Ok(output(Command::new("zstd").arg("-dqc").arg(&file).stderr(Stdio::null()))?.stdout)
}

pub(crate) fn zfs(devices: &Path, command: &str, words: &[&str]) -> Result<Command, JudgeError> {
    let mut program = Command::new(weir()?);
    program.args(["zfs", command, "--dir"]).arg(devices).args(words);
    Ok(program)
}

/// Runs a command; its failure is a difference.
pub(crate) fn must(findings: &mut Findings, heading: &str, command: &mut Command) -> Result<Vec<u8>, JudgeError> {
    // Unlike `output`, with the standard input that the command has.
    let done = command.output().map_err(|source| JudgeError::Io { what: format!("{command:?}"), source })?;
    findings.facts += 1;
    if !done.status.success() {
        findings.differs(format!("{heading}: {}", String::from_utf8_lossy(&done.stderr).trim()));
    }
    Ok(done.stdout)
}

/// The records of a stream without those that may differ.
fn comparable(bytes: &[u8]) -> Option<Vec<(Record, &[u8])>> {
    let mut records = Vec::new();
    for item in StreamReader::new(bytes, Unchecked).ok()? {
        let item = item.ok()?;
        let differs = match &item.record {
            Record::WriteEmbedded { offset, .. } => *offset > i64::MAX as u64,
            Record::Spill(_) | Record::End { .. } => true,
            _ => false,
        };
        if !differs {
            records.push((item.record, item.payload));
        }
    }
    Some(records)
}

fn sent(folder: &Path, devices: &Path, name: &str, words: &[&str]) -> Result<Findings, JudgeError> {
    let mut findings = Findings::default();
    let expected = golden_stream(folder, name)?;
    let made = must(&mut findings, name, &mut zfs(devices, "send", words)?)?;
    findings.bytes += made.len() as u64;
    let same = match words.contains(&"-e") {
        true => comparable(&made).is_some_and(|records| Some(records) == comparable(&expected)),
        false => made == expected,
    };
    if !same {
        findings.differs(format!("{} bytes differ from OpenZFS's {} bytes", made.len(), expected.len()));
    }
    let file = tempfile::NamedTempFile::new().map_err(io(folder))?;
    std::fs::write(file.path(), &made).map_err(io(file.path()))?;
    if let Ok(tools) = Tools::find() {
        must(&mut findings, "zstream dump -v", tools.program("sbin/zstream").args(["dump", "-v"]).arg(file.path()))?;
    }
    Ok(findings)
}

/// Makes a pool of one file in a folder.
pub(crate) fn make_pool(findings: &mut Findings, devices: &Path, name: &str) -> Result<(), JudgeError> {
    std::fs::create_dir_all(devices).map_err(io(devices))?;
    let image = devices.join("d0.img");
    File::create(&image).and_then(|file| file.set_len(DEVICE_BYTES)).map_err(io(&image))?;
    must(
        findings,
        "zpool create",
        Command::new(weir()?).args(["zpool", "create", "-o", "cachefile=none", name]).arg(&image),
    )
    .map(drop)
}

/// Receives the golden streams, or those that Weir makes of the pool in `from`, and compares the result.
fn received(folder: &Path, golden: &Golden, devices: &Path, from: Option<&Path>) -> Result<Findings, JudgeError> {
    let mut findings = Findings::default();
    make_pool(&mut findings, devices, "r")?;
    let stream_file = devices.join("stream");
    for (name, to, _) in RECEIVED {
        let bytes = match (from, SENT.iter().find(|(sent, _)| sent == name)) {
            (Some(from), Some((_, words))) => {
                // The snapshots of the first pool have the names of the golden's, in datasets that may be called otherwise.
                let dataset = to.split('@').next().unwrap_or_default();
                let renamed: Vec<String> = words.iter().map(|word| renamed(word, dataset)).collect();
                let words: Vec<&str> = renamed.iter().map(String::as_str).collect();
                must(&mut findings, name, &mut zfs(from, "send", &words)?)?
            }
            _ => golden_stream(folder, name)?,
        };
        std::fs::write(&stream_file, &bytes).map_err(io(&stream_file))?;
        let input = File::open(&stream_file).map_err(io(&stream_file))?;
        // Streams of several snapshots name them.
        let target = match *name {
            "snaps-incr-all" => "r/e",
            "snaps-repl" => "r/promoted",
            _ => to,
        };
        must(&mut findings, name, zfs(devices, "receive", &["-u", target])?.stdin(input))?;
    }
    std::fs::remove_file(&stream_file).map_err(io(&stream_file))?;
    if !findings.is_empty() {
        return Ok(findings);
    }
    look(golden, devices, &mut findings)?;
    if let Some(found) = Tools::find().ok().map(|tools| fault(&tools, devices, "r")).transpose()?.flatten() {
        findings.differs(format!("zdb -bcc: {found}"));
    }
    Ok(findings)
}

/// The name of a snapshot in the pool of received ones.
fn renamed(word: &str, dataset: &str) -> String {
    match word.split_once('@') {
        Some((of, snapshot)) if of == "g-snaps/d" && dataset == "r/c2" => format!("r/d@{snapshot}"),
        Some((of, snapshot)) if !of.is_empty() => format!("{dataset}@{snapshot}"),
        _ => word.to_owned(),
    }
}

/// Compares the received snapshots with the manifest.
fn look(golden: &Golden, devices: &Path, findings: &mut Findings) -> Result<(), JudgeError> {
    let state = golden.final_state().ok_or_else(|| JudgeError::Missing { what: "no manifest".to_owned() })?;
    let opened = Opened::new(&OpenOptions::new(vec![devices.to_path_buf()], "r"))?;
    for (_, to, like) in RECEIVED {
        let Some(expected) = state.datasets.iter().find(|dataset| dataset.name == *like) else {
            findings.differs(format!("the manifest has no {like}"));
            continue;
        };
        let mut files = expected.files.clone().unwrap_or_default();
        // The space that a file takes depends on the pool.
        files.iter_mut().for_each(|file| file.blocks512 = None);
        match opened.file_system(to) {
            Ok(found) => {
                let mut tree = EngineTree::new(opened.machine().clone(), found);
                findings.absorb(&format!("{to}:"), compare::tree(&mut tree, &files, &BTreeSet::new()));
            }
            Err(error) => findings.differs(format!("{to}: {error}")),
        }
    }
    Ok(())
}
