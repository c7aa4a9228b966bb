//! `zpool status -c` and `zpool iostat -c`: scripts that add columns to devices.

use super::Lab;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

/// Makes an executable script in the folder `scripts`.
fn script(lab: &Lab, name: &str, text: &str) {
    let folder = lab.path("scripts");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn run(lab: &Lab, line: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = lab.weir(line);
    command.env("ZPOOL_SCRIPTS_PATH", lab.path("scripts")).env("ZPOOL_SCRIPTS_AS_ROOT", "1");
    command.envs(variables.iter().copied()).output().unwrap()
}

fn ok(lab: &Lab, line: &str) -> String {
    let out = run(lab, line, &[]);
    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn scripts_add_columns_to_devices() {
    let lab = Lab::new();
    let mut process = lab.serve();
    script(&lab, "kind", "echo kind=file; echo \"disk=${VDEV_PATH##*/}\"");
    script(&lab, "fails", "echo never=1; exit 1");
    script(&lab, "blank", "[ \"${VDEV_PATH##*/}\" = d0 ] && echo only=here || echo only=");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let text = ok(&lab, "zpool status -c kind,fails,blank,missing p");
    let row = |text: &str, what: &str| {
        let found = text.lines().find(|line| line.split_whitespace().next().is_some_and(|word| word.ends_with(what)));
        words(found.unwrap_or_else(|| panic!("{what}: {text}")))
    };
    assert_eq!(row(&text, "NAME")[2..], ["READ", "WRITE", "CKSUM", "kind", "disk", "only"], "{text}");
    assert_eq!(row(&text, "d0")[5..], ["file", "d0", "here"], "{text}");
    assert_eq!(row(&text, "d1")[5..], ["file", "d1", "-"], "{text}");
    assert_eq!(row(&text, "mirror-0").len(), 5, "only devices have them: {text}");
    let text = ok(&lab, "zpool iostat -c kind p");
    assert_eq!(row(&text, "pool")[7..], ["kind", "disk"], "{text}");
    assert_eq!(row(&text, "d1")[7..], ["file", "d1"], "{text}");
    let disk = lab.path("d1").display().to_string();
    let text = ok(&lab, &format!("zpool iostat -H {disk}"));
    assert!(text.starts_with(&disk) && text.lines().count() == 1, "a vdev is found without its pool: {text}");
    let text = ok(&lab, "zpool status -c");
    assert!(text.starts_with("Available 'zpool status -c' commands:") && text.contains("  kind "), "{text}");
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn scripts_are_refused_where_the_environment_forbids_them() {
    let lab = Lab::new();
    let mut process = lab.serve();
    script(&lab, "kind", "echo kind=file");
    for (line, variables, why) in [
        ("zpool status -c kind p", ("ZPOOL_SCRIPTS_ENABLED", "0"), "disabled by ZPOOL_SCRIPTS_ENABLED"),
        ("zpool iostat -c kind p", ("ZPOOL_SCRIPTS_ENABLED", "no"), "disabled by ZPOOL_SCRIPTS_ENABLED"),
        ("zpool status -c kind p", ("ZPOOL_SCRIPTS_AS_ROOT", "0"), "unless ZPOOL_SCRIPTS_AS_ROOT is set"),
    ] {
        if variables.0.ends_with("ROOT") && !rustix::process::getuid().is_root() {
            continue;
        }
        let out = run(&lab, line, &[variables]);
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.code() == Some(1) && said.contains(why), "{line}: {said}");
    }
    // No path leads out of the folders of scripts.
    let text = ok(&lab, "zpool status -c ../scripts/kind,/bin/true p");
    assert!(!text.contains("kind"), "{text}");
    process.kill().unwrap();
    process.wait().unwrap();
}
