//! Disks as the page shows them: model and serial number from sysfs, health from `smartctl`.
//!
//! Source: smartmontools' `smartctl(8)`, option `-j`; Linux' `Documentation/ABI/stable/sysfs-block`.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a program of the machine, in real time")]

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_machine::lock::Mutex;
use weir_web::{Device, Disk, Smart};

/// Time for which the answer of a disk is used again.
const FRESH_TIME: Duration = Duration::from_secs(300);
/// Time that smartctl may take.
const SMART_TIME: Duration = Duration::from_secs(10);
/// Maximum output of smartctl that is read, in bytes.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// Disks whose answers are kept.
const MAX_KEPT: usize = 4096;
/// ATA attributes whose raw value is zero on a healthy disk.
const ATA_COUNTERS: [(u64, &str); 4] = [
    (5, "reallocated sectors"),
    (187, "uncorrectable errors"),
    (197, "pending sectors"),
    (198, "offline uncorrectable sectors"),
];

type Answer = Result<(Smart, Option<String>, Option<String>), String>;

/// Answers of smartctl by device, with their times.
#[derive(Default)]
pub struct SmartCache(Mutex<BTreeMap<PathBuf, (Instant, Answer)>>);

impl SmartCache {
    /// The disk behind a device. It may wait for the disk.
    pub fn disk(&self, device: Device) -> Disk {
        let Device { path, size_bytes, contents, .. } = device;
        let mut disk = Disk {
            path,
            size_bytes,
            contents,
            model: None,
            serial: None,
            rotates: None,
            smart: None,
            smart_problem: None,
        };
        let Some((name, folder)) = block_device(Path::new(&disk.path)) else {
            disk.smart_problem = Some("a file".to_owned());
            return disk;
        };
        let text = |file: &str| std::fs::read_to_string(folder.join(file)).ok().map(|text| text.trim().to_owned());
        let known = |file: &str| text(file).filter(|text| !text.is_empty());
        disk.rotates = Some(text("queue/rotational").as_deref() == Some("1"));
        disk.model = known("device/model");
        disk.serial = known("device/serial").or_else(|| known("serial"));
        match self.smart(&Path::new("/dev").join(name)) {
            Ok((smart, model, serial)) => {
                disk.smart = Some(smart);
                disk.model = model.or(disk.model);
                disk.serial = serial.or(disk.serial);
            }
            Err(why) => disk.smart_problem = Some(why),
        }
        disk
    }

    fn smart(&self, device: &Path) -> Answer {
        let now = Instant::now();
        let kept = self.0.lock().get(device).filter(|(at, _)| now.duration_since(*at) < FRESH_TIME).cloned();
        if let Some((_, answer)) = kept {
            return answer;
        }
        let answer = ask(device);
        let mut all = self.0.lock();
        if all.len() >= MAX_KEPT {
            all.clear();
        }
        all.insert(device.to_owned(), (now, answer.clone()));
        debug_assert!(all.len() <= MAX_KEPT, "answers are bounded");
        answer
    }
}

/// Name of the whole disk of a block device, and its directory in sysfs; `None` for a file.
fn block_device(path: &Path) -> Option<(String, PathBuf)> {
    let found = std::fs::metadata(path).ok().filter(|found| found.file_type().is_block_device())?;
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    let folder = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // The directory of a partition is in that of its disk.
    let whole = if folder.join("partition").exists() { folder.parent()?.to_owned() } else { folder };
    Some((whole.file_name()?.to_str()?.to_owned(), whole))
}

