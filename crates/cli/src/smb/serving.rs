//! `weir serve --smb`: the pool's file systems as one share, with the pool's name.

use super::places;
use crate::args::CommandLine;
use crate::failure::Failure;
use crate::serve::ServeArgs;
use clap::Args;
use std::net::IpAddr;
use weir_daemon::Exports;
use weir_daemon::smb::{Options, SMB_PORT, SmbService, SmbServiceError, UNPRIVILEGED_PORT, users};
use weir_machine::{Machine, Request};

/// Options of SMB.
#[derive(Args, Debug)]
pub struct SmbArgs {
    /// Serve the file systems over SMB 2.1 to 3.1.1 too, through Samba
    #[arg(long)]
    smb: bool,
    /// TCP port of SMB; 0 takes any free port [default: 445, or 4450 for users other than root]
    #[arg(long, value_name = "N")]
    smb_port: Option<String>,
}

impl SmbArgs {
    /// Whether the command line asks for SMB.
    pub fn is_wanted(&self) -> bool {
        self.smb
    }
}

impl From<SmbServiceError> for Failure {
    fn from(error: SmbServiceError) -> Self {
        Failure::failed(format!("weir serve: {error}"))
    }
}

/// The port that is given, or the default of this user.
fn port(args: &SmbArgs) -> Result<u16, Failure> {
    match &args.smb_port {
        None if rustix::process::geteuid().is_root() => Ok(SMB_PORT),
        None => Ok(UNPRIVILEGED_PORT),
        Some(text) => {
            text.parse().map_err(|_| ServeArgs::misused(&format!("--smb-port takes a port, 0 to 65535, not '{text}'")))
        }
    }
}

/// Starts SMB if it is asked for, and prints the command that connects to it.
pub async fn serve_smb(
    machine: &Machine,
    exports: &Exports,
    listen: IpAddr,
    args: &SmbArgs,
) -> Result<Option<SmbService>, Failure> {
    let port = port(args)?;
    if !args.smb {
        return Ok(None);
    }
    let directories = places::of_port(port)?;
    let known = users::list(&directories).unwrap_or_default();
    let service = SmbService::start(machine, Options { listen, port, directories }).await?;
    if let Err(error) = share_pool(&service, exports).await {
        service.stop().await;
        return Err(error);
    }
    for line in service.lines(&exports.pool.name(), known.first().map(|user| user.name.as_str())) {
        println!("{line}");
    }
    if known.is_empty() {
        eprintln!("SMB has no user yet: weir smb user add NAME");
    }
    Ok(Some(service))
}

async fn share_pool(service: &SmbService, exports: &Exports) -> Result<(), Failure> {
    service.mount_pool(exports)?;
    let pool = exports.pool.name();
    let share = service.share(&Request::internal("serve"), &exports.pool, &pool, &pool).await?;
    service.samba().set_shares(vec![share]).await.map_err(SmbServiceError::from)?;
    Ok(())
}
