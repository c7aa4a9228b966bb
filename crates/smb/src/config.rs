//! smb.conf, rendered from shares. Each line that is not Samba's default has its reason here.

use crate::directories::Directories;
use crate::error::SmbError;
use crate::programs::Version;
use crate::share::{CaseSensitivity, Share, check_value};
use std::fmt::Write;
use std::net::IpAddr;

/// First version that can divide the value of a stream among several extended attributes.
const DIVIDED_STREAMS: Version = Version { major: 4, minor: 20, patch: 0 };

/// Values of the section `global` that are not fixed.
#[derive(Clone, Debug)]
pub struct Global<'a> {
    /// Address that the server listens on.
    pub listen: IpAddr,
    /// Port.
    pub port: u16,
    /// Account whose identity guests have.
    pub guest_account: &'a str,
    /// State and runtime directory.
    pub directories: &'a Directories,
    /// Version of the server.
    pub version: Version,
    /// Names of the VFS modules that are installed.
    pub modules: &'a [String],
}

/// Renders smb.conf.
///
/// # Errors
/// If a value cannot be written into it, or two shares have the same name.
pub fn render(global: &Global<'_>, shares: &[Share]) -> Result<String, SmbError> {
    let mut out = String::from("# Written by weir, which replaces it when a share changes.\n[global]\n");
    let guests = shares.iter().any(|share| share.guest);
    for (name, value) in global_lines(global, guests)? {
        line(&mut out, name, &value);
    }
    let mut names = std::collections::BTreeSet::new();
    for share in shares {
        share.check()?;
        if !names.insert(share.name.to_lowercase()) {
            let why = "is the name of two shares";
            return Err(SmbError::Value { what: "share", value: share.name.clone(), why });
        }
        // Writing to a string does not fail.
        let _ = writeln!(out, "[{}]", share.name);
        for (name, value) in share_lines(global, share) {
            line(&mut out, name, &value);
        }
    }
    Ok(out)
}

fn line(out: &mut String, name: &str, value: &str) {
    debug_assert!(!value.contains('\n'), "a value is one line");
    let _ = writeln!(out, "\t{name} = {value}");
}

type Lines = Vec<(&'static str, String)>;

fn global_lines(global: &Global<'_>, guests: bool) -> Result<Lines, SmbError> {
    let in_runtime = |name: &str| global.directories.runtime.join(name).display().to_string();
    let private = global.directories.state.join("private").display().to_string();
    check_value("directory", &private)?;
    check_value("directory", &in_runtime("lock"))?;
    let mut lines: Lines = vec![
        ("server role", "standalone server".into()),
        // SMB 1 is refused.
        ("server min protocol", "SMB2_10".into()),
        ("smb ports", global.port.to_string()),
        ("disable netbios", "yes".into()),
        ("ntlm auth", "ntlmv2-only".into()),
        // Everything that smbd writes.
        ("passdb backend", format!("tdbsam:{}", global.directories.passdb().display())),
        ("private dir", private),
        ("lock directory", in_runtime("lock")),
        ("state directory", in_runtime("state")),
        ("cache directory", in_runtime("cache")),
        ("pid directory", in_runtime("pid")),
        ("ncalrpc dir", in_runtime("ncalrpc")),
        // To standard output, from which Weir takes it into its own log.
        // The audit log names the account of each logon.
        ("log level", "1 auth_json_audit:3".into()),
        // Beside it, smbd makes a directory for core dumps.
        ("log file", in_runtime("log/smbd.log")),
        ("guest account", global.guest_account.to_owned()),
        ("map to guest", if guests { "Bad User" } else { "Never" }.into()),
        // No printers, and no shares that users define.
        ("load printers", "no".into()),
        ("printing", "bsd".into()),
        ("printcap name", "/dev/null".into()),
        ("disable spoolss", "yes".into()),
        ("usershare max shares", "0".into()),
        // These three together, or smbd grants no durable handles (smb.conf(5)), without which macOS makes no backups. In
        // return, locks are not shared with other protocols.
        ("kernel oplocks", "no".into()),
        ("kernel share modes", "no".into()),
        ("posix locking", "no".into()),
        // Short names such as `LONGNA~1` are for MS-DOS.
        ("mangled names", "no".into()),
    ];
    if !global.listen.is_unspecified() {
        lines.push(("interfaces", global.listen.to_string()));
        lines.push(("bind interfaces only", "yes".into()));
    }
    if has(global, "fruit") {
        lines.push(("fruit:aapl", "yes".into()));
        // Else each listing opens every file.
        lines.push(("fruit:convert_adouble", "no".into()));
    }
    Ok(lines)
}

fn has(global: &Global<'_>, module: &str) -> bool {
    global.modules.iter().any(|installed| installed == module)
}

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.into()
}

/// Hosts and users that may use a share, and whether lists show it.
fn access_lines(share: &Share) -> Lines {
    let mut lines = Lines::new();
    if !share.hosts_allow.is_empty() {
        lines.push(("hosts allow", share.hosts_allow.join(" ")));
        // Else this machine is always admitted.
        lines.push(("hosts deny", "ALL".into()));
    }
    if share.hidden {
        lines.push(("browseable", "no".into()));
    }
    if !share.users.is_empty() {
        lines.push(("valid users", share.users.join(" ")));
    }
    lines
}

