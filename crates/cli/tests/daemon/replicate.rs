//! `weir replicate`: a replica is the last complete snapshot of its source, whatever happens meanwhile.

use super::{Site, text};
use std::os::unix::fs::PermissionsExt;

impl Site {
    /// A program that runs its last argument as ssh does, with a warning on its error output; of a stream to `zfs receive` it passes as many bytes as the file `cut`
    /// says, then its connection breaks.
    fn remote(&self) -> String {
        let path = self.path("remote");
        let cut = self.path("cut");
        let script = format!(
            "#!/bin/sh\nfor last; do :; done\necho \"Warning: Permanently added 'remote' to the list of known hosts.\" >&2\ncase \"$last\" in *receive\\ -s*) if [ -s {0} ]; then head -c $(cat {0}) | sh -c \
             \"$last\"; exit 255; fi;; esac\nexec sh -c \"$last\"\n",
            cut.display()
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    fn cut(&self, bytes: Option<u64>) {
        std::fs::write(self.path("cut"), bytes.map(|bytes| bytes.to_string()).unwrap_or_default()).unwrap();
    }

    /// Options that reach the other side through the program.
    fn through(&self) -> Vec<String> {
        ["--through", &self.remote(), "--target-zfs", &format!("{} zfs", env!("CARGO_BIN_EXE_weir"))]
            .map(str::to_owned)
            .to_vec()
    }

    fn replicate(&self, line: &str) -> std::process::Output {
        self.command("replicate").args(self.through()).args(line.split_whitespace()).output().unwrap()
    }

    fn replicated(&self, line: &str) -> String {
        let out = self.replicate(line);
        assert!(out.status.success(), "replicate {line}: {}{}\n{}", text(&out.stdout), text(&out.stderr), self.log());
        text(&out.stdout)
    }

    fn refuses(&self, line: &str, why: &str) {
        let out = self.replicate(line);
        let error = text(&out.stderr);
        assert!(out.status.code() == Some(1) && error.contains(why), "replicate {line}: {error}");
    }

    /// Names after the `@`, the oldest first.
    fn points(&self, kind: &str, dataset: &str) -> Vec<String> {
        let listed = self.ok(&format!("zfs list -H -d 1 -t {kind} -o name -s createtxg {dataset}"));
        listed.lines().filter_map(|line| Some(line.split_once(['@', '#'])?.1.to_owned())).collect()
    }

    /// GUIDs of the snapshots.
    fn guids(&self, dataset: &str) -> String {
        self.ok(&format!("zfs list -H -p -d 1 -t snapshot -o guid -s createtxg {dataset}"))
    }

    /// The bytes of a volume.
    fn contents(&self, volume: &str) -> Vec<u8> {
        self.ok(&format!("zfs set weir:nbd=on {volume}"));
        let mut client = self.nbd(volume);
        let bytes = (0..client.size_bytes >> 20).flat_map(|mib| client.read(mib << 20, 1 << 20)).collect();
        drop(client);
        let clients = || self.status("/protocols/nbd/clients").as_array().map_or(0, Vec::len);
        self.wait_until("the volume is detached", || clients() == 0);
        bytes
    }

    fn source(&self) {
        self.ok("zpool create tank d0");
        self.ok("zpool create backup d1");
        self.ok("zfs create -V 16M -o compression=off -o weir:nbd=on tank/v");
    }

    /// Writes blocks that depend on `seed` to the volume.
    fn write(&self, seed: u64) {
        let mut volume = self.nbd("tank/v");
        for n in 0..24u64 {
            let block = (seed * 37 + n * 11) % 256;
            let bytes: Vec<u8> = (0..1u64 << 16).map(|at| ((at * (seed + 3)) >> 5) as u8 ^ n as u8).collect();
            volume.write(block << 16, &bytes);
        }
    }
}

#[test]
fn interrupted_transfers_go_on_and_the_replica_equals_its_source() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.source();
    site.write(0);
    let mut interrupted = 0;
    let mut resumed = 0;
    for round in 0..8u64 {
        // Some bytes arrive, then the connection breaks; each of the next runs goes on there.
        for part in 1..=3u64 {
            site.cut(Some(50_000 + (round * 7919 + part * 104_729) % 900_000));
            let out = site.replicate("--name r tank/v backup/v");
            if !out.status.success() {
                interrupted += 1;
                let token = site.ok("zfs get -H -o value receive_resume_token backup/v");
                resumed += u32::from(token.trim() != "-");
            }
        }
        site.cut(None);
        site.replicated("--name r tank/v backup/v");
        assert_eq!(site.guids("tank/v"), site.guids("backup/v"), "round {round}");
        assert!(site.contents("tank/v") == site.contents("backup/v"), "round {round}");
        site.write(round + 1);
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    assert!(interrupted > 8 && resumed > 4, "{interrupted} interrupted, {resumed} of them kept a part");
    assert_eq!(site.ok("zfs get -H -o value readonly backup/v").trim(), "on");
    assert!(site.replicated("--no-snapshot tank/v backup/v").contains(" sent"));
}

#[test]
fn bookmarks_retention_and_renamed_snapshots() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.source();
    site.cut(None);
    site.write(1);
    site.ok("zfs snapshot tank/v@mine");
    site.replicated("--name r tank/v backup/v");
    let first = site.points("snapshot", "tank/v").pop().unwrap();
    assert_eq!(site.points("bookmark", "tank/v"), std::slice::from_ref(&first));
    // The source loses what both have: the bookmark is enough.
    site.ok("zfs destroy tank/v@mine");
    site.ok(&format!("zfs destroy tank/v@{first}"));
    site.write(2);
    site.ok("zfs snapshot tank/v@later");
    site.replicated("--no-snapshot --name r tank/v backup/v");
    assert_eq!(site.points("snapshot", "backup/v"), ["mine", first.as_str(), "later"]);
    // The name of a snapshot does not matter.
    site.ok("zfs rename tank/v@later tank/v@renamed");
    site.write(3);
    for old in ["r-20200101T000000Z", "r-20200102T000000Z"] {
        site.ok(&format!("zfs snapshot tank/v@{old}"));
    }
    let said = site.replicated("--name r --keep-source 1 --keep-target 2 tank/v backup/v");
    let own =
        |dataset: &str| site.points("snapshot", dataset).into_iter().filter(|name| name.starts_with("r-")).count();
    assert_eq!((own("tank/v"), own("backup/v")), (1, 2), "{said}");
    assert!(site.points("snapshot", "backup/v").contains(&"mine".to_owned()), "only its own are destroyed");
    let lag: serde_json::Value = serde_json::from_str(&site.replicated("--lag -j tank/v backup/v")).unwrap();
    assert_eq!(lag["lag"][0]["lag_bytes"], 0, "{lag}");
    site.write(4);
    site.ok("zpool sync tank");
    let lag: serde_json::Value = serde_json::from_str(&site.replicated("--lag -j tank/v backup/v")).unwrap();
    assert!(lag["lag"][0]["lag_bytes"].as_u64().unwrap() > 1 << 20, "{lag}");
    let planned = site.replicated("-n --name r tank/v backup/v");
    assert!(planned.contains("has @r-"), "without a new snapshot there is nothing to send: {planned}");
}

#[test]
fn a_replica_that_diverged_is_left_alone_and_roles_are_switched() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.source();
    site.cut(None);
    site.write(1);
    site.refuses("--no-snapshot tank/v backup/v", "there is no snapshot to send");
    site.refuses("tank/v nowhere/v", "nowhere");
    site.ok("zfs create -V 16M backup/other");
    site.refuses("tank/v backup/other", "exists and has no snapshot");
    site.refuses("-F tank/v backup/other", "exists and has no snapshot");
    site.refuses("tank/v missing/v", "missing");
    assert!(site.points("snapshot", "tank/v").is_empty(), "runs that sent nothing left snapshots");
    site.replicated("tank/v backup/v");
    site.ok("zfs snapshot backup/v@mine");
    site.write(2);
    let before = site.guids("backup/v");
    site.refuses("tank/v backup/v", "@mine is not at the source");
    assert_eq!(site.guids("backup/v"), before);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    site.replicated("-F tank/v backup/v");
    assert!(site.contents("tank/v") == site.contents("backup/v"));

