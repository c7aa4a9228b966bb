//! Drives as they are bought, and the state machine of one: operations in, completions out, in virtual time.

use super::flash::{Flash, FlashSpec};
use super::rotating::{Rotating, RotatingSpec};
use serde::{Deserialize, Serialize};
use weir_machine::Op;

/// An operation as a drive sees it.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Number of the operation, which its completion names.
    pub id: u64,
    /// Kind.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Model and parameters of a drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum DriveSpec {
    /// A disk with platters and one arm.
    Rotating(RotatingSpec),
    /// Flash memory.
    Flash(FlashSpec),
}

impl DriveSpec {
    /// The drives that have a name: the name, and what it stands for.
    pub const NAMES: [(&'static str, &'static str); 8] = [
        ("hdd-7k", "3.5-inch disk of 7,200 rpm, 8 TB"),
        ("hdd-green", "3.5-inch disk of 5,400 rpm that saves power, 2 TB"),
        ("hdd-10k", "2.5-inch disk of 10,000 rpm, 1.2 TB"),
        ("hdd-15k", "3.5-inch disk of 15,000 rpm, 300 GB"),
        ("ssd-desktop", "SATA SSD for desktops, without power-loss protection"),
        ("ssd-enterprise", "SATA SSD for servers, with power-loss protection"),
        ("nvme", "NVMe SSD of PCIe 3.0 with four lanes"),
        ("log-device", "fast log device: NVMe with power-loss protection and low latency"),
    ];

    /// The drive of this name.
    pub fn named(name: &str) -> Option<DriveSpec> {
        Some(match name {
            "hdd-7k" => DriveSpec::Rotating(RotatingSpec::RPM_7K),
            "hdd-green" => DriveSpec::Rotating(RotatingSpec::GREEN),
            "hdd-10k" => DriveSpec::Rotating(RotatingSpec::RPM_10K),
            "hdd-15k" => DriveSpec::Rotating(RotatingSpec::RPM_15K),
            "ssd-desktop" => DriveSpec::Flash(FlashSpec::DESKTOP),
            "ssd-enterprise" => DriveSpec::Flash(FlashSpec::ENTERPRISE),
            "nvme" => DriveSpec::Flash(FlashSpec::NVME),
            "log-device" => DriveSpec::Flash(FlashSpec::LOG),
            _ => return None,
        })
    }

    /// Whether it has platters.
    pub fn is_rotating(&self) -> bool {
        matches!(self, DriveSpec::Rotating(_))
    }

    /// Rate of large sequential reads, in bytes per second, on the outer tracks of a disk.
    pub fn read_rate(&self) -> f64 {
        match self {
            DriveSpec::Rotating(spec) => spec.outer_mb_s * 1e6,
            DriveSpec::Flash(spec) => spec.read_mb_s * 1e6,
        }
    }

    /// Rate of long sequential writes, in bytes per second: of flash, that after its buffer is full.
    pub fn sustained_write_rate(&self) -> f64 {
        match self {
            DriveSpec::Rotating(spec) => spec.outer_mb_s * 1e6,
            DriveSpec::Flash(spec) => spec.sustained_mb_s.min(spec.write_mb_s) * 1e6,
        }
    }

    /// As [`DriveSpec::sustained_write_rate`], at a place: `share` is its distance from the first byte, as a share of the size, from 0
    /// to 1. The tracks of a disk become shorter.
    pub fn sustained_write_rate_at(&self, share: f64) -> f64 {
        match self {
            DriveSpec::Rotating(spec) => spec.rate_mb_s(share) * 1e6,
            DriveSpec::Flash(_) => self.sustained_write_rate(),
        }
    }

    /// Small random reads per second, one at a time.
    pub fn read_iops(&self) -> f64 {
        match self {
            DriveSpec::Rotating(spec) => 1e3 / (spec.average_seek_ms + spec.rotation_ms() / 2.0),
            DriveSpec::Flash(spec) => 1e6 / spec.read_us,
        }
    }
}

/// A drive of `size_bytes` bytes in use.
pub enum Drive {
    /// A disk.
    Rotating(Rotating),
    /// Flash memory.
    Flash(Flash),
}

impl Drive {
    /// An idle drive.
    pub fn new(spec: &DriveSpec, size_bytes: u64) -> Self {
        match spec {
            DriveSpec::Rotating(spec) => Drive::Rotating(Rotating::new(*spec, size_bytes)),
            DriveSpec::Flash(spec) => Drive::Flash(Flash::new(*spec)),
        }
    }

    /// Accepts a command at `now_ns`.
    pub fn submit(&mut self, now_ns: u64, command: Command) {
        match self {
            Drive::Rotating(drive) => drive.submit(now_ns, command),
            Drive::Flash(drive) => drive.submit(now_ns, command),
        }
    }

    /// Works until `now_ns`, and returns the numbers of the commands that were completed.
    pub fn advance(&mut self, now_ns: u64) -> Vec<u64> {
        match self {
            Drive::Rotating(drive) => drive.advance(now_ns),
            Drive::Flash(drive) => drive.advance(now_ns),
        }
    }

    /// Time at which the drive has to be advanced next, if it has work.
    pub fn next_ns(&self) -> Option<u64> {
        match self {
            Drive::Rotating(drive) => drive.next_ns(),
            Drive::Flash(drive) => drive.next_ns(),
        }
    }

    /// Time in which the drive was at work so far, in nanoseconds.
    pub fn busy_ns(&self) -> u64 {
        match self {
            Drive::Rotating(drive) => drive.busy_ns(),
            Drive::Flash(drive) => drive.busy_ns(),
        }
    }
}
