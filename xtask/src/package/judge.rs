//! `cargo xtask judge package`: the packages as other programs see them, and as an administrator of a fresh system does.
//!
//! | Case | Judge |
//! |---|---|
//! | units | `systemd-analyze security`: the rootless one below 3 |
//! | deb | lintian without errors and warnings |
//! | rpm | `rpm -qlp`: the files that belong in it; `rpm -qp --scripts` |
//! | oci | digests and sizes; the unpacked root runs the program, makes a pool and serves nothing else |
//! | a clean Debian | a root by mmdebstrap: package, pool, file system, share in five commands, a file over NFS; purged |
//!
//! What is absent skips its case with a line. Roots are entered with unshare(1): nothing is installed here, and no process
//! outlives its case. Programs are of the profile `dev` unless `--profile` names another.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Kind, failed, make, missing, output, stage};
use crate::process::{Outcome, Totals, on_path, top};

/// Exposure that the rootless unit must stay below, in tenths.
const MAX_EXPOSURE: u32 = 30;
/// Files of every package.
const FILES: [&str; 5] = [
    "/usr/bin/weir",
    "/etc/weir/weir.toml",
    "/systemd/system/weir.service",
    "/systemd/system/weir-rootless.service",
    "/usr/share/man/man1/weir.1",
];

/// Result of a case: a description, a fault, or the reason why it was skipped.
enum Verdict {
    Passed(String),
    Failed(String),
    Skipped(String),
}

use Verdict::{Failed, Passed, Skipped};

impl From<Result<String, String>> for Verdict {
    fn from(result: Result<String, String>) -> Verdict {
        result.map_or_else(Failed, Passed)
    }
}

/// Entry point of the judge.
pub fn run(arguments: &[String]) -> Outcome {
    let profile = match arguments {
        [] => "dev",
        [flag, profile] if flag == "--profile" => profile,
        _ => return Err("judge package: takes --profile NAME only".to_string()),
    };
    let stage = stage(profile)?;
    let deb = made(Kind::Deb, &stage);
    let rpm = made(Kind::Rpm, &stage);
    let oci = made(Kind::Oci, &stage);
    let mut totals = Totals::default();
    let mut book = |case: &str, verdict: Verdict| match verdict {
        Passed(about) => {
            totals.passed += 1;
            println!("ok    package {case}  {about}");
        }
        Failed(why) => {
            totals.failed += 1;
            println!("FAIL  package {case}\n        {}", why.trim().replace('\n', "\n        "));
        }
        Skipped(why) => {
            totals.skipped += 1;
            println!("skip  package {case}  {why}");
        }
    };
    book("units", units());
    book("deb", with(&deb, "lintian", lintian));
    book("rpm", with(&rpm, "rpm", |files| contents_of_rpm(files).into()));
    book("oci", with(&oci, "unshare", |files| image(files).into()));
    book("clean Debian", with(&deb, "mmdebstrap", |files| clean_debian(files).into()));
    println!("{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.skipped);
    if totals.failed == 0 { Ok(()) } else { Err("packages have faults".to_string()) }
}

/// Makes packages, if the program that does is here.
fn made(kind: Kind, stage: &Path) -> Result<Vec<PathBuf>, Verdict> {
    if let Some(program) = missing(kind) {
        return Err(Skipped(format!("{program} is not installed")));
    }
    make(kind, stage).map_err(Failed)
}

/// Judges packages, if they were made and the judge's program is here.
fn with(files: &Result<Vec<PathBuf>, Verdict>, program: &str, judge: impl FnOnce(&[PathBuf]) -> Verdict) -> Verdict {
    match files {
        Err(Skipped(why)) => Skipped(why.clone()),
        Err(Failed(why) | Passed(why)) => Failed(why.clone()),
        Ok(_) if !on_path(program) => Skipped(format!("{program} is not installed")),
        Ok(files) => judge(files),
    }
}

fn units() -> Verdict {
    if !on_path("systemd-analyze") {
        return Skipped("systemd-analyze is not installed".to_string());
    }
    let unit = top().join("packaging/systemd/weir-rootless.service");
    let text =
        match output(Command::new("systemd-analyze").args(["security", "--offline=true", "--no-pager"]).arg(unit)) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(why) => return Failed(why),
        };
    match exposure(&text) {
        Some(tenths) if tenths < MAX_EXPOSURE => Passed(format!("exposure {}.{}", tenths / 10, tenths % 10)),
        _ => Failed(text.lines().filter(|line| line.starts_with('✗')).collect::<Vec<_>>().join("\n")),
    }
}

