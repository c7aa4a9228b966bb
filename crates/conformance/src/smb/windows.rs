//! What Windows expects of a share: ACLs that decide, DOS attributes, streams, server-side copies, and names without regard
//! to case.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use weir_files::{Ace, AceWho, Acl, acl_xdr, masks};

use super::server::Server;
use super::{DEVICE_BYTES, Verdict, torture, verdict};
use crate::JudgeError;
use crate::kill::failed;
use crate::process::weir;
use crate::zdb::output;

/// Permissions that ZFS calls full.
const FULL: u32 = 0x1f_01ff;
const SECRET: &str = "the contents";

/// Gives a file of root an ACL, and returns the permission bits of its mode afterwards.
fn with_acl(path: &Path, entries: Vec<Ace>) -> Result<u32, JudgeError> {
    std::fs::write(path, SECRET).map_err(|e| failed("a file", e))?;
    let acl = acl_xdr::encode(&Acl { entries, trivial: false, flags: 0 });
    xattr::set(path, "system.nfs4_acl_xdr", &acl).map_err(|e| failed("an ACL", e))?;
    Ok(path.metadata().map_err(|e| failed("a mode", e))?.mode() & 0o777)
}

/// Whether a process with the user's identity reads a file of the mount, without smbd.
fn reads_as(uid: u32, path: &Path) -> Result<bool, JudgeError> {
    let mut command = Command::new("cat");
    command.arg(path).uid(uid).gid(uid).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.status().map_err(|e| failed("cat", e))?.success())
}

/// An ACL denies a user what the mode permits to all, and permits what the mode denies to all.
pub fn acls_decide(server: &Server, folder: &Path) -> Verdict {
    let mount = server.directory.clone();
    let uid = mount.join("v").metadata().map_err(|e| failed("the user's file", e))?.uid();
    let user = AceWho::User(uid.into());
    let ace = |kind, mask, who| Ace { kind, flags: 0, mask, who };
    let denied = vec![ace(1, masks::READ_DATA, user), ace(0, FULL, AceWho::Everyone)];
    let permitted = vec![ace(0, FULL, user), ace(1, masks::READ_DATA | masks::WRITE_DATA, AceWho::Everyone)];
    let mut wrong = Vec::new();
    let got = folder.join("decided");
    for (name, entries, is_readable) in [("denied", denied, false), ("permitted", permitted, true)] {
        let mode = with_acl(&mount.join(name), entries)?;
        if (mode & 0o004 != 0) == is_readable {
            wrong.push(format!("{name}: the mode {mode:o} says the same as the ACL"));
        }
        let _ = std::fs::remove_file(&got);
        let said = server.client(&format!("get {name} {}", got.display()))?;
        if (std::fs::read_to_string(&got).ok().as_deref() == Some(SECRET)) != is_readable {
            wrong.push(format!("{name} over SMB: {said}"));
        }
        if !is_readable && !said.contains("NT_STATUS_ACCESS_DENIED") {
            wrong.push(format!("{name} is refused for another reason: {said}"));
        }
        if reads_as(uid, &mount.join(name))? != is_readable {
            wrong.push(format!("{name} on the mount, without smbd, as user {uid}"));
        }
    }
    verdict("an entry denies what the mode permits, and permits what it denies".into(), wrong)
}

/// DOS attributes and streams are kept, and smbd copies on the server.
pub fn attributes_streams_copies(server: &Server, folder: &Path) -> Verdict {
    let mut wrong = Vec::new();
    let mut demand = |said: String, parts: &[&str]| {
        let missing = parts.iter().filter(|part| !said.contains(*part));
        wrong.extend(missing.map(|part| format!("{part} is missing in: {said}")));
    };
    let text = folder.join("stream");
    std::fs::write(&text, "seven b").map_err(|e| failed("a file", e))?;
    let at = text.display();
    demand(
        server.client(&format!("put {at} w; setmode w +hsr; put {at} s; put {at} s:second; allinfo s"))?,
        &[":second:$DATA], 7 bytes"],
    );
    demand(server.client("allinfo w")?, &["attributes: RHSA"]);
    let got = folder.join("got");
    let _ = std::fs::remove_file(&got);
    server.client(&format!("get s:second {}", got.display()))?;
    demand(std::fs::read_to_string(&got).unwrap_or_default(), &["seven b"]);
    let copied = folder.join("copied");
    let _ = std::fs::remove_file(&copied);
    let said = server.client(&format!("scopy d\\f d\\g; get d\\g {}", copied.display()))?;
    let same =
        std::fs::read(folder.join("sent")).ok().filter(|sent| std::fs::read(&copied).ok().as_ref() == Some(sent));
    demand(if same.is_some() { "the same bytes".into() } else { said }, &["the same bytes"]);
    verdict("attributes RHSA, a stream of 7 bytes, a copy of 8000003 bytes".into(), wrong)
}

