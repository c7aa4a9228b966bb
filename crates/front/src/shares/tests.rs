#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::rules::{IdentityMap, Squash};
use std::net::IpAddr;

fn refusal<T: std::str::FromStr<Err = ShareError> + fmt::Debug>(text: &str) -> String {
    text.parse::<T>().unwrap_err().to_string()
}

fn host(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn sharenfs_has_the_options_of_openzfs() {
    let on: ShareNfs = "on".parse().unwrap();
    assert_eq!("sec=sys,rw,crossmnt,no_subtree_check".parse(), Ok(on.clone()));
    assert_eq!((on.to_string(), ShareNfs::default().to_string()), ("on".into(), "off".into()));
    assert!("off".parse::<ShareNfs>().unwrap().is_off());
    for (text, printed) in [
        ("rw=@10.0.0.0/8:build.Example.org:[2001:db8::1],ro", "rw=@10.0.0.0/8:build.example.org:[2001:db8::1],ro"),
        ("rw=10.1.2.3/32,rw=10.1.2.3+@[2001:db8::]/32", "rw=10.1.2.3:@[2001:db8::]/32"),
        ("ro,async,no_wdelay,fsid=0,mountpoint=/x", "ro,async,no_wdelay,fsid=0,mountpoint=/x"),
        ("rw,all_squash,anonuid=1000,anongid=100", "rw,all_squash,anonuid=1000,anongid=100"),
        ("rw,root_squash,root_squash", "rw"),
        ("rw,no_all_squash,anon=7,anonuid=7", "rw,anonuid=7"),
        ("rw,no_all_squash,no_root_squash,secure", "rw,no_root_squash,secure"),
        ("rw,all_squash,root_squash", "rw,all_squash"),
        ("rw,all_squash,no_root_squash", "rw,all_squash"),
        ("rw,root_mapping=5,secure,secure", "rw,anonuid=5,secure"),
        ("ro,root=10.0.0.1,insecure", "ro,root=10.0.0.1"),
    ] {
        let value: ShareNfs = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(value.to_string(), printed);
        assert_eq!(printed.parse(), Ok(value));
    }
}

#[test]
fn the_wrong_word_of_sharenfs_is_named_with_the_reason() {
    for (text, why) in [
        ("rw,sec=krb5p", "'sec=krb5p': Kerberos is not supported"),
        ("rw,sec=sys:krb5", "'sec=sys:krb5': Kerberos"),
        ("rw,sec=none", "write all_squash instead"),
        ("rw,refer=/a@b", "'refer=/a@b': referrals"),
        ("rw,maproot=0", "an option of FreeBSD"),
        ("rw;ro", "sets of options separated by ';'"),
        ("rw,bogus", "'bogus' is not an option of sharenfs; it has: rw"),
        ("rw,async=1", "'async=1': it takes no value"),
        ("rw,anonuid=x", "'anonuid=x': it takes a number"),
        ("rw,anonuid=-2", "it takes a number"),
        ("no_root_squash", "no host has access: add rw"),
        ("", "no host has access"),
        ("rw=", "no host is named"),
        ("rw=@staff", "'@staff': not an address or network"),
        ("rw=*.example.org", "'*.example.org': patterns of host names"),
        ("rw=10.0.0.0/33", "'10.0.0.0/33': the length of the prefix is 0 to 32 bits"),
        ("rw=10.0.0.256", "'10.0.0.256': not an address"),
        ("rw=[fe80", "an address"),
        ("rw=[10.0.0.1]", "an IPv6 address is expected"),
        ("rw=10.0.0.1,ro=10.0.0.1", "'10.0.0.1': it is in both rw and ro"),
        ("rw,ro", "'*': it is in both"),
        ("rw,root", "a value is missing"),
    ] {
        let message = refusal::<ShareNfs>(text);
        assert!(message.contains(why), "{text}: {message}");
    }
}

#[test]
fn options_of_sharenfs_that_contradict_each_other_are_refused() {
    for (first, second) in [
        ("root_squash", "no_root_squash"),
        ("all_squash", "no_all_squash"),
        ("secure", "insecure"),
        ("sync", "async"),
        ("wdelay", "no_wdelay"),
        ("hide", "nohide"),
        ("subtree_check", "no_subtree_check"),
        ("secure_locks", "no_auth_nlm"),
        ("acl", "no_acl"),
        ("pnfs", "no_pnfs"),
        ("anonuid=1", "anonuid=2"),
        ("anon=1", "anonuid=2"),
        ("anongid=1", "anongid=2"),
        ("fsid=1", "fsid=2"),
        ("mp=/a", "mountpoint=/b"),
        ("root_mapping=1", "no_root_squash"),
    ] {
        for (before, after) in [(first, second), (second, first)] {
            let message = refusal::<ShareNfs>(&format!("rw,{before},{after}"));
            assert!(message.contains("before it says something else"), "{before},{after}: {message}");
        }
    }
}

#[test]
fn the_longest_prefix_decides_over_reading_and_writing() {
    let value: ShareNfs =
        "ro,rw=@10.0.0.0/8:disk.example.org,ro=@10.9.0.0/16,rw=10.9.9.9,root=10.9.9.9".parse().unwrap();
    let names = Names::from([("disk.example.org".to_owned(), vec![host("192.0.2.7")])]);
    let may_write = |rules: &crate::FileRules, address: &str| {
        let permission = rules.permit(crate::Host { address: host(address), port: 2000 });
        permission.map(|permission| (permission.may_write, permission.identity.squash))
    };
    let rules = value.rules(&names, false);
    assert_eq!(may_write(&rules, "10.1.1.1"), Some((true, Squash::Root)));
    assert_eq!(may_write(&rules, "10.9.1.1"), Some((false, Squash::Root)));
    assert_eq!(may_write(&rules, "10.9.9.9"), Some((true, Squash::None)));
    assert_eq!(may_write(&rules, "::ffff:10.9.9.9"), Some((true, Squash::None)));
    assert_eq!(may_write(&rules, "192.0.2.7"), Some((true, Squash::Root)));
    assert_eq!(may_write(&rules, "192.0.2.8"), Some((false, Squash::Root)));
    assert_eq!(may_write(&value.rules(&Names::new(), false), "192.0.2.7"), Some((false, Squash::Root)));
    assert_eq!(may_write(&value.rules(&names, true), "10.1.1.1"), Some((false, Squash::Root)));
    let few = "rw=10.0.0.1,secure".parse::<ShareNfs>().unwrap().rules(&names, false);
    assert_eq!(may_write(&few, "10.0.0.1"), None, "the port is above 1023");
    let permission = few.permit(crate::Host { address: host("10.0.0.1"), port: 1023 }).unwrap();
    assert_eq!((permission.may_write, permission.identity), (true, IdentityMap::default()));
    assert_eq!(few.permit(crate::Host { address: host("10.0.0.2"), port: 1 }), None);
    let names: Vec<&str> = value.names().collect();
    assert_eq!(names, ["disk.example.org"]);
}

#[test]
fn names_of_iscsi_nodes_are_checked() {
    for good in [
        "iqn.2001-04.com.example",
        "iqn.2001-04.com.example:storage:diskarrays-sn-a8675309",
        "eui.02004567a425678d",
        "naa.52004567ba64678d",
        "naa.62004567ba64678d0123456789abcdef",
    ] {
        assert_eq!(good.parse::<Iqn>().unwrap().as_str(), good);
    }
    assert_eq!("IQN.2001-04.COM.Example:X".parse::<Iqn>().unwrap().as_str(), "iqn.2001-04.com.example:x");
    let long = format!("iqn.2001-04.com.example:{}", "x".repeat(199));
    assert_eq!(long.len(), 223);
    assert!(long.parse::<Iqn>().is_ok() && format!("{long}x").parse::<Iqn>().is_err());
    for bad in [
        "disk",
        "iqn.",
        "iqn.2001-13.com.x",
        "iqn.01-04.com.x",
        "iqn.2001-04",
        "iqn.2001-04.",
        "iqn.2001-04.com..x",
        "iqn.2001-04.com:",
        "iqn.2001-04.com:a b",
        "iqn.2001-04.com:a_b",
        "eui.123",
        "eui.02004567a425678g",
        "naa.1234",
    ] {
        assert!(bad.parse::<Iqn>().is_err(), "{bad}");
    }
    let default = Iqn::of_volume(0x1234, 0x56);
    assert_eq!(default.as_str(), "iqn.2026-01.local.weir:0000000000001234.00000000000056");
    assert_eq!(default.as_str().parse(), Ok(default));
}

#[test]
fn values_of_volumes_round_trip() {
    for (text, printed) in [
        ("on", "on"),
        ("off", "off"),
        ("target=iqn.2001-04.com.example:x,lun=3,wce=off", "target=iqn.2001-04.com.example:x,lun=3,wce=off"),
        ("initiators=iqn.2001-04.a:x+iqn.2001-04.b", "initiators=iqn.2001-04.a:x+iqn.2001-04.b"),
        ("hosts=10.0.0.7+@10.1.0.0/16,chap=ann,mutual=weir", "hosts=10.0.0.7+@10.1.0.0/16,chap=ann,mutual=weir"),
        ("lun=0,wce=on", "on"),
        ("on,chap=bob", "chap=bob"),
        ("on,", "on"),
    ] {
        let value: ShareIscsi = text.parse().unwrap();
        assert_eq!(value.to_string(), printed);
        assert_eq!(printed.parse(), Ok(value));
    }
    for (text, printed) in
        [("on", "on"), ("off", "off"), ("name=disk,hosts=[::1]+a,ro", "name=disk,hosts=[::1]+a,ro"), ("on,ro", "ro")]
    {
        let value: ShareNbd = text.parse().unwrap();
        assert_eq!(value.to_string(), printed);
    }
    for (text, why) in [
        ("target=disk", "'disk': not a name like iqn."),
        ("lun=256", "0 to 255"),
        ("mutual=weir", "mutual= needs chap="),
        ("wce=maybe", "'wce=maybe': it takes on or off"),
        ("yes", "'yes' is not an option of weir:iscsi"),
        ("chap=a b", "not the name of one user"),
        ("", "write on, off or options"),
        ("off,chap=bob", "off takes no options"),
        ("ro,rw", "'rw': an option before it says something else"),
        ("lun=1,lun=2", "'lun=2': an option before it"),
        ("chap=ann,chap=bob", "'chap=bob': an option before it"),
        ("chap=bob,on", "'on' is not an option of weir:iscsi"),
    ] {
        let message = refusal::<ShareIscsi>(text);
        assert!(message.contains(why), "{text}: {message}");
    }
    assert!("ro,readonly,lun=0,lun=0".parse::<ShareIscsi>().is_ok_and(|iscsi| iscsi.read_only));
    assert!(refusal::<ShareNbd>("ro,rw").contains("'rw': an option before it"));
    assert!(refusal::<ShareNbd>("name=a,name=b").contains("'name=b': an option before it"));
    for text in ["rw,ro", "browseable=y,browseable=n", "timemachine=1G,timemachine=2G", "timemachine,timemachine=off"] {
        let message = refusal::<ShareSmb>(text);
        assert!(message.contains(": an option before it"), "{text}: {message}");
    }
    assert!(refusal::<ShareNbd>("name=").contains("a value is missing"));
    assert!(refusal::<ShareNbd>("off,ro").contains("off takes no options"));
    assert!(refusal::<ShareSmb>("off,guest").contains("off takes no options"));
    assert!(refusal::<ShareNbd>("tls=on").contains("'tls=on' is not an option of weir:nbd"));
}

#[test]
fn values_of_sharesmb_round_trip() {
    for (text, printed) in [
        ("on", "on"),
        ("off", "off"),
        ("name=Music,guest_ok=y,ro", "name=Music,guest_ok=y,ro"),
        (
            "timemachine=500G,hosts=10.0.0.0/8:mac,browseable=no",
            "timemachine=536870912000,hosts=@10.0.0.0/8:mac,browseable=n",
        ),
        ("timemachine,guest", "guest_ok=y,timemachine"),
        ("rw,readonly=n", "on"),
        ("on,guest", "guest_ok=y"),
    ] {
        let value: ShareSmb = text.parse().unwrap();
        assert_eq!(value.to_string(), printed);
        assert_eq!(printed.parse(), Ok(value));
    }
    for (text, why) in [
        ("name=a/b", "'name=a/b': a name has none of"),
        ("name=IPC$", "the name is reserved"),
        ("timemachine=big", "it takes a size"),
        ("timemachine=99999999E", "it takes a size"),
        ("catia=true", "names are not translated"),
        ("rubbish", "'rubbish' is not an option of sharesmb"),
    ] {
        let message = refusal::<ShareSmb>(text);
        assert!(message.contains(why), "{text}: {message}");
    }
}

fn volume(dataset: &str, id: u64, iscsi: &str, nbd: &str) -> SharedVolume {
    SharedVolume {
        dataset: dataset.into(),
        id,
        is_readonly: false,
        iscsi: iscsi.parse().unwrap(),
        iscsi_precedence: Precedence::default(),
        nbd_precedence: Precedence::default(),
        nbd: nbd.parse().unwrap(),
        snapshots: Vec::new(),
    }
}

#[test]
fn names_of_nbd_exports_are_unique() {
    let mut b = volume("p/b", 2, "off", "name=p/a,ro");
    b.snapshots.push(("s".into(), 9));
    let volumes =
        [b, volume("p/a", 1, "off", "on"), volume("p/c", 3, "off", "off"), volume("p/d", 4, "off", "name=p/a")];
    let listed = nbd_exports(&volumes);
    let names: Vec<_> =
        listed.shares.iter().map(|e| (e.name.as_str(), e.dataset.as_str(), e.id, e.read_only)).collect();
    assert_eq!(names, [("p/a", "p/a", 1, false), ("p/a@s", "p/b@s", 9, true)]);
    assert_eq!(listed.conflicts.len(), 2);
    assert_eq!(listed.conflicts[0].0, "p/b");
    assert!(listed.conflicts[0].1.contains("'p/a' has the name 'p/a' already"));
}

#[test]
fn volumes_join_a_target_with_the_same_access_only() {
    let target = "target=iqn.2001-04.com.example:x";
    let volumes = [
        volume("p/a", 1, &format!("{target},lun=1,chap=ann"), "off"),
        volume("p/b", 2, &format!("{target},chap=ann,wce=off"), "off"),
        volume("p/c", 3, &format!("{target},lun=1,chap=ann"), "off"),
        volume("p/d", 4, &format!("{target},lun=7"), "off"),
        volume("p/e", 5, "on", "off"),
        volume("p/f", 6, "off", "on"),
    ];
    let listed = iscsi_targets(7, &volumes);
    let units: Vec<_> =
        listed.shares.iter().map(|t| t.luns.iter().map(|l| (l.lun, l.id)).collect::<Vec<_>>()).collect();
    assert_eq!(units, [vec![(0, 2), (1, 1)], vec![(0, 5)]]);
    assert_eq!(listed.shares[1].iqn, Iqn::of_volume(7, 5));
    assert!(!listed.shares[0].luns[0].write_cache && listed.shares[0].luns[1].write_cache);
    let conflicts: Vec<&str> = listed.conflicts.iter().map(|(dataset, _)| dataset.as_str()).collect();
    assert_eq!(conflicts, ["p/c", "p/d"]);
    assert!(listed.conflicts[0].1.contains("LUN 1") && listed.conflicts[1].1.contains("must be those of 'p/a'"));
}

#[test]
fn names_of_smb_shares_are_unique_without_case() {
    let of = |dataset: &str, smb: &str, is_readonly| SharedFileSystem {
        dataset: dataset.into(),
        is_readonly,
        smb: smb.parse().unwrap(),
        precedence: Precedence::default(),
    };
    let all = [of("p/a b", "on", true), of("p/c", "name=P_A_B", false), of("p/d", "on", false), of("p", "off", false)];
    let listed = smb_shares(&all);
    let names: Vec<_> = listed.shares.iter().map(|share| (share.name.as_str(), share.read_only)).collect();
    assert_eq!(names, [("P_A_B", false), ("p_d", false)]);
    assert_eq!(listed.conflicts[0].0, "p/a b");
}

#[test]
fn a_name_stays_with_the_dataset_that_has_it_and_else_goes_to_the_older_one() {
    let at = |is_new, created_s| Precedence { is_new, created_s };
    let owner = |first: Precedence, second: Precedence| {
        let file_system = |dataset: &str, precedence| SharedFileSystem {
            dataset: dataset.into(),
            is_readonly: false,
            smb: "name=x".parse().unwrap(),
            precedence,
        };
        let smb = smb_shares(&[file_system("p/a", first), file_system("p/b", second)]).shares.remove(0).dataset;
        let volume = |dataset: &str, id, precedence| SharedVolume {
            iscsi_precedence: precedence,
            nbd_precedence: precedence,
            ..volume(dataset, id, "target=iqn.2001-04.com.example:x", "name=x")
        };
        let volumes = [volume("p/a", 1, first), volume("p/b", 2, second)];
        let nbd = nbd_exports(&volumes).shares.remove(0).dataset;
        let iscsi = iscsi_targets(7, &volumes).shares.remove(0).luns.remove(0).dataset;
        assert!(smb == nbd && nbd == iscsi, "{smb} {nbd} {iscsi}");
        smb
    };
    assert_eq!(owner(at(true, 5), at(false, 9)), "p/b", "it has the name");
    assert_eq!(owner(at(true, 9), at(true, 5)), "p/b", "it is older");
    assert_eq!(owner(at(true, 5), at(true, 5)), "p/a");
}

/// Random lists of words that options consist of: values that parse are printed and parsed to themselves.
#[test]
fn random_values_round_trip() {
    const WORDS: &[&str] = &[
        "rw",
        "ro",
        "root",
        "sec",
        "sys",
        "krb5",
        "all_squash",
        "no_root_squash",
        "anonuid",
        "secure",
        "crossmnt",
        "name",
        "hosts",
        "lun",
        "target",
        "chap",
        "mutual",
        "wce",
        "initiators",
        "timemachine",
        "guest_ok",
        "10.0.0.1",
        "@10.0.0.0/8",
        "[2001:db8::1]",
        "[::]/0",
        "*",
        "a.b",
        "on",
        "off",
        "y",
        "n",
        "0",
        "7",
        "500G",
        "iqn.2001-04.com.example:x",
        "eui.02004567a425678d",
        "",
        ",",
        ",",
        ",",
        "=",
        "=",
        "=",
        ":",
        "+",
        "/",
    ];
    let mut dice = weir_sim::Rng::new(14);
    let mut parsed = 0;
    for _ in 0..60_000 {
        let count = 1 + dice.below(8);
        let text: String = (0..count).map(|_| WORDS[dice.below(WORDS.len() as u64) as usize]).collect();
        properties_target(text.as_bytes());
        parsed += usize::from(PROPERTIES.iter().any(|property| check(property, &text).is_ok()));
    }
    assert!(parsed > 500, "{parsed} of the texts are values");
    assert!(check("compression", "anything").is_ok());
}

#[test]
fn users_and_hosts_that_a_value_names_are_found() {
    let of = |property, value| {
        let NamedInShare { hosts, chap_users } = named_in(property, value);
        (hosts.join(" "), chap_users.join(" "))
    };
    assert_eq!(of("sharenfs", "rw=build:10.0.0.1,ro=mac,root=build"), ("build mac build".into(), String::new()));
    assert_eq!(of("weir:iscsi", "chap=ann,mutual=bob,hosts=disk+10.0.0.0/8"), ("disk".into(), "ann bob".into()));
    assert_eq!(of("weir:nbd", "hosts=disk").0, "disk");
    assert_eq!(of("sharesmb", "hosts=mac").0, "mac");
    for (property, value) in [("weir:iscsi", "chap=a b"), ("weir:nbd", "on"), ("comment", "hosts=disk")] {
        assert_eq!(of(property, value), (String::new(), String::new()), "{property}={value}");
    }
}
