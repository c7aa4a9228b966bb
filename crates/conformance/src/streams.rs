//! Send streams: ours parsed beside OpenZFS's `zstream dump`, record counts, payload bytes and checksums.
//!
//! The goldens' streams come with what `zstream dump` said of them; those in OpenZFS's test package are dumped by the
//! unpacked tools. Fletcher-4 is computed here anew, in its plainest form, so that every record's running checksum is
//! proven and not only the parsing.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use weir_format::Endian;
use weir_format::stream::{Record, RunningChecksum, StreamReader};

use crate::JudgeError;
use crate::compare::Findings;
use crate::hash::hex_of;
use crate::report::Report;
use crate::zdb::{Tools, output};

/// One stream as listed with the golden pools.
#[derive(Deserialize)]
struct GoldenStream {
    file: String,
    sha256: String,
    dump: String,
}

/// Fletcher-4 over 32-bit words, as its definition reads.
#[derive(Default)]
struct Fletcher([u64; 4]);

impl RunningChecksum for Fletcher {
    fn update(&mut self, bytes: &[u8], endian: Endian) {
        let [a, b, c, d] = &mut self.0;
        for word in bytes.as_chunks::<4>().0 {
            let word = match endian {
                Endian::Little => u32::from_le_bytes(*word),
                Endian::Big => u32::from_be_bytes(*word),
            };
            *a = a.wrapping_add(word.into());
            *b = b.wrapping_add(*a);
            *c = c.wrapping_add(*b);
            *d = d.wrapping_add(*c);
        }
    }

    fn value(&self) -> [u64; 4] {
        self.0
    }

    fn reset(&mut self) {
        self.0 = [0; 4];
    }
}

/// Runs every stream of the goldens' folder and of OpenZFS's test package, if that is here.
///
/// # Errors
/// If the list of streams cannot be read.
pub fn run(folder: &Path, report: &mut Report) -> Result<(), JudgeError> {
    let folder = folder.join("streams");
    for list in ["snaps.streams.json", "enc.streams.json"] {
        let path = folder.join(list);
        let text =
            std::fs::read(&path).map_err(|source| JudgeError::Io { what: path.display().to_string(), source })?;
        let streams: Vec<GoldenStream> = serde_json::from_slice(&text)
            .map_err(|source| JudgeError::Manifest { golden: list.to_string(), source })?;
        for stream in streams {
            report.book(&stream.file, golden(&folder, &stream));
        }
    }
    match Tools::find() {
        Ok(tools) => {
            for name in ["dedup.zsend", "dedup_encrypted_zvol.zsend"] {
                report.book(name, packaged(&tools, name));
            }
        }
        Err(error) => report.skip("streams of zfs-test", &error.to_string()),
    }
    Ok(())
}

fn decompressed(program: &str, arguments: &[&str], file: &Path) -> Result<Vec<u8>, JudgeError> {
    let mut command = Command::new(program);
    let done = output(command.args(arguments).arg(file).stderr(Stdio::null()))?;
    if done.status.success() {
        Ok(done.stdout)
    } else {
        Err(JudgeError::Unpack { archive: file.display().to_string() })
    }
}

fn golden(folder: &Path, stream: &GoldenStream) -> Result<Findings, JudgeError> {
    let bytes = decompressed("zstd", &["-dqc"], &folder.join(format!("{}.zst", stream.file)))?;
    let mut findings = Findings::default();
    if hex_of(&bytes) != stream.sha256 {
        findings.differs("the stream itself is not the one that was dumped".to_string());
    }
    findings.absorb("", judge(&bytes, &stream.dump));
    Ok(findings)
}

fn packaged(tools: &Tools, name: &str) -> Result<Findings, JudgeError> {
    let bytes = decompressed("bzip2", &["-dc"], &tools.tests().join(format!("rsend/{name}.bz2")))?;
    let file = tempfile::NamedTempFile::new().map_err(|source| JudgeError::Io { what: name.to_string(), source })?;
    std::fs::write(file.path(), &bytes).map_err(|source| JudgeError::Io { what: name.to_string(), source })?;
    let dump = output(tools.program("sbin/zstream").arg("dump").arg(file.path()))?;
    Ok(judge(&bytes, &String::from_utf8_lossy(&dump.stdout)))
}

/// Count of records and bytes of payload, by the name that `zstream dump` counts them under.
type Totals = BTreeMap<String, (u64, u64)>;

fn judge(bytes: &[u8], dump: &str) -> Findings {
    let mut findings = Findings::default();
    let reader = match StreamReader::new(bytes, Fletcher::default()) {
        Ok(reader) => reader,
        Err(error) => {
            findings.differs(error.to_string());
            return findings;
        }
    };
    let mut totals = Totals::new();
    let mut ends = Vec::new();
    for item in reader {
        let item = match item {
            Ok(item) => item,
            Err(error) => {
                findings.differs(error.to_string());
                break;
            }
        };
        findings.facts += 1;
        findings.bytes += item.payload.len() as u64;
        if !item.checksum_holds() {
            findings.differs(format!("checksum of the record at {} does not hold", item.offset));
        }
        if let Record::End { checksum: [a, b, c, d], .. } = item.record {
            ends.push(format!("{a:x}/{b:x}/{c:x}/{d:x}"));
        }
        let total = totals.entry(item.record.name().to_string()).or_default();
        total.0 += 1;
        total.1 += item.payload.len() as u64;
    }
    let their_ends: Vec<&str> = dump.lines().filter_map(|line| line.trim().strip_prefix("END checksum = ")).collect();
    if ends != their_ends {
        findings.differs(format!("checksums of END {ends:?}, zstream says {their_ends:?}"));
    }
    let expected_totals = totals_of(dump);
    findings.facts += expected_totals.len() as u64;
    if expected_totals.is_empty() {
        findings.differs("zstream dump gave no summary".to_string());
    }
    for (record, expected) in &expected_totals {
        let found = totals.get(record).copied().unwrap_or_default();
        if found != *expected {
            findings.differs(format!("{record}: {found:?} (records, bytes), zstream says {expected:?}"));
        }
    }
    findings
}

/// Returns the totals in `zstream dump`'s summary.
fn totals_of(dump: &str) -> Totals {
    let mut totals = Totals::new();
    for line in dump.lines() {
        let Some((record, figures)) =
            line.trim().strip_prefix("Total DRR_").and_then(|rest| rest.split_once(" records = "))
        else {
            continue;
        };
        let mut numbers = figures.split(|letter: char| !letter.is_ascii_digit()).filter_map(|word| word.parse().ok());
        if let (Some(count), Some(bytes)) = (numbers.next(), numbers.next()) {
            totals.insert(record.to_string(), (count, bytes));
        }
    }
    totals
}
