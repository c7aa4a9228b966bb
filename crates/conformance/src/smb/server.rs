//! A pool served over SMB by `weir serve --smb`, and smbd over this machine's own file system beside it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use weir_files::{AceWho, Acl, acl_xdr};
use weir_format::acl::Ace;

use crate::JudgeError;
use crate::kill::failed;
use crate::process::{Running, weir};
use crate::suites::program;
use crate::zdb::output;

/// The user of the judges.
pub const USER: &str = "weirjudge";
pub const PASSWORD: &str = "Judge.7890";
/// The share of both servers.
pub const SHARE: &str = "judged";

/// The only port that smbcacls knows.
pub const SMBCACLS_PORT: u16 = 445;

fn is_free(port: u16) -> bool {
    std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// A running server.
pub struct Server {
    running: Running,
    /// Port on the loopback.
    pub port: u16,
    /// State and runtime directories of Weir, or everything of the other server.
    pub folder: PathBuf,
}

/// Makes a folder that users may pass but not list: smbd enters the share as its user.
fn passable(path: &Path) -> Result<(), JudgeError> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(path).map_err(|e| failed("a folder", e))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711)).map_err(|e| failed("a folder's mode", e))
}

/// The program `weir` with the directories of this run.
fn weir_in(folder: &Path) -> Result<Command, JudgeError> {
    let mut command = Command::new(weir()?);
    command.env("WEIR_STATE_DIR", folder.join("state")).env("WEIR_RUNTIME_DIR", folder.join("run"));
    Ok(command)
}

impl Server {
    /// Serves a pool for the user of the judges.
    ///
    /// # Errors
    /// If Samba or FUSE is not here, or Weir does not get ready.
    pub fn weir(folder: &Path, devices: &Path, pool: &str) -> Result<Server, JudgeError> {
        program("WEIR_SMBD", "smbd")
            .or_else(|missing| if Path::new("/usr/sbin/smbd").is_file() { Ok(PathBuf::new()) } else { Err(missing) })?;
        if !Path::new("/dev/fuse").exists() {
            return Err(JudgeError::Missing { what: "no /dev/fuse on this machine".into() });
        }
        passable(folder)?;
        passable(&folder.join("run"))?;
        passable(&folder.join("state"))?;
        let mut adding = weir_in(folder)?
            .args(["smb", "user", "add", USER])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| failed("weir smb user add", e))?;
        if let Some(mut input) = adding.stdin.take() {
            writeln!(input, "{PASSWORD}\n{PASSWORD}").map_err(|e| failed("a password", e))?;
        }
        if !adding.wait().map_err(|e| failed("weir smb user add", e))?.success() {
            return Err(failed("weir smb user add", "it failed"));
        }
        let port = if is_free(SMBCACLS_PORT) { SMBCACLS_PORT } else { 0 };
        let mut command = weir_in(folder)?;
        command
            .args(["serve", "--smb", "--smb-port", &port.to_string(), "--nfs-port", "0", "--nbd-port", "0", "-d"])
            .arg(devices);
        let mut running = Running::start(command.arg(pool))?;
        let lines = running.wait_for(|line| line.trim() == "ready")?;
        let port = lines.iter().find_map(|line| line.strip_prefix("smbclient -p ")?.split(' ').next()?.parse().ok());
        let port = port.ok_or_else(|| failed("weir serve --smb", "it printed no smbclient line"))?;
        Ok(Server { running, port, folder: folder.to_owned() })
    }

    /// The configuration that Weir wrote.
    fn configuration(&self) -> Result<String, JudgeError> {
        let path = self.runtime()?.join("smb.conf");
        std::fs::read_to_string(&path).map_err(|e| failed("smb.conf", e))
    }

    /// Runtime directory of Weir's server.
    fn runtime(&self) -> Result<PathBuf, JudgeError> {
        let found = std::fs::read_dir(self.folder.join("run")).map_err(|e| failed("the runtime directory", e))?;
        let mut found = found.flatten().map(|entry| entry.path()).filter(|path| path.join("pid/smbd.pid").is_file());
        found.next().ok_or_else(|| failed("the runtime directory", "no smbd runs there"))
    }

    /// Gives the share the ACL of [`open_to_all`].
    ///
    /// # Errors
    /// If no smbd runs, or the ACL cannot be set.
    pub fn open_to_all(&self) -> Result<(), JudgeError> {
        open_to_all(&self.runtime()?.join("mnt").join(SHARE), "system.nfs4_acl_xdr")
    }

    /// Starts the same smbd with the same options over a folder of this machine. ACLs are an attribute that smbd alone
    /// evaluates.
    ///
    /// # Errors
    /// If it does not start.
    pub fn other(weir: &Server, folder: &Path) -> Result<Server, JudgeError> {
        passable(folder)?;
        let share = folder.join("share");
        std::fs::create_dir_all(&share).map_err(|e| failed("a share", e))?;
        open_to_all(&share, OTHER_ACL)?;
        for name in ["lock", "state", "cache", "pid", "ncalrpc", "log", "private"] {
            std::fs::create_dir_all(folder.join(name)).map_err(|e| failed("a folder", e))?;
        }
        let port = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let port = port.map_err(|e| failed("a port", e))?.port();
        let text = other_configuration(&weir.configuration()?, &weir.runtime()?, folder, &share, port);
        let conf = folder.join("smb.conf");
        std::fs::write(&conf, text).map_err(|e| failed("smb.conf", e))?;
        let smbd = program("WEIR_SMBD", "smbd").unwrap_or_else(|_| PathBuf::from("/usr/sbin/smbd"));
        let state = weir.folder.join("state/smb");
        let mut command = Command::new(smbd);
        // It sends signals to its process group.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.args(["--foreground", "--no-process-group", "--debug-stdout"]);
        command.arg(format!("--configfile={}", conf.display()));
        let wrapper = ["/usr/lib/x86_64-linux-gnu/libnss_wrapper.so", "/usr/lib64/libnss_wrapper.so"];
        if let Some(wrapper) = wrapper.iter().find(|path| Path::new(path).is_file()) {
            command.env("LD_PRELOAD", wrapper);
            command.env("NSS_WRAPPER_PASSWD", state.join("passwd")).env("NSS_WRAPPER_GROUP", state.join("group"));
        }
        let mut running = Running::start(&mut command)?;
        running.wait_for(|line| line.contains("smbd version"))?;
        let server = Server { running, port, folder: folder.to_owned() };
        for _ in 0..100 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(server);
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Err(failed("smbd", "it does not listen"))
    }

    /// Runs `smbclient` with these commands; returns its output, also that of errors.
    ///
    /// # Errors
    /// If it is not installed.
    pub fn client(&self, commands: &str) -> Result<String, JudgeError> {
        let mut command = Command::new(program("WEIR_SMBCLIENT", "smbclient")?);
        command.args(["-p", &self.port.to_string(), "-U", &format!("{USER}%{PASSWORD}"), "-c", commands]);
        command.arg(format!("//127.0.0.1/{SHARE}"));
        let output = output(&mut command)?;
        Ok(String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned())
    }

    /// Runs `weir smb` with these words in the server's directories; returns its standard output.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn weir_smb(&self, words: &[&str]) -> Result<String, JudgeError> {
        let output = output(weir_in(&self.folder)?.arg("smb").args(words))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Ends the server.
    ///
    /// # Errors
    /// If it does not end when asked.
    pub fn stop(self) -> Result<(), JudgeError> {
        self.running.stop()
    }

    /// Kills the server's smbd; Weir starts it again.
    ///
    /// # Errors
    /// If there is none.
    pub fn kill_smbd(&self) -> Result<(), JudgeError> {
        let text =
            std::fs::read_to_string(self.runtime()?.join("pid/smbd.pid")).map_err(|e| failed("a pid file", e))?;
        let pid = text.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or_else(|| failed("a pid file", text))?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).map_err(|e| failed("kill", e))
    }
}

