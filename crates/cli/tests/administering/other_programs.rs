//! Texts and columns of OpenZFS that other programs read: zrepl, pyznap, democratic-csi, Proxmox VE, completions of shells.

use super::Lab;

#[test]
fn refusals_have_the_words_that_backup_programs_look_for() {
    let lab = Lab::new();
    lab.ok("zfs create p/x");
    for name in ["a", "b", "c"] {
        lab.ok(&format!("zfs snapshot p/x@{name}"));
    }
    lab.ok("zfs hold keep p/x@a");
    lab.ok("zfs hold keep p/x@c");
    lab.ok("zfs bookmark p/x@a p/x#a");
    lab.ok("zfs clone p/x@b p/clone");
    assert_eq!(lab.fails("zfs bookmark p/x@a p/x#a"), "cannot create bookmark 'p/x#a': bookmark exists\n");
    let held =
        |name| format!("cannot destroy snapshot {name}: it's being held. Run 'zfs holds -r {name}' to see holders.\n");
    assert_eq!(lab.fails("zfs destroy p/x@a"), held("p/x@a"));
    assert_eq!(lab.fails("zfs destroy p/x@a,c"), format!("{}{}", held("p/x@a"), held("p/x@c")));
    assert!(lab.fails("zfs destroy p/x@b").contains("snapshot has dependent clones"));
    assert_eq!(lab.fails("zfs send p/x@none"), "cannot open 'p/x@none': dataset does not exist\n");
    assert_eq!(lab.fails("zfs receive p/new"), "cannot receive: failed to read from stream\n");
    let two = "cannot create snapshots : multiple snapshots of same fs not allowed\n";
    assert_eq!(lab.fails("zfs snapshot p/x@d p/x@e"), two);
    // Who forgets the snapshot does not lose the file system.
    assert!(lab.fails("zfs destroy -rd p/x").contains("operation not applicable to datasets of this type"));
    lab.ok("zfs list p/x");
    lab.check();
}

/// zrepl looks in the usage for what a command can do.
#[test]
fn usages_name_operands_as_openzfs_does() {
    let lab = Lab::new();
    for (line, wanted) in [
        ("zfs receive", "-A <filesystem|volume>"),
        ("zfs send", "receive_resume_token"),
        ("zfs destroy", "<filesystem|volume>@<snap>[%<snap>][,...]"),
        ("zfs load-key", "keylocation"),
        ("zfs get", "\n\tatime                  YES      YES   "),
        ("zfs inherit", "\n\tused                    NO       NO   <size>\n"),
        ("zfs set", "\tPROPERTY              EDIT  INHERIT   VALUES\n"),
        ("zfs", "\n\tbookmark "),
        ("zpool", "\n\tscrub "),
    ] {
        let out = lab.run(line);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(2) && said.contains(wanted), "{line}: {said}");
    }
}

#[test]
fn a_clone_gets_its_own_size_and_nothing_that_its_origin_fixes() {
    let lab = Lab::new();
    lab.ok("zfs create -V 8M p/v");
    lab.ok("zfs snapshot p/v@s");
    lab.ok("zfs clone -o volsize=16M -o refreservation=auto p/v@s p/larger");
    let get = |property: &str, of: &str| lab.ok(&format!("zfs get -Hpo value {property} {of}")).trim().to_owned();
    assert_eq!(get("volsize", "p/larger"), (16 << 20).to_string());
    assert!(get("refreservation", "p/larger").parse::<u64>().unwrap() > 16 << 20);
    assert_eq!(lab.ok("zfs get -Ho value,source volblocksize p/v"), "16K\tdefault\n");
    for (option, why) in [
        ("volblocksize=4K", "'volblocksize' is readonly"),
        ("utf8only=on", "'utf8only' is readonly"),
        ("volsize=5000", "must be a multiple of volblocksize"),
    ] {
        assert!(lab.fails(&format!("zfs clone -o {option} p/v@s p/not")).contains(why), "{option}");
        lab.fails("zfs list p/not");
    }
    lab.check();
}

#[test]
fn a_file_system_without_a_key_has_keylocation_none() {
    let lab = Lab::new();
    lab.ok("zfs create -o keylocation=none p/a");
    lab.ok("zfs set keylocation=none p/a");
    assert!(lab.fails("zfs set keylocation=prompt p/a").contains("must be 'none' for unencrypted datasets"));
}

#[test]
fn lists_for_programs_have_a_tab_before_each_vdev() {
    let lab = Lab::new();
    let text = lab.ok("zpool list -HPv p");
    let vdevs: Vec<&str> = text.lines().skip(1).collect();
    assert!(vdevs.len() == 3 && vdevs.iter().all(|line| line.starts_with('\t')), "{text}");
    assert!(text.contains(&format!("\n\t{}\t", lab.path("d0").display())), "{text}");
    let json: serde_json::Value = serde_json::from_str(&lab.ok("zpool get -j size p")).unwrap();
    let size = json["pools"]["p"]["properties"]["size"]["value"].as_str().unwrap();
    assert!(size.ends_with('M'), "{size}");
}

#[test]
fn a_resilver_is_started_in_pools_with_the_feature_alone() {
    let lab = Lab::new();
    lab.ok("zpool resilver p");
    let disk = lab.path("e");
    std::fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    lab.ok(&format!("zpool create -d old {}", disk.display()));
    assert!(lab.fails("zpool resilver old").contains("this action requires the resilver_defer feature"));
}

/// bzfs makes the ancestors of a dataset from the pool on; zfs_autobackup takes exit code 2 as an unknown option; monitors look for
/// healthy pools.
#[test]
fn what_is_there_and_what_is_not_has_openzfs_exit_codes() {
    let lab = Lab::new();
    lab.ok("zfs create -p p");
    assert!(lab.fails("zfs create p").contains("missing dataset name"));
    lab.fails("zfs send -L none");
    assert!(lab.fails("zfs send p").contains("weir sends snapshots"));
    assert_eq!(lab.ok("zpool status -x"), "all pools are healthy\n");
    lab.ok("zpool destroy p");
    let out = lab.run("zpool status -x");
    assert!(out.status.success() && out.stdout.is_empty(), "{out:?}");
    assert_eq!(String::from_utf8_lossy(&out.stderr), "no pools available\n");
}

/// Ansible and Proxmox VE set several limits at once.
#[test]
fn limits_that_are_set_together_are_checked_as_they_will_be() {
    let lab = Lab::new();
    lab.ok("zfs create -o quota=30M -o reservation=20M -o refquota=30M -o refreservation=20M p/a");
    lab.ok("zfs set quota=10M reservation=5M refreservation=5M p/a");
    lab.ok("zfs set refreservation=4M refquota=8M p/a");
    lab.ok("zfs set reservation=40M quota=50M p/a");
    assert!(
        lab.fails("zfs set quota=10M reservation=20M p/a").contains("size is less than current used or reserved space")
    );
    assert!(lab.fails("zfs set quota=10M p/a").contains("size is less than current used or reserved space"));
    assert_eq!(lab.ok("zfs get -Hpo value quota,reservation p/a"), format!("{}\n{}\n", 50 << 20, 40 << 20));
    lab.check();
}
