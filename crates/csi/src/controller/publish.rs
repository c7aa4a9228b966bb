//! ControllerPublishVolume and ControllerUnpublishVolume: which hosts the properties of a dataset share it with.
//!
//! A file system is shared by `sharenfs` with the addresses of its nodes, a ZFS volume by `weir:iscsi`. The nodes and the property
//! of sharing are set in one change.

use super::{Controller, check_capability, is_block};
use crate::names::{self, MAX_VALUE_LEN, Mark, NODES, Protocol, Publication};
use crate::parameters::is_server;
use crate::volumes::Found;
use crate::wire::common::Mode;
use crate::wire::controller::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use tonic::Status;
use weir_admin::Change;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::Setting;

/// An address in a list of hosts: IPv6 in brackets.
fn host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// The value of `sharenfs` for these nodes.
fn sharenfs(nodes: &[Publication]) -> String {
    let hosts = |read_only: bool| {
        let of = nodes.iter().filter(|node| node.read_only == read_only);
        let mut hosts: Vec<String> = of.filter_map(|node| names::address_of(&node.node)).map(host).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    };
    let writers = hosts(false);
    // Two nodes at one address have the greater right.
    let readers: Vec<String> = hosts(true).into_iter().filter(|host| !writers.contains(host)).collect();
    let list = |option: &str, hosts: &[String]| match hosts {
        [] => None,
        hosts => Some(format!("{option}={}", hosts.join(":"))),
    };
    let options: Vec<String> = list("rw", &writers).into_iter().chain(list("ro", &readers)).collect();
    // kubelet changes the owner of files as root.
    if options.is_empty() { "off".to_owned() } else { format!("{},no_root_squash", options.join(",")) }
}

/// The value of `weir:iscsi` for these nodes.
fn weir_iscsi(volume: &str, mark: &Mark, nodes: &[Publication]) -> String {
    let mut hosts: Vec<String> = nodes.iter().filter_map(|node| names::address_of(&node.node)).map(host).collect();
    hosts.sort();
    hosts.dedup();
    if hosts.is_empty() {
        return "off".to_owned();
    }
    let mut out = format!("on,target={},lun=0,hosts={}", names::target_of(volume), hosts.join("+"));
    for (option, user) in [("chap", &mark.chap), ("mutual", &mark.mutual)] {
        if let Some(user) = user {
            out.push_str(&format!(",{option}={user}"));
        }
    }
    if nodes.iter().all(|node| node.read_only) {
        out.push_str(",ro");
    }
    out
}

/// Whether a volume that is published in this mode may be published to another node.
fn is_shared_mode(mode: u8) -> bool {
    let one =
        [Mode::SingleNodeWriter, Mode::SingleNodeReaderOnly, Mode::SingleNodeSingleWriter, Mode::SingleNodeMultiWriter];
    !one.iter().any(|one| *one as u8 == mode)
}

