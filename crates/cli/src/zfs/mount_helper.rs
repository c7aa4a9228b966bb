//! `mount.zfs`: the helper that `mount(8)` calls for `mount -t zfs DATASET DIRECTORY` and for the lines of `/etc/fstab`.
//!
//! ```text
//!   mount -t zfs tank/a /srv/a ─► /sbin/mount.zfs tank/a /srv/a -o rw ─► daemon: FUSE mount of tank/a at /srv/a
//! ```
//!
//! It mounts file systems with `mountpoint=legacy`; `zfs mount` mounts the others. The mount is a FUSE mount. Programs that call
//! `mount(2)` with the type `zfs` directly do not run this helper, and fail: the kernel has no such file system type.
//!
//! Source: OpenZFS `cmd/mount_zfs.c`; exit codes: `mount(8)`.

use super::mount::with_pool;
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::mounts::{MountError, MountRequest, forbids_mount};
use crate::options::Places;
use clap::Parser;
use weir_daemon::MountRule;

/// Exit code: the file system is mounted already.
const BUSY: u8 = 16;
/// Exit code: the mount failed.
const FAILED: u8 = 32;

/// Mount options that are accepted and ignored: the dataset's properties decide on them, or `mount(8)` and systemd evaluate them.
const IGNORED: [&str; 36] = [
    "defaults",
    "rw",
    "dev",
    "suid",
    "exec",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "group",
    "owner",
    "xattr",
    "saxattr",
    "dirxattr",
    "noxattr",
    "acl",
    "noacl",
    "posixacl",
    "mand",
    "nomand",
    "sync",
    "async",
    "silent",
];
/// Prefixes of further mount options that are ignored.
const IGNORED_FRONTS: [&str; 6] = ["x-", "X-", "comment=", "context=", "fscontext=", "mntpoint="];

/// Mount a file system with mountpoint=legacy: mount(8) calls this as mount.zfs.
#[derive(Debug, Parser)]
#[command(name = "mount.zfs", override_usage = "mount.zfs [-fnsv] [-o OPTION,…] DATASET DIRECTORY")]
pub struct MountHelperArgs {
    /// Check everything, and mount nothing
    #[arg(short = 'f')]
    fake: bool,
    /// Accepted, has no effect: there is no /etc/mtab
    #[arg(short = 'n')]
    _without_table: bool,
    /// Pass over unknown options
    #[arg(short = 's')]
    sloppy: bool,
    /// Print what is mounted
    #[arg(short = 'v')]
    verbose: bool,
    /// Mount options: ro, nodev, nosuid, noexec; the other options of mount(8) are accepted and ignored
    #[arg(short = 'o', value_name = "OPTION,…")]
    options: Vec<String>,
    /// Accepted, has no effect
    #[arg(short = 't', value_name = "TYPE")]
    _type: Option<String>,
    #[command(flatten)]
    places: Places,
    /// File system and directory
    #[arg(value_name = "DATASET DIRECTORY")]
    words: Vec<String>,
}

/// Meaning of the options.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    request: MountRequest,
    /// `zfsutil`: also a file system with a mount point of its own.
    is_for_any: bool,
}

impl MountHelperArgs {
    fn wanted(&self) -> Result<Wanted, Failure> {
        let mut wanted = Wanted::default();
        for option in self.options.iter().flat_map(|options| options.split(',')).filter(|option| !option.is_empty()) {
            match option {
                "zfsutil" => wanted.is_for_any = true,
                "remount" => {
                    return Err(Self::misused("remount is not supported: set the properties of the file system"));
                }
                known if wanted.request.set(known) => {}
                other if IGNORED.contains(&other) || IGNORED_FRONTS.iter().any(|front| other.starts_with(front)) => {}
                _ if self.sloppy => {}
                other => return Err(Self::misused(&format!("filesystem option '{other}' is unknown"))),
            }
        }
        Ok(wanted)
    }
}

/// Runs the command.
pub fn run(call: &Call, args: &MountHelperArgs) -> Result<u8, Failure> {
    let [dataset, directory] = args.words.as_slice() else {
        return Err(MountHelperArgs::misused("missing dataset or directory"));
    };
    let Wanted { request, is_for_any } = args.wanted()?;
    let doing = format!("cannot mount '{dataset}' at '{directory}'");
    let ended = |code, why: &dyn std::fmt::Display| {
        let mut failure = Failure::failed(format!("{doing}: {why}"));
        failure.code = code;
        failure
    };
    let place = call.path(directory);
    if dataset.contains('@') {
        return Err(ended(FAILED, &"snapshots are not mounted: they are in .zfs/snapshot of their file system"));
    }
    match std::fs::metadata(&place) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(ended(FAILED, &"it is not a directory")),
        Err(error) => return Err(ended(FAILED, &error)),
    }
    with_pool(call, &args.places, dataset, &doing, |target| {
        let shares = target.file_system(dataset, &doing)?;
        match &shares.mount {
            MountRule::Legacy => {}
            _ if is_for_any => {}
            MountRule::Never(why) => return Err(ended(FAILED, &forbids_mount(why))),
            _ => {
                let how = format!("use 'zfs set mountpoint=legacy' or 'zfs mount {dataset}'");
                return Err(ended(FAILED, &format!("its property 'mountpoint' is not 'legacy'\n{how}")));
            }
        }
        if args.fake {
            return Ok(0);
        }
        match target.mount_at(shares, &place, request) {
            Ok(true) => {
                if args.verbose {
                    outln!(call, "{dataset} mounted on {}", place.display());
                }
                Ok(0)
            }
            Ok(false) => Err(ended(BUSY, &"filesystem already mounted")),
            Err(why @ (MountError::NoKey | MountError::Other(_))) => Err(ended(FAILED, &why)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(line: &[&str]) -> Result<Wanted, String> {
        let words: Vec<_> = line.iter().map(Into::into).collect();
        MountHelperArgs::parse_line(&words).unwrap().wanted().map_err(|failure| failure.line)
    }

    #[test]
    fn options_of_fstab_are_those_of_the_mount_or_have_no_effect() {
        let read_only = MountRequest { read_only: true, no_devices: true, ..MountRequest::default() };
        let given = wanted(&["t/a", "/mnt", "-o", "ro,nodev,noatime,x-systemd.automount,_netdev", "-n"]).unwrap();
        assert_eq!(given, Wanted { request: read_only, is_for_any: false });
        assert!(wanted(&["t/a", "/mnt", "-o", "zfsutil"]).unwrap().is_for_any);
        assert!(wanted(&["t/a", "/mnt", "-o", "colour=red"]).unwrap_err().contains("'colour=red' is unknown"));
        assert_eq!(wanted(&["t/a", "/mnt", "-s", "-o", "colour=red"]).unwrap(), Wanted::default());
    }
}
