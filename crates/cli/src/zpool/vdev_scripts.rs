//! `zpool status -c` and `zpool iostat -c`: columns that scripts add to the devices of pools.
//!
//! ```text
//!   -c media,size ──► $ZPOOL_SCRIPTS_PATH, else ~/.zpool.d and /etc/zfs/zpool.d: the first program of each name
//!   for each device: VDEV_PATH=… media ──► lines COLUMN=VALUE ──► further columns; a line without '=' comes last
//! ```
//!
//! The program that the user called runs the scripts, as the user; a server runs none for its clients. Root runs them only
//! if `ZPOOL_SCRIPTS_AS_ROOT` is set, because the search path contains a folder of the user. Names of scripts contain no `/`.
//! Of each script's output the first [`MAX_OUTPUT_BYTES`] are used. A script that fails adds nothing.
//!
//! Source: OpenZFS `cmd/zpool/zpool_iter.c` (`all_pools_for_each_vdev_run`), `cmd/zpool/zpool_main.c` (`zpool_print_cmd`).

use crate::call::{Call, outln};
use crate::failure::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Maximum number of bytes that are read of what a script prints.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;
/// Maximum number of devices for which scripts run at the same time.
const PARALLEL: usize = 8;
/// Folder of the scripts that the administrator installs.
const INSTALLED: &str = "/etc/zfs/zpool.d";
/// Search path of the programs that scripts call.
const PROGRAMS: &str = "/bin:/sbin:/usr/bin:/usr/sbin";

/// A device: the name of its pool, and its path.
pub type DeviceKey = (String, String);

/// The scripts that `-c` names.
#[derive(Debug)]
pub struct Scripts(Vec<PathBuf>);

/// Output of the scripts for a device.
#[derive(Debug, Default, PartialEq, Eq)]
struct DeviceOutput {
    /// Columns and their values, in the order in which they were printed.
    columns: Vec<(String, String)>,
    /// Lines that belong to no column.
    rest: Vec<String>,
}

/// Columns of the scripts, and their values.
#[derive(Debug, Default)]
pub struct ScriptColumns {
    /// Names and widths, in characters.
    columns: Vec<(String, usize)>,
    devices: BTreeMap<DeviceKey, DeviceOutput>,
}

impl Scripts {
    /// The scripts of `-c NAME[,NAME]…`. A name of which there is no program in the search path is left out, as in OpenZFS.
    ///
    /// # Errors
    /// If the environment forbids scripts, or root calls them without `ZPOOL_SCRIPTS_AS_ROOT`.
    pub fn find(call: &Call, given: &str) -> Result<Self, Failure> {
        if call.process().is_some() {
            return Err(Failure::failed("Can't run -c: a server runs no scripts for its clients"));
        }
        if std::env::var_os("ZPOOL_SCRIPTS_ENABLED").is_some() && !is_set("ZPOOL_SCRIPTS_ENABLED") {
            return Err(Failure::failed("Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED."));
        }
        let is_root = rustix::process::getuid().is_root() || rustix::process::geteuid().is_root();
        if is_root && !is_set("ZPOOL_SCRIPTS_AS_ROOT") {
            return Err(Failure::failed("Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set."));
        }
        let folders = search_path();
        let names = given.split(',').filter(|name| !name.is_empty() && !name.contains('/'));
        let found =
            names.filter_map(|name| folders.iter().map(|folder| folder.join(name)).find(|path| is_program(path)));
        Ok(Scripts(found.collect()))
    }

    /// Runs the scripts for each device.
    pub fn run(&self, devices: &BTreeSet<DeviceKey>) -> ScriptColumns {
        let all: Vec<&DeviceKey> = devices.iter().collect();
        let mut out = BTreeMap::new();
        for some in all.chunks(PARALLEL) {
            std::thread::scope(|scope| {
                let begun: Vec<_> =
                    some.iter().map(|device| (*device, scope.spawn(move || self.output_for(device)))).collect();
                for (device, running) in begun {
                    // A thread that panicked printed why; its device has no values.
                    out.insert(device.clone(), running.join().unwrap_or_default());
                }
            });
        }
        ScriptColumns::of(out)
    }

    fn output_for(&self, (pool, path): &DeviceKey) -> DeviceOutput {
        let mut out = DeviceOutput::default();
        for script in &self.0 {
            if let Some(text) = output(script, pool, path) {
                out.take(&text);
            }
        }
        out
    }
}

/// Shows the scripts of the search path, each with what it prints for `-h`: `-c` without a name.
pub fn list(call: &Call, command: &str) {
    outln!(call, "Available 'zpool {command} -c' commands:");
    for folder in search_path() {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok);
        let mut programs: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_program(path)).collect();
        programs.sort();
        for program in programs {
            let help = run(Command::new(&program).arg("-h").env_clear().env("PATH", PROGRAMS)).unwrap_or_default();
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            for line in help.lines().filter(|line| !line.trim().is_empty()) {
                outln!(call, "  {name:<14}  {line}");
            }
        }
    }
}

/// Whether a variable of the environment says yes, as OpenZFS reads it (`libzfs_envvar_is_set`).
fn is_set(variable: &str) -> bool {
    let Ok(value) = std::env::var(variable) else { return false };
    let value = value.to_lowercase();
    let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u64>().is_ok_and(|number| number > 0) || value.starts_with("yes") || value.starts_with("on")
}

