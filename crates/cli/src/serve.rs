//! `weir serve`: a pool's file systems over NFS version 3 and its volumes over NBD, until stopped.

use crate::args::CommandLine;
use crate::failure::Failure;
use crate::limits::Limits;
use crate::mount::{Access, OpenPoolOptions, OpenedPool, StopSignal, open_options, ready, tell_of_unsynced};
use crate::secrets::{KeyPrompt, ask_all};
use crate::smb::serving::{SmbArgs, serve_smb};
use clap::Parser;
use weir_daemon::service::{device_summary, summary};
use weir_daemon::{ExportRules, Hosts, IdentityMap, Service, ServiceError, ServiceOptions, Squash};
use weir_linux::Production;
use weir_pool::Rewind;

/// Serve the file systems of a pool over NFSv3 and its volumes over NBD.
///
/// The command prints the mount commands and "ready", and serves until it is stopped.
#[derive(Debug, Parser)]
#[command(
    name = "weir serve",
    override_usage = "weir serve [-l] [-d DIR]… [--listen ADDRESS] [--nfs-port N] [--nbd-port N] [--smb [--smb-port N]] [--ro | --rw HOST[/BITS][,…]]…\n       [--no-root-squash | --all-squash] [--anonuid N] [--anongid N] [--arc-max SIZE] [--dirty-max SIZE]\n       [--key DATASET=file://FILE]… [--ready-fd N] [-F | -T TXG] POOL"
)]
pub struct ServeArgs {
    /// IP address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// TCP port of NFS; 0 takes any free port [default: 2049]
    #[arg(long, value_name = "N")]
    nfs_port: Option<String>,
    /// TCP port of NBD; 0 takes any free port [default: 10809]
    #[arg(long, value_name = "N")]
    nbd_port: Option<String>,
    /// Hosts that may write; all others may only read; may be repeated [default: this machine]
    #[arg(long = "rw", value_name = "HOST[/BITS],…")]
    writers: Vec<String>,
    /// Open the pool read-only [default: writable if the pool can be written]
    #[arg(long = "ro")]
    read_only: bool,
    /// Do not map user and group 0 of NFS clients
    #[arg(long)]
    no_root_squash: bool,
    /// Map all users and groups of NFS clients to the anonymous ones
    #[arg(long)]
    all_squash: bool,
    /// Anonymous user [default: 65534]
    #[arg(long, value_name = "N")]
    anonuid: Option<String>,
    /// Anonymous group [default: 65534]
    #[arg(long, value_name = "N")]
    anongid: Option<String>,
    #[command(flatten)]
    smb: SmbArgs,
    #[command(flatten)]
    open: OpenPoolOptions,
    /// Pool
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        Failure::failed(format!("weir serve: {error}"))
    }
}

/// Runs the command.
pub fn run(args: &ServeArgs) -> Result<u8, Failure> {
    let [pool] = args.pools.as_slice() else { return Err(ServeArgs::misused("missing pool argument")) };
    let mut open = open_options::<ServeArgs>(&args.open, pool)?;
    let options = service_options(args)?;
    let ready = ready(&args.open)?;
    let limits = Limits::of::<ServeArgs>(&args.open.limits)?;
    let machine = Production::from_env().build()?;
    if args.open.ask_keys {
        ask_all(KeyPrompt::Own, &machine, &mut open)?;
    }
    let access = match (args.read_only, !args.writers.is_empty(), open.rewind) {
        (true, true, _) => return Err(ServeArgs::misused("--ro and --rw exclude each other")),
        (true, ..) | (_, _, Rewind::Before(_)) => Access::Read,
        (_, true, _) => Access::Write,
        _ => Access::TryToWrite,
    };
    let opened = OpenedPool::open(&machine, &open, access, &limits)?;
    let done = machine.block_on(async {
        tell_of_unsynced(&opened.shown).await?;
        limits.tell();
        let front = opened.front().await?;
        let mut service = Service::start(&machine, &front, &options).await?;
        for line in service.lines() {
            println!("{line}");
        }
        let smb = serve_smb(&machine, &front, options.listen, &args.smb).await?;
        let mut stop = StopSignal::new()?;
        ready.tell()?;
        opened.until_stopped(&mut stop).await;
        if let Some(smb) = &smb {
            let served = smb.served();
            smb.stop().await;
            served.iter().for_each(|served| eprintln!("{}", summary("smb", served)));
        }
        service.stop().await;
        for (protocol, served) in service.served() {
            eprintln!("{}", summary(protocol, &served));
        }
        eprintln!("{}", device_summary(service.accounts()));
        Ok(())
    });
    let closed = opened.close();
    done.and(closed).map(|()| 0)
}

fn service_options(args: &ServeArgs) -> Result<ServiceOptions, Failure> {
    let rules = ExportRules { identity: identity(args)?, writers: writers(args)? };
    let mut options = ServiceOptions { rules, ..ServiceOptions::default() };
    let port = |given: &Option<String>, name: &str, default| match given {
        None => Ok(default),
        Some(text) => text
            .parse::<u16>()
            .map_err(|_| ServeArgs::misused(&format!("--{name} takes a port, 0 to 65535, not '{text}'"))),
    };
    options.nfs_port = port(&args.nfs_port, "nfs-port", options.nfs_port)?;
    options.nbd_port = port(&args.nbd_port, "nbd-port", options.nbd_port)?;
    if let Some(text) = &args.listen {
        options.listen =
            text.parse().map_err(|_| ServeArgs::misused(&format!("--listen takes an IP address, not '{text}'")))?;
    }
    Ok(options)
}

/// Mapping of users.
fn identity(args: &ServeArgs) -> Result<IdentityMap, Failure> {
    let squash = match (args.no_root_squash, args.all_squash) {
        (true, true) => return Err(ServeArgs::misused("--no-root-squash and --all-squash exclude each other")),
        (true, false) => Squash::None,
        (false, true) => Squash::All,
        (false, false) => Squash::Root,
    };
    let id = |given: &Option<String>, name: &str, default: u32| match given {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| ServeArgs::misused(&format!("--{name} takes a number, not '{text}'"))),
    };
    let usual = IdentityMap::default();
    let anon_uid = id(&args.anonuid, "anonuid", usual.anon_uid)?;
    let anon_gid = id(&args.anongid, "anongid", usual.anon_gid)?;
    Ok(IdentityMap { squash, anon_uid, anon_gid })
}

/// Hosts that may write: those named, or this machine by default.
fn writers(args: &ServeArgs) -> Result<Hosts, Failure> {
    if args.writers.is_empty() {
        return Ok(Hosts::loopback());
    }
    let mut hosts = Hosts::none();
    for text in &args.writers {
        hosts.add(text).map_err(|error| ServeArgs::misused(&format!("--rw: {error}")))?;
    }
    Ok(hosts)
}
