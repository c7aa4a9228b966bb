//! The server: an smbd that is started, supervised, reloaded and stopped.
//!
//! ```text
//!   start ─▶ end what was left behind ─▶ smb.conf ─▶ smbd ─▶ wait until it accepts a connection
//!   supervise: output ─▶ log; ends unexpectedly ─▶ wait 1, 2, 4 … 30 s ─▶ smbd
//!   set_shares ─▶ smb.conf, if it changed ─▶ smbcontrol smbd reload-config
//!   stop ─▶ SIGTERM, after 8 s SIGKILL; then the processes of its connections and its helpers
//! ```

use crate::clients::Clients;
use crate::config::{self, Global};
use crate::directories::{Directories, write_private};
use crate::error::SmbError;
use crate::leftovers;
use crate::logons::Logons;
use crate::programs::Programs;
use crate::run;
use crate::share::Share;
use crate::status::{self, Status};
use crate::users::Users;
use futures_util::future::{Either, select};
use futures_util::lock::Mutex as AsyncMutex;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Child;
use tokio::sync::watch;
use weir_machine::lock::Mutex;
use weir_machine::{JoinHandle, Machine};

/// Time for the server to accept its first connection.
const START_TIME: Duration = Duration::from_secs(15);
/// Time between two attempts to connect.
const CONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// Time for the server to end after SIGTERM.
const STOP_TIME: Duration = Duration::from_secs(8);
/// Pauses before the server is started again, and the time after which the first one is used again.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);
const CALM_TIME: Duration = Duration::from_secs(60);
/// Time for `smbcontrol`.
const CONTROL_TIME: Duration = Duration::from_secs(10);
/// Maximum length of a line of the server that is logged, in bytes.
const MAX_LINE_LEN: usize = 4000;

/// Options of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address to listen on.
    pub listen: IpAddr,
    /// Port; 0 selects a free one.
    pub port: u16,
    /// State and runtime directory.
    pub directories: Directories,
}

/// A running server.
pub struct Samba {
    /// Address and port that it listens on.
    pub address: SocketAddr,
    core: Arc<Core>,
    stop: watch::Sender<bool>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
    /// Reserves the runtime directory.
    _reserved: std::fs::File,
}

/// State that the supervisor and the callers share.
struct Core {
    machine: Machine,
    options: Options,
    programs: Programs,
    clients: Arc<Clients>,
    /// The shares of the configuration; held while it is replaced.
    shares: AsyncMutex<Vec<Share>>,
    last_line: Mutex<String>,
    logons: Logons,
}

impl Samba {
    /// Starts a server with these shares, and returns when it accepts connections. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// If Samba is not installed, a share is invalid, or the server does not listen within 15 s.
    pub async fn start(machine: &Machine, options: Options, shares: Vec<Share>) -> Result<Samba, SmbError> {
        let programs = Programs::find(&machine.clock).await?;
        let mut options = options;
        options.directories.create()?;
        let reserved = options.directories.reserve()?;
        leftovers::end_left_behind(&machine.clock, &options.directories).await?;
        if options.port == 0 {
            options.port = free_port(options.listen)?;
        }
        let address = SocketAddr::new(options.listen, options.port);
        let clients = Arc::new(Clients::new(&machine.clock, &programs, &options.directories));
        let logons = Logons::new(options.directories.logons());
        let core = Arc::new(Core {
            machine: machine.clone(),
            logons,
            options,
            programs,
            clients,
            shares: AsyncMutex::new(shares),
            last_line: Mutex::default(),
        });
        core.write_configuration(&core.shares.lock().await)?;
        let (stop, stopped) = watch::channel(false);
        let mut child = core.spawn()?;
        if let Err(error) = core.until_listening(&mut child, address).await {
            core.end(child).await;
            return Err(error);
        }
        tracing::info!(%address, version = ?core.programs.version, "smbd is listening");
        let supervisor = machine.tasks.spawn(core.clone().supervise(child, stopped));
        Ok(Samba { address, core, stop, supervisor: Mutex::new(Some(supervisor)), _reserved: reserved })
    }

    /// Replaces the shares; the server reloads its configuration if it changes. Returns whether it did. Connections to a
    /// share that is gone, or is another one now, end: the clients connect again as far as they may.
    ///
    /// # Errors
    /// If a share is invalid: then the old ones remain. If the server cannot be reached.
    pub async fn set_shares(&self, shares: Vec<Share>) -> Result<bool, SmbError> {
        let mut current = self.core.shares.lock().await;
        let changed = self.core.write_configuration(&shares)?;
        let before = std::mem::replace(&mut *current, shares);
        if changed {
            self.core.reload().await?;
        }
        for share in before.iter().filter(|share| !current.contains(share)) {
            self.core.close_share(&share.name).await?;
        }
        Ok(changed)
    }