fn share_lines(global: &Global<'_>, share: &Share) -> Lines {
    let path = share.path.display().to_string();
    let mut modules = Vec::new();
    let mut of_modules: Lines = Vec::new();
    let mut module = |name: &'static str, lines: &[(&'static str, &str)]| {
        if has(global, name) {
            modules.push(name);
            of_modules.extend(lines.iter().map(|(name, value)| (*name, (*value).to_owned())));
        }
    };
    let max = share.time_machine.and_then(|backups| backups.max_bytes).map(|bytes| bytes.to_string());
    let mut fruit = vec![("fruit:metadata", "stream"), ("fruit:resource", "stream")];
    fruit.extend(share.time_machine.map(|_| ("fruit:time machine", "yes")));
    fruit.extend(max.iter().map(|max| ("fruit:time machine max size", max.as_str())));
    module("catia", &[]);
    module("fruit", &fruit);
    // An extended attribute holds 64 KiB; with more than one, streams of up to 1 MiB fit.
    let divided = [("streams_xattr:max xattrs per stream", "16")];
    module("streams_xattr", if global.version >= DIVIDED_STREAMS { &divided } else { &[] });
    if share.snapshots {
        module(
            "shadow_copy2",
            &[
                // One mount has one device number: smbd would take the pool's root for the root of every dataset.
                ("shadow:mountpoint", path.as_str()),
                // Second names of all snapshots, by their time.
                ("shadow:snapdir", ".zfs/shadow"),
                // Datasets below the share have a `.zfs` of their own.
                ("shadow:snapdirseverywhere", "yes"),
                ("shadow:sort", "desc"),
                ("shadow:localtime", "no"),
                // A file has another inode number in each snapshot already.
                ("shadow:fixinodes", "no"),
            ],
        );
    }
    if share.nfs4_acls {
        module(
            "nfs4acl_xattr",
            &[
                ("nfs4acl_xattr:encoding", "xdr"),
                ("nfs4acl_xattr:xattr_name", "system.nfs4_acl_xdr"),
                ("nfs4acl_xattr:nfs4_id_numeric", "yes"),
                // Else smbd discards the ACL of files whose mode is not 0777 or 0666.
                ("nfs4acl_xattr:validate_mode", "no"),
                ("nfs4acl_xattr:version", "41"),
                ("nfs4:mode", "simple"),
            ],
        );
    }
    if share.case == CaseSensitivity::Insensitive {
        // The mount names the other spelling, so that smbd does not read whole directories for a missing name. With `case
        // sensitive = yes` it would not either, but then `*.txt` does not match `A.TXT`.
        module("glusterfs_fuse", &[]);
    }
    let mut lines: Lines = vec![
        ("path", path),
        ("read only", yes_no(share.read_only)),
        ("guest ok", yes_no(share.guest)),
        // Who may read a file may execute it: new files have no right to execute, and programs on a share would not start.
        ("acl allow execute always", "yes".into()),
        ("create mask", "0664".into()),
        ("directory mask", "0775".into()),
        ("ea support", "yes".into()),
        // DOS attributes are an extended attribute, not bits of the mode.
        ("store dos attributes", "yes".into()),
        ("map archive", "no".into()),
        ("map hidden", "no".into()),
        ("map system", "no".into()),
        ("map readonly", "no".into()),
    ];
    lines.extend(access_lines(share));
    lines.push(("vfs objects", modules.join(" ")));
    lines.extend(of_modules);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn rendered(shares: &[Share]) -> Result<String, SmbError> {
        let directories = Directories { state: PathBuf::from("/state"), runtime: PathBuf::from("/run/w") };
        let modules =
            ["catia", "fruit", "streams_xattr", "shadow_copy2", "nfs4acl_xattr", "glusterfs_fuse"].map(String::from);
        let version = Version { major: 4, minor: 17, patch: 12 };
        let listen = "127.0.0.1".parse().unwrap();
        let guest_account = "alice";
        let directories = &directories;
        render(&Global { listen, port: 4450, guest_account, directories, version, modules: &modules }, shares)
    }

    #[test]
    fn a_share_has_the_lines_that_its_type_demands() {
        let share = Share {
            name: "Back ups".into(),
            path: "/run/w/mnt/tank/b".into(),
            time_machine: Some(crate::TimeMachine { max_bytes: Some(1 << 30) }),
            case: CaseSensitivity::Insensitive,
            snapshots: true,
            nfs4_acls: true,
            hosts_allow: vec!["10.0.0.0/8".into(), "::1".into()],
            ..Share::default()
        };
        let text = rendered(&[share]).unwrap();
        for line in [
            "smb ports = 4450",
            "interfaces = 127.0.0.1",
            "map to guest = Never",
            "passdb backend = tdbsam:/state/private/passdb.tdb",
            "[Back ups]",
            "path = /run/w/mnt/tank/b",
            "read only = no",
            "hosts allow = 10.0.0.0/8 ::1",
            "vfs objects = catia fruit streams_xattr shadow_copy2 nfs4acl_xattr glusterfs_fuse",
            "fruit:time machine max size = 1073741824",
            "shadow:mountpoint = /run/w/mnt/tank/b",
            "nfs4acl_xattr:xattr_name = system.nfs4_acl_xdr",
        ] {
            assert!(text.lines().any(|found| found.trim() == line), "{line} is missing in:\n{text}");
        }
    }

    #[test]
    fn a_plain_share_has_none_of_them() {
        let share = Share { name: "s".into(), path: "/a".into(), read_only: true, guest: true, ..Share::default() };
        let text = rendered(&[share]).unwrap();
        let has = |part: &str| text.contains(part);
        assert!(has("map to guest = Bad User") && has("read only = yes") && has("guest ok = yes"));
        assert!(has("acl allow execute always = yes"), "programs on the share can be started");
        assert!(!has("time machine") && !has("shadow") && !has("nfs4acl") && !has("glusterfs"), "{text}");
    }

    #[test]
    fn shares_of_one_name_are_refused() {
        let share = |name: &str| Share { name: name.into(), path: "/a".into(), ..Share::default() };
        let error = rendered(&[share("tank"), share("Tank")]).unwrap_err();
        assert!(error.to_string().contains("two shares"), "{error}");
    }
}
