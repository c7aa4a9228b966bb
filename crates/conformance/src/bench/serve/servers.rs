//! The contenders: servers, each on new storage.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::super::mounted::Looped;
use super::super::{process_tree, succeeded};
use crate::JudgeError;
use crate::process::{Running, weir};
use crate::smb::server::{SHARE as SMB_POOL, Server as SmbServer};

/// Pool of Weir, and names of what it serves.
const POOL: &str = "serve";
const VOLUME: &str = "volume";
/// Directory that clients read and write sequentially.
pub const SHARE: &str = "files";
/// Directory that clients read and write at random; recordsize=4K on Weir.
pub const RANDOM_SHARE: &str = "random";
/// Memory for Weir's ARC: as the page cache of its peers, it holds all that a row reads.
const ARC: &str = "4G";
/// Time for a peer to answer.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// Time for the process of a connection to end.
const ENDS_WITHIN: Duration = Duration::from_secs(3);
/// Time for which the number of processes stays the same once a server is up.
const SETTLED_AFTER: Duration = Duration::from_millis(500);

/// A server that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// `weir serve`, a file system over NFS.
    WeirFiles,
    /// nfs-ganesha on xfs.
    Ganesha,
    /// `weir serve`, a volume over NBD.
    WeirNbd,
    /// nbdkit's file plugin.
    Nbdkit,
    /// qemu-nbd.
    QemuNbd,
    /// `weir serve`, a volume over iSCSI.
    WeirIscsi,
    /// tgt on a file.
    Tgt,
    /// `weir serve --smb`, a file system.
    WeirSmb,
    /// smbd on xfs, the program that Weir starts.
    Smbd,
}

impl Contender {
    /// All, in the order in which they are measured.
    pub const ALL: [Contender; 9] = [
        Contender::WeirFiles,
        Contender::Ganesha,
        Contender::WeirNbd,
        Contender::Nbdkit,
        Contender::QemuNbd,
        Contender::WeirIscsi,
        Contender::Tgt,
        Contender::WeirSmb,
        Contender::Smbd,
    ];

    /// Name in a row.
    pub fn name(self) -> &'static str {
        match self {
            Contender::WeirFiles | Contender::WeirNbd | Contender::WeirIscsi | Contender::WeirSmb => "Weir",
            Contender::Ganesha => "nfs-ganesha",
            Contender::Nbdkit => "nbdkit",
            Contender::QemuNbd => "qemu-nbd",
            Contender::Tgt => "tgt",
            Contender::Smbd => "smbd",
        }
    }
}

/// Folder of the benchmark.
pub struct Home {
    folder: PathBuf,
    /// Size of files and volumes, in MiB.
    pub mib: u64,
}

fn io_error(path: &Path) -> impl Fn(std::io::Error) -> JudgeError {
    let what = path.display().to_string();
    move |source| JudgeError::Io { what: what.clone(), source }
}

impl Home {
    /// Creates the folder.
    pub fn new(folder: &Path, mib: u64) -> Result<Home, JudgeError> {
        std::fs::create_dir_all(folder).map_err(io_error(folder))?;
        let folder = folder.canonicalize().map_err(io_error(folder))?;
        Ok(Home { folder, mib })
    }

    /// A new image with room for the files: whatever was there is removed.
    fn image(&self, name: &str, mib: u64) -> Result<PathBuf, JudgeError> {
        let folder = self.folder.join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(io_error(&folder))?;
        }
        std::fs::create_dir_all(&folder).map_err(io_error(&folder))?;
        let image = folder.join("image");
        let made = std::fs::File::create(&image).and_then(|file| file.set_len(mib << 20));
        made.map_err(io_error(&image))?;
        Ok(image)
    }
}

/// A server at work.
pub struct Server {
    contender: Contender,
    image: PathBuf,
    running: Option<Running>,
    rpcbind: Option<Running>,
    looped: Option<Looped>,
    smb: Option<SmbServer>,
    /// State of the server of SMB.
    state: Option<tempfile::TempDir>,
    /// Addresses of NFS and MOUNT.
    pub nfs: Option<SocketAddr>,
    pub mount: Option<SocketAddr>,
    /// Path of the export, or URI of the device.
    pub path: String,
}

