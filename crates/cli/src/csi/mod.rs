//! `weir csi`: the Container Storage Interface, for Kubernetes and other orchestrators.

mod storage;

use crate::admin;
use crate::args::CommandLine;
use crate::failure::Failure;
use crate::log;
use crate::stores;
use clap::Parser;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use storage::Daemon;
use tokio::signal::unix::{SignalKind, signal};
use weir_csi::names::{address_of, is_dataset};
use weir_csi::storage::Storage;
use weir_csi::{ControllerOptions, Endpoint, NodeMount, NodeOptions, Plugin, serve};

/// Serve volumes to Kubernetes: the Container Storage Interface on a Unix socket.
///
/// The controller creates, shares and destroys datasets through the running weir daemon of this user. The node mounts them on the
/// machine on which it runs. With neither --controller nor --node, both are served.
#[derive(Debug, Parser)]
#[command(
    name = "weir csi",
    override_usage = "weir csi --endpoint unix:///PATH [--controller] [--parent DATASET] [--server HOST] [--node] [--node-id NAME] [--node-address ADDRESS] [--node-mount nfs|bind] [--host-root DIR] [--topology KEY=VALUE]…"
)]
pub struct CsiArgs {
    /// Socket to listen on, for example unix:///csi/csi.sock
    #[arg(long, value_name = "unix:///PATH")]
    endpoint: String,
    /// Serve the controller
    #[arg(long)]
    controller: bool,
    /// Dataset below which all volumes are; storage classes without 'parent' use it
    #[arg(long, value_name = "DATASET")]
    parent: Option<String>,
    /// Name or address of this server as nodes reach it, for storage classes without 'server'
    #[arg(long, value_name = "HOST")]
    server: Option<String>,
    /// Serve the node
    #[arg(long)]
    node: bool,
    /// Name of the node [default: the host name]
    #[arg(long, value_name = "NAME")]
    node_id: Option<String>,
    /// Address from which the node reaches the server: volumes are shared with it
    #[arg(long, value_name = "ADDRESS")]
    node_address: Option<String>,
    /// Mount file systems by the kernel's NFS client, or bind the mounts of a daemon on this machine
    #[arg(long, value_name = "nfs|bind", default_value = "nfs")]
    node_mount: String,
    /// Directory of the machine's root, in which iscsiadm is run
    #[arg(long, value_name = "DIR")]
    host_root: Option<PathBuf>,
    /// Topology of the nodes that reach the server, or of this node; may be repeated
    #[arg(long = "topology", value_name = "KEY=VALUE")]
    topology: Vec<String>,
}

/// Maximum length of a topology key or value in bytes (Kubernetes labels).
const MAX_SEGMENT_LEN: usize = 253;

impl CsiArgs {
    fn topology(&self) -> Result<BTreeMap<String, String>, Failure> {
        let allowed = |text: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
            !text.is_empty() && text.len() <= MAX_SEGMENT_LEN && text.chars().all(allowed)
        };
        let mut out = BTreeMap::new();
        for text in &self.topology {
            match text.split_once('=').filter(|(key, value)| allowed(key) && allowed(value)) {
                Some((key, value)) => drop(out.insert(key.to_owned(), value.to_owned())),
                None => return Err(CsiArgs::misused(&format!("--topology takes KEY=VALUE, not '{text}'"))),
            }
        }
        Ok(out)
    }

    fn controller_options(&self) -> Result<ControllerOptions, Failure> {
        if let Some(parent) = self.parent.as_ref().filter(|parent| !is_dataset(parent)) {
            return Err(CsiArgs::misused(&format!("--parent takes the name of a dataset, not '{parent}'")));
        }
        Ok(ControllerOptions { parent: self.parent.clone(), server: self.server.clone(), topology: self.topology()? })
    }

    fn node_options(&self) -> Result<NodeOptions, Failure> {
        let host_name = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let name = self.node_id.clone().unwrap_or_else(host_name);
        let Some(address) = self.node_address.as_ref().and_then(|text| text.parse::<IpAddr>().ok()) else {
            let why = "a node needs --node-address: the IP address from which it reaches the server";
            return Err(CsiArgs::misused(why));
        };
        let node = format!("{name}@{address}");
        if address_of(&node).is_none() {
            let why = format!(
                "--node-id takes letters, digits, '-', '_' and '.', at most 128 with the address, not '{name}'"
            );
            return Err(CsiArgs::misused(&why));
        }
        let mount = match self.node_mount.as_str() {
            "nfs" => NodeMount::Nfs,
            "bind" => NodeMount::Bind,
            other => return Err(CsiArgs::misused(&format!("--node-mount takes nfs or bind, not '{other}'"))),
        };
        if !rustix::process::geteuid().is_root() {
            let why = "weir csi --node needs the rights of root, to mount volumes: run it in a privileged container";
            return Err(Failure::failed(why));
        }
        Ok(NodeOptions { node, mount, host_root: self.host_root.clone(), topology: self.topology()? })
    }
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// If an argument is invalid, or the socket cannot be made.
pub fn run(args: &CsiArgs) -> Result<u8, Failure> {
    let endpoint: Endpoint = args.endpoint.parse().map_err(|error| CsiArgs::misused(&format!("{error}")))?;
    let both = !args.controller && !args.node;
    let controller = (args.controller || both).then(|| args.controller_options()).transpose()?;
    let node = (args.node || both).then(|| args.node_options()).transpose()?;
    log::start();
    let machine = stores::machine()?;
    let controller = controller.map(|options| (options, Arc::new(Daemon) as Arc<dyn Storage>));
    if controller.is_some() && admin::daemon().is_none() {
        tracing::warn!("no weir daemon of this user is running; calls are answered as soon as one is");
    }
    let plugin = Plugin::new(&machine, controller, node);
    let failed = |why: &dyn std::fmt::Display| Failure::failed(format!("weir csi: {why}"));
    machine.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| failed(&error))?;
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| failed(&error))?;
        let end = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        serve(plugin, &endpoint, end).await.map_err(|error| failed(&error))?;
        Ok(0)
    })
}
