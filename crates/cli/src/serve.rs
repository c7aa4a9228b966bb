//! `weir serve`: the file systems of pools over NFS version 3 and their volumes over NBD, until stopped. `weir daemon` does the
//! same for all pools that are imported, and remembers them.

use crate::admin::AdminSocket;
use crate::args::CommandLine;
use crate::directories;
use crate::failure::Failure;
use crate::limits::Limits;
use crate::mount::{Access, OpenPoolOptions, OpenedPool, Ready, StopSignal, open_options, ready, tell_of_unsynced};
use crate::process::PoolProcess;
use crate::secrets::{KeyPrompt, ask_all};
use crate::serve_options::{LockOptions, TlsOptions};
use crate::smb::serving::{SmbArgs, serve_smb};
use crate::web::PassingWeb;
use clap::Parser;
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_daemon::protocols::ISCSI_PORT;
use weir_daemon::service::{device_summary, summary};
use weir_daemon::users::ChapUsers;
use weir_daemon::{ExportRules, Hosts, IdentityMap, Service, ServiceError, ServiceOptions, Sharing, Squash};
use weir_machine::Machine;
use weir_pool::Rewind;
use weir_web::Token;

/// Serve file systems over NFSv3 and SMB, and volumes over NBD and iSCSI.
///
/// The command prints the mount commands and "ready", and serves until it is stopped. A pool that is exported is imported for
/// this time, and exported again at the end; one that another host used last needs -f.
#[derive(Debug, Parser)]
#[command(
    name = "weir serve",
    override_usage = "weir serve [-fl] [-d DIR]… [--listen ADDRESS] [--nfs-port N] [--nbd-port N] [--iscsi-port N] [--http-port N] [--smb [--smb-port N]] [--ro | --rw HOST[/BITS][,…]]…\n       [--shared] [--no-root-squash | --all-squash] [--anonuid N] [--anongid N] [--arc-max SIZE] [--dirty-max SIZE]\n       [--key DATASET=file://FILE]… [--ready-fd N] [-F | -T TXG]\n       [--nbd-tls-cert FILE --nbd-tls-key FILE [--nbd-tls-ca FILE] [--nbd-tls MODE]]\n       [--no-rpcbind] [--state-dir DIR] POOL…"
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
    /// Serve volumes over iSCSI at this TCP port (usually 3260), too; 0 takes any free port
    #[arg(long, value_name = "N")]
    iscsi_port: Option<String>,
    /// Serve page, API and metrics at this port of 127.0.0.1; 0 takes any free port [default: none]
    #[arg(long, value_name = "N")]
    http_port: Option<String>,
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
    /// Share what the properties of the datasets say: sharenfs, sharesmb (with --smb), weir:nbd, weir:iscsi (with --iscsi-port)
    /// [default: share everything]
    #[arg(long)]
    shared: bool,
    #[command(flatten)]
    tls: TlsOptions,
    #[command(flatten)]
    locks: LockOptions,
    #[command(flatten)]
    smb: SmbArgs,
    #[command(flatten)]
    open: OpenPoolOptions,
    /// Pools
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
    if args.pools.is_empty() {
        return Err(ServeArgs::misused("missing pool argument"));
    }
    if args.smb.is_wanted() && args.pools.len() > 1 && !args.shared {
        return Err(ServeArgs::misused("--smb serves one whole pool; with --shared, what sharesmb says of several"));
    }
    let mut options = service_options(args)?;
    let ready = ready(&args.open)?;
    let limits = Limits::of::<ServeArgs>(&args.open.limits)?;
    let (machine, _disks) = crate::stores::serving_machine()?;
    // What the command line alone decides comes before a pool is opened, and perhaps imported.
    let http_port = args.http_port.as_ref().map(|_| port(&args.http_port, "http-port", 0)).transpose()?;
    options.nbd_tls = args.tls.tls(&machine.clock, ServeArgs::misused)?;
    let mut opened = Vec::new();
    for pool in &args.pools {
        match open(args, pool, &machine, &limits.shared_by(args.pools.len())) {
            Ok(pool) => opened.push(pool),
            Err(failure) => return opened.into_iter().try_for_each(OpenedPool::close).and(Err(failure)),
        }
    }
    if let Some(pool) = opened.first() {
        args.locks.apply(&mut options, pool.shown.guid());
    }
    let mut pools = ServedPools { opened, service: None, socket: None };
    let done = machine.block_on(pools.serve(&machine, &options, &limits, args, http_port, ready));
    let closed = pools.opened.into_iter().map(OpenedPool::close).fold(Ok(()), Result::and);
    // Last, so that the administrators who closed pools get their answers.
    if let Some(socket) = pools.socket {
        machine.block_on(socket.close());
    }
    done.and(closed).map(|()| 0)
}

