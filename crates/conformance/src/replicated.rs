//! `weir replicate` in random histories with transfers that break at random bytes: at any time the target is the last snapshot that
//! it has received whole.
//!
//! ```text
//!   history: write ─► [snapshot, rename, destroy] ─► replicate, the connection breaks ─► judge ─► replicate ─► judge
//!   every 25th: the roles are switched, the new source is written, and they are switched back
//! ```
//!
//! The source is a volume that NBD clients write. For each snapshot the judge knows the bytes of the volume, by the snapshot's GUID.
#![allow(clippy::disallowed_methods, reason = "judges run other programs in real time")]

use crate::kill::mixed;
use crate::report::{Report, line};
use crate::site::{PIECE, Site, content};
use crate::tree::BlockDevice;
use crate::{JudgeError, io, wrong};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

/// Histories of the short form.
const HISTORIES: u64 = 24;
/// Pieces of the volume: 16 MiB.
const PIECES: u64 = 256;
/// Pieces that a history writes at most.
const MAX_WRITTEN: u64 = 24;
/// Interval of switches, in histories.
const SWITCHES: u64 = 25;

/// Version of each piece of the volume; 0 for zeros.
type Versions = Vec<u64>;

/// Events of the histories.
#[derive(Debug, Default)]
struct Count {
    broken: u64,
    resumed: u64,
    advanced: u64,
    switched: u64,
}

struct Histories {
    site: Site,
    source: &'static str,
    target: &'static str,
    remote: String,
    seed: u64,
    drawn: u64,
    now: Versions,
    /// By the GUID of a snapshot.
    known: BTreeMap<String, Versions>,
    count: Count,
}

impl Histories {
    fn below(&mut self, limit: u64) -> u64 {
        self.drawn += 1;
        mixed(self.seed << 32 | self.drawn) % limit.max(1)
    }

