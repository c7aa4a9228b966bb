//! Options of servers that several commands may have: TLS of NBD, and locks of NFS with their record and rpcbind.

use crate::directories;
use crate::failure::Failure;
use clap::Args;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_daemon::locks::RPCBIND_SOCKET;
use weir_daemon::{LockServiceOptions, PemFiles, ServiceOptions, Tls};
use weir_linux::DiskStateFile;
use weir_machine::Clock;

/// TLS of NBD: options of `weir serve`, and keys of the daemon's configuration.
#[derive(Args, Debug, Default)]
pub struct TlsOptions {
    /// Certificate of NBD over TLS, in PEM, with those up to its authority
    #[arg(long, value_name = "FILE")]
    pub nbd_tls_cert: Option<OsString>,
    /// Key of the certificate, in PEM
    #[arg(long, value_name = "FILE")]
    pub nbd_tls_key: Option<OsString>,
    /// Serve NBD over TLS only to clients with a certificate of this authority
    #[arg(long, value_name = "FILE")]
    pub nbd_tls_ca: Option<OsString>,
    /// Whether NBD clients have to use TLS: off, allowed or required [default: allowed if there is a certificate]
    #[arg(long, value_name = "MODE")]
    pub nbd_tls: Option<String>,
}

/// Locks of NFS.
#[derive(Args, Debug)]
pub struct LockOptions {
    /// Do not register NFS with rpcbind; clients then need the ports, and have no locks
    #[arg(long)]
    no_rpcbind: bool,
    /// Directory for what must survive a restart, such as the list of NFS clients with locks [default: /var/lib/weir for
    /// root, else ~/.local/state/weir]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<OsString>,
}

fn read(path: &OsString) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::failed(format!("{}: {error}", Path::new(path).display())))
}

impl TlsOptions {
    /// Reads the files; `None` if NBD is not encrypted. `misused` makes the error of a wrong command line.
    pub fn tls(&self, clock: &Clock, misused: impl Fn(&str) -> Failure) -> Result<Option<Tls>, Failure> {
        let is_required = match self.nbd_tls.as_deref() {
            Some("off") => return Ok(None),
            None | Some("allowed") => false,
            Some("required") => true,
            Some(other) => return Err(misused(&format!("--nbd-tls is off, allowed or required, not '{other}'"))),
        };
        let (certificate, key) = match (&self.nbd_tls_cert, &self.nbd_tls_key) {
            (Some(certificate), Some(key)) => (read(certificate)?, read(key)?),
            (None, None) if self.nbd_tls.is_none() && self.nbd_tls_ca.is_none() => return Ok(None),
            _ => return Err(misused("TLS of NBD needs --nbd-tls-cert and --nbd-tls-key")),
        };
        let authority = self.nbd_tls_ca.as_ref().map(read).transpose()?;
        let files = PemFiles { certificate: &certificate, key: &key, client_authority: authority.as_deref() };
        let tls = Tls::new(files, is_required, clock);
        tls.map(Some).map_err(|error| Failure::failed(format!("TLS of NBD: {error}")))
    }
}

impl LockOptions {
    /// Sets locks and rpcbind for the pool with this GUID. A server at any free port is not registered: it is one for a
    /// test or a single client, which knows the port.
    pub fn apply(&self, options: &mut ServiceOptions, guid: u64) {
        if self.no_rpcbind || options.nfs_port == 0 && self.state_dir.is_none() {
            return;
        }
        let Some(dir) = self.state_dir.clone().map(PathBuf::from).or_else(directories::state) else { return };
        set_locks(options, &dir.join(format!("nfs-locks-{guid:016x}")));
    }
}

/// Sets locks and rpcbind for all pools of a daemon. One at any free port is not registered, like [`LockOptions::apply`] says.
pub fn set_daemon_locks(options: &mut ServiceOptions) {
    if options.nfs_port == 0 {
        return;
    }
    if let Some(state) = directories::state() {
        set_locks(options, &state.join("nfs-locks"));
    }
}

fn set_locks(options: &mut ServiceOptions, record: &Path) {
    let record = Arc::new(DiskStateFile::new(record.to_owned()));
    let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    options.locks = Some(LockServiceOptions { record, host_name });
    options.rpcbind = Some(RPCBIND_SOCKET.into());
}