/// Opens one of the pools of the command line.
fn open(args: &ServeArgs, pool: &str, machine: &Machine, limits: &Limits) -> Result<OpenedPool, Failure> {
    let mut open = open_options::<ServeArgs>(&args.open, pool)?;
    if args.open.ask_keys {
        ask_all(KeyPrompt::Own, machine, &mut open)?;
    }
    let access = match (args.read_only, !args.writers.is_empty(), open.rewind) {
        (true, true, _) => return Err(ServeArgs::misused("--ro and --rw exclude each other")),
        (true, ..) | (_, _, Rewind::Before(_)) => Access::Read,
        (_, true, _) => Access::Write,
        _ => Access::TryToWrite,
    };
    OpenedPool::open(machine, &open, access, args.open.force, limits)
}

/// The pools of the command line while they are served.
struct ServedPools {
    opened: Vec<OpenedPool>,
    service: Option<Arc<Service>>,
    socket: Option<AdminSocket>,
}

impl ServedPools {
    /// Serves until a signal stops the process, or administrators have closed all pools.
    async fn serve(
        &mut self,
        machine: &Machine,
        options: &ServiceOptions,
        limits: &Limits,
        args: &ServeArgs,
        http_port: Option<u16>,
        ready: Ready,
    ) -> Result<(), Failure> {
        let process = PoolProcess::new(machine);
        let mut exports = Vec::new();
        for pool in &self.opened {
            tell_of_unsynced(&pool.shown).await?;
        }
        limits.tell();
        for pool in &self.opened {
            exports.push(pool.exports().await?);
            pool.served_pool().into_iter().for_each(|served_pool| process.add(served_pool));
        }
        self.socket = match AdminSocket::open(&process) {
            Ok(socket) => Some(socket),
            Err(failure) => {
                eprintln!("{failure}\ncommands about the pools have to wait until this process ends");
                None
            }
        };
        let service = Arc::new(Service::start_with(machine, &exports, options, &BTreeSet::new()).await?);
        self.opened.iter().filter_map(OpenedPool::served_pool).for_each(|pool| pool.set_service(&service));
        self.opened.iter().for_each(|pool| tell_of_sharing(&pool.shown.name(), options));
        service.notices().iter().for_each(|notice| eprintln!("{notice}"));
        service.lines().iter().for_each(|line| println!("{line}"));
        let smb = match exports.first().filter(|_| options.smb.is_none()) {
            Some(exports) => serve_smb(machine, exports, options.listen, &args.smb).await?,
            None => None,
        };
        let web = match http_port {
            Some(port) => Some(PassingWeb::start(&process, port, Token::new(machine)).await?),
            None => None,
        };
        web.iter().for_each(|web| println!("page, API and metrics: {}", web.url()));
        let mut stop = StopSignal::new()?;
        ready.tell()?;
        self.service = Some(service.clone());
        let ended = self.until_all_closed(&process, &mut stop).await;
        drop(web);
        if let Some(smb) = &smb {
            let served = smb.served();
            smb.stop().await;
            served.iter().for_each(|served| eprintln!("{}", summary("smb", served)));
        }
        service.stop().await;
        for (protocol, served) in service.served() {
            eprintln!("{}", summary(protocol, &served));
        }
        exports.iter().for_each(|exports| eprintln!("{}", device_summary(exports.pool.accounts())));
        ended
    }