/// The ACL on the other file system: any user may set attributes of this namespace.
const OTHER_ACL: &str = "user.nfs4_acl_xdr";

/// Gives a share's directory an ACL that permits everyone everything and is inherited, as shares have on Windows.
fn open_to_all(folder: &Path, attribute: &str) -> Result<(), JudgeError> {
    let inherited = Ace::FILE_INHERIT | Ace::DIRECTORY_INHERIT;
    let entry = |who, flags| weir_files::Ace { kind: Ace::ALLOW, flags: inherited | flags, mask: 0x1f_01ff, who };
    let group = entry(AceWho::OwningGroup, Ace::IDENTIFIER_GROUP);
    let entries = vec![entry(AceWho::Owner, 0), group, entry(AceWho::Everyone, 0)];
    let acl = acl_xdr::encode(&Acl { entries, trivial: false, flags: 0 });
    std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .and_then(|()| xattr::set(folder, attribute, &acl))
        .map_err(|e| failed("the ACL of a share", e))
}

/// Weir's configuration with other directories, and with ACLs in an attribute of the other file system.
fn other_configuration(text: &str, runtime: &Path, folder: &Path, share: &Path, port: u16) -> String {
    let text = text.replace(&runtime.display().to_string(), &folder.display().to_string());
    let mut out = String::new();
    for line in text.lines() {
        let name = line.split('=').next().unwrap_or_default().trim();
        let line = match name {
            _ if name.starts_with("shadow:") => continue,
            "nfs4acl_xattr:xattr_name" => format!("\tnfs4acl_xattr:xattr_name = {OTHER_ACL}"),
            "smb ports" => format!("\tsmb ports = {port}"),
            "path" => format!("\tpath = {}", share.display()),
            "vfs objects" => line.replace("shadow_copy2 ", ""),
            _ => line.to_owned(),
        };
        out.push_str(&line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_configuration_differs_in_places_and_acls_alone() {
        let text = "[global]\n\tsmb ports = 1\n\tlock directory = /r/lock\n\tpassdb backend = tdbsam:/s/p\n[judged]\n\
                    \tpath = /r/mnt/p\n\tvfs objects = fruit shadow_copy2 nfs4acl_xattr\n\tshadow:sort = desc\n\tnfs4acl_xattr:xattr_name = x\n";
        let other = other_configuration(text, Path::new("/r"), Path::new("/o"), Path::new("/o/share"), 7);
        let wanted = "[global]\n\tsmb ports = 7\n\tlock directory = /o/lock\n\tpassdb backend = tdbsam:/s/p\n[judged]\n\
                      \tpath = /o/share\n\tvfs objects = fruit nfs4acl_xattr\n\tnfs4acl_xattr:xattr_name = user.nfs4_acl_xdr\n";
        assert_eq!(other, wanted);
    }
}
