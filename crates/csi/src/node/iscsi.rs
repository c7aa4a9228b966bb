//! Sessions of the kernel's iSCSI initiator, and file systems on its devices.
//!
//! iscsiadm(8) keeps a record per target. Its passwords are set by an argument, which other processes of the machine can see while
//! it runs: iscsiadm reads them from nowhere else.

use super::mounts::{Mount, MountError};
use super::programs::{ProgramError, Programs};
use crate::names;
use crate::wire::common::{AccessType, VolumeCapability};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::Status;

/// Port of iSCSI.
const PORT: u16 = 3260;
/// Exit code of iscsiadm: a session exists already.
const SESSION_EXISTS: i32 = 15;
/// Exit codes of iscsiadm: no such record, no such session.
const NOTHING_FOUND: [i32; 2] = [21, 2];
/// Interval and number of looks for a device after a login: 30 s.
const LOOK: Duration = Duration::from_millis(100);
const LOOKS: u32 = 300;
/// Secrets of a node, and their settings of iscsiadm.
const SECRETS: [(&str, &str); 4] = [
    ("username", "node.session.auth.username"),
    ("password", "node.session.auth.password"),
    ("usernameIn", "node.session.auth.username_in"),
    ("passwordIn", "node.session.auth.password_in"),
];

/// A target of a volume at a server.
pub struct Target {
    name: String,
    portal: String,
}

fn failed(error: ProgramError) -> Status {
    match &error {
        ProgramError::Start { .. } => Status::failed_precondition(format!("{error}: the node needs it")),
        _ => Status::internal(error.to_string()),
    }
}

impl Target {
    /// The target of a volume.
    pub fn new(volume: &str, server: &str, port: Option<u16>) -> Self {
        let server = if server.contains(':') { format!("[{server}]") } else { server.to_owned() };
        Target { name: names::target_of(volume), portal: format!("{server}:{}", port.unwrap_or(PORT)) }
    }

    /// Path of the device, by udev's rules.
    pub fn device(&self) -> PathBuf {
        PathBuf::from(format!("/dev/disk/by-path/ip-{}-iscsi-{}-lun-0", self.portal, self.name))
    }

    /// Logs in with the secrets, and waits for the device.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if iscsiadm is missing, UNAUTHENTICATED without a part of the secrets, DEADLINE_EXCEEDED if no device
    /// appears, INTERNAL if iscsiadm fails.
    pub async fn log_in(&self, programs: &Programs, secrets: &BTreeMap<String, String>) -> Result<PathBuf, Status> {
        let record = ["-m", "node", "-T", &self.name, "-p", &self.portal];
        let with = |more: &[&'static str]| [&record[..], more].concat();
        programs.run_on_host("iscsiadm", &with(&["-o", "new"])).await.map_err(failed)?;
        if !secrets.is_empty() {
            if !secrets.contains_key("username") || !secrets.contains_key("password") {
                return Err(Status::unauthenticated("the secret of the node has no 'username' and 'password'"));
            }
            let method = [("node.session.auth.authmethod", "CHAP")];
            let of_secrets =
                SECRETS.iter().filter_map(|(key, setting)| secrets.get(*key).map(|value| (*setting, value.as_str())));
            for (setting, value) in method.into_iter().chain(of_secrets) {
                let arguments = [&record[..], &["-o", "update", "-n", setting, "-v", value]].concat();
                programs.run_on_host("iscsiadm", &arguments).await.map_err(failed)?;
            }
        }
        match programs.run_on_host("iscsiadm", &with(&["--login"])).await {
            Ok(_) | Err(ProgramError::Failed { code: SESSION_EXISTS, .. }) => {}
            Err(error) => return Err(failed(error)),
        }
        let device = self.device();
        for _ in 0..LOOKS {
            if device.exists() {
                return Ok(device);
            }
            programs.sleep(LOOK).await;
        }
        Err(Status::deadline_exceeded(format!(
            "{} did not appear after the login at {}",
            device.display(),
            self.portal
        )))
    }
}

/// Ends the session with the target of a volume and forgets it. No session is no error.
///
/// # Errors
/// INTERNAL if iscsiadm fails.
pub async fn log_out(programs: &Programs, volume: &str) -> Result<(), Status> {
    let target = names::target_of(volume);
    for step in [&["--logout"][..], &["-o", "delete"]] {
        let arguments = [&["-m", "node", "-T", target.as_str()][..], step].concat();
        match programs.run_on_host("iscsiadm", &arguments).await {
            Ok(_) => {}
            Err(ProgramError::Failed { code, .. }) if NOTHING_FOUND.contains(&code) => {}
            // Without iscsiadm there is no session; a volume over NFS has none.
            Err(ProgramError::Start { .. } | ProgramError::Failed { code: 127, .. }) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// The file system that a capability wants.
pub fn file_system(capability: &VolumeCapability) -> &'static str {
    match &capability.access_type {
        Some(AccessType::Mount(mount)) if mount.fs_type == "xfs" => "xfs",
        _ => "ext4",
    }
}

/// Makes a file system on a device that has none.
///
/// # Errors
/// FAILED_PRECONDITION if there is something else on it.
pub async fn make_file_system(programs: &Programs, device: &Path, kind: &str) -> Result<(), Status> {
    let device = device.to_string_lossy();
    // Exit code 2: nothing was found.
    let found = match programs.run("blkid", &["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "value", &device]).await {
        Ok(found) => found.trim().to_owned(),
        Err(ProgramError::Failed { code: 2, .. }) => String::new(),
        Err(error) => return Err(failed(error)),
    };
    match found.as_str() {
        "" => {}
        found if found == kind => return Ok(()),
        found => {
            let why = format!("{device} contains '{found}', not {kind}: it is not overwritten");
            return Err(Status::failed_precondition(why));
        }
    }
    let (program, quiet) = if kind == "xfs" { ("mkfs.xfs", "-q") } else { ("mkfs.ext4", "-q") };
    programs.run(program, &[quiet, &device]).await.map_err(failed)?;
    Ok(())
}

/// Reads the size of the device again, and enlarges the file system that is mounted at a path.
///
/// # Errors
/// INTERNAL if a program fails.
pub async fn grow(programs: &Programs, volume: &str, mount: &Mount, path: &Path) -> Result<(), Status> {
    let target = names::target_of(volume);
    programs.run_on_host("iscsiadm", &["-m", "node", "-T", &target, "-R"]).await.map_err(failed)?;
    let done = match mount.kind.as_str() {
        "ext4" => programs.run("resize2fs", &[&mount.source]).await,
        "xfs" => programs.run("xfs_growfs", &[&path.to_string_lossy()]).await,
        _ => return Ok(()),
    };
    done.map(drop).map_err(|error| MountError::Program(error).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_follow_from_the_volume_and_the_server() {
        let target = names::target_of("tank/v");
        let of = |server, port| Target::new("tank/v", server, port).device();
        let path = |portal: &str| PathBuf::from(format!("/dev/disk/by-path/ip-{portal}-iscsi-{target}-lun-0"));
        assert_eq!(of("192.0.2.1", None), path("192.0.2.1:3260"));
        assert_eq!(of("2001:db8::1", Some(3261)), path("[2001:db8::1]:3261"));
    }
}