/// Asks smartctl about a disk, without waking it up.
fn ask(device: &Path) -> Answer {
    let child = Command::new("smartctl")
        .args(["-j", "-a", "-n", "standby"])
        .arg(device)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "smartctl is not installed (package smartmontools)".to_owned(),
        _ => format!("smartctl: {error}"),
    })?;
    let from = child.stdout.take().ok_or("smartctl has no output")?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read is judged below.
        let _end = from.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes);
        bytes
    });
    let end = Instant::now() + SMART_TIME;
    while child.try_wait().map_err(|error| format!("smartctl: {error}"))?.is_none() {
        if Instant::now() >= end {
            // It may have ended just now.
            let _ended = child.kill();
            let _code = child.wait();
            return Err(format!("smartctl did not end within {} s", SMART_TIME.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let bytes = reader.join().map_err(|_| "smartctl cannot be read".to_owned())?;
    parse(&bytes)
}

/// Reads the answer of smartctl: health, model and serial number.
///
/// # Errors
/// Why there is no health: the text is no JSON, or the messages of smartctl.
fn parse(bytes: &[u8]) -> Answer {
    let answer: Value = serde_json::from_slice(bytes).map_err(|_| "smartctl printed no JSON".to_owned())?;
    let text = |key: &str| answer[key].as_str().map(str::to_owned);
    let nvme = &answer["nvme_smart_health_information_log"];
    let smart = Smart {
        passed: answer["smart_status"]["passed"].as_bool(),
        celsius: answer["temperature"]["current"].as_i64(),
        power_on_hours: answer["power_on_time"]["hours"].as_u64(),
        findings: findings(&answer, nvme),
    };
    if smart == Smart::default() {
        let messages = answer["smartctl"]["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let texts: Vec<&str> = messages.iter().filter_map(|message| message["string"].as_str()).collect();
        return Err(if texts.is_empty() { "the disk has no SMART".to_owned() } else { texts.join("; ") });
    }
    Ok((smart, text("model_name"), text("serial_number")))
}

/// Counters that a healthy disk has not, in words.
fn findings(answer: &Value, nvme: &Value) -> Vec<String> {
    let mut out = Vec::new();
    let attributes = answer["ata_smart_attributes"]["table"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (id, what) in ATA_COUNTERS {
        let raw = attributes.iter().find(|one| one["id"] == id).and_then(|one| one["raw"]["value"].as_u64());
        // The upper bytes of some disks have other counters.
        let count = raw.unwrap_or(0) & 0xffff_ffff;
        if count > 0 {
            out.push(format!("{count} {what}"));
        }
    }
    let number = |from: &Value, key: &str| from[key].as_u64().unwrap_or(0);
    match number(answer, "scsi_grown_defect_list") {
        0 => {}
        count => out.push(format!("{count} grown defects")),
    }
    if number(nvme, "critical_warning") > 0 {
        out.push(format!("critical warning {:#04x}", number(nvme, "critical_warning")));
    }
    if number(nvme, "media_errors") > 0 {
        out.push(format!("{} media errors", number(nvme, "media_errors")));
    }
    if number(nvme, "percentage_used") >= 90 {
        out.push(format!("{} % of its writes used", number(nvme, "percentage_used")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_smartctl_are_read() {
        let ata = br#"{"smartctl":{"exit_status":0},"model_name":"DISK 1","serial_number":"S1","smart_status":{"passed":true},
            "ata_smart_attributes":{"table":[{"id":5,"raw":{"value":8}},{"id":197,"raw":{"value":0}},{"id":198,"raw":{"value":12884901890}}]},
            "power_on_time":{"hours":12345},"temperature":{"current":31}}"#;
        let (smart, model, serial) = parse(ata).unwrap();
        assert_eq!((model.as_deref(), serial.as_deref()), (Some("DISK 1"), Some("S1")));
        assert_eq!((smart.passed, smart.celsius, smart.power_on_hours), (Some(true), Some(31), Some(12345)));
        assert_eq!(smart.findings, ["8 reallocated sectors", "2 offline uncorrectable sectors"]);
        let nvme = br#"{"smart_status":{"passed":false},"nvme_smart_health_information_log":{"critical_warning":4,"media_errors":3,"percentage_used":97}}"#;
        let (smart, ..) = parse(nvme).unwrap();
        assert_eq!(smart.passed, Some(false));
        assert_eq!(smart.findings, ["critical warning 0x04", "3 media errors", "97 % of its writes used"]);
    }

    #[test]
    fn other_answers_are_named() {
        let denied =
            br#"{"smartctl":{"messages":[{"string":"Smartctl open device: /dev/sda failed: Permission denied"}]}}"#;
        assert!(parse(denied).unwrap_err().contains("Permission denied"));
        assert_eq!(parse(b"{}").unwrap_err(), "the disk has no SMART");
        assert_eq!(parse(b"[1, 2").unwrap_err(), "smartctl printed no JSON");
        assert!(parse(br#"{"temperature":[],"smart_status":3,"ata_smart_attributes":{"table":{"id":5}}}"#).is_err());
    }

    #[test]
    fn a_file_has_no_smart() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display().to_string();
        let device = Device { path, size_bytes: 7, contents: "no data found".into(), in_use: false };
        let disk = SmartCache::default().disk(device);
        assert_eq!((disk.rotates, disk.smart, disk.smart_problem.as_deref()), (None, None, Some("a file")));
    }
}