    // Roles change: the old source receives what the new one has since, and no full copy.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    site.replicated("--switch tank/v backup/v");
    assert_eq!(site.ok("zfs get -H -o value readonly backup/v").trim(), "off");
    assert_eq!(site.ok("zfs get -H -o value readonly tank/v").trim(), "on");
    site.ok("zfs set weir:nbd=on backup/v");
    let mut volume = site.nbd("backup/v");
    volume.write(0, &[9; 1 << 16]);
    drop(volume);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let said = site.replicated("-j backup/v tank/v");
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let bytes = said["replicated"][0]["bytes"].as_u64().unwrap();
    assert!((1 << 12..1 << 20).contains(&bytes), "{said}");
    assert!(site.contents("tank/v") == site.contents("backup/v"));
}

#[test]
fn trees_and_encrypted_datasets_are_replicated_without_keys() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.ok("zpool create tank d0");
    site.ok("zpool create backup d1");
    site.cut(None);
    std::fs::write(site.path("key"), "2a".repeat(32)).unwrap();
    let key = format!("-o encryption=on -o keyformat=hex -o keylocation=file://{}", site.path("key").display());
    site.ok(&format!("zfs create {key} tank/e"));
    site.ok("zfs create -V 4M tank/e/v");
    site.ok("zfs create tank/e/f");
    site.replicated("-r tank/e backup/e");
    for dataset in ["e", "e/v", "e/f"] {
        assert_eq!(site.guids(&format!("tank/{dataset}")), site.guids(&format!("backup/{dataset}")));
    }
    assert_eq!(site.ok("zfs get -H -o value keystatus backup/e/v").trim(), "unavailable");
    assert_eq!(site.ok("zfs get -H -o value encryption backup/e/v").trim(), "aes-256-gcm");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    site.ok("zfs create tank/e/f/new");
    let said = site.replicated("-r tank/e backup/e");
    assert_eq!(said.lines().count(), 4, "{said}");
    for (options, why) in
        [("--name a/b", "--name takes"), ("--limit 5", "--limit takes"), ("--keep-source 0", "0 is not")]
    {
        let out = site.replicate(&format!("{options} tank/e backup/e"));
        assert!(out.status.code() == Some(2) && text(&out.stderr).contains(why), "{}", text(&out.stderr));
    }
    site.refuses("tank/none backup/none", "does not exist");
}

