#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use super::*;
use std::os::unix::fs::PermissionsExt;
use weir_sim::SimWorld;

#[test]
fn secrets_are_encrypted_at_rest_and_kept_private() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("state");
    let users = ChapUsers::new(&folder);
    let entropy = SimWorld::new(1).machine().entropy;
    assert!(users.names().unwrap().is_empty());
    let secret = |text: &str| ChapSecret::new(text.as_bytes().to_vec()).unwrap();
    assert!(users.set(&entropy, "ann", &secret("ann's long secret")).unwrap());
    assert!(users.set(&entropy, "bob", &secret("bob's long secret")).unwrap());
    assert!(!users.set(&entropy, "ann", &secret("another secret")).unwrap());
    assert_eq!(users.names().unwrap(), ["ann", "bob"]);
    assert_eq!(users.secret("ann").unwrap().bytes(), b"another secret");
    let list = std::fs::read_to_string(folder.join(LIST)).unwrap();
    assert!(list.contains("ann\t") && !list.contains("secret"), "{list}");
    for (path, mode) in [(folder.clone(), 0o700), (folder.join(LIST), 0o600), (folder.join(KEY), 0o600)] {
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
    }
    // Secrets cannot be exchanged between users.
    let exchanged = list.replace("ann\t", "x\t").replace("bob\t", "ann\t").replace("x\t", "bob\t");
    std::fs::write(folder.join(LIST), exchanged).unwrap();
    assert!(matches!(users.secret("ann"), Err(UserError::Damaged { .. })));
    std::fs::write(folder.join(LIST), &list).unwrap();
    users.remove("bob").unwrap();
    assert!(matches!(users.remove("bob"), Err(UserError::Missing { .. })));
    assert!(matches!(users.secret("bob"), Err(UserError::Missing { .. })));
    std::fs::set_permissions(folder.join(KEY), std::fs::Permissions::from_mode(0o640)).unwrap();
    let refused = users.secret("ann").unwrap_err().to_string();
    assert!(refused.contains("chmod 600"), "{refused}");
    std::fs::write(folder.join(LIST), format!("{FIRST_LINE}\nann\tzz\n")).unwrap();
    assert!(matches!(users.names(), Err(UserError::Malformed { line: 2, .. })));
}

#[test]
fn names_and_secrets_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let users = ChapUsers::new(dir.path());
    let entropy = SimWorld::new(1).machine().entropy;
    let secret = ChapSecret::new(b"a long secret".to_vec()).unwrap();
    for name in ["", "a b", "a,b", "a+b", "a\tb", &"x".repeat(224)] {
        assert!(matches!(users.set(&entropy, name, &secret), Err(UserError::Name { .. })), "{name:?}");
    }
    assert!(matches!(ChapSecret::new(b"short".to_vec()), Err(UserError::SecretLen { len: 5 })));
    assert_eq!(format!("{secret:?}"), "ChapSecret");
    TARGETS.iter().for_each(|(_, target)| target(b"weir chap 1\nann\t00ff\n"));
}

#[test]
fn the_state_directory_follows_the_environment() {
    let of = |set: &[(&str, &str)], is_root| {
        let set: BTreeMap<String, String> = set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        state_folder(|name| set.get(name).map(Into::into), is_root)
    };
    assert_eq!(of(&[("STATE_DIRECTORY", "/var/lib/w:/x"), ("HOME", "/h")], true), Some("/var/lib/w".into()));
    assert_eq!(of(&[("HOME", "/h")], true), Some("/var/lib/weir".into()));
    assert_eq!(of(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")], false), Some("/s/weir".into()));
    assert_eq!(of(&[("XDG_STATE_HOME", "s"), ("HOME", "/h")], false), Some("/h/.local/state/weir".into()));
    assert_eq!(of(&[], false), None);
}
