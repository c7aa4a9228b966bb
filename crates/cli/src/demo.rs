//! `weir demo`: creates a pool on files in a directory, fills it, serves it and measures it.
//!
//! ```text
//!   FOLDER/disk0 … disk5   sparse files: RAID-Z2        FOLDER/log   the intent log's own device
//!   FOLDER/mnt             the pool's file systems, where /dev/fuse allows
//! ```
//!
//! The first run creates the pool, and later runs use it with all changes made since. The command overwrites no file
//! that it did not create, unless `-f` is given: it ends with an error instead. Rates are measured in this process
//! through the file systems. A client's rates are lower by the cost of its protocol.

mod clients;
mod images;
mod measure;
mod sample;

use crate::failure::Failure;
use crate::limits::{LimitOptions, Limits};
use crate::locks::lock;
use crate::mount::{OpenedPool, StopSignal};
use crate::process::PoolProcess;
use crate::web::PassingWeb;
use crate::writable::{WritablePool, WriteIntent, host};
use clap::{Args, Parser};
use clients::{lines, start_smb};
use images::Images;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_daemon::fuse::{self, MountOptions, Mounted};
use weir_daemon::protocols::ISCSI_PORT;
use weir_daemon::service::summary;
use weir_daemon::{ExportRules, Exports, Hosts, Service, ServiceError, ServiceOptions, Sharing};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{Kind, NewDataset, VolumeSpec};
use weir_engine::create::{CreateOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_engine::{DirtyLimits, Engine};
use weir_linux::Production;
use weir_machine::Machine;
use weir_pool::Class;
use weir_web::Token;

/// Create a pool on files, serve it and measure it.
///
/// The pool is on sparse files in a directory. The command fills it with sample data, serves its file systems over NFS and, if
/// smbd is installed, SMB, and its volume over iSCSI and NBD, mounts it through FUSE if possible, prints lines for clients on
/// Linux, macOS and Windows, and measures reads and writes. Ctrl-C ends it; the pool stays.
#[derive(Debug, Parser)]
#[command(
    name = "weir demo",
    override_usage = "weir demo [--once] [-f] [--dir DIR] [--listen ADDRESS] [--nfs-port N] [--nbd-port N] [--iscsi-port N] [--smb-port N]\n       [--http-port N] [--arc-max SIZE] [--dirty-max SIZE]"
)]
pub struct DemoArgs {
    /// End after measuring
    #[arg(long)]
    once: bool,
    /// Overwrite files that this command did not create
    #[arg(short, long)]
    force: bool,
    /// Directory for the files of the pool
    #[arg(long, value_name = "DIR", default_value = "weir-demo")]
    dir: String,
    /// IP address to listen on: then every host that reaches it may read and write [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<IpAddr>,
    #[command(flatten)]
    ports: PortOptions,
    #[command(flatten)]
    limits: LimitOptions,
}

/// Ports of the servers. One that is given must be free; another is taken if a default is in use.
#[derive(Args, Clone, Copy, Debug, Default)]
struct PortOptions {
    /// TCP port of NFS; 0 takes any free port [default: 2049, or any free one if that is in use]
    #[arg(long, value_name = "N")]
    nfs_port: Option<u16>,
    /// TCP port of NBD; 0 takes any free port [default: 10809, or any free one if that is in use]
    #[arg(long, value_name = "N")]
    nbd_port: Option<u16>,
    /// TCP port of iSCSI; 0 takes any free port [default: 3260, or any free one if that is in use]
    #[arg(long, value_name = "N")]
    iscsi_port: Option<u16>,
    /// TCP port of SMB; 0 takes any free port [default: 445 for root, else 4450, or any free one if that is in use]
    #[arg(long, value_name = "N")]
    smb_port: Option<u16>,
    /// TCP port of page, API and metrics, on 127.0.0.1 [default: any free one]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    http_port: u16,
}

/// The pool's name.
const POOL: &str = "demo";
const FILES: &str = "demo/files";
const VOLUME: &str = "demo/volume";
const VOLUME_BYTES: u64 = 512 << 20;
/// `compression=lz4`, as it is stored.
const LZ4: u64 = 15;

