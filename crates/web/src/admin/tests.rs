//! Actions as command lines.

use super::*;

fn line(json: &str) -> Result<String, String> {
    let action = PageAction::from_json(json.as_bytes()).map_err(|error| format!("no action: {error}"))?;
    action.line().map(|line| line.to_string())
}

#[test]
fn each_action_is_the_command_line_that_does_the_same() {
    for (json, wanted) in [
        (r#"{"do":"snapshot","snapshot":"t/a@s","recursive":true}"#, "weir zfs snapshot -r t/a@s"),
        (r#"{"do":"scrub","pool":"t","step":"pause"}"#, "weir zpool scrub -p t"),
        (r#"{"do":"scrub","pool":"t","step":"start"}"#, "weir zpool scrub t"),
        (r#"{"do":"clear","pool":"t","device":"sda"}"#, "weir zpool clear t sda"),
        (r#"{"do":"acknowledge","alert":"pool:t"}"#, "weir daemon alerts ack pool:t"),
        (r#"{"do":"mute","alert":"pool:t","hours":3}"#, "weir daemon alerts mute --hours 3 pool:t"),
        (
            r#"{"do":"create_dataset","name":"t/my data","properties":[{"property":"compression","value":"zstd"}]}"#,
            "weir zfs create -o compression=zstd 't/my data'",
        ),
        (r#"{"do":"create_dataset","name":"t/v","volume_size":"1G","sparse":true}"#, "weir zfs create -s -V 1G t/v"),
        (r#"{"do":"set","dataset":"t","property":"a:b","value":"it's"}"#, r#"weir zfs set 'a:b=it'\''s' t"#),
        (r#"{"do":"set","dataset":"t","property":"sharenfs","value":""}"#, "weir zfs set sharenfs= t"),
        (r#"{"do":"inherit","dataset":"t/a","property":"quota"}"#, "weir zfs inherit quota t/a"),
        (r#"{"do":"destroy","name":"t/a@x%y","recursive":true}"#, "weir zfs destroy -r t/a@x%y"),
        (r#"{"do":"destroy","name":"t/a","dependents":true,"recursive":true}"#, "weir zfs destroy -R t/a"),
        (r#"{"do":"rollback","snapshot":"t/a@s","destroy_later":true}"#, "weir zfs rollback -r t/a@s"),
        (r#"{"do":"clone","snapshot":"t/a@s","name":"t/b"}"#, "weir zfs clone t/a@s t/b"),
        (r#"{"do":"offline","pool":"t","device":"sda"}"#, "weir zpool offline t sda"),
        (r#"{"do":"replace","pool":"t","device":"sda","new_device":"/dev/sdb"}"#, "weir zpool replace t sda /dev/sdb"),
        (r#"{"do":"detach","pool":"t","device":"sda"}"#, "weir zpool detach t sda"),
        (
            r#"{"do":"create_pool","name":"t","force":true,"properties":[{"property":"ashift","value":"12"}],
                "root_properties":[{"property":"atime","value":"off"}],
                "vdevs":[{"kind":"mirror","devices":["/d/a","/d/b"]},{"kind":"stripe","devices":["/d/c"]},
                    {"kind":"log_mirror","devices":["/d/e","/d/f"]}]}"#,
            "weir zpool create -f -o ashift=12 -O atime=off t /d/c mirror /d/a /d/b log mirror /d/e /d/f",
        ),
        (
            r#"{"do":"create_pool","name":"t","vdevs":[{"kind":"log_mirror","devices":["/d/e","/d/f"]},
                {"kind":"spare","devices":["/d/h"]},{"kind":"log","devices":["/d/g"]},
                {"kind":"log_mirror","devices":["/d/i","/d/j"]},{"kind":"stripe","devices":["/d/a"]},
                {"kind":"spare","devices":["/d/k"]}]}"#,
            "weir zpool create t /d/a log /d/g mirror /d/e /d/f mirror /d/i /d/j spare /d/h /d/k",
        ),
        (r#"{"do":"import","pool":"t","directory":"/d","force":true}"#, "weir zpool import -f -d /d t"),
        (r#"{"do":"export","pool":"t"}"#, "weir zpool export t"),
        (r#"{"do":"destroy_pool","pool":"t","force":true}"#, "weir zpool destroy -f t"),
        (
            r#"{"do":"add_vdevs","pool":"t","vdevs":[{"kind":"raidz1","devices":["/d/a","/d/b","/d/c"]}]}"#,
            "weir zpool add t raidz1 /d/a /d/b /d/c",
        ),
        (r#"{"do":"remove","pool":"t","device":"mirror-1"}"#, "weir zpool remove t mirror-1"),
        (r#"{"do":"stop_removal","pool":"t"}"#, "weir zpool remove -s t"),
        (r#"{"do":"attach","pool":"t","device":"raidz1-0","new_device":"/d/x"}"#, "weir zpool attach t raidz1-0 /d/x"),
        (r#"{"do":"split","pool":"t","name":"u"}"#, "weir zpool split t u"),
        (r#"{"do":"trim","pool":"t","step":"suspend"}"#, "weir zpool trim -s t"),
        (r#"{"do":"initialize","pool":"t","device":"sda","step":"cancel"}"#, "weir zpool initialize -c t sda"),
        (r#"{"do":"checkpoint","pool":"t"}"#, "weir zpool checkpoint t"),
        (r#"{"do":"discard_checkpoint","pool":"t"}"#, "weir zpool checkpoint -d t"),
        (r#"{"do":"upgrade","pool":"t"}"#, "weir zpool upgrade t"),
        (r#"{"do":"wipe","device":"/dev/sdx","force":true}"#, "weir zpool labelclear -f /dev/sdx"),
    ] {
        assert_eq!(line(json).as_deref(), Ok(wanted), "{json}");
    }
}

#[test]
fn actions_on_names_keys_and_jobs_are_command_lines_too() {
    for (json, wanted) in [
        (r#"{"do":"rename","name":"t/a","new_name":"t/b"}"#, "weir zfs rename t/a t/b"),
        (r#"{"do":"send","snapshot":"t/a@s"}"#, "weir zfs send t/a@s"),
        (
            r#"{"do":"send","snapshot":"t/a@s","from":"t/a@r","recursive":true,"raw":true,"as_stored":true}"#,
            "weir zfs send -R -w -i t/a@r t/a@s",
        ),
        (r#"{"do":"send","snapshot":"t/a@s","as_stored":true}"#, "weir zfs send -Lec t/a@s"),
        (r#"{"do":"receive","dataset":"t/b","no_mount":true}"#, "weir zfs receive -u t/b"),
        (r#"{"do":"promote","dataset":"t/a"}"#, "weir zfs promote t/a"),
        (r#"{"do":"hold","snapshot":"t@s","tag":"keep"}"#, "weir zfs hold keep t@s"),
        (r#"{"do":"release","snapshot":"t@s","tag":"keep"}"#, "weir zfs release keep t@s"),
        (r#"{"do":"mount","dataset":"t/a"}"#, "weir zfs mount t/a"),
        (r#"{"do":"unmount","dataset":"t/a","force":true}"#, "weir zfs unmount -f t/a"),
        (r#"{"do":"load_key","dataset":"t/a"}"#, "weir zfs load-key t/a"),
        (r#"{"do":"unload_key","dataset":"t/a"}"#, "weir zfs unload-key t/a"),
        (
            r#"{"do":"change_key","dataset":"t/a"}"#,
            "weir zfs change-key -o keyformat=passphrase -o keylocation=prompt t/a",
        ),
        (
            r#"{"do":"add_job","name":"j","work":{"snapshot":["t/a","t/b"]},"recursive":true,"keep":7,"schedule":"daily 02:30",
                "time_zone":"UTC","replace":true}"#,
            "weir daemon job add --replace -r --keep 7 --schedule 'daily 02:30' --time-zone UTC --snapshot t/a --snapshot t/b j",
        ),
        (
            r#"{"do":"add_job","name":"j","work":{"replicate":{"source":"t/a","target":"h:u/a","limit":"5M","keep_target":3,"lag_seconds":7200}},
                "schedule":"hourly"}"#,
            "weir daemon job add --schedule hourly --replicate t/a --to h:u/a --limit 5M --keep-target 3 --lag-seconds 7200 j",
        ),
        (r#"{"do":"remove_job","job":"j"}"#, "weir daemon job remove j"),
        (r#"{"do":"run_job","job":"j"}"#, "weir daemon job run j"),
    ] {
        assert_eq!(line(json).as_deref(), Ok(wanted), "{json}");
    }
}

#[test]
fn no_text_of_a_client_becomes_an_option_or_is_ignored() {
    let long = format!(r#"{{"do":"export","pool":"{}"}}"#, "x".repeat(5000));
    for json in [
        r#"{"do":"export","pool":"-a"}"#,
        r#"{"do":"export","pool":""}"#,
        r#"{"do":"export","pool":"t\u0000"}"#,
        r#"{"do":"export","pool":"t\nx"}"#,
        r#"{"do":"export","pool":"t","all":true}"#,
        r#"{"do":"export"}"#,
        r#"{"do":"run","words":["x"]}"#,
        r#"{"do":"set","dataset":"t","property":"a=b","value":"c"}"#,
        r#"{"do":"set","dataset":"t","property":"-u","value":"c"}"#,
        r#"{"do":"mute","alert":"a","hours":9000}"#,
        r#"{"do":"replace","pool":"t","device":"a","new_device":"mirror"}"#,
        r#"{"do":"create_pool","name":"t","vdevs":[{"kind":"mirror","devices":["a","b"]}]}"#,
        r#"{"do":"create_pool","name":"t","vdevs":[{"kind":"mirror","devices":[]}]}"#,
        r#"{"do":"import","pool":"t","directory":"relative"}"#,
        r#"{"do":"wipe","device":"sda"}"#,
        r#"{"do":"add_vdevs","pool":"t","vdevs":[{"kind":"stripe","devices":["-f"]}]}"#,
        r#"{"do":"load_key","dataset":"t","secret":"12345678"}"#,
        r#"{"do":"add_job","name":"j","work":{"snapshot":[]},"schedule":"hourly"}"#,
        r#"{"do":"add_job","name":"j","work":{"snapshot":["--through=x"]},"schedule":"hourly"}"#,
        r#"{"do":"add_job","name":"j","work":{"replicate":{"source":"t","target":"u","through":"sh"}},"schedule":"hourly"}"#,
        &long,
        "[]",
    ] {
        assert!(line(json).is_err(), "{json}: {:?}", line(json));
    }
}

#[test]
fn roles_and_confirmations_follow_from_the_action() {
    let of = |json: &str| {
        let action = PageAction::from_json(json.as_bytes()).unwrap();
        (action.role(), action.needs_confirmation())
    };
    assert_eq!(of(r#"{"do":"snapshot","snapshot":"t@s"}"#), (Role::Operate, false));
    assert_eq!(of(r#"{"do":"acknowledge","alert":"a"}"#), (Role::Operate, false));
    assert_eq!(of(r#"{"do":"set","dataset":"t","property":"a","value":"b"}"#), (Role::Administer, false));
    assert_eq!(of(r#"{"do":"destroy","name":"t@s"}"#), (Role::Administer, true));
    assert_eq!(of(r#"{"do":"import","pool":"t"}"#), (Role::Administer, false));
    assert_eq!(of(r#"{"do":"trim","pool":"t","step":"start"}"#), (Role::Operate, false));
    assert_eq!(of(r#"{"do":"run_job","job":"j"}"#), (Role::Operate, false));
    assert_eq!(of(r#"{"do":"load_key","dataset":"t"}"#), (Role::Administer, false));
    assert_eq!(of(r#"{"do":"wipe","device":"/d"}"#), (Role::Administer, true));
    let takes = |json: &str| PageAction::from_json(json.as_bytes()).unwrap().takes_secret();
    assert!(takes(r#"{"do":"load_key","dataset":"t"}"#));
    assert!(takes(
        r#"{"do":"create_dataset","name":"t","properties":[{"property":"keyformat","value":"passphrase"}]}"#
    ));
    assert!(!takes(r#"{"do":"create_dataset","name":"t"}"#));
    assert_eq!(of(r#"{"do":"import","pool":"t","force":true}"#), (Role::Administer, true));
    assert!(Role::View < Role::Operate && Role::Operate < Role::Administer);
    for role in [Role::View, Role::Operate, Role::Administer] {
        assert_eq!(Role::named(role.name()), Some(role));
    }
}

#[test]
fn the_seeds_of_fuzzing_are_actions_and_tokens() {
    let folder = |target: &str| format!("{}/../../fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
    for (target, run) in TARGETS {
        let seeds: Vec<_> = std::fs::read_dir(folder(target)).unwrap().map(|seed| seed.unwrap().path()).collect();
        assert!(!seeds.is_empty(), "{target}");
        for seed in seeds {
            let bytes = std::fs::read(&seed).unwrap();
            run(&bytes);
            let is_read = PageAction::from_json(&bytes).is_ok() || tokens::parse(&bytes).is_some();
            assert!(is_read, "{}", seed.display());
        }
    }
}