/// Overall exposure in the output of systemd-analyze, in tenths.
fn exposure(text: &str) -> Option<u32> {
    let line = text.lines().find(|line| line.contains("Overall exposure level"))?;
    let number = line.split(": ").nth(1)?.split(' ').next()?;
    let (whole, tenths) = number.split_once('.')?;
    Some(whole.parse::<u32>().ok()? * 10 + tenths.parse::<u32>().ok()?)
}

fn lintian(files: &[PathBuf]) -> Verdict {
    let mut command = Command::new("lintian");
    command.args(["--no-cfg", "--allow-root", "--fail-on", "error,warning", "--suppress-tags"]);
    // The package is made from its source tree; it closes no bug of Debian's.
    command.arg("initial-upload-closes-no-bugs").args(files).stdin(Stdio::null());
    match command.output() {
        Err(error) => Failed(error.to_string()),
        Ok(done) if done.status.success() => Passed(format!("{} packages", files.len())),
        Ok(done) => Failed(String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()),
    }
}

fn contents_of_rpm(files: &[PathBuf]) -> Result<String, String> {
    let file = files.first().ok_or("no file")?;
    let list = output(Command::new("rpm").arg("-qlp").arg(file))?;
    let list = String::from_utf8_lossy(&list).into_owned();
    for wanted in FILES {
        if !list.lines().any(|line| line.contains(wanted)) {
            return Err(format!("{wanted} is not in it"));
        }
    }
    let config = output(Command::new("rpm").arg("-qcp").arg(file))?;
    if String::from_utf8_lossy(&config).trim() != "/etc/weir/weir.toml" {
        return Err("/etc/weir/weir.toml is no configuration file".to_string());
    }
    let scripts = output(Command::new("rpm").args(["-qp", "--scripts"]).arg(file))?;
    let scripts = String::from_utf8_lossy(&scripts).matches("scriptlet").count();
    if scripts != 4 {
        return Err(format!("it has {scripts} scripts instead of 4"));
    }
    Ok(format!("{} files", list.lines().count()))
}

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Result<Scratch, String> {
        let folder = std::env::temp_dir().join(format!("weir-package-{name}-{}", std::process::id()));
        super::empty(&folder)?;
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is in the temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Unpacks the image, verifies its digests, and runs the program in it, in namespaces of its own.
fn image(files: &[PathBuf]) -> Result<String, String> {
    let scratch = Scratch::new("oci")?;
    let layout = scratch.0.join("layout");
    let root = scratch.0.join("root");
    super::empty(&layout)?;
    super::empty(&root)?;
    output(Command::new("tar").arg("-xf").arg(files.first().ok_or("no file")?).arg("-C").arg(&layout))?;
    let read = |digest: &str, bytes: Option<u64>| -> Result<PathBuf, String> {
        let hex = digest.strip_prefix("sha256:").ok_or("a digest is not SHA-256")?;
        let file = layout.join("blobs/sha256").join(hex);
        let sum = output(Command::new("sha256sum").arg(&file))?;
        let size = fs::metadata(&file).map_err(|error| failed(&file, &error))?.len();
        let is_right = String::from_utf8_lossy(&sum).starts_with(hex) && bytes == Some(size);
        if is_right { Ok(file) } else { Err(format!("{digest}: other content or size")) }
    };
    let json = |file: &Path| -> Result<serde_json::Value, String> {
        let text = fs::read(file).map_err(|error| failed(file, &error))?;
        serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", file.display()))
    };
    let descriptor = |value: &serde_json::Value| {
        let digest = value["digest"].as_str().unwrap_or_default().to_string();
        read(&digest, value["size"].as_u64())
    };
    let index = json(&layout.join("index.json"))?;
    let manifest = json(&descriptor(&index["manifests"][0])?)?;
    let config = json(&descriptor(&manifest["config"])?)?;
    let layer = descriptor(&manifest["layers"][0])?;
    if config["rootfs"]["diff_ids"][0] != manifest["layers"][0]["digest"] {
        return Err("the layer is not the configuration's".to_string());
    }
    output(Command::new("tar").arg("-xpf").arg(&layer).arg("-C").arg(&root))?;
    let entry = config["config"]["Entrypoint"][0].as_str().unwrap_or_default().to_string();
    let (user, group) = config["config"]["User"].as_str().and_then(|user| user.split_once(':')).unwrap_or(("0", "0"));
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let inside = |words: &[&str]| {
        let mut command = Command::new("unshare");
        // Without network and without this machine's processes. Root becomes the image's user, who owns the state; of an
        // ordinary user's copy everything is that user's, who becomes root of the root.
        match is_root {
            true => command.args(["--setuid", user, "--setgid", group]),
            false => command.arg("--map-root-user"),
        };
        command.args(["--net", "--pid", "--fork", "--kill-child", "--root"]).arg(&root).arg(&entry);
        output(command.args(words).env_clear().env("HOME", "/var/lib/weir").env("WEIR_POOL_DIRS", "/var/lib/weir"))
    };
    let version = inside(&["version"])?;
    let device = root.join("var/lib/weir/device");
    let made = fs::File::create(&device).and_then(|file| {
        file.set_len(256 << 20)?;
        if is_root { chown(&device, user.parse().ok(), group.parse().ok()) } else { Ok(()) }
    });
    made.map_err(|error| failed(&device, &error))?;
    inside(&["zpool", "create", "tank", "/var/lib/weir/device"])?;
    let list = inside(&["zfs", "list", "-H", "-o", "name", "tank"])?;
    match String::from_utf8_lossy(&list).trim() {
        "tank" => Ok(String::from_utf8_lossy(&version).trim().lines().next().unwrap_or_default().to_string()),
        other => Err(format!("zfs list printed {other:?}")),
    }
}

/// A Debian root of the release of this machine, without weir; its files.
struct Debian {
    scratch: Scratch,
}

impl Debian {
    fn new() -> Result<Debian, String> {
        let scratch = Scratch::new("debian")?;
        let os = fs::read_to_string("/etc/os-release").map_err(|error| error.to_string())?;
        let release =
            os.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or_default().to_string();
        // The mirror and its keys are those of this machine's apt.
        let sources =
            output(Command::new("apt-get").args(["indextargets", "--format", "$(SITE)|$(RELEASE)|$(COMPONENT)"]))?;
        let sources = String::from_utf8_lossy(&sources).into_owned();
        let wanted = format!("|{release}|main");
        let mirror =
            sources.lines().find_map(|line| line.strip_suffix(wanted.as_str())).unwrap_or_default().to_string();
        if release.is_empty() || mirror.is_empty() {
            return Err("no apt source serves this release of Debian".to_string());
        }
        let mut command = Command::new("mmdebstrap");
        // The root has no network: what the package needs, and a client of NFS, are installed now.
        command.args(["--quiet", "--variant=minbase", "--include=adduser,iproute2,libnfs-utils", &release]);
        output(command.arg(scratch.0.join("root")).arg(&mirror))?;
        Ok(Debian { scratch })
    }

    fn root(&self) -> PathBuf {
        self.scratch.0.join("root")
    }

    /// A command in the root: with /proc, without this machine's network and processes.
    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]);
        command.arg("--root").arg(self.root()).args(["/bin/sh", "-ec", script]).env_clear();
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/root")
            .env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    fn run(&self, script: &str) -> Result<String, String> {
        output(&mut self.command(script)).map(|text| String::from_utf8_lossy(&text).into_owned())
    }

    /// Files of the root, without those that package management and adduser themselves write.
    fn files(&self) -> Result<Vec<String>, String> {
        const OTHERS: [&str; 7] = [
            "/proc",
            "/var/lib/dpkg",
            "/var/lib/apt",
            "/var/cache",
            "/var/log",
            "/run/adduser",
            // The files of users as they were before the last change.
            "/etc/*-",
        ];
        let others = OTHERS.map(|path| format!("-path '{path}'")).join(" -o ");
        let list = self.run(&format!("find / -xdev \\( {others} \\) -prune -o -print"))?;
        let mut files: Vec<String> = list.lines().map(ToString::to_string).collect();
        files.sort();
        Ok(files)
    }
}

