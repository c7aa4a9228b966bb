//! SMB 2.1 to 3.1.1 through a managed Samba.
//!
//! ```text
//!   Windows, macOS, Linux ── TCP ──▶ smbd, one process per connection ── system calls ──▶ FUSE mount ──▶ Weir
//!                                      ▲ started, configured, supervised, reloaded, stopped
//!   Samba (this crate) ────────────────┘
//!     share    what is shared, typed                    config     smb.conf, rendered from shares
//!     users    SMB users: own list, Samba's passdb      server     the child process and its supervision
//!     status   smbstatus --json, decoded                clients    process of smbd ─▶ user and address
//! ```
//!
//! **Why Samba.** It is complete (leases, durable handles, encryption, streams, Windows ACLs, Previous Versions, Time
//! Machine) and free of Weir's faults; it is a separate process, so its licence (GPL 3) stays its own. The price: two ways
//! through the kernel per operation, and a FUSE mount, hence `/dev/fuse`.
//!
//! **Files.** Everything that smbd writes is below two private directories: the *state* directory (`passdb.tdb` with
//! the password hashes, `secrets.tdb` with the server's identity, the list of users), which must survive, and the
//! *runtime* directory (smb.conf, locks, sockets, pid file), which need not. Two servers may share the state, never the
//! runtime directory.
//!
//! **Identities.** As root, smbd takes the identity of each SMB user: that of the system's account of this name, or one of
//! its own from the list of users, which smbd sees through `libnss_wrapper.so`. As an ordinary user, smbd has a single
//! identity, its user's, and all SMB users act as that one. See [`users`].
//!
//! **Failures.** A server that ends is started again, after 1 s, 2 s, 4 s … at most 30 s. A server of a process that was
//! killed is found by its pid file and stopped, after a check that the process is that smbd.
//!
//! Sources: smb.conf(5), smbd(8), pdbedit(8), smbstatus(1), nss_wrapper(1).

#![allow(
    clippy::disallowed_methods,
    reason = "programs are started and awaited with tokio, as the operating system's interface demands; no engine code"
)]

pub mod clients;
pub mod config;
pub mod directories;
mod error;
pub mod fuzz;
mod leftovers;
mod logons;
pub mod programs;
mod run;
mod server;
pub mod share;
pub mod status;
pub mod users;

pub use directories::Directories;
pub use error::SmbError;
pub use programs::Programs;
pub use server::{Options, Samba, end_left_behind, is_running, status_of};
pub use share::{CaseSensitivity, Share, TimeMachine};
pub use status::{Connection, Status};
pub use users::User;

/// Port of SMB.
pub const SMB_PORT: u16 = 445;
/// Default port for users other than root.
pub const UNPRIVILEGED_PORT: u16 = 4450;
