//! Options of one mount, which hold besides the properties of its file system.

use weir_daemon::MountAllows;

/// Options of `zfs mount`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountRequest {
    /// Forbid changes.
    pub read_only: bool,
    /// Mount on a directory that is not empty, whatever the property `overlay` says.
    pub overlay: bool,
    /// Forbid device nodes.
    pub no_devices: bool,
    /// Ignore set-user-id and set-group-id bits.
    pub no_setuid: bool,
    /// Forbid the execution of programs.
    pub no_exec: bool,
}

impl MountRequest {
    /// From words of `-o`, each with options that commas separate.
    ///
    /// # Errors
    /// The message for an option that is not one.
    pub fn of_options(words: &[String]) -> Result<Self, String> {
        let mut request = MountRequest::default();
        for option in words.iter().flat_map(|options| options.split(',')) {
            if !request.set(option) && !["rw", "noatime", "relatime"].contains(&option) {
                return Err(format!("'{option}' is no mount option: ro, rw, nodev, nosuid, noexec"));
            }
        }
        Ok(request)
    }

    /// The part of that which a mount with these options allows.
    pub(super) fn of_those(self, allows: MountAllows) -> MountAllows {
        MountAllows {
            devices: allows.devices && !self.no_devices,
            setuid: allows.setuid && !self.no_setuid,
            exec: allows.exec && !self.no_exec,
            overlay: allows.overlay || self.overlay,
        }
    }

    /// Sets an option. Returns false if it is none of a mount.
    pub fn set(&mut self, option: &str) -> bool {
        match option {
            "ro" => self.read_only = true,
            "nodev" => self.no_devices = true,
            "nosuid" => self.no_setuid = true,
            "noexec" => self.no_exec = true,
            _ => return false,
        }
        true
    }
}