    /// The connections.
    ///
    /// # Errors
    /// If `smbstatus` fails.
    pub async fn status(&self) -> Result<Status, SmbError> {
        status::read(&self.core.machine.clock, &self.core.programs, &self.core.options.directories).await
    }

    /// The clients of the server's processes.
    pub fn clients(&self) -> Arc<Clients> {
        self.core.clients.clone()
    }

    /// Programs that the server uses.
    pub fn programs(&self) -> &Programs {
        &self.core.programs
    }

    /// Ends the server and its connections, within 10 s.
    pub async fn stop(&self) {
        let _ = self.stop.send(true);
        let supervisor = self.supervisor.lock().take();
        if let Some(supervisor) = supervisor {
            // A supervisor that panicked has no server: its handle ended it.
            let _ = supervisor.await;
        }
    }
}

/// The connections of the server that runs in these directories, which another process may have started.
///
/// # Errors
/// If Samba is not installed or `smbstatus` fails.
pub async fn status_of(machine: &Machine, directories: &Directories) -> Result<Status, SmbError> {
    let programs = Programs::find(&machine.clock).await?;
    status::read(&machine.clock, &programs, directories).await
}

/// Ends the server that a killed process left behind in these directories, unless a process uses them. Its shares may have ended
/// meanwhile.
///
/// # Errors
/// If a file of the directories cannot be opened or removed.
pub async fn end_left_behind(machine: &Machine, directories: &Directories) -> Result<(), SmbError> {
    if !directories.pid_file().exists() {
        return Ok(());
    }
    let _reserved = match directories.reserve() {
        Err(SmbError::InUse { .. }) => return Ok(()),
        reserved => reserved?,
    };
    leftovers::end_left_behind(&machine.clock, directories).await
}

/// Whether a server runs in these directories.
pub fn is_running(directories: &Directories) -> bool {
    leftovers::processes(directories).iter().any(|(_, program)| *program == leftovers::Program::Smbd)
}

impl Core {
    fn directories(&self) -> &Directories {
        &self.options.directories
    }