    /// A program that runs its last argument as ssh does; of a stream it passes as many bytes as the file `cut` says.
    fn remote(site: &Site) -> Result<String, JudgeError> {
        let (path, cut) = (site.path("remote"), site.path("cut"));
        let script = format!(
            "#!/bin/sh\nfor last; do :; done\ncase \"$last\" in *receive\\ -s*) if [ -s {0} ]; then head -c $(cat {0}) | \
             sh -c \"$last\"; exit 255; fi;; esac\nexec sh -c \"$last\"\n",
            cut.display()
        );
        std::fs::write(&path, script).map_err(io("remote"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).map_err(io("remote"))?;
        Ok(path.display().to_string())
    }

    fn cut(&self, bytes: Option<u64>) -> Result<(), JudgeError> {
        let text = bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
        std::fs::write(self.site.path("cut"), text).map_err(io("cut"))
    }

    fn replicate(&self, options: &str) -> Result<String, JudgeError> {
        let weir = crate::process::weir()?;
        let (remote, source, target) = (&self.remote, self.source, self.target);
        let through: Vec<String> =
            ["replicate", "--through", remote, "--target-zfs"].iter().map(|word| (*word).to_owned()).collect();
        let rest = format!("--name r --keep-source 3 --keep-target 3 {options}{source} {target}");
        let zfs = format!("{} zfs", weir.display());
        let words: Vec<&str> =
            through.iter().map(String::as_str).chain([zfs.as_str()]).chain(rest.split_whitespace()).collect();
        self.site.succeed(&words)
    }

    /// GUIDs of the snapshots of a dataset, the oldest first.
    fn guids(&self, dataset: &str) -> Result<Vec<String>, JudgeError> {
        let listed = match self.site.ok(&format!("zfs list -H -p -d 1 -t snapshot -o guid -s createtxg {dataset}")) {
            // Before the first transfer.
            Err(error) if error.to_string().contains("does not exist") => return Ok(Vec::new()),
            listed => listed?,
        };
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// Writes pieces to a volume.
    fn write(&mut self, volume: &str) -> Result<(), JudgeError> {
        let mut device = self.site.volume(volume)?;
        let version = self.drawn + 1;
        for _ in 0..1 + self.below(MAX_WRITTEN) {
            let piece = self.below(PIECES);
            let written = device.write(piece * PIECE as u64, &content(version, piece), false);
            written.map_err(|error| wrong("NBD", error.to_string()))?;
            self.now[piece as usize] = version;
        }
        device.flush().map_err(|error| wrong("NBD", error.to_string()))?;
        drop(device);
        self.site.detached()
    }

    /// Notes the bytes of the source's snapshots that are new: it has not been written since they were taken.
    fn note(&mut self) -> Result<(), JudgeError> {
        for guid in self.guids(self.source)? {
            self.known.entry(guid).or_insert_with(|| self.now.clone());
        }
        Ok(())
    }

    /// Compares the bytes of the target with its newest snapshot. Returns that.
    fn judge(&mut self, place: &str) -> Result<String, JudgeError> {
        self.note()?;
        let Some(newest) = self.guids(self.target)?.pop() else { return Ok(String::new()) };
        let Some(versions) = self.known.get(&newest) else {
            return Err(wrong(place, format!("the target has a snapshot {newest} that the source did not take")));
        };
        let mut device = self.site.volume(self.target)?;
        for piece in 0..PIECES {
            let found = device.read(piece * PIECE as u64, PIECE).map_err(|error| wrong(place, error.to_string()))?;
            let expected = match versions[piece as usize] {
                0 => vec![0; PIECE],
                version => content(version, piece),
            };
            if found != expected {
                return Err(wrong(place, format!("piece {piece} of the target is not that of its last snapshot")));
            }
        }
        drop(device);
        self.site.detached()?;
        Ok(newest)
    }

    /// Takes, renames or destroys snapshots of the source, as an administrator may do between two runs.
    fn change_snapshots(&mut self, history: u64) -> Result<(), JudgeError> {
        let source = self.source;
        match self.below(4) {
            0 => drop(self.site.ok(&format!("zfs snapshot {source}@mine-{history}"))?),
            1 => {
                let listed = self.site.ok(&format!("zfs list -H -d 1 -t snapshot -o name -s createtxg {source}"))?;
                if let Some(last) = listed.lines().last() {
                    self.site.ok(&format!("zfs rename {last} {source}@renamed-{history}"))?;
                }
            }
            2 => {
                // The bookmark of the last common snapshot is enough.
                let listed = self.site.ok(&format!("zfs list -H -d 1 -t snapshot -o name -s createtxg {source}"))?;
                for name in listed.lines() {
                    self.site.ok(&format!("zfs destroy {name}"))?;
                }
            }
            _ => {}
        }
        self.note()
    }

    fn history(&mut self, history: u64) -> Result<(), JudgeError> {
        let place = format!("seed {}, history {history}", self.seed);
        self.write(self.source)?;
        // A partial stream of a snapshot that is destroyed cannot go on: nothing is partial here.
        self.change_snapshots(history)?;
        let before = self.judge(&format!("{place}, before"))?;
        for broken in 0..1 + self.below(2) {
            let most = (if before.is_empty() { PIECES } else { MAX_WRITTEN }) * PIECE as u64;
            let bytes = 1 + self.below(most);
            self.cut(Some(bytes))?;
            let is_whole = self.replicate("").is_ok();
            self.cut(None)?;
            let newest = self.judge(&format!("{place}, broken after {bytes} bytes ({broken})"))?;
            self.count.advanced += u64::from(newest != before);
            if !is_whole {
                self.count.broken += 1;
                let token = self.site.ok(&format!("zfs get -H -o value receive_resume_token {}", self.target));
                self.count.resumed += u64::from(token.is_ok_and(|token| token.trim() != "-"));
            }
        }
        self.replicate("")?;
        let newest = self.judge(&format!("{place}, at the end"))?;
        let of_source = self.guids(self.source)?.pop().unwrap_or_default();
        let now = self.known.get(&newest);
        if newest != of_source || now != Some(&self.now) {
            return Err(wrong(place, "the target has not the last snapshot of the source"));
        }
        // Each GUID that the target may still have is among those of the two sides.
        let mut kept = self.guids(self.target)?;
        kept.extend(self.guids(self.source)?);
        self.known.retain(|guid, _| kept.contains(guid));
        Ok(())
    }

    /// Switches the roles, writes the new source, and switches back: no run sends much.
    fn switch(&mut self, place: &str) -> Result<(), JudgeError> {
        for _ in 0..2 {
            self.replicate("--switch ")?;
            self.note()?;
            std::mem::swap(&mut self.source, &mut self.target);
            self.write(self.source)?;
            let said = self.replicate("-j ")?;
            let said: serde_json::Value =
                serde_json::from_str(&said).map_err(|error| wrong(place, format!("{error}: {said}")))?;
            let bytes = said.pointer("/replicated/0/bytes").and_then(serde_json::Value::as_u64);
            let most = (MAX_WRITTEN + 8) * PIECE as u64;
            if bytes.is_none_or(|bytes| bytes > most) {
                return Err(wrong(place, format!("after a switch of roles {bytes:?} bytes were sent: {said}")));
            }
            self.judge(place)?;
            self.count.switched += 1;
        }
        Ok(())
    }
}

/// Runs histories; their number and `--seed N` may be given.
///
/// # Errors
/// The processes cannot be run.
pub fn run(rest: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let mut histories = HISTORIES;
    let mut seed = 1;
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let number = |text: Option<&String>| {
            text.and_then(|text| text.parse().ok()).ok_or_else(|| wrong("replicate", "takes [HISTORIES] [--seed N]"))
        };
        match word.as_str() {
            "--seed" => seed = number(words.next())?,
            _ => histories = number(Some(word))?,
        }
    }
    let case = format!("replicate {histories} histories, seed {seed}");
    report.outcome(&case, all(histories, seed).map(|count| format!("{count:?}")));
    Ok(())
}

fn all(histories: u64, seed: u64) -> Result<Count, JudgeError> {
    let site = Site::local()?;
    for (pool, device) in [("tank", "d0"), ("backup", "d1")] {
        let path = site.device(device, 4 << 30)?;
        site.ok(&format!("zpool create -O weir:nbd=on -O compression=off {pool} {path}"))?;
    }
    let _daemon = site.daemon("tank")?;
    site.until("the daemon has both pools", || Ok(site.ok("zpool list -H -o name")?.contains("backup")))?;
    site.ok("zfs create -s -V 16M -o volblocksize=64K tank/v")?;
    let remote = Histories::remote(&site)?;
    let mut all = Histories {
        site,
        source: "tank/v",
        target: "backup/v",
        remote,
        seed,
        drawn: 0,
        now: vec![0; PIECES as usize],
        known: BTreeMap::new(),
        count: Count::default(),
    };
    for history in 0..histories {
        all.history(history)?;
        if history % SWITCHES == SWITCHES / 2 {
            all.switch(&format!("seed {seed}, switch after history {history}"))?;
        }
        if (history + 1) % 50 == 0 {
            line(&format!("      {} histories: {:?}", history + 1, all.count));
        }
    }
    if histories >= HISTORIES && (all.count.broken < histories / 3 || all.count.resumed == 0 || all.count.switched == 0)
    {
        return Err(wrong("the histories", format!("too few transfers broke or went on: {:?}", all.count)));
    }
    Ok(all.count)
}
