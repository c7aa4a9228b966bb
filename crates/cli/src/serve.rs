//! `weir serve`: a pool's file systems over NFS version 3 and its volumes over NBD, until stopped.

use crate::args::{Args, Spec};
use crate::failure::Failure;
use crate::mount::{open_options, open_pool, ready, stop_signal};
use weir_daemon::service::summary;
use weir_daemon::{Service, ServiceError, ServiceOptions};
use weir_machine::Production;

const SPEC: Spec = Spec {
    command: "weir serve",
    letters: "d:k:T:r:L:N:B:SF",
    long: &[
        ("key", 'k'),
        ("ready-fd", 'r'),
        ("listen", 'L'),
        ("nfs-port", 'N'),
        ("nbd-port", 'B'),
        ("no-root-squash", 'S'),
    ],
    usage: "weir serve [-d DIR]... [--listen ADDRESS] [--nfs-port N] [--nbd-port N] [--no-root-squash] \
            [--key DATASET=file://FILE]... [--ready-fd N] [-F | -T TXG] POOL",
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
    let (open, options, ready) = (open_options(&SPEC, &args, pool)?, service_options(&args)?, ready(&args)?);
    let machine = Production::from_env().build()?;
    machine.block_on(async {
        let pool = open_pool(&machine, &open).await?;
        let mut service = Service::start(&machine, pool, &options).await?;
        for line in service.lines() {
            println!("{line}");
        }
        ready.tell()?;
        stop_signal().await?;
        service.stop().await;
        for (protocol, served) in service.served() {
            eprintln!("{}", summary(protocol, served));
        }
        Ok(0)
    })
}

fn service_options(args: &Args) -> Result<ServiceOptions, Failure> {
    let mut options = ServiceOptions { root_squash: !args.has('S'), ..ServiceOptions::default() };
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