#[test]
fn a_job_replicates_and_shows_what_it_did() {
    let site = Site::new(2);
    site.remote();
    let mut daemon = site.start();
    site.ok("zpool create tank d0");
    site.ok("zpool create backup d1");
    site.ok("zfs create -p tank/docs/ann");
    let job = "[[jobs]]\nname = \"off-site\"\nreplicate = \"tank/docs\"\nto = \"backup/docs\"\nrecursive = true\n\
               schedule = \"monthly 1 00:00\"\nkeep = 3\nkeep_target = 5\nlimit = \"50M\"\n";
    site.configure(&format!("{}{job}", super::CONFIGURATION));
    site.ok("daemon reload");
    let line = || {
        let status = site.ok("daemon status");
        status.lines().find(|line| line.starts_with("job off-site:")).map(str::to_owned).unwrap_or_default()
    };
    site.ok("daemon job run off-site");
    site.wait_until("the job has run", || line().contains("tank/docs/ann: backup/docs/ann has @off-site-"));
    assert!(
        line().starts_with("job off-site: replication of tank/docs to backup/docs; monthly 1 00:00, next at"),
        "{}",
        line()
    );
    assert_eq!(site.guids("tank/docs/ann"), site.guids("backup/docs/ann"));
    // The target shows that this month's run was made: it is not made again.
    let before = line();
    daemon.signal(rustix::process::Signal::TERM);
    daemon.ended();
    site.has_known_job("off-site", "monthly 1 00:00");
    let _daemon = site.start();
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(line(), before);
    assert_eq!(site.points("snapshot", "backup/docs").len(), 1);
    for (from, to, why) in [
        ("to = \"backup/docs\"\n", "", "to: the target is missing"),
        ("limit = \"50M\"", "limit = \"5\"", "--limit takes bytes per second"),
        ("replicate = \"tank/docs\"", "scrub = [\"tank\"]", "belong to replicate"),
        ("\"backup/docs\"", "\"-oProxyCommand=x:p\"", "off-site"),
    ] {
        site.configure(&format!("{}{}", super::CONFIGURATION, job.replace(from, to)));
        let error = site.fails("daemon --check");
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_job_that_runs_shows_its_progress() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.source();
    site.write(0);
    let job = "[[jobs]]\nname = \"slow\"\nreplicate = \"tank/v\"\nto = \"backup/v\"\nschedule = \"monthly 1 00:00\"\nlimit = \"400K\"\n";
    site.configure(&format!("{}{job}", super::CONFIGURATION));
    site.ok("daemon reload");
    site.ok("daemon job run slow");
    let progress = || site.status("/jobs/slow/progress");
    let number = |progress: &serde_json::Value, name: &str| progress[name].as_u64().unwrap_or(0);
    site.wait_until("the job says what it has sent", || number(&progress(), "bytes_per_second") > 0);
    let before = site.points("snapshot", "tank/v");
    site.refuses("tank/v backup/v", "another replication to backup/v is in progress");
    assert_eq!(site.points("snapshot", "tank/v"), before, "a run that is refused takes no snapshot");
    let line = site.ok("daemon job list");
    assert!(line.contains("; running: ") && line.contains(" of tank/v sent, ") && line.contains(" s left"), "{line}");
    let mut seen = 0;
    site.wait_until("the job ends", || {
        let now = progress();
        if now.is_null() {
            return true;
        }
        let sent = number(&now, "sent_bytes");
        assert!(sent >= seen && sent <= number(&now, "estimated_bytes") * 11 / 10, "{now}");
        assert!(number(&now, "bytes_per_second") < 800 << 10, "more than the limit: {now}");
        assert_eq!((now["source"].as_str(), now["target"].as_str()), (Some("tank/v"), Some("backup/v")), "{now}");
        assert_eq!((number(&now, "number"), number(&now, "datasets")), (1, 1), "{now}");
        assert!(now["snapshot"].as_str().unwrap().starts_with("@slow-"), "{now}");
        seen = sent;
        false
    });
    assert!(seen > 500_000, "{seen} bytes were shown");
    let run = site.status("/jobs/slow/runs/0");
    let done = run["done"].as_str().unwrap_or_default();
    assert!(done.starts_with("tank/v: backup/v has @slow-") && done.ends_with(" sent"), "{run}");
}

#[test]
fn replicas_are_renamed_as_their_sources() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.source();
    site.cut(None);
    for name in ["tank/x", "tank/x/kid", "tank/x/kid/below", "tank/x/a", "tank/x/b"] {
        site.ok(&format!("zfs create {name}"));
    }
    site.refuses("--switch --name r tank/x backup/x", "tank/x has datasets below it");
    assert_eq!(site.ok("zfs get -H -o value readonly tank/x").trim(), "off");
    site.replicated("-r --name r tank/x backup/x");
    let before = ["kid", "kid/below", "a", "b"].map(|name| site.guids(&format!("backup/x/{name}")));
    // The name of one belongs to a new dataset; two exchange theirs.
    site.ok("zfs rename tank/x/kid tank/x/kid2");
    site.ok("zfs create tank/x/kid");
    for (from, to) in [("a", "c"), ("b", "a"), ("c", "b")] {
        site.ok(&format!("zfs rename tank/x/{from} tank/x/{to}"));
    }
    // Its snapshot is taken by the next run only: until then there is nothing to send.
    let planned = text(&site.replicate("-rn --no-snapshot --name r tank/x backup/x").stdout);
    assert!(planned.contains("backup/x/kid would be renamed backup/x/kid2"), "{planned}");
    assert!(
        !planned.contains("would send tank/x/kid2") && site.ok("zfs list -H -o name -r backup/x").lines().count() == 5
    );
    let shown = site.replicated("-r --name r tank/x backup/x");
    assert!(shown.contains("backup/x/kid was renamed backup/x/kid2"), "{shown}");
    let names = site.ok("zfs list -H -o name -r backup/x");
    let names: Vec<&str> = names.lines().map(|name| name.trim_start_matches("backup/x")).collect();
    assert_eq!(names, ["", "/a", "/b", "/kid", "/kid2", "/kid2/below"]);
    let after = ["kid2", "kid2/below", "b", "a"].map(|name| site.guids(&format!("backup/x/{name}")));
    for (before, after) in before.iter().zip(&after) {
        assert!(after.starts_with(before) && after.len() > before.len(), "{before} is continued in {after}");
    }
    assert_eq!(site.guids("tank/x/kid"), site.guids("backup/x/kid"));
    site.replicated("-r --name r tank/x backup/x");
}