/// Installs the package, makes a pool and a share, reads a file over NFS, and removes all of it.
fn clean_debian(files: &[PathBuf]) -> Result<String, String> {
    let debian = Debian::new()?;
    let package = files.first().ok_or("no file")?;
    let inside = debian.root().join("weir.deb");
    fs::copy(package, &inside).map_err(|error| failed(package, &error))?;
    let before = debian.files()?;
    let script = include_str!("first-share.sh");
    let said = debian.run(script)?;
    let mut wrong = Vec::new();
    if !said.contains("first share works") {
        wrong.push(said.clone());
    }
    debian.run("apt-get -qq purge weir >/dev/null; rm -rf /srv/weir /tmp/weir-0 /run/weir")?;
    let after = debian.files()?;
    wrong.extend(after.iter().filter(|file| !before.contains(file)).map(|file| format!("left behind: {file}")));
    if wrong.is_empty() {
        Ok("five commands to a share; nothing left after purge".to_string())
    } else {
        Err(wrong.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overall_exposure_is_read_in_tenths() {
        let text = "✗ PrivateNetwork=   Service has access to the host's network   0.5\n\n\
                    → Overall exposure level for weir-rootless.service: 1.9 OK 🙂\n";
        assert_eq!(exposure(text), Some(19));
        assert_eq!(exposure("nothing"), None);
    }
}