/// Runs the command.
pub fn run(args: &DemoArgs) -> Result<u8, Failure> {
    let folder = folder(&args.dir)?;
    let limits = Limits::of::<DemoArgs>(&args.limits)?;
    let machine = Production::from_env().build()?;
    let images = Images::of(&folder);
    let opened = OpenedPool::writable(pool(&machine, &images, &limits, args.force)?, &limits)?;
    limits.tell();
    let done = machine.block_on(show(&machine, &folder, &opened, args));
    let closed = opened.close();
    done.and(closed)?;
    println!("the pool stays in {}: weir zpool status -d {}", folder.display(), folder.display());
    Ok(0)
}

fn folder(given: &str) -> Result<PathBuf, Failure> {
    let folder = std::path::absolute(given).map_err(|e| Failure::failed(format!("weir demo: {given}: {e}")))?;
    std::fs::create_dir_all(&folder).map_err(|e| Failure::failed(format!("weir demo: {}: {e}", folder.display())))?;
    Ok(folder)
}

/// Opens the pool of the images, or creates it if there is none or `force` is set.
fn pool(machine: &Machine, images: &Images, limits: &Limits, force: bool) -> Result<WritablePool, Failure> {
    let folder = images.folder.display();
    if !force && images.hold_the_pool(machine)? {
        println!("opening the pool in {folder}");
        let limits = Some(limits.clone());
        let intent = WriteIntent { search: images.present(), pool: POOL.into(), limits, ..WriteIntent::default() };
        return WritablePool::open(machine.clone(), &intent).map_err(|failure| {
            if failure.is_busy() { failure } else { Failure::failed(format!("{failure}; -f makes a new one")) }
        });
    }
    if !force {
        images.check(machine)?;
    }
    // Another process may have the pool open.
    let present = lock(POOL, images.present())?;
    println!("making a pool in {folder}: RAID-Z2 of six sparse files, a log device, LZ4");
    images.make()?;
    drop(present);
    let Images { disks, log, .. } = images.clone();
    let locks = lock(POOL, images.all())?;
    let leaf = |path: PathBuf| NewLeaf { path, is_file: true };
    let data = NewTopLevelVdev {
        class: Class::Normal,
        layout: Layout::Raidz(2),
        leaves: disks.into_iter().map(leaf).collect(),
    };
    let logs = NewTopLevelVdev { class: Class::Log, layout: Layout::Single, leaves: vec![leaf(log)] };
    let mut options = CreateOptions::new(POOL, vec![data, logs]);
    options.host = host();
    options.command = "demo".into();
    options.arc_bytes = limits.arc_bytes;
    options.dirty = DirtyLimits::new(limits.dirty_bytes);
    options.root_properties = vec![("compression".into(), Value::Number(LZ4))];
    options.root = crate::zfs::file_system(owner(), &mut Vec::new());
    let engine = machine.block_on(async {
        let engine = Engine::create(machine, &options).await?;
        for (name, kind) in [
            (FILES, Kind::FileSystem(crate::zfs::file_system(owner(), &mut Vec::new()))),
            (VOLUME, Kind::Volume(VolumeSpec { size_bytes: VOLUME_BYTES, block_bytes: 16 << 10 })),
        ] {
            engine.create_dataset(NewDataset { name: name.into(), kind, properties: Vec::new() }).await?;
        }
        Ok::<_, Failure>(engine)
    })?;
    Ok(WritablePool::made(machine.clone(), engine, locks))
}