impl Server {
    /// Makes the storage and starts the server.
    pub fn start(home: &Home, contender: Contender) -> Result<Server, JudgeError> {
        let name = format!("{contender:?}").to_lowercase();
        // Weir's pool and xfs get room for the random file and for copies on write.
        let is_device = matches!(contender, Contender::Nbdkit | Contender::QemuNbd | Contender::Tgt);
        let image = home.image(&name, if is_device { home.mib } else { home.mib * 4 })?;
        let empty = Server {
            contender,
            image,
            running: None,
            rpcbind: None,
            looped: None,
            smb: None,
            state: None,
            nfs: None,
            mount: None,
            path: String::new(),
        };
        let mut server = empty;
        match contender {
            Contender::WeirFiles | Contender::WeirNbd | Contender::WeirIscsi => server.make_pool(home.mib)?,
            Contender::Ganesha | Contender::Smbd => server.make_xfs()?,
            Contender::WeirSmb => {
                server.weir(&["zpool", "create", "-f", SMB_POOL, &server.image.display().to_string()])?
            }
            Contender::Nbdkit | Contender::QemuNbd | Contender::Tgt => {}
        }
        server.launch()?;
        Ok(server)
    }

    /// Processor time of the server's processes so far, in seconds, and their number.
    pub fn processes(&self) -> (f64, usize) {
        let process = self.running.as_ref().map(Running::id).or(self.smb.as_ref().map(SmbServer::process_id));
        process.map_or((0.0, 0), process_tree)
    }