/// Folders of scripts, in the order in which they are searched.
fn search_path() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("ZPOOL_SCRIPTS_PATH") {
        return std::env::split_paths(&path).collect();
    }
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".zpool.d"));
    home.into_iter().chain([PathBuf::from(INSTALLED)]).collect()
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Output of a script for a device; `None` if it failed.
fn output(script: &Path, pool: &str, path: &str) -> Option<String> {
    let mut command = Command::new(script);
    command.env_clear().env("PATH", PROGRAMS).env("POOL_NAME", pool).env("VDEV_PATH", path);
    let resolved = std::fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
    command.env("VDEV_UPATH", &resolved);
    if let Some(enclosure) = enclosure(&resolved) {
        command.env("VDEV_ENC_SYSFS_PATH", enclosure);
    }
    run(&mut command)
}

/// Folder of sysfs of the enclosure slot that a disk is in.
fn enclosure(device: &Path) -> Option<PathBuf> {
    let disk = Path::new("/sys/class/block").join(device.file_name()?).join("device");
    let mut entries = std::fs::read_dir(disk).ok()?.filter_map(Result::ok);
    let link = entries.find(|entry| entry.file_name().to_string_lossy().starts_with("enclosure_device"))?;
    std::fs::canonicalize(link.path()).ok()
}

/// Output of a command on standard output; `None` if it cannot be run or fails.
fn run(command: &mut Command) -> Option<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut bytes = Vec::new();
    let read = child.stdout.take()?.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes);
    // The pipe is closed: one that prints more is ended by SIGPIPE.
    let is_whole = (bytes.len() as u64) < MAX_OUTPUT_BYTES;
    let status = child.wait().ok()?;
    read.ok()?;
    (status.success() || !is_whole).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

impl DeviceOutput {
    /// Takes the output of a script: lines `COLUMN=VALUE`. A column that is there keeps its value. What follows a line that is
    /// of no column is not used.
    fn take(&mut self, text: &str) {
        for line in text.lines() {
            let line: String = line.chars().filter(|c| !c.is_control()).collect();
            match line.split_once('=') {
                Some((column, _)) if self.columns.iter().any(|(name, _)| name == column) => {}
                Some((column, value)) => self.columns.push((column.to_owned(), value.to_owned())),
                None => {
                    self.rest.push(line);
                    break;
                }
            }
        }
    }
}

impl ScriptColumns {
    fn of(devices: BTreeMap<DeviceKey, DeviceOutput>) -> Self {
        let mut columns: Vec<(String, usize)> = Vec::new();
        for (name, value) in devices.values().flat_map(|device| &device.columns) {
            let width = name.chars().count().max(value.chars().count());
            match columns.iter_mut().find(|(known, _)| known == name) {
                Some((_, widest)) => *widest = (*widest).max(width),
                None => columns.push((name.clone(), width)),
            }
        }
        ScriptColumns { columns, devices }
    }

    /// The headings, each with the blanks before it.
    pub fn headings(&self) -> String {
        self.columns.iter().map(|(name, width)| format!("  {name:>width$}")).collect()
    }

    /// Dashes below the headings.
    pub fn dashes(&self) -> String {
        self.columns.iter().map(|(_, width)| format!("  {}", "-".repeat(*width))).collect()
    }

    /// The values of a device, each with the blanks before it; `-` for one that is missing. `None` for another vdev.
    pub fn cells(&self, pool: &str, path: Option<&str>) -> Option<String> {
        let device = self.devices.get(&(pool.to_owned(), path?.to_owned()))?;
        let value = |name: &str| {
            let found = device.columns.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
            found.filter(|value| !value.trim().is_empty()).unwrap_or("-")
        };
        let cells = self.columns.iter().map(|(name, width)| format!("  {:>width$}", value(name)));
        Some(cells.chain(device.rest.iter().map(|line| format!("  {line}"))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> DeviceOutput {
        let mut out = DeviceOutput::default();
        out.take(text);
        out
    }

    #[test]
    fn lines_become_columns_of_all_devices() {
        let key = |path: &str| ("p".to_owned(), path.to_owned());
        let devices = [(key("/a"), of("media=ssd\nsize=1T\n")), (key("/b"), of("size=2000G\nlate\nnever=1\n"))];
        let columns = ScriptColumns::of(devices.into_iter().collect());
        assert_eq!(columns.headings(), "  media   size");
        assert_eq!(columns.dashes(), "  -----  -----");
        assert_eq!(columns.cells("p", Some("/a")).unwrap(), "    ssd     1T");
        assert_eq!(columns.cells("p", Some("/b")).unwrap(), "      -  2000G  late");
        assert_eq!(columns.cells("q", Some("/a")), None);
        assert_eq!(columns.cells("p", None), None);
    }

    #[test]
    fn the_first_value_of_a_column_counts_and_control_characters_do_not() {
        let out = of("a=1\na=2\nb=\u{1b}[31mred\n");
        assert_eq!(out.columns, [("a".into(), "1".into()), ("b".into(), "[31mred".into())]);
    }
}