    fn users(&self) -> Users<'_> {
        Users { directories: self.directories(), programs: &self.programs }
    }

    /// Writes smb.conf; returns whether it changed.
    fn write_configuration(&self, shares: &[Share]) -> Result<bool, SmbError> {
        let guest = self.users().guest_account()?;
        let global = Global {
            listen: self.options.listen,
            port: self.options.port,
            guest_account: &guest,
            directories: self.directories(),
            version: self.programs.version,
            modules: &self.programs.modules,
        };
        let text = config::render(&global, shares)?;
        write_private(&self.directories().configuration(), text.as_bytes())
    }

    /// Starts the server, in a process group of its own: it sends signals to its group, and a terminal's Ctrl-C is for this
    /// process, which then stops the server.
    fn spawn(&self) -> Result<Child, SmbError> {
        let mut command = run::command(&self.programs.smbd);
        let mut configuration = std::ffi::OsString::from("--configfile=");
        configuration.push(self.directories().configuration());
        command.args(["--foreground", "--no-process-group", "--debug-stdout"]).arg(configuration);
        self.users().show_accounts(&mut command)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.spawn().map_err(|why| SmbError::Run { program: "smbd".into(), why })
    }

    /// Waits until the server accepts a connection, or ends.
    async fn until_listening(self: &Arc<Self>, child: &mut Child, address: SocketAddr) -> Result<(), SmbError> {
        self.log_output(child);
        let clock = &self.machine.clock;
        let from = clock.now();
        let reachable = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => {
                SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), address.port())
            }
            IpAddr::V6(ip) if ip.is_unspecified() => {
                SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST), address.port())
            }
            _ => address,
        };
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                let line = self.last_line();
                let why = if line.is_empty() { format!("it ended with {status}") } else { line };
                return Err(SmbError::NotListening { address, why });
            }
            if tokio::net::TcpStream::connect(reachable).await.is_ok() {
                return Ok(());
            }
            if clock.now().since(from) >= START_TIME {
                let why = format!("nothing within {} s; {}", START_TIME.as_secs(), self.last_line());
                return Err(SmbError::NotListening { address, why });
            }
            clock.sleep(CONNECT_INTERVAL).await;
        }
    }

    fn last_line(&self) -> String {
        self.last_line.lock().clone()
    }

    /// Takes the server's lines into the log, until it closes its output.
    fn log_output(self: &Arc<Self>, child: &mut Child) {
        if let Some(out) = child.stdout.take() {
            drop(self.machine.tasks.spawn(self.clone().log_lines(out)));
        }
        if let Some(err) = child.stderr.take() {
            drop(self.machine.tasks.spawn(self.clone().log_lines(err)));
        }
    }

    async fn log_lines(self: Arc<Self>, output: impl AsyncRead + Unpin) {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        loop {
            line.clear();
            match output.read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => self.log_line(&String::from_utf8_lossy(&line[..line.len().min(MAX_LINE_LEN)])),
            }
        }
    }

    fn log_line(&self, line: &str) {
        let line = line.trim();
        // The head of a message: `[2026/11/24 09:48:57.446124,  0] ../../source3/smbd/server.c:1741(main)`.
        if line.is_empty() || line.starts_with('[') && line.ends_with(')') {
            return;
        }
        if line.starts_with('{') && self.logons.take(line) {
            return;
        }
        if line.contains("INTERNAL ERROR") || line.contains("PANIC") || line.starts_with("ERROR") {
            tracing::error!(target: "weir_smb::smbd", "{line}");
        } else {
            tracing::info!(target: "weir_smb::smbd", "{line}");
        }
        line.clone_into(&mut self.last_line.lock());
    }

    /// Keeps the server running until `stopped`, then ends it.
    async fn supervise(self: Arc<Self>, child: Child, mut stopped: watch::Receiver<bool>) {
        let clock = &self.machine.clock;
        let mut pause = MIN_PAUSE;
        let mut running = Some(child);
        loop {
            let from = clock.now();
            if let Some(mut child) = running.take() {
                let ended = match select(pin!(stopped.wait_for(|stop| *stop)), pin!(child.wait())).await {
                    Either::Left(_) => None,
                    Either::Right((status, _)) => Some(status),
                };
                let Some(status) = ended else { return self.end(child).await };
                let line = self.last_line();
                match status {
                    Ok(status) => tracing::error!(%status, line, "smbd ended and is started again"),
                    Err(error) => tracing::error!(%error, line, "smbd is lost and is started again"),
                }
                leftovers::end_all(clock, self.directories()).await;
            }
            pause = if clock.now().since(from) >= CALM_TIME { MIN_PAUSE } else { pause };
            match select(pin!(stopped.wait_for(|stop| *stop)), pin!(clock.sleep(pause))).await {
                Either::Left(_) => return,
                Either::Right(_) => pause = (pause * 2).min(MAX_PAUSE),
            }
            match self.spawn() {
                Ok(mut child) => {
                    self.log_output(&mut child);
                    running = Some(child);
                }
                Err(error) => tracing::error!(%error, "smbd cannot be started again"),
            }
        }
    }

    /// Ends the server, the processes of its connections and its helpers.
    async fn end(&self, mut child: Child) {
        let clock = &self.machine.clock;
        if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
            // It may have ended already.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let is_late = matches!(select(pin!(child.wait()), pin!(clock.sleep(STOP_TIME))).await, Either::Right(_));
        if is_late && let Err(error) = child.kill().await {
            tracing::warn!(%error, "smbd cannot be killed");
        }
        leftovers::end_all(clock, self.directories()).await;
        let _ = std::fs::remove_file(self.directories().pid_file());
    }

    async fn reload(&self) -> Result<(), SmbError> {
        self.control(&["reload-config"]).await
    }

    /// Ends the connections to a share.
    async fn close_share(&self, name: &str) -> Result<(), SmbError> {
        self.control(&["close-share", name]).await
    }

    /// Sends the server a message.
    async fn control(&self, message: &[&str]) -> Result<(), SmbError> {
        let mut command = run::command(&self.programs.smbcontrol);
        command.arg("--configfile").arg(self.directories().configuration()).arg("smbd").args(message);
        run::output(&self.machine.clock, &mut command, None, CONTROL_TIME).await.map(drop)
    }
}

/// A port that is free now: smbd cannot choose one and say which.
fn free_port(listen: IpAddr) -> Result<u16, SmbError> {
    let address = SocketAddr::new(listen, 0);
    let bound = std::net::TcpListener::bind(address).and_then(|listener| listener.local_addr());
    bound.map(|bound| bound.port()).map_err(|why| SmbError::NotListening { address, why: why.to_string() })
}