    /// Processor time since [`Server::processes`] returned `before`. A process that served one connection may still be
    /// ending: its time counts once it has been waited for.
    pub fn cpu_seconds_since(&self, before: (f64, usize)) -> f64 {
        let until = Instant::now() + ENDS_WITHIN;
        loop {
            let (seconds, count) = self.processes();
            if count <= before.1 || Instant::now() > until {
                return seconds - before.0;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the processes that started the server, or tried whether it answers, have ended.
    fn settle(&self) {
        let until = Instant::now() + ENDS_WITHIN;
        let mut count = self.processes().1;
        let mut since = Instant::now();
        while since.elapsed() < SETTLED_AFTER && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.processes().1;
            if now != count {
                (count, since) = (now, Instant::now());
            }
        }
    }

    /// The server of SMB.
    ///
    /// # Errors
    /// If this contender is another one.
    pub fn smb(&self) -> Result<&SmbServer, JudgeError> {
        let none = || JudgeError::Missing { what: format!("{} serves no SMB", self.contender.name()) };
        self.smb.as_ref().ok_or_else(none)
    }

    /// The file that smbclient puts.
    pub fn smb_source(&self) -> PathBuf {
        self.folder().join("source")
    }

    /// Ends the server, empties the page cache, and starts the server again.
    pub fn restart_cold(&mut self) -> Result<(), JudgeError> {
        self.running.take().map_or(Ok(()), Running::stop)?;
        if let Some(looped) = self.looped.as_mut() {
            looped.remount()?;
        }
        rustix::fs::sync();
        let caches = Path::new("/proc/sys/vm/drop_caches");
        std::fs::write(caches, "3").map_err(io_error(caches))?;
        self.launch()
    }

    /// Ends the server, and removes its storage.
    pub fn stop(mut self) -> Result<(), JudgeError> {
        if self.contender == Contender::Tgt {
            // It does not end on SIGTERM while it has targets.
            drop(self.running.take());
        }
        self.running.take().map_or(Ok(()), Running::stop)?;
        self.smb.take().map_or(Ok(()), SmbServer::stop)?;
        drop(self.rpcbind.take());
        drop(self.looped.take());
        self.image.parent().map_or(Ok(()), |folder| std::fs::remove_dir_all(folder).map_err(io_error(folder)))
    }

    fn folder(&self) -> &Path {
        self.image.parent().unwrap_or(Path::new("/"))
    }

    fn weir(&self, arguments: &[&str]) -> Result<(), JudgeError> {
        succeeded(Command::new(weir()?).env("WEIR_POOL_DIRS", self.folder()).args(arguments)).map(drop)
    }

    fn make_pool(&self, mib: u64) -> Result<(), JudgeError> {
        self.weir(&["zpool", "create", "-f", POOL, &self.image.display().to_string()])?;
        if self.contender == Contender::WeirIscsi {
            // The client writes one byte again and again, and its peer compresses nothing.
            let size = format!("{mib}M");
            let volume = format!("{POOL}/{VOLUME}");
            return self.weir(&["zfs", "create", "-V", &size, "-o", "compression=off", &volume]);
        }
        if self.contender == Contender::WeirNbd {
            return self.weir(&["zfs", "create", "-V", &format!("{mib}M"), &format!("{POOL}/{VOLUME}")]);
        }
        self.weir(&["zfs", "create", &format!("{POOL}/{SHARE}")])?;
        self.weir(&["zfs", "create", "-o", "recordsize=4K", &format!("{POOL}/{RANDOM_SHARE}")])
    }

    fn make_xfs(&mut self) -> Result<(), JudgeError> {
        let looped = Looped::new(&self.image, &["mkfs.xfs", "-q", "-f"])?;
        for share in [SHARE, RANDOM_SHARE] {
            let folder = looped.path().join(share);
            std::fs::create_dir(&folder).map_err(io_error(&folder))?;
        }
        self.looped = Some(looped);
        Ok(())
    }

    fn launch(&mut self) -> Result<(), JudgeError> {
        match self.contender {
            Contender::WeirFiles | Contender::WeirNbd | Contender::WeirIscsi => self.launch_weir(),
            Contender::Ganesha => self.launch_ganesha(),
            Contender::Tgt => self.launch_tgt(),
            Contender::WeirSmb => self.launch_smb(),
            Contender::Smbd => self.launch_smbd(),
            Contender::Nbdkit => {
                let image = self.image.display().to_string();
                let options = ["-f", "-i", "127.0.0.1", "-p", "10810", "file", &image, "cache=none"];
                self.launch_nbd("nbdkit", &options)
            }
            Contender::QemuNbd => {
                let image = self.image.display().to_string();
                let options =
                    ["-t", "-b", "127.0.0.1", "-p", "10810", "-f", "raw", "-e", "16", "--cache=none", "--aio=native"];
                self.launch_nbd("qemu-nbd", &[&options[..], &[&image]].concat())
            }
        }
    }

    fn launch_weir(&mut self) -> Result<(), JudgeError> {
        let mut command = Command::new(weir()?);
        command.args(["serve", "--no-root-squash", "--arc-max", ARC, "-d"]).arg(self.folder());
        if self.contender == Contender::WeirIscsi {
            command.args(["--iscsi-port", "3260"]);
        }
        command.arg(POOL);
        let mut running = Running::start(&mut command)?;
        let lines = running.wait_for(|line| line.trim() == "ready")?;
        self.running = Some(running);
        let nfs = SocketAddr::from(([127, 0, 0, 1], 2049));
        (self.nfs, self.mount) = (Some(nfs), Some(nfs));
        self.path = match self.contender {
            Contender::WeirNbd => format!("nbd://127.0.0.1:10809/{POOL}/{VOLUME}"),
            Contender::WeirIscsi => {
                let units = lines.iter().filter_map(|line| line.strip_prefix("qemu-img info ")?.split(' ').next());
                let unit = units.map(str::to_string).find(|unit| unit.starts_with("iscsi://"));
                unit.ok_or_else(|| JudgeError::Missing { what: "weir serve printed no line for iSCSI".to_string() })?
            }
            _ => format!("/{POOL}"),
        };
        Ok(())
    }

    fn launch_ganesha(&mut self) -> Result<(), JudgeError> {
        let missing = |what: &str| JudgeError::Missing { what: format!("{what} is not installed") };
        if self.rpcbind.is_none() {
            let rpcbind = Running::start(Command::new("rpcbind").args(["-f", "-w"])).map_err(|_| missing("rpcbind"))?;
            self.rpcbind = Some(rpcbind);
            answers(SocketAddr::from(([127, 0, 0, 1], 111)))?;
        }
        let export = self.looped.as_ref().map(|looped| looped.path().display().to_string()).unwrap_or_default();
        let text = format!(
            "NFS_CORE_PARAM {{ NFS_Port = 20490; MNT_Port = 20491; Enable_NLM = false; Enable_RQUOTA = false; \
             NFS_Protocols = 3; Plugins_Dir = \"{}\"; }}\n\
             EXPORT {{ Export_Id = 1; Path = {export}; Pseudo = /x; Protocols = 3; Access_Type = RW; \
             Squash = No_Root_Squash; SecType = sys; Transports = TCP; FSAL {{ Name = VFS; }} }}\n",
            ganesha_plugins().ok_or_else(|| missing("nfs-ganesha-vfs"))?.display(),
        );
        let file = |name: &str| self.folder().join(name);
        std::fs::write(file("ganesha.conf"), text).map_err(io_error(&file("ganesha.conf")))?;
        let mut command = Command::new("ganesha.nfsd");
        command.arg("-F").arg("-f").arg(file("ganesha.conf")).arg("-L").arg(file("log")).arg("-p").arg(file("pid"));
        self.running = Some(Running::start(&mut command).map_err(|_| missing("nfs-ganesha"))?);
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        (self.nfs, self.mount) = (Some(address(20490)), Some(address(20491)));
        self.path = export;
        answers(address(20491))?;
        answers(address(20490))
    }

    fn launch_nbd(&mut self, program: &str, options: &[&str]) -> Result<(), JudgeError> {
        let missing = |_| JudgeError::Missing { what: format!("{program} is not installed") };
        self.running = Some(Running::start(Command::new(program).args(options)).map_err(missing)?);
        self.path = "nbd://127.0.0.1:10810/".to_string();
        answers(SocketAddr::from(([127, 0, 0, 1], 10810)))
    }

    fn launch_tgt(&mut self) -> Result<(), JudgeError> {
        const TARGET: &str = "iqn.2000-01.org.example:tgt";
        let missing = |_| JudgeError::Missing { what: "tgt is not installed".to_string() };
        // Its socket is the only one of this run: others may run on the machine.
        let socket = self.folder().join("tgt");
        let mut command = Command::new("tgtd");
        command.args(["-f", "--iscsi", "portal=127.0.0.1:3261"]).env("TGT_IPC_SOCKET", &socket);
        self.running = Some(Running::start(&mut command).map_err(missing)?);
        answers(SocketAddr::from(([127, 0, 0, 1], 3261)))?;
        let image = self.image.display().to_string();
        let target = ["--mode", "target", "--tid", "1"];
        for words in [
            [&target[..], &["--op", "new", "--targetname", TARGET]].concat(),
            vec!["--mode", "logicalunit", "--tid", "1", "--op", "new", "--lun", "1", "--backing-store", &image],
            [&target[..], &["--op", "bind", "--initiator-address", "ALL"]].concat(),
        ] {
            let mut command = Command::new("tgtadm");
            succeeded(command.env("TGT_IPC_SOCKET", &socket).args(["--lld", "iscsi"]).args(words))?;
        }
        self.path = format!("iscsi://127.0.0.1:3261/{TARGET}/1");
        Ok(())
    }

    fn launch_smb(&mut self) -> Result<(), JudgeError> {
        let state = state_folder()?;
        let server = SmbServer::weir(&state.path().join("weir"), self.folder(), SMB_POOL, &["--arc-max", ARC])?;
        server.open_to_all()?;
        (self.smb, self.state) = (Some(server), Some(state));
        self.settle();
        Ok(())
    }

    /// Starts smbd with the configuration that Weir makes, which runs for a moment with a pool of its own.
    fn launch_smbd(&mut self) -> Result<(), JudgeError> {
        let state = state_folder()?;
        let devices = state.path().join("devices");
        let image = devices.join("image");
        let made = std::fs::create_dir(&devices)
            .and_then(|()| std::fs::File::create(&image))
            .and_then(|file| file.set_len(256 << 20));
        made.map_err(io_error(&image))?;
        let mut create = Command::new(weir()?);
        create.env("WEIR_POOL_DIRS", &devices).args(["zpool", "create", SMB_POOL]).arg(&image);
        succeeded(&mut create)?;
        let weir = SmbServer::weir(&state.path().join("weir"), &devices, SMB_POOL, &[])?;
        let xfs = self.looped.as_ref().map_or(state.path(), Looped::path);
        let server = SmbServer::other(&weir, &xfs.join("smb"));
        weir.stop()?;
        (self.smb, self.state) = (Some(server?), Some(state));
        self.settle();
        Ok(())
    }
}

/// A folder for the state of servers that users may pass: smbd enters a share as its user.
fn state_folder() -> Result<tempfile::TempDir, JudgeError> {
    let folder = tempfile::tempdir().map_err(|source| JudgeError::Io { what: "folder".to_string(), source })?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(folder.path(), mode).map_err(io_error(folder.path()))?;
    Ok(folder)
}

/// Folder of nfs-ganesha's plugin for local file systems.
fn ganesha_plugins() -> Option<PathBuf> {
    let architectures = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path().join("ganesha"));
    architectures.into_iter().find(|folder| folder.join("libfsalvfs.so").is_file())
}

/// Waits until a port accepts connections.
fn answers(address: SocketAddr) -> Result<(), JudgeError> {
    let until = Instant::now() + STARTS_WITHIN;
    loop {
        match std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
            Ok(_) => return Ok(()),
            Err(source) if Instant::now() > until => {
                return Err(JudgeError::Io { what: format!("a server on {address}"), source });
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