    /// Closes pools as administrators ask for it, until a signal arrives or one pool is left and to be closed: the caller
    /// closes the rest.
    async fn until_all_closed(&mut self, process: &PoolProcess, stop: &mut StopSignal) -> Result<(), Failure> {
        loop {
            let closing = {
                let waits = self.opened.iter().map(|pool| Box::pin(pool.until_closing()));
                tokio::select! {
                    () = stop.wait() => return Ok(()),
                    ((), index, _) = futures_util::future::select_all(waits) => index,
                }
            };
            if self.opened.len() == 1 {
                return Ok(());
            }
            let pool = self.opened.remove(closing);
            let key = pool.served_pool().map_or_else(|| pool.shown.guid(), |served| served.key());
            process.remove(key);
            if let Some(service) = &self.service {
                service.remove(key);
            }
            let closed = tokio::task::spawn_blocking(move || pool.close()).await;
            if let Err(failure) = closed.unwrap_or_else(|error| Err(Failure::failed(error.to_string()))) {
                eprintln!("{failure}");
            }
        }
    }
}

fn service_options(args: &ServeArgs) -> Result<ServiceOptions, Failure> {
    let everything = Sharing::Everything(ExportRules { identity: identity(args)?, writers: writers(args)? });
    let sharing = if args.shared { shared(args)? } else { everything };
    let mut options = ServiceOptions { sharing, ..ServiceOptions::default() };
    options.nfs_port = port(&args.nfs_port, "nfs-port", options.nfs_port)?;
    options.nbd_port = port(&args.nbd_port, "nbd-port", options.nbd_port)?;
    if args.iscsi_port.is_some() {
        options.iscsi_port = Some(port(&args.iscsi_port, "iscsi-port", ISCSI_PORT)?);
        options.needs_iscsi = true;
        options.chap_users = directories::state().map(ChapUsers::new);
    }
    if let Some(text) = &args.listen {
        options.listen =
            text.parse().map_err(|_| ServeArgs::misused(&format!("--listen takes an IP address, not '{text}'")))?;
    }
    if args.shared && args.smb.is_wanted() {
        options.smb = Some(args.smb.options(options.listen)?);
        options.needs_smb = true;
    }
    Ok(options)
}

/// The port of an option, or a default.
fn port(given: &Option<String>, name: &str, default: u16) -> Result<u16, Failure> {
    let wrong = |text: &str| ServeArgs::misused(&format!("--{name} takes a port, 0 to 65535, not '{text}'"));
    given.as_ref().map_or(Ok(default), |text| text.parse().map_err(|_| wrong(text)))
}

/// The properties decide, and no option may say otherwise.
fn shared(args: &ServeArgs) -> Result<Sharing, Failure> {
    let has_ids = args.anonuid.is_some() || args.anongid.is_some();
    if !args.writers.is_empty() || args.no_root_squash || args.all_squash || has_ids {
        let why = "--shared follows the properties: set hosts and users with sharenfs, not with --rw, --no-root-squash, \
                   --all-squash, --anonuid or --anongid";
        return Err(ServeArgs::misused(why));
    }
    Ok(Sharing::ByProperties)
}

/// Says what is shared, and why.
pub fn tell_of_sharing(pool: &str, options: &ServiceOptions) {
    match &options.sharing {
        Sharing::Everything(_) if options.listen.is_loopback() => {
            eprintln!(
                "everything in pool '{pool}' is shared with this machine, whatever the properties say (--shared follows them)"
            );
        }
        Sharing::Everything(_) => {
            let listen = options.listen;
            eprintln!(
                "everything in pool '{pool}' is shared with every host that reaches {listen}, whatever the properties say (--shared follows them)"
            );
        }
        Sharing::ByProperties | Sharing::Nothing => {
            let mut properties = vec!["sharenfs", "weir:nbd"];
            properties.extend(options.iscsi_port.map(|_| "weir:iscsi"));
            properties.extend(options.smb.as_ref().map(|_| "sharesmb"));
            let last = properties.pop().unwrap_or_default();
            eprintln!("pool '{pool}': what {} and {last} share is served, and nothing else", properties.join(", "));
        }
    }
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
