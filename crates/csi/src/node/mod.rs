//! The Node service: mounts volumes on the machine on which it runs.
//!
//! ```text
//!   stage      NFS:   mount -t nfs server:/dataset STAGING          iSCSI: log in; for a file system mkfs once, mount DEVICE STAGING
//!   publish    bind mount of STAGING at TARGET                      the same; for a block device, of the device at TARGET
//! ```
//!
//! A node keeps no state: mounts are found in `/proc/self/mountinfo`, and the iSCSI target follows from the handle of the volume.

mod iscsi;
mod mounts;
mod programs;

use crate::controller::{check_capability, is_block};
use crate::names::{self, Protocol};
use crate::parameters::is_server;
use crate::pending::Pending;
use crate::wire::common::{AccessType, Mode, Topology, VolumeCapability};
use crate::wire::node::{
    NodeCapabilityKind, NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse, NodeRpc, NodeRpcCapability,
    NodeServiceCapability, NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, UsageUnit, VolumeUsage,
};
use iscsi::Target;
use mounts::MountError;
use programs::Programs;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tonic::Status;
use weir_machine::Machine;

/// How a node mounts file systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeMount {
    /// The kernel's NFS client, by mount(8).
    Nfs,
    /// A bind mount of the directory at which a daemon on this machine has the dataset mounted.
    Bind,
}

/// Port of NFS and MOUNT.
const NFS_PORT: u16 = 2049;

/// Description of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Name and address: `worker-3@192.0.2.13`.
    pub node: String,
    /// How file systems are mounted.
    pub mount: NodeMount,
    /// Directory at which the root of the machine is, for programs that must be the machine's own (iscsiadm).
    pub host_root: Option<PathBuf>,
    /// Topology segments of this node.
    pub topology: BTreeMap<String, String>,
}

/// The Node service.
pub struct Node {
    pub(crate) options: NodeOptions,
    programs: Programs,
    pending: Pending,
}

impl From<MountError> for Status {
    fn from(error: MountError) -> Self {
        match error {
            MountError::NotRoot { .. } => Status::failed_precondition(error.to_string()),
            MountError::InUse { .. } => Status::already_exists(error.to_string()),
            MountError::Missing { .. } => Status::not_found(error.to_string()),
            other => Status::internal(other.to_string()),
        }
    }
}

/// A path of a request: absolute, without `..`.
fn path_of<'a>(path: &'a str, field: &str) -> Result<&'a Path, Status> {
    if path.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is missing")));
    }
    let is_plain = path.starts_with('/') && !path.split('/').any(|part| part == "..") && !path.contains('\0');
    if !is_plain || path.len() > 4096 {
        return Err(Status::invalid_argument(format!("{field} takes an absolute path without '..', not '{path}'")));
    }
    Ok(Path::new(path))
}

/// The path of a volume that was published: at another than a plain path, none was.
fn mounted_path(path: &str) -> Result<&Path, Status> {
    path_of(path, "volume_path").map_err(|status| match path {
        "" => status,
        _ => Status::not_found(format!("no volume is mounted at '{path}'")),
    })
}

fn volume_of(handle: &str) -> Result<&str, Status> {
    match handle {
        "" => Err(Status::invalid_argument("volume_id is missing")),
        handle if names::is_volume(handle) => Ok(handle),
        handle => Err(Status::not_found(format!("there is no volume '{handle}'"))),
    }
}

fn capability_of(capability: Option<&VolumeCapability>) -> Result<&VolumeCapability, Status> {
    capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))
}

/// Whether only one path of the node may have the volume.
fn is_for_one_writer(capability: &VolumeCapability) -> bool {
    let mode = capability.access_mode.as_ref().map(|access| access.mode);
    mode == Some(Mode::SingleNodeSingleWriter.into())
}

/// A field of the context that the controller gave.
fn field<'a>(context: &'a BTreeMap<String, String>, key: &str) -> Result<&'a str, Status> {
    let value = context.get(key).map(String::as_str);
    value.ok_or_else(|| Status::invalid_argument(format!("publish_context has no '{key}': publish the volume first")))
}