/// A pool whose names have no case, or any; smbd need not search its directories. A test that makes 2,000 files shows it, if
/// `many` files are wanted.
pub fn caseless(folder: &Path, pool: &str, sensitivity: &str, many: bool) -> Verdict {
    let server = new_server(folder, pool, &format!("casesensitivity={sensitivity}"))?;
    server.open_to_all()?;
    let found = caseless_names(&server, folder, many);
    server.stop()?;
    found
}

/// smbtorture opens files that its user created with FILE_ALL_ACCESS. The share's root has no inheritable ACL entries, as after
/// `zfs create -o sharesmb=on`.
pub fn owner_has_all_rights(folder: &Path) -> Verdict {
    let server = new_server(folder, "plain", "atime=on")?;
    let everyone = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
    std::fs::set_permissions(&server.directory, everyone).map_err(|e| failed("chmod", e))?;
    let mut wrong = Vec::new();
    for name in ["smb2.lock.rw-exclusive", "smb2.lock.auto-unlock"] {
        if let Err(why) = torture::seconds_of(&server, name, folder)? {
            wrong.push(format!("{name}: {why}"));
        }
    }
    server.stop()?;
    verdict("the owner opens files with all rights".into(), wrong)
}

/// Serves a new pool of one device, whose root has this property.
fn new_server(folder: &Path, pool: &str, property: &str) -> Result<Server, JudgeError> {
    let devices = folder.join(format!("{pool}-devices"));
    std::fs::create_dir(&devices).map_err(|e| failed("a folder", e))?;
    let device = devices.join("d0");
    std::fs::File::create(&device).and_then(|file| file.set_len(DEVICE_BYTES)).map_err(|e| failed("a device", e))?;
    let mut command = Command::new(weir()?);
    command.env("WEIR_POOL_DIRS", &devices).args(["zpool", "create", "-O", property, pool]).arg(&device);
    if !output(&mut command)?.status.success() {
        return Err(failed("weir zpool create", pool));
    }
    Server::weir(&folder.join(format!("{pool}-weir")), &devices, pool, &[])
}

fn caseless_names(server: &Server, folder: &Path, many: bool) -> Verdict {
    let text = folder.join("named");
    std::fs::write(&text, SECRET).map_err(|e| failed("a file", e))?;
    let got = folder.join("named-got");
    let _ = std::fs::remove_file(&got);
    let at = text.display();
    let said = server
        .client(&format!("put {at} Some.TXT; put {at} sOME.txt; ls *.txt; ls s*; get SOME.TXT {}", got.display()))?;
    let mut wrong = Vec::new();
    if said.matches("  Some.TXT ").count() != 2 {
        wrong.push(format!("patterns of another case do not find the only file: {said}"));
    }
    if std::fs::read_to_string(&got).ok().as_deref() != Some(SECRET) {
        wrong.push(format!("a name of another case does not find the file: {said}"));
    }
    if !server.configuration()?.contains("glusterfs_fuse") {
        return Err(JudgeError::Missing { what: "Samba's module glusterfs_fuse is not installed".into() });
    }
    if !many {
        return verdict("names of another case find the only file".into(), wrong);
    }
    let large = torture::seconds_of(server, "smb2.dir.large-files", folder)?;
    match large {
        Ok(seconds) => verdict(format!("2000 files made, listed and removed in {seconds:.0} s"), wrong),
        Err(why) => {
            wrong.push(format!("smb2.dir.large-files: {why}"));
            Ok(Err(wrong))
        }
    }
}
