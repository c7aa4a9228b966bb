//! `weir csi` with a real daemon: volumes over their whole life, by gRPC over the socket.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "it waits for real processes")]

mod client;

use client::Client;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weir_csi::wire::common::{
    AccessMode, AccessType, BlockVolume, CapacityRange, ContentSource, Mode, MountVolume, SnapshotSource,
    VolumeCapability, VolumeContentSource, VolumeSource,
};
use weir_csi::wire::controller::*;
use weir_csi::wire::identity::{GetPluginInfoRequest, GetPluginInfoResponse, ProbeRequest, ProbeResponse};

/// Codes of gRPC.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const ALREADY_EXISTS: i32 = 6;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNAVAILABLE: i32 = 14;

/// A daemon with pool `tank`, and a controller.
struct Site {
    dir: tempfile::TempDir,
    children: Vec<Child>,
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Site {
    fn new() -> Site {
        let mut site = Site { dir: tempfile::tempdir().unwrap(), children: Vec::new() };
        for name in ["run", "state", "conf"] {
            std::fs::DirBuilder::new().mode(0o700).create(site.path(name)).unwrap();
        }
        let ports = "nfs_port = 0\nnbd_port = 0\niscsi_port = 0\nsmb_port = 0\nhttp_port = 0\nmounts = false\n";
        std::fs::write(site.path("conf/weir.toml"), ports).unwrap();
        std::fs::File::create(site.path("d0")).unwrap().set_len(256 << 20).unwrap();
        site.start_daemon();
        site.ok("zpool create tank d0");
        site.ok("zfs create tank/k8s");
        let line = format!("csi --endpoint {} --controller --parent tank/k8s --server 127.0.0.1", site.endpoint());
        let child = site.command(&line).stderr(Stdio::null()).spawn().unwrap();
        site.children.push(child);
        let begun = Instant::now();
        while !site.path("csi.sock").exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the plugin does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        site
    }

    fn start_daemon(&mut self) {
        let mut child = self.command("daemon").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "ready"), "the daemon ended");
        self.children.push(child);
    }

    fn endpoint(&self) -> String {
        format!("unix://{}", self.path("csi.sock").display())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(line.split_whitespace()).stdin(Stdio::null()).current_dir(self.dir.path());
        command.env_remove("WEIR_POOL_DIRS").env_remove("WEIR_LOG");
        command.env("RUNTIME_DIRECTORY", self.path("run")).env("STATE_DIRECTORY", self.path("state"));
        command.env("CONFIGURATION_DIRECTORY", self.path("conf"));
        command
    }

    fn ok(&self, line: &str) -> String {
        let out = self.command(line).output().unwrap();
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }

    fn get(&self, property: &str, dataset: &str) -> String {
        self.ok(&format!("zfs get -Hpo value {property} {dataset}"))
    }

    fn client(&self) -> Client {
        Client::connect(&self.path("csi.sock"))
    }
}

fn mounted(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

fn block() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

fn wanted(name: &str, mib: i64, parameters: &[(&str, &str)]) -> CreateVolumeRequest {
    let is_block = parameters.contains(&("protocol", "iscsi"));
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: mib << 20, limit_bytes: 0 }),
        volume_capabilities: vec![if is_block { block() } else { mounted(Mode::MultiNodeMultiWriter) }],
        parameters: parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..Default::default()
    }
}

impl Client {
    fn create(&mut self, request: &CreateVolumeRequest) -> Result<String, i32> {
        let made: CreateVolumeResponse = self.controller("CreateVolume", request)?;
        Ok(made.volume.unwrap().volume_id)
    }

    fn delete(&mut self, handle: &str) -> Result<DeleteVolumeResponse, i32> {
        self.controller("DeleteVolume", &DeleteVolumeRequest { volume_id: handle.into(), ..Default::default() })
    }

    fn snapshot(&mut self, volume: &str, name: &str) -> Result<String, i32> {
        let request =
            CreateSnapshotRequest { source_volume_id: volume.into(), name: name.into(), ..Default::default() };
        let made: CreateSnapshotResponse = self.controller("CreateSnapshot", &request)?;
        Ok(made.snapshot.unwrap().snapshot_id)
    }

    fn delete_snapshot(&mut self, handle: &str) -> Result<DeleteSnapshotResponse, i32> {
        self.controller("DeleteSnapshot", &DeleteSnapshotRequest { snapshot_id: handle.into(), ..Default::default() })
    }

    fn publish(
        &mut self,
        volume: &str,
        node: &str,
        capability: VolumeCapability,
    ) -> Result<BTreeMap<String, String>, i32> {
        let request = ControllerPublishVolumeRequest {
            volume_id: volume.into(),
            node_id: node.into(),
            volume_capability: Some(capability),
            ..Default::default()
        };
        let made: ControllerPublishVolumeResponse = self.controller("ControllerPublishVolume", &request)?;
        Ok(made.publish_context)
    }