/// The server of a context, and the port if it is not the protocol's.
fn server_of(context: &BTreeMap<String, String>) -> Result<(&str, Option<u16>), Status> {
    let server = field(context, "server")?;
    if !is_server(server) {
        return Err(Status::invalid_argument(format!("'{server}' is no host name or address")));
    }
    let port = context.get("port").map(|port| port.parse());
    Ok((server, port.transpose().map_err(|_| Status::invalid_argument("publish_context has no valid port"))?))
}

/// Options of mount that a capability wants.
fn flags_of(capability: &VolumeCapability) -> Vec<String> {
    match &capability.access_type {
        Some(AccessType::Mount(mount)) => mount.mount_flags.clone(),
        _ => Vec::new(),
    }
}

/// Options of mount for NFS: those of the volume, and Weir's version and ports. Locks are the node's own unless `lock` is wanted,
/// because without rpc.statd on the node mount.nfs refuses to mount with them.
fn nfs_options(mut flags: Vec<String>, port: u16) -> Vec<String> {
    if !flags.iter().any(|flag| flag == "lock" || flag == "nolock") {
        flags.push("nolock".to_owned());
    }
    flags.retain(|flag| flag != "lock");
    flags.extend(["vers=3".to_owned(), "tcp".to_owned(), format!("port={port}"), format!("mountport={port}")]);
    flags
}

impl Node {
    /// The node on which this process runs.
    pub(crate) fn new(machine: Machine, options: NodeOptions) -> Self {
        let programs = Programs::new(machine, options.host_root.clone());
        Node { options, programs, pending: Pending::default() }
    }

    /// The calls that this node offers.
    pub async fn node_get_capabilities(
        &self,
        _: NodeGetCapabilitiesRequest,
    ) -> Result<NodeGetCapabilitiesResponse, Status> {
        let calls = [
            NodeRpc::StageUnstageVolume,
            NodeRpc::GetVolumeStats,
            NodeRpc::ExpandVolume,
            NodeRpc::SingleNodeMultiWriter,
        ];
        let capability = |call: NodeRpc| NodeServiceCapability {
            r#type: Some(NodeCapabilityKind::Rpc(NodeRpcCapability { r#type: call.into() })),
        };
        Ok(NodeGetCapabilitiesResponse { capabilities: calls.map(capability).to_vec() })
    }

    /// Name and topology of this node.
    pub async fn node_get_info(&self, _: NodeGetInfoRequest) -> Result<NodeGetInfoResponse, Status> {
        let segments = self.options.topology.clone();
        let accessible_topology = if segments.is_empty() { None } else { Some(Topology { segments }) };
        Ok(NodeGetInfoResponse { node_id: self.options.node.clone(), max_volumes_per_node: 0, accessible_topology })
    }

