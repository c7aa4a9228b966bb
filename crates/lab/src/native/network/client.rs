//! Targets behind a network protocol: their size, loads on them, and the ceiling of their client.

use super::iscsi::{INITIATOR_NAME, Initiator, Wanted};
use super::load::{Worker, run};
use super::nfs::{Access, Mounted};
use super::peer::{Protocol, with_peer};
use super::secret::User;
use super::url::{NetworkTarget, Place};
use super::wire::connect;
use crate::clock;
use crate::error::LabError;
use crate::fio::Monitor;
use crate::load::{FILE_PREFIX, Load};
use crate::native::carrier::Carrier;
use crate::native::smb;
use crate::result::Round;
use std::io;

/// Version of the clients, which is Weir's.
const VERSION: &str = env!("CARGO_PKG_VERSION");

impl Carrier for NetworkTarget {
    fn client(&self) -> String {
        let own =
            |what: &str| format!("weir {VERSION}, own {what}, one connection for each worker, no kernel in between");
        match self.place {
            Place::Iscsi { .. } => own("iSCSI initiator (RFC 7143, error recovery level 0, no digests)"),
            Place::Nfs { .. } => own("client of NFS version 3 over TCP"),
            Place::Smb { .. } => smb::client(),
        }
    }

    fn has_depth(&self) -> bool {
        !matches!(self.place, Place::Smb { .. })
    }

    fn engine(&self) -> &'static str {
        match self.place {
            Place::Iscsi { .. } => "weir-iscsi",
            Place::Nfs { .. } => "weir-nfs3",
            Place::Smb { .. } => "smbclient",
        }
    }

    fn holds_data(&self) -> bool {
        matches!(self.place, Place::Iscsi { .. })
    }

    fn room_bytes(&self) -> Result<Option<u64>, LabError> {
        let room = match &self.place {
            Place::Iscsi { .. } => self.unit(0, None).map(|unit| Some(unit.size_bytes())),
            Place::Nfs { .. } => self.mounted(None).and_then(|mounted| mounted.room_bytes()).map(Some),
            Place::Smb { .. } => return smb::room_bytes(self),
        };
        room.map_err(|error| self.failed(&error))
    }

    fn run(&self, load: &Load, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError> {
        if let Place::Smb { .. } = self.place {
            return smb::run(self, load, monitor);
        }
        let workers = self.workers(load, None).map_err(|error| self.failed(&error))?;
        run(load, workers, seed(), monitor).map_err(|error| self.failed(&error))
    }

    fn check(&self, load: &Load) -> Result<(), LabError> {
        match self.place {
            Place::Smb { .. } => smb::check_load(load),
            Place::Iscsi { .. } | Place::Nfs { .. } => Ok(()),
        }
    }

    fn has_ceiling(&self) -> bool {
        !matches!(self.place, Place::Smb { .. })
    }

    fn ceiling_source(&self) -> &'static str {
        "the same client and load, against a server in this process that stores nothing, over loopback"
    }

    fn ceiling(&self, load: &Load, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError> {
        let protocol = match self.place {
            Place::Iscsi { .. } => Protocol::Iscsi,
            Place::Nfs { .. } => Protocol::Nfs,
            Place::Smb { .. } => return Ok(None),
        };
        let measured = with_peer(protocol, |port| run(load, self.workers(load, Some(port))?, seed(), monitor));
        measured.map_err(|error| self.failed(&error))
    }

    fn remove_files(&self) -> Result<(), LabError> {
        match self.place {
            Place::Iscsi { .. } => Ok(()),
            Place::Nfs { .. } => {
                let removed = self.mounted(None).and_then(|mounted| {
                    // Numbers have no gaps: workers are counted from 0.
                    for number in 0.. {
                        if !mounted.remove(&file_name(number))? {
                            break;
                        }
                    }
                    Ok(())
                });
                removed.map_err(|error| self.failed(&error))
            }
            Place::Smb { .. } => smb::remove_files(self),
        }
    }
}

impl NetworkTarget {
    fn failed(&self, error: &io::Error) -> LabError {
        LabError::Server { target: self.to_string(), what: error.to_string() }
    }

    /// A client for each worker; with a port, of the peer on this machine.
    fn workers(&self, load: &Load, peer: Option<u16>) -> io::Result<Vec<Worker>> {
        let part_bytes = load.bytes_per_worker();
        match &self.place {
            Place::Iscsi { .. } => {
                let session = seed() << 16;
                let open = |number: u64| {
                    let unit = self.unit(session | number & 0xffff, peer)?;
                    fits(&unit, load, (number + 1).saturating_mul(part_bytes))?;
                    Ok(Worker { client: Box::new(unit), begin: number * part_bytes })
                };
                (0..u64::from(load.workers)).map(open).collect()
            }
            _ => {
                let mounted = self.mounted(peer)?;
                let open = |number: u32| {
                    let file = mounted.open(&file_name(number), load.writes())?;
                    Ok(Worker { client: Box::new(file), begin: 0 })
                };
                (0..load.workers).map(open).collect()
            }
        }
    }

    fn unit(&self, session: u64, peer: Option<u16>) -> io::Result<Initiator> {
        let Place::Iscsi { port, iqn, lun, initiator } = &self.place else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let user: Option<&User> = self.user.as_ref().filter(|_| peer.is_none());
        let initiator = initiator.as_deref().unwrap_or(INITIATOR_NAME);
        let (host, port) = peer.map_or((self.host.as_str(), *port), |port| ("127.0.0.1", port));
        Initiator::open(connect(host, port)?, &Wanted { iqn, lun: *lun, user, initiator, session })
    }

    fn mounted(&self, peer: Option<u16>) -> io::Result<Mounted> {
        let Place::Nfs { nfs_port, mount_port, path } = &self.place else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        match peer {
            Some(port) => Mounted::mount("127.0.0.1", Access { nfs: Some(port), ..Access::default() }, path),
            None => Mounted::mount(&self.host, Access { nfs: *nfs_port, mount: *mount_port, user: None }, path),
        }
    }
}

/// Name of a worker's file.
pub fn file_name(number: u32) -> String {
    format!("{FILE_PREFIX}.{number}")
}

/// A number that differs between runs and machines.
pub fn seed() -> u64 {
    let id = u64::from(std::process::id());
    clock::unix_nanoseconds() ^ id << 40
}

/// Checks that a load consists of whole blocks and ends within the unit.
fn fits(unit: &Initiator, load: &Load, end: u64) -> io::Result<()> {
    let block = unit.block_bytes();
    if let Some((bytes, _)) = load.blocks.iter().find(|(bytes, _)| !bytes.is_multiple_of(block)) {
        let text = format!("operations of {bytes} bytes are not whole blocks of the unit, which have {block} bytes");
        return Err(io::Error::other(text));
    }
    if end > unit.size_bytes() {
        let text = format!("the unit has {} bytes, the load ends at byte {end}", unit.size_bytes());
        return Err(io::Error::other(text));
    }
    Ok(())
}