    fn unpublish(&mut self, volume: &str, node: &str) -> Result<ControllerUnpublishVolumeResponse, i32> {
        let request =
            ControllerUnpublishVolumeRequest { volume_id: volume.into(), node_id: node.into(), ..Default::default() };
        self.controller("ControllerUnpublishVolume", &request)
    }
}

#[test]
fn file_systems_are_created_shared_enlarged_and_destroyed() {
    let site = Site::new();
    let mut csi = site.client();
    let info: GetPluginInfoResponse = csi.call("Identity", "GetPluginInfo", &GetPluginInfoRequest {}).unwrap();
    assert_eq!(info.name, "csi.weir");
    let request = wanted("pvc-1", 64, &[("compression", "zstd"), ("recordsize", "64K")]);
    let handle = csi.create(&request).unwrap();
    assert_eq!(handle, "tank/k8s/pvc-1");
    assert_eq!(csi.create(&request), Ok(handle.clone()), "a repeated call");
    assert_eq!(csi.create(&wanted("pvc-1", 65, &[])), Err(ALREADY_EXISTS));
    assert_eq!(csi.create(&wanted("pvc-1", 64, &[("protocol", "iscsi")])), Err(ALREADY_EXISTS));
    let of = |property| site.get(property, "tank/k8s/pvc-1");
    assert_eq!(
        (of("refquota"), of("compression"), of("sharenfs")),
        ((64 << 20).to_string(), "zstd".into(), "off".into())
    );

    let shared = || mounted(Mode::MultiNodeMultiWriter);
    let context = csi.publish(&handle, "a@192.0.2.1", shared()).unwrap();
    assert_eq!((context["server"].as_str(), context["path"].as_str()), ("127.0.0.1", "/tank/k8s/pvc-1"));
    csi.publish(&handle, "b@192.0.2.2", shared()).unwrap();
    assert_eq!(of("sharenfs"), "rw=192.0.2.1:192.0.2.2,no_root_squash");
    assert_eq!(csi.publish(&handle, "nobody", shared()), Err(NOT_FOUND));
    assert_eq!(csi.publish(&handle, "a@192.0.2.1", mounted(Mode::MultiNodeReaderOnly)), Err(ALREADY_EXISTS));
    let list: ListVolumesResponse = csi.controller("ListVolumes", &ListVolumesRequest::default()).unwrap();
    let nodes = &list.entries[0].status.as_ref().unwrap().published_node_ids;
    assert_eq!((list.entries.len(), nodes.len()), (1, 2));
    csi.unpublish(&handle, "a@192.0.2.1").unwrap();
    assert_eq!(of("sharenfs"), "rw=192.0.2.2,no_root_squash");
    csi.unpublish(&handle, "").unwrap();
    assert_eq!((of("sharenfs"), of("weir:csi-nodes")), ("off".into(), String::new()));

    let expand = ControllerExpandVolumeRequest {
        volume_id: handle.clone(),
        capacity_range: Some(CapacityRange { required_bytes: 96 << 20, limit_bytes: 0 }),
        ..Default::default()
    };
    let expanded: ControllerExpandVolumeResponse = csi.controller("ControllerExpandVolume", &expand).unwrap();
    assert_eq!((expanded.capacity_bytes, expanded.node_expansion_required), (96 << 20, false));
    assert_eq!(of("refquota"), (96 << 20).to_string());
    csi.delete(&handle).unwrap();
    csi.delete(&handle).unwrap();
    assert_eq!(site.ok("zfs list -Hro name tank/k8s"), "tank/k8s");
}

#[test]
fn foreign_datasets_stay_whatever_a_caller_asks() {
    let site = Site::new();
    site.ok("zfs create tank/other");
    site.ok("zfs create tank/k8s/mine");
    let mut csi = site.client();
    assert_eq!(csi.create(&wanted("mine", 64, &[])), Err(ALREADY_EXISTS));
    assert_eq!(csi.delete("tank/k8s/mine").map(drop), Err(FAILED_PRECONDITION));
    assert_eq!(csi.snapshot("tank/k8s/mine", "s"), Err(NOT_FOUND));
    for handle in ["tank/other", "tank", "tank/k8s", "tank/k8s/../other", "tank/other@s", "-r", "tank/k8s/mine@%"] {
        // Handles that cannot be volumes of this controller are as good as destroyed.
        let deleted = csi.delete(handle).map(drop);
        assert!(deleted.is_ok() || deleted == Err(FAILED_PRECONDITION), "{handle}: {deleted:?}");
        csi.delete_snapshot(handle).unwrap();
    }
    for (key, value) in
        [("parent", "tank/other"), ("parent", "tank/k8s/../other"), ("mountpoint", "/etc"), ("sharenfs", "on")]
    {
        assert_eq!(csi.create(&wanted("x", 64, &[(key, value)])), Err(INVALID_ARGUMENT), "{key}={value}");
    }
    let strange = csi.create(&wanted("../../other", 64, &[])).unwrap();
    assert!(strange.starts_with("tank/k8s/csi-"), "{strange}");
    // A dataset that is made below a volume inherits the property, and is not the plugin's.
    site.ok(&format!("zfs create {strange}/child"));
    assert_eq!(csi.delete(&strange).map(drop), Err(FAILED_PRECONDITION));
    assert_eq!(csi.delete(&format!("{strange}/child")).map(drop), Err(FAILED_PRECONDITION));
    site.ok(&format!("zfs destroy {strange}/child"));
    csi.delete(&strange).unwrap();
    site.ok("zfs list tank/other tank/k8s/mine");
}

