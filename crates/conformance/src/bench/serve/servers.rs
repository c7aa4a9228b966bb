//! The contenders: servers, each on new storage.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::super::mounted::Looped;
use super::super::succeeded;
use crate::JudgeError;
use crate::process::{Running, weir};

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
}

impl Contender {
    /// All, in the order in which they are measured.
    pub const ALL: [Contender; 5] =
        [Contender::WeirFiles, Contender::Ganesha, Contender::WeirNbd, Contender::Nbdkit, Contender::QemuNbd];

    /// Name in a row.
    pub fn name(self) -> &'static str {
        match self {
            Contender::WeirFiles | Contender::WeirNbd => "Weir",
            Contender::Ganesha => "nfs-ganesha",
            Contender::Nbdkit => "nbdkit",
            Contender::QemuNbd => "qemu-nbd",
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
        let is_device = matches!(contender, Contender::Nbdkit | Contender::QemuNbd);
        let image = home.image(&name, if is_device { home.mib } else { home.mib * 4 })?;
        let empty = Server {
            contender,
            image,
            running: None,
            rpcbind: None,
            looped: None,
            nfs: None,
            mount: None,
            path: String::new(),
        };
        let mut server = empty;
        match contender {
            Contender::WeirFiles | Contender::WeirNbd => server.make_pool(home.mib)?,
            Contender::Ganesha => server.make_xfs()?,
            Contender::Nbdkit | Contender::QemuNbd => {}
        }
        server.launch()?;
        Ok(server)
    }

    /// Process of the server.
    pub fn process_id(&self) -> u32 {
        self.running.as_ref().map_or(0, Running::id)
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
        self.running.take().map_or(Ok(()), Running::stop)?;
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
            Contender::WeirFiles | Contender::WeirNbd => self.launch_weir(),
            Contender::Ganesha => self.launch_ganesha(),
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
        command.args(["serve", "--no-root-squash", "--arc-max", ARC, "-d"]).arg(self.folder()).arg(POOL);
        let mut running = Running::start(&mut command)?;
        running.wait_for(|line| line.trim() == "ready")?;
        self.running = Some(running);
        let nfs = SocketAddr::from(([127, 0, 0, 1], 2049));
        (self.nfs, self.mount) = (Some(nfs), Some(nfs));
        self.path = match self.contender {
            Contender::WeirNbd => format!("nbd://127.0.0.1:10809/{POOL}/{VOLUME}"),
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
