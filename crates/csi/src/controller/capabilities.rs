//! In which ways a volume can be used.

use crate::names::Protocol;
use crate::wire::common::{AccessType, Mode, VolumeCapability};

/// File systems that a node can make on a ZFS volume.
pub(crate) const FILE_SYSTEMS: [&str; 2] = ["ext4", "xfs"];

/// Whether a volume is used as a block device.
pub(crate) fn is_block(capability: &VolumeCapability) -> bool {
    matches!(capability.access_type, Some(AccessType::Block(_)))
}

/// Checks that volumes of a protocol can be used so.
///
/// # Errors
/// The reason why not.
pub(crate) fn check_capability(capability: &VolumeCapability, protocol: Protocol) -> Result<(), String> {
    let mode = capability.access_mode.as_ref().map(|access| access.mode);
    let mode = mode.and_then(|mode| Mode::try_from(mode).ok()).filter(|mode| *mode != Mode::Unknown);
    let Some(mode) = mode else { return Err("the access mode of the volume capability is missing".into()) };
    let writes_from_many = matches!(mode, Mode::MultiNodeMultiWriter | Mode::MultiNodeSingleWriter);
    match (protocol, &capability.access_type) {
        (_, None) => Err("the volume capability has neither block nor mount".into()),
        (Protocol::Nfs, Some(AccessType::Block(_))) => {
            Err("a volume over NFS is a file system, not a block device: use protocol iscsi".into())
        }
        (Protocol::Nfs, Some(AccessType::Mount(mount))) if !["", "nfs", "nfs4"].contains(&mount.fs_type.as_str()) => {
            Err(format!("a volume over NFS has the file system type nfs, not '{}'", mount.fs_type))
        }
        (Protocol::Iscsi, Some(AccessType::Mount(_))) if writes_from_many => {
            Err("a file system on a volume over iSCSI cannot be used by several nodes while one writes: use protocol \
                 nfs, or a block device"
                .into())
        }
        (Protocol::Iscsi, Some(AccessType::Mount(mount)))
            if !mount.fs_type.is_empty() && !FILE_SYSTEMS.contains(&mount.fs_type.as_str()) =>
        {
            Err(format!("file systems on volumes over iSCSI are ext4 and xfs, not '{}'", mount.fs_type))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::common::{AccessMode, BlockVolume, MountVolume};

    fn capability(access_type: Option<AccessType>, mode: Mode) -> VolumeCapability {
        VolumeCapability { access_type, access_mode: Some(AccessMode { mode: mode.into() }) }
    }

    #[test]
    fn protocols_differ_in_what_they_allow() {
        let block = || Some(AccessType::Block(BlockVolume {}));
        let mount =
            |fs_type: &str| Some(AccessType::Mount(MountVolume { fs_type: fs_type.into(), ..Default::default() }));
        let check = |access, mode, protocol| check_capability(&capability(access, mode), protocol);
        for (access, mode, protocol) in [
            (mount(""), Mode::MultiNodeMultiWriter, Protocol::Nfs),
            (mount("nfs"), Mode::SingleNodeWriter, Protocol::Nfs),
            (mount("ext4"), Mode::SingleNodeWriter, Protocol::Iscsi),
            (mount("xfs"), Mode::MultiNodeReaderOnly, Protocol::Iscsi),
            (block(), Mode::MultiNodeMultiWriter, Protocol::Iscsi),
        ] {
            assert_eq!(check(access, mode, protocol), Ok(()));
        }
        for (access, mode, protocol) in [
            (block(), Mode::SingleNodeWriter, Protocol::Nfs),
            (mount("ext4"), Mode::SingleNodeWriter, Protocol::Nfs),
            (mount("ext4"), Mode::MultiNodeMultiWriter, Protocol::Iscsi),
            (mount("btrfs"), Mode::SingleNodeWriter, Protocol::Iscsi),
            (None, Mode::SingleNodeWriter, Protocol::Nfs),
            (mount(""), Mode::Unknown, Protocol::Nfs),
        ] {
            assert!(check(access, mode, protocol).is_err());
        }
    }
}
