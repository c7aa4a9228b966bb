//! `weir serve`: a pool's file systems over NFS version 3 and its volumes over NBD, until stopped.

use crate::args::{Args, Spec};
use crate::failure::Failure;
use crate::limits::{self, Limits};
use crate::mount::{Access, OpenedPool, StopSignal, open_options, ready, tell_of_unsynced};
use crate::secrets::{KeyPrompt, ask_all};
use weir_daemon::nfs::{self, Squash};
use weir_daemon::service::summary;
use weir_daemon::{Hosts, Service, ServiceError, ServiceOptions};
use weir_linux::Production;
use weir_pool::Rewind;

const SPEC: Spec = Spec {
    command: "weir serve",
    letters: "d:k:T:r:L:N:B:w:SAu:g:FRlM:Y:",
    long: &[
        ("key", 'k'),
        ("ready-fd", 'r'),
        ("listen", 'L'),
        ("nfs-port", 'N'),
        ("nbd-port", 'B'),
        ("rw", 'w'),
        ("ro", 'R'),
        ("no-root-squash", 'S'),
        ("all-squash", 'A'),
        ("anonuid", 'u'),
        ("anongid", 'g'),
        limits::LONG[0],
        limits::LONG[1],
    ],
    usage: "weir serve [-l] [-d DIR]... [--listen ADDRESS] [--nfs-port N] [--nbd-port N] [--ro | --rw HOST[/BITS][,...]]... \
            [--no-root-squash | --all-squash] [--anonuid N] [--anongid N] [--arc-max SIZE] [--dirty-max SIZE] [--key DATASET=file://FILE]... [--ready-fd N] [-F | -T TXG] POOL",
};

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        Failure::failed(format!("weir serve: {error}"))
    }
}

/// Runs the command.
pub fn run(words: Vec<std::ffi::OsString>) -> Result<u8, Failure> {
    let args = SPEC.parse(words)?;
    let pool = args.word(0).filter(|_| args.words.len() == 1).ok_or_else(|| SPEC.misused("name one pool"))?;
    let mut open = open_options(&SPEC, &args, pool)?;
    let options = service_options(&args)?;
    let ready = ready(&args)?;
    let limits = Limits::of(&SPEC, &args)?;
    let machine = Production::from_env().build()?;
    if args.has('l') {
        ask_all(KeyPrompt::Own, &machine, &mut open)?;
    }
    let access = match (args.has('R'), args.has('w'), open.rewind) {
        (true, true, _) => return Err(SPEC.misused("--ro and --rw exclude each other")),
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
        let mut stop = StopSignal::new()?;
        ready.tell()?;
        opened.until_stopped(&mut stop).await;
        service.stop().await;
        for (protocol, served) in service.served() {
            eprintln!("{}", summary(protocol, served));
        }
        Ok(())
    });
    let closed = opened.close();
    done.and(closed).map(|()| 0)
}

fn service_options(args: &Args) -> Result<ServiceOptions, Failure> {
    let mut options = ServiceOptions { nfs: nfs_options(args)?, writers: writers(args)?, ..ServiceOptions::default() };
    let port = |letter, name: &str, default| match args.value(letter) {
        None => Ok(default),
        Some(text) => {
            text.parse::<u16>().map_err(|_| SPEC.misused(&format!("--{name} takes a port, 0 to 65535, not '{text}'")))
        }
    };
    options.nfs_port = port('N', "nfs-port", options.nfs_port)?;
    options.nbd_port = port('B', "nbd-port", options.nbd_port)?;
    if let Some(text) = args.value('L') {
        options.listen =
            text.parse().map_err(|_| SPEC.misused(&format!("--listen takes an IP address, not '{text}'")))?;
    }
    Ok(options)
}

/// Options of the NFS server: mapping of users.
fn nfs_options(args: &Args) -> Result<nfs::Options, Failure> {
    let squash = match (args.has('S'), args.has('A')) {
        (true, true) => return Err(SPEC.misused("--no-root-squash and --all-squash exclude each other")),
        (true, false) => Squash::None,
        (false, true) => Squash::All,
        (false, false) => Squash::Root,
    };
    let id = |letter, name: &str, default: u32| match args.value(letter) {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| SPEC.misused(&format!("--{name} takes a number, not '{text}'"))),
    };
    let usual = nfs::Options::default();
    let anon_uid = id('u', "anonuid", usual.anon_uid)?;
    let anon_gid = id('g', "anongid", usual.anon_gid)?;
    Ok(nfs::Options { squash, anon_uid, anon_gid })
}

/// Hosts that may write: those named, or this machine by default.
fn writers(args: &Args) -> Result<Hosts, Failure> {
    let named = args.values('w');
    if named.is_empty() {
        return Ok(Hosts::loopback());
    }
    let mut hosts = Hosts::none();
    for text in named {
        hosts.add(&text.to_string_lossy()).map_err(|error| SPEC.misused(&format!("--rw: {error}")))?;
    }
    Ok(hosts)
}
