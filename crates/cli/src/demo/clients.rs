//! Clients of the demo: SMB with a user of its own, and the lines that use each protocol on Linux, macOS and Windows.
//!
//! The SMB user `demo` and its password belong to this run alone: they are stored in a state directory of the demo, not among
//! the users of `weir smb user`. A new password is made at each start and is in the printed lines, as the only purpose of the demo is to try.

use super::POOL;
use crate::failure::Failure;
use crate::smb::places;
use crate::smb::serving::default_port;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use weir_daemon::smb::{Directories, Options, SmbService, SmbServiceError, users};
use weir_daemon::{Exports, Service};
use weir_machine::{Machine, Protocol, Request};

/// Name of the SMB user.
const USER: &str = "demo";
/// Length of the password in characters.
const PASSWORD_LEN: usize = 14;

/// SMB while the demo runs.
pub struct DemoSmb {
    /// The server.
    pub service: SmbService,
    password: String,
}

/// Starts SMB, if smbd is installed and this machine can mount; otherwise says why not.
pub async fn start_smb(machine: &Machine, front: &Arc<Exports>, listen: IpAddr, port: Option<u16>) -> Option<DemoSmb> {
    let usual = try_smb(machine, front, listen, port.unwrap_or_else(default_port)).await;
    let started = match usual {
        // The default port may be taken.
        Err(_) if port.is_none() => try_smb(machine, front, listen, 0).await,
        done => done,
    };
    started.inspect_err(|failure| println!("no SMB: {failure}")).ok()
}

async fn try_smb(machine: &Machine, front: &Arc<Exports>, listen: IpAddr, port: u16) -> Result<DemoSmb, Failure> {
    let usual = places::of_port(port)?;
    let state = usual.runtime.with_file_name(format!("demo-{port}"));
    let directories = Directories { state, runtime: usual.runtime };
    let service = SmbService::start(machine, Options { listen, port, directories: directories.clone() }).await?;
    match share(machine, &service, front, &directories).await {
        Ok(password) => Ok(DemoSmb { service, password }),
        Err(failure) => {
            service.stop().await;
            Err(failure)
        }
    }
}

/// Adds the user and shares the pool; returns the password.
async fn share(
    machine: &Machine,
    service: &SmbService,
    front: &Arc<Exports>,
    directories: &Directories,
) -> Result<String, Failure> {
    let mut random = [0; PASSWORD_LEN];
    machine.entropy.fill(&mut random);
    let letters = b"abcdefghjkmnpqrstuvwxyz23456789";
    let letter = |byte: u8| char::from(letters[usize::from(byte) % letters.len()]);
    let password: String = random.into_iter().map(letter).collect();
    users::add(&machine.clock, directories, USER, &password).await?;
    service.mount_pool(front)?;
    let share = service.share(&Request::internal("demo"), &front.pool, POOL, POOL).await?;
    service.samba().set_shares(vec![share]).await.map_err(SmbServiceError::from)?;
    Ok(password)
}

/// Lines by system, ready to be pasted.
pub fn lines(service: &Service, smb: Option<&DemoSmb>) -> Vec<String> {
    let address = |protocol| service.protocols().iter().find(|s| s.protocol() == protocol).map(|s| s.address());
    let mut linux: Vec<String> = service.lines();
    let mut macos = Vec::new();
    let mut windows = Vec::new();
    if let Some(address) = address(Protocol::Nfs3) {
        let (host, port) = (bracketed(address.ip()), address.port());
        linux.push(format!("nfs-ls 'nfs://{host}/{POOL}?version=3&nfsport={port}&mountport={port}'"));
        let options = format!("vers=3,tcp,nolocks,port={port},mountport={port}");
        macos.push(format!("mkdir -p ~/{POOL} && sudo mount -t nfs -o {options} {host}:/{POOL} ~/{POOL}"));
    }
    if let Some(smb) = smb {
        smb_lines(smb, [&mut linux, &mut macos, &mut windows]);
    }
    if let Some(address) = address(Protocol::Nbd) {
        linux.push(format!("nbdinfo nbd://{address}/{}", super::VOLUME));
        macos.push(format!("qemu-img info nbd://{address}/{}", super::VOLUME));
    }
    if let Some(address) = address(Protocol::Iscsi) {
        iscsi_lines(&mut linux, &mut windows, address);
    }
    let of = |system: &str, lines: Vec<String>| {
        let lines = lines.into_iter().map(|line| format!("  {line}"));
        std::iter::once(format!("{system}:")).chain(lines).collect::<Vec<_>>()
    };
    [of("Linux", linux), of("macOS", macos), of("Windows (PowerShell, as administrator)", windows)].concat()
}

fn smb_lines(smb: &DemoSmb, [linux, macos, windows]: [&mut Vec<String>; 3]) {
    let address = smb.service.samba().address;
    let (host, port) = (address.ip(), address.port());
    let password = &smb.password;
    linux.push(format!("smbclient //{host}/{POOL} -p {port} -U {USER}%{password} -c ls"));
    let options = format!("port={port},user={USER},password={password},vers=3.1.1");
    linux.push(format!("mount -t cifs -o {options} //{host}/{POOL} /mnt"));
    macos.push(format!("open 'smb://{USER}:{password}@{}:{port}/{POOL}'", bracketed(host)));
    // The option exists since Windows 11 24H2 and Server 2025.
    let at = if port == weir_daemon::smb::SMB_PORT { String::new() } else { format!(" /TCPPORT:{port}") };
    windows.push(format!(r"net use Z: \\{host}\{POOL} {password} /user:{USER}{at}"));
}

fn iscsi_lines(linux: &mut Vec<String>, windows: &mut Vec<String>, address: SocketAddr) {
    let marker = format!("iscsi://{address}/");
    let url = linux.iter().find_map(|line| line.split_once(&marker)?.1.split_whitespace().next().map(str::to_owned));
    let Some(path) = url else { return };
    linux.push(format!("iscsi-ls -s iscsi://{address}"));
    linux.push(format!("iscsi-inq {marker}{path}"));
    let iqn = path.split('/').next().unwrap_or_default();
    let (host, port) = (address.ip(), address.port());
    windows.push(format!(
        "Start-Service MSiSCSI; New-IscsiTargetPortal -TargetPortalAddress {host} -TargetPortalPortNumber {port}; \
         Connect-IscsiTarget -NodeAddress {iqn}"
    ));
}

/// An address before a colon, with brackets around IPv6.
fn bracketed(host: IpAddr) -> String {
    match host {
        IpAddr::V4(host) => host.to_string(),
        IpAddr::V6(host) => format!("[{host}]"),
    }
}