impl Controller {
    /// Shares a volume with a node.
    pub async fn controller_publish_volume(
        &self,
        request: ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse, Status> {
        if request.volume_id.is_empty() || request.node_id.is_empty() {
            return Err(Status::invalid_argument("volume_id and node_id are required"));
        }
        let Some(capability) = &request.volume_capability else {
            return Err(Status::invalid_argument("volume_capability is missing"));
        };
        let _call = self.pending.begin(&request.volume_id)?;
        let (found, mark) = self.volumes.existing(&request.volume_id).await?;
        if names::address_of(&request.node_id).is_none() {
            let why = format!("'{}' is no node of this plugin: nodes are NAME@ADDRESS", request.node_id);
            return Err(Status::not_found(why));
        }
        check_capability(capability, found.protocol()).map_err(Status::invalid_argument)?;
        let context = self.publish_context(&request, &found)?;
        let mode = capability.access_mode.as_ref().map_or(0, |access| access.mode.clamp(0, 9)) as u8;
        let reads = [Mode::SingleNodeReaderOnly as u8, Mode::MultiNodeReaderOnly as u8].contains(&mode);
        let new = Publication { mode, read_only: request.readonly || reads, node: request.node_id.clone() };
        if let Some(same) = found.nodes.iter().find(|published| published.node == new.node) {
            if *same == new {
                return Ok(ControllerPublishVolumeResponse { publish_context: context });
            }
            let why = format!("{} is published to {} in another way", found.name, new.node);
            return Err(Status::already_exists(why));
        }
        if let Some(other) = found.nodes.first()
            && (!is_shared_mode(mode) || !is_shared_mode(other.mode))
        {
            let why = format!("{} is published to {}, and only one node may use it at a time", found.name, other.node);
            return Err(Status::failed_precondition(why));
        }
        let nodes = found.nodes.iter().cloned().chain([new]).collect();
        self.share(&found, &mark, nodes).await?;
        Ok(ControllerPublishVolumeResponse { publish_context: context })
    }

    /// Ends the sharing of a volume with a node, or with all nodes.
    pub async fn controller_unpublish_volume(
        &self,
        request: ControllerUnpublishVolumeRequest,
    ) -> Result<ControllerUnpublishVolumeResponse, Status> {
        if request.volume_id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        let _call = self.pending.begin(&request.volume_id)?;
        if let Some((found, mark)) = self.volumes.volume(&request.volume_id).await? {
            let is_kept = |published: &&Publication| !request.node_id.is_empty() && published.node != request.node_id;
            let kept: Vec<_> = found.nodes.iter().filter(is_kept).cloned().collect();
            if kept.len() != found.nodes.len() {
                self.share(&found, &mark, kept).await?;
            }
        }
        Ok(ControllerUnpublishVolumeResponse {})
    }

    /// Sets the nodes of a volume.
    async fn share(&self, found: &Found, mark: &Mark, nodes: Vec<Publication>) -> Result<(), Status> {
        let (property, value) = match found.protocol() {
            Protocol::Nfs => ("sharenfs", sharenfs(&nodes)),
            Protocol::Iscsi => ("weir:iscsi", weir_iscsi(&found.name, mark, &nodes)),
        };
        let text = names::publications_text(&nodes);
        if text.len() > MAX_VALUE_LEN || value.len() > MAX_VALUE_LEN {
            let why = format!("{} is published to {} nodes, and has no room for another", found.name, nodes.len() - 1);
            return Err(Status::resource_exhausted(why));
        }
        let set = |value: String| Setting::Set(Value::Text(value));
        let settings = vec![(NODES.to_owned(), set(text)), (property.to_owned(), set(value))];
        let change = Change::Set { name: found.name.clone(), settings, recursive: false };
        self.volumes.change(&found.name, "publish", change).await
    }

    /// Context with which a node reaches a volume.
    fn publish_context(
        &self,
        request: &ControllerPublishVolumeRequest,
        found: &Found,
    ) -> Result<BTreeMap<String, String>, Status> {
        let protocol = found.protocol();
        let server = request.volume_context.get("server").or(self.options.server.as_ref());
        let server = server.filter(|server| is_server(server)).ok_or_else(|| {
            Status::invalid_argument(format!(
                "the address of the server is missing: parameter 'server' of the storage class, volume attribute \
                 'server' of {}, or --server of the controller",
                found.name
            ))
        })?;
        let mut out = BTreeMap::from([
            ("protocol".to_owned(), protocol.name().to_owned()),
            ("server".to_owned(), server.clone()),
        ]);
        if let Some(port) = request.volume_context.get("port") {
            let number = port.parse::<u16>().ok().filter(|port| *port != 0);
            let number = number.ok_or_else(|| Status::invalid_argument(format!("'{port}' is no port")))?;
            out.insert("port".to_owned(), number.to_string());
        }
        match protocol {
            Protocol::Nfs => {
                if !found.mountpoint.starts_with('/') {
                    let why =
                        "has no mount point, and NFS shares only what could be mounted: set mountpoint of its parent";
                    return Err(Status::failed_precondition(format!("{} {why}", found.name)));
                }
                out.insert("path".to_owned(), format!("/{}", found.name));
                if found.is_mounted {
                    out.insert("mountpoint".to_owned(), found.mountpoint.clone());
                }
            }
            Protocol::Iscsi => {
                out.insert("target".to_owned(), names::target_of(&found.name));
                let block = request.volume_capability.as_ref().is_some_and(is_block);
                out.insert("block".to_owned(), block.to_string());
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::str::FromStr;
    use weir_front::shares;

    fn node(node: &str, read_only: bool) -> Publication {
        Publication { mode: 5, read_only, node: node.to_owned() }
    }

    #[test]
    fn nodes_become_values_that_the_server_understands() {
        let nodes = [node("a@192.0.2.2", false), node("b@2001:db8::1", true), node("c@192.0.2.2", true)];
        let value = sharenfs(&nodes);
        assert_eq!(value, "rw=192.0.2.2,ro=[2001:db8::1],no_root_squash");
        assert_eq!(shares::check("sharenfs", &value).map_err(|error| error.to_string()), Ok(()));
        assert_eq!(
            (sharenfs(&[]).as_str(), sharenfs(&nodes[1..2]).as_str()),
            ("off", "ro=[2001:db8::1],no_root_squash")
        );
        let mark = Mark {
            name: "v".into(),
            protocol: Protocol::Iscsi,
            bytes: 1,
            source: None,
            chap: Some("node".into()),
            mutual: None,
        };
        let value = weir_iscsi("tank/v", &mark, &nodes);
        let share = shares::ShareIscsi::from_str(&value).unwrap();
        assert_eq!(share.target.map(|target| target.to_string()), Some(names::target_of("tank/v")));
        assert_eq!((share.chap.as_deref(), share.read_only), (Some("node"), false));
        assert!(weir_iscsi("tank/v", &mark, &nodes[1..]).ends_with(",ro"));
        assert_eq!(weir_iscsi("tank/v", &mark, &[]), "off");
    }
}