    /// Mounts a volume at its staging path.
    pub async fn node_stage_volume(&self, request: NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Status> {
        if request.volume_id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        let staging = path_of(&request.staging_target_path, "staging_target_path")?;
        let capability = capability_of(request.volume_capability.as_ref())?;
        let volume = volume_of(&request.volume_id)?;
        let _call = self.pending.begin(volume)?;
        let context = &request.publish_context;
        let protocol = field(context, "protocol")?;
        let protocol = Protocol::named(protocol)
            .ok_or_else(|| Status::invalid_argument(format!("publish_context has an unknown protocol '{protocol}'")))?;
        check_capability(capability, protocol).map_err(Status::invalid_argument)?;
        match protocol {
            Protocol::Nfs => self.stage_files(volume, staging, capability, context).await?,
            Protocol::Iscsi => {
                let (server, port) = server_of(context)?;
                let target = Target::new(volume, server, port);
                mounts::check_root("iSCSI")?;
                let device = target.log_in(&self.programs, &request.secrets).await?;
                if !is_block(capability) && !mounts::is_mounted(staging)? {
                    let kind = iscsi::file_system(capability);
                    iscsi::make_file_system(&self.programs, &device, kind).await?;
                    mounts::make_directory(staging)?;
                    mounts::mount(&self.programs, kind, &device.to_string_lossy(), staging, &flags_of(capability))
                        .await?;
                }
            }
        }
        Ok(NodeStageVolumeResponse {})
    }

    /// Mounts a file system at its staging path.
    async fn stage_files(
        &self,
        volume: &str,
        staging: &Path,
        capability: &VolumeCapability,
        context: &BTreeMap<String, String>,
    ) -> Result<(), Status> {
        if mounts::is_mounted(staging)? {
            return Ok(());
        }
        mounts::check_root("mount")?;
        mounts::make_directory(staging)?;
        match self.options.mount {
            NodeMount::Bind => {
                let why = "is not mounted on this machine: the daemon must run here, with 'mounts = true'";
                let missing = || Status::failed_precondition(format!("{volume} {why}"));
                let from = path_of(context.get("mountpoint").ok_or_else(missing)?, "mountpoint")?;
                // All file systems of a pool are one mount of FUSE.
                if mounts::kind_of(from)?.as_deref() != Some("fuse.weir") {
                    return Err(missing());
                }
                mounts::bind(from, staging, false)?;
            }
            NodeMount::Nfs => {
                let (server, port) = server_of(context)?;
                let path = path_of(field(context, "path")?, "path")?;
                let flags = nfs_options(flags_of(capability), port.unwrap_or(NFS_PORT));
                let server = if server.contains(':') { format!("[{server}]") } else { server.to_owned() };
                let source = format!("{server}:{}", path.display());
                mounts::mount(&self.programs, "nfs", &source, staging, &flags).await?;
            }
        }
        Ok(())
    }

    /// Unmounts a volume from its staging path, and ends its iSCSI session.
    pub async fn node_unstage_volume(
        &self,
        request: NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        if request.volume_id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        let staging = path_of(&request.staging_target_path, "staging_target_path")?;
        let volume = volume_of(&request.volume_id)?;
        let _call = self.pending.begin(volume)?;
        mounts::unmount(staging)?;
        iscsi::log_out(&self.programs, volume).await?;
        Ok(NodeUnstageVolumeResponse {})
    }

    /// Makes a staged volume visible at a path of a pod.
    pub async fn node_publish_volume(
        &self,
        request: NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Status> {
        if request.volume_id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        let target = path_of(&request.target_path, "target_path")?;
        let capability = capability_of(request.volume_capability.as_ref())?;
        let volume = volume_of(&request.volume_id)?;
        if request.staging_target_path.is_empty() {
            return Err(Status::failed_precondition("staging_target_path is missing: the volume is staged first"));
        }
        let staging = path_of(&request.staging_target_path, "staging_target_path")?;
        let _call = self.pending.begin(volume)?;
        if mounts::is_mounted(target)? {
            let is_read_only = mounts::is_read_only(target)?;
            return match is_read_only == request.readonly || is_block(capability) {
                true => Ok(NodePublishVolumeResponse {}),
                false => Err(Status::already_exists(format!("{} is mounted with another access", target.display()))),
            };
        }
        mounts::check_root("mount")?;
        if is_block(capability) {
            let (server, port) = server_of(&request.publish_context)?;
            let device = Target::new(volume, server, port).device();
            if !device.exists() {
                let why = "is missing: the volume is staged first";
                return Err(Status::failed_precondition(format!("{} {why}", device.display())));
            }
            mounts::make_file(target)?;
            mounts::bind(&device, target, false)?;
        } else {
            if !mounts::is_mounted(staging)? {
                let why = "is no mount: the volume is staged first";
                return Err(Status::failed_precondition(format!("{} {why}", staging.display())));
            }
            let own = request.publish_context.get("mountpoint").map_or(staging, Path::new);
            if is_for_one_writer(capability)
                && let Some(other) = mounts::elsewhere(staging, &[staging, target, own])?
            {
                let why = format!("{volume} is for a single writer, and is published at {}", other.display());
                return Err(Status::failed_precondition(why));
            }
            mounts::make_directory(target)?;
            mounts::bind(staging, target, request.readonly)?;
        }
        Ok(NodePublishVolumeResponse {})
    }

    /// Removes a volume from a path of a pod.
    pub async fn node_unpublish_volume(
        &self,
        request: NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Status> {
        if request.volume_id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        let target = path_of(&request.target_path, "target_path")?;
        let volume = volume_of(&request.volume_id)?;
        let _call = self.pending.begin(volume)?;
        mounts::unmount(target)?;
        mounts::remove(target)?;
        Ok(NodeUnpublishVolumeResponse {})
    }

    /// Space of a volume that is mounted at a path.
    pub async fn node_get_volume_stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        if request.volume_id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        // A request without a path is malformed, whatever volume it names.
        let path = mounted_path(&request.volume_path)?;
        volume_of(&request.volume_id)?;
        if !mounts::is_mounted(path)? {
            return Err(Status::not_found(format!("no volume is mounted at {}", path.display())));
        }
        let usage = |unit: UsageUnit, (total, used, available): (u64, u64, u64)| {
            let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            let (total, used, available) = (signed(total), signed(used), signed(available));
            VolumeUsage { available, total, used, unit: unit.into() }
        };
        let usage = match mounts::usage(path)? {
            mounts::Usage::Device { bytes } => {
                vec![VolumeUsage {
                    available: 0,
                    total: i64::try_from(bytes).unwrap_or(i64::MAX),
                    used: 0,
                    unit: UsageUnit::Bytes.into(),
                }]
            }
            mounts::Usage::Files { bytes, inodes } => {
                vec![usage(UsageUnit::Bytes, bytes), usage(UsageUnit::Inodes, inodes)]
            }
        };
        Ok(NodeGetVolumeStatsResponse { usage })
    }

    /// Makes a larger size of a volume visible: the device, and the file system on it.
    pub async fn node_expand_volume(
        &self,
        request: NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, Status> {
        if request.volume_id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        let path = mounted_path(&request.volume_path)?;
        let volume = volume_of(&request.volume_id)?;
        let _call = self.pending.begin(volume)?;
        if !mounts::is_mounted(path)? {
            return Err(Status::not_found(format!("no volume is mounted at {}", path.display())));
        }
        let wanted = request.capacity_range.map_or(0, |range| range.required_bytes);
        // The quota of a file system over NFS is in effect as soon as the controller has set it.
        if let Some(mount) = mounts::mount_at(path)?
            && (mount.kind == "ext4" || mount.kind == "xfs" || mount.kind == "devtmpfs")
        {
            mounts::check_root("iSCSI")?;
            iscsi::grow(&self.programs, volume, &mount, path).await?;
        }
        Ok(NodeExpandVolumeResponse { capacity_bytes: wanted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_nfs_name_version_and_ports() {
        assert_eq!(
            nfs_options(vec!["noatime".into()], 2049).join(","),
            "noatime,nolock,vers=3,tcp,port=2049,mountport=2049"
        );
        assert_eq!(nfs_options(vec!["lock".into()], 3049).join(","), "vers=3,tcp,port=3049,mountport=3049");
    }

    #[test]
    fn paths_of_requests_are_absolute_and_plain() {
        assert!(path_of("/var/lib/kubelet/x", "target_path").is_ok());
        for path in ["", "x", "/a/../b", "/a\0b"] {
            assert_eq!(path_of(path, "target_path").unwrap_err().code(), tonic::Code::InvalidArgument, "{path:?}");
        }
    }

    #[test]
    fn what_the_controller_did_not_say_is_an_error() {
        let context = BTreeMap::from([("server".to_owned(), "-oProxyCommand".to_owned())]);
        assert!(server_of(&context).is_err() && server_of(&BTreeMap::new()).is_err());
        assert_eq!(volume_of("tank/../x").unwrap_err().code(), tonic::Code::NotFound);
    }
}