#[test]
fn snapshots_and_clones_of_volumes_can_go_in_any_order() {
    let site = Site::new();
    let mut csi = site.client();
    let iscsi = [("protocol", "iscsi"), ("volblocksize", "8K")];
    let first = csi.create(&wanted("first", 16, &iscsi)).unwrap();
    assert_eq!(site.get("volsize", &first), (16 << 20).to_string());
    let snapshot = csi.snapshot(&first, "snap").unwrap();
    assert_eq!(csi.snapshot(&first, "snap"), Ok(snapshot.clone()));
    let second = csi.create(&wanted("second", 16, &iscsi)).unwrap();
    assert_eq!(csi.snapshot(&second, "snap"), Err(ALREADY_EXISTS), "names of snapshots are unique");
    let from = |kind| Some(VolumeContentSource { r#type: Some(kind) });
    let mut restored = wanted("restored", 32, &iscsi);
    restored.volume_content_source = from(ContentSource::Snapshot(SnapshotSource { snapshot_id: snapshot.clone() }));
    let restored_handle = csi.create(&restored).unwrap();
    assert_eq!(csi.create(&restored), Ok(restored_handle.clone()));
    assert_eq!(site.get("volsize", &restored_handle), (32 << 20).to_string());
    let mut smaller = restored.clone();
    (smaller.name, smaller.capacity_range) =
        ("smaller".into(), Some(CapacityRange { required_bytes: 8 << 20, limit_bytes: 8 << 20 }));
    assert_eq!(csi.create(&smaller), Err(OUT_OF_RANGE));
    let mut cloned = wanted("cloned", 16, &iscsi);
    cloned.volume_content_source = from(ContentSource::Volume(VolumeSource { volume_id: first.clone() }));
    let cloned_handle = csi.create(&cloned).unwrap();

    assert_eq!(csi.delete(&first).map(drop), Err(FAILED_PRECONDITION), "it has a snapshot");
    csi.delete_snapshot(&snapshot).unwrap();
    csi.delete_snapshot(&snapshot).unwrap();
    let list: ListSnapshotsResponse = csi.controller("ListSnapshots", &ListSnapshotsRequest::default()).unwrap();
    assert_eq!(list.entries.len(), 0);
    for handle in [&first, &restored_handle, &cloned_handle, &second] {
        csi.delete(handle).unwrap();
    }
    assert_eq!(site.ok("zfs list -Hro name -t all tank/k8s"), "tank/k8s");
}

#[test]
fn volumes_over_iscsi_are_shared_with_their_nodes_only() {
    let site = Site::new();
    let mut csi = site.client();
    let mut add = site.command("user add nodes");
    add.stdin(Stdio::piped());
    let mut child = add.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"a secret of nodes\n").unwrap();
    assert!(child.wait().unwrap().success());
    let handle = csi.create(&wanted("disk", 16, &[("protocol", "iscsi"), ("chapUser", "nodes")])).unwrap();
    let context = csi.publish(&handle, "a@192.0.2.1", block()).unwrap();
    let target = &context["target"];
    let value = site.get("weir:iscsi", &handle);
    assert_eq!(value, format!("on,target={target},lun=0,hosts=192.0.2.1,chap=nodes"));
    assert_eq!(csi.publish(&handle, "b@192.0.2.2", block()), Err(FAILED_PRECONDITION), "one node at a time");
    csi.unpublish(&handle, "a@192.0.2.1").unwrap();
    csi.publish(&handle, "b@192.0.2.2", block()).unwrap();
    csi.unpublish(&handle, "b@192.0.2.2").unwrap();
    assert_eq!(site.get("weir:iscsi", &handle), "off");
    csi.delete(&handle).unwrap();
}

#[test]
fn without_a_daemon_calls_fail_until_it_is_back() {
    let mut site = Site::new();
    let mut csi = site.client();
    let handle = csi.create(&wanted("kept", 16, &[])).unwrap();
    site.children[0].kill().unwrap();
    site.children[0].wait().unwrap();
    let ready = |csi: &mut Client| {
        let probe: ProbeResponse = csi.call("Identity", "Probe", &ProbeRequest {}).unwrap();
        probe.ready.unwrap().value
    };
    assert!(!ready(&mut csi));
    assert_eq!(csi.create(&wanted("other", 16, &[])), Err(UNAVAILABLE));
    assert_eq!(csi.delete(&handle).map(drop), Err(UNAVAILABLE), "an unreachable volume is not a destroyed one");
    site.start_daemon();
    assert!(ready(&mut csi));
    assert_eq!(csi.create(&wanted("kept", 16, &[])), Ok(handle));
}