/// Owner of the new file systems.
fn owner() -> (u32, u32) {
    (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
}

async fn show(machine: &Machine, folder: &Path, opened: &OpenedPool, args: &DemoArgs) -> Result<(), Failure> {
    let front = opened.front().await?;
    let tree = front.tree.clone();
    sample::fill(&tree).await?;
    let listen = args.listen.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let service = start(machine, &front, listen, &args.ports).await?;
    let smb = start_smb(machine, &front, listen, args.ports.smb_port).await;
    let mounted = mount(machine, folder, &front).await?;
    let web = match opened.served_pool() {
        Some(pool) => {
            let started =
                PassingWeb::start(&PoolProcess::of_pool(pool), args.ports.http_port, Token::new(machine)).await;
            Some(started.map_err(|failure| {
                let line = format!("weir demo: {failure}; --http-port chooses another port, 0 any free one");
                failure.saying(line)
            })?)
        }
        None => None,
    };
    let with =
        if listen.is_loopback() { "this machine".to_owned() } else { format!("every host that reaches {listen}") };
    println!("\nthe whole pool is shared with {with}, because of this command, whatever its properties say;");
    println!("to use it (mount, nbd-client and iscsiadm as root):");
    lines(&service, smb.as_ref()).iter().for_each(|line| println!("{line}"));
    println!("all users may write; root is squashed to uid 65534 (weir serve --no-root-squash turns that off);");
    if listen.is_loopback() {
        println!("only this machine may connect (--listen ADDRESS admits every host that reaches ADDRESS)");
    }
    if mounted.is_some() {
        println!("it is also mounted at {}", folder.join("mnt").display());
    }
    web.iter().for_each(|web| println!("page, API and metrics: {}", web.url()));
    println!();
    let measured = measure::run(machine, &tree).await;
    if !args.once && measured.is_ok() {
        let mut stop = StopSignal::new()?;
        println!("\nserving until Ctrl-C");
        opened.until_stopped(&mut stop).await;
    }
    drop(web);
    drop(tree);
    let mut served = service.served();
    if let Some(smb) = smb {
        served.extend(smb.service.served().into_iter().map(|totals| ("smb", totals)));
        smb.service.stop().await;
    }
    service.stop().await;
    if let Some(mounted) = mounted {
        mounted.unmounter().unmount()?;
        let joined = tokio::task::spawn_blocking(move || mounted.join()).await;
        joined.map_err(|error| Failure::failed(format!("weir demo: {error}")))??;
    }
    for (protocol, served) in served.into_iter().filter(|(_, served)| served.requests > 0) {
        println!("{}", summary(protocol, &served));
    }
    measured
}

/// Starts the servers: on the ports that are given, and instead of default ports that are in use on free ones.
async fn start(
    machine: &Machine,
    front: &Arc<Exports>,
    listen: IpAddr,
    ports: &PortOptions,
) -> Result<Service, Failure> {
    let mut rules = ExportRules::default();
    if !listen.is_loopback() {
        rules.writers = Hosts::all();
    }
    let mut options = ServiceOptions {
        listen,
        iscsi_port: Some(ports.iscsi_port.unwrap_or(ISCSI_PORT)),
        needs_iscsi: true,
        sharing: Sharing::Everything(rules),
        ..ServiceOptions::default()
    };
    options.nfs_port = ports.nfs_port.unwrap_or(options.nfs_port);
    options.nbd_port = ports.nbd_port.unwrap_or(options.nbd_port);
    loop {
        let error = match Service::start(machine, front, &options).await {
            Ok(service) => return Ok(service),
            Err(error) => error,
        };
        let ServiceError::Listen { address, .. } = &error else { return Err(error.into()) };
        let port = address.port();
        let defaults = [
            (ports.nfs_port.is_none() && options.nfs_port == port, "NFS"),
            (ports.nbd_port.is_none() && options.nbd_port == port, "NBD"),
            (ports.iscsi_port.is_none() && options.iscsi_port == Some(port), "iSCSI"),
        ];
        match defaults.into_iter().find(|(is_taken, _)| *is_taken && port != 0) {
            Some((_, "NFS")) => options.nfs_port = 0,
            Some((_, "NBD")) => options.nbd_port = 0,
            Some(_) => options.iscsi_port = Some(0),
            None => return Err(Failure::failed(format!("weir demo: {error}"))),
        }
        println!("port {port} is taken: any free port will do");
    }
}

/// Mounts the pool in the directory, if this machine supports FUSE.
async fn mount(machine: &Machine, folder: &Path, front: &Exports) -> Result<Option<Mounted>, Failure> {
    let path = folder.join("mnt");
    // A mount point that an earlier run left behind may not respond.
    if let Err(error) = std::fs::create_dir_all(&path) {
        println!("no mount: {}: {error}; if an earlier run left a mount there, umount it", path.display());
        return Ok(None);
    }
    let root = rustix::process::geteuid().is_root();
    let options = MountOptions {
        source: POOL.into(),
        allow_other: root,
        threads: 2,
        writable: true,
        exclusive: false,
        dev: false,
        suid: false,
        exec: true,
    };
    match fuse::mount(front.tree.clone(), machine.tasks.clone(), &path, &options) {
        Ok(mounted) => Ok(Some(mounted)),
        Err(error) => {
            println!("no mount: {error}");
            Ok(None)
        }
    }
}
