//! Keys of encrypted datasets follow their roots.

use super::{Lab, file_system, run};
use crate::KeyFormat;
use crate::sync_tasks::*;
use weir_codec::crypt::{Suite, WrappingKey};

const SECRET: [u8; 32] = [7; 32];

fn source() -> KeySource {
    KeySource { format: KeyFormat::Raw, salt: 0, iterations: 0, location: "prompt".into() }
}

#[test]
fn keys_are_wrapped_by_their_root() {
    run(6, |machine| async move {
        let lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        change.enable_feature("encryption").await.unwrap();
        let secrets = [[7u8; 32], [8u8; 32]];
        let [first, second] = secrets.map(|s| WrappingKey::from_raw(&s).unwrap());
        let source = source();
        let root = change.create(&file_system("tank/e")).await.unwrap();
        let own = NewKey::Root(source.clone());
        change.encrypt_new(root, Suite::Aes256Gcm, &own, &first).await.unwrap();
        let child = change.create(&file_system("tank/e/f")).await.unwrap();
        let wrong = change.encrypt_new(child, Suite::Aes128Ccm, &NewKey::Inherited, &second).await;
        assert!(matches!(wrong, Err(DslError::Object(weir_dmu::ObjectError::Key { .. }))));
        change.encrypt_new(child, Suite::Aes128Ccm, &NewKey::Inherited, &first).await.unwrap();
        let plain = change.create(&file_system("tank/p")).await.unwrap();
        assert!(change.encrypt_new(plain, Suite::Aes256Gcm, &NewKey::Inherited, &first).await.is_err());
        let opens = |secret: [u8; 32]| {
            let lab = &lab;
            let rq = &lab.rq;
            async move {
                let dsl = lab.dsl().await;
                let dir = dsl.dir_named("tank/e").unwrap();
                dsl.load_keys(rq, dir, &secret).await.map(|keys| keys.len())
            }
        };
        assert_eq!(opens(secrets[0]).await, Ok(2));
        assert!(change.change_key("tank/e", &second, &first, &source).await.is_err());
        change.change_key("tank/e", &first, &second, &source).await.unwrap();
        assert_eq!(opens(secrets[1]).await, Ok(2));
        assert!(opens(secrets[0]).await.is_err());
        change.change_key("tank/e/f", &second, &first, &source).await.unwrap();
        assert_eq!(opens(secrets[1]).await, Ok(1));
        change.inherit_key("tank/e/f", &first, &second).await.unwrap();
        assert_eq!(opens(secrets[1]).await, Ok(2));
        for name in ["tank/e/f", "tank/e"] {
            change.destroy(name).await.unwrap();
        }
        assert_eq!(change.feature_count("encryption").await.unwrap(), Some(0));
    });
}

/// Number of datasets that a root's key opens.
async fn opened(lab: &Lab, root: &str) -> usize {
    let dsl = lab.dsl().await;
    dsl.load_keys(&lab.rq, dsl.dir_named(root).unwrap(), &SECRET).await.unwrap().len()
}

/// Creates a file system with that key, its own or inherited.
async fn encrypted(change: &mut DslSyncContext<'_>, name: &str, own: bool) {
    let key = if own { NewKey::Root(source()) } else { NewKey::Inherited };
    let made = change.create(&file_system(name)).await.unwrap();
    let wrapping = WrappingKey::from_raw(&SECRET).unwrap();
    change.encrypt_new(made, Suite::Aes256Gcm, &key, &wrapping).await.unwrap();
}

/// A clone elsewhere has the key of its origin, and datasets created below it inherit that: all of them follow when
/// another clone is promoted and becomes the root.
#[test]
fn all_that_a_root_wraps_follows_a_promotion() {
    run(8, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        change.enable_feature("encryption").await.unwrap();
        encrypted(&mut change, "tank/e", true).await;
        let tx = lab.next_tx();
        lab.change(&tx).snapshot(&["tank/e@s".into()], &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        change.clone_snapshot("tank/e@s", "tank/c", &[]).await.unwrap();
        change.clone_snapshot("tank/e@s", "tank/d", &[]).await.unwrap();
        encrypted(&mut change, "tank/c/below", false).await;
        assert_eq!(opened(&lab, "tank/e").await, 4);
        change.promote("tank/d").await.unwrap();
        assert_eq!(opened(&lab, "tank/d").await, 4);
    });
}

/// A dataset that inherits a key stays below its root: OpenZFS, which visits only the descendants that inherit a key
/// when it changes the key, would not rewrap the dataset elsewhere.
#[test]
fn a_dataset_cannot_leave_the_root_of_its_key() {
    run(9, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        change.enable_feature("encryption").await.unwrap();
        for (name, own) in [("tank/e", true), ("tank/e/own", true), ("tank/e/f", false), ("tank/e/g", false)] {
            encrypted(&mut change, name, own).await;
        }
        let tx = lab.next_tx();
        lab.change(&tx).snapshot(&["tank/e/f@s".into(), "tank/e@s".into()], &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        for to in ["tank/e/own/f", "tank/f"] {
            assert!(matches!(change.rename("tank/e/f", to).await, Err(DslError::Key { .. })), "{to}");
        }
        change.rename("tank/e/g", "tank/e/f/g").await.unwrap();
        change.rename("tank/e/own", "tank/own").await.unwrap();
        change.clone_snapshot("tank/e/f@s", "tank/own/clone", &[]).await.unwrap();
        assert!(matches!(change.promote("tank/own/clone").await, Err(DslError::Key { .. })));
        // A clone of a clone: whichever is promoted, the key stays with the first origin.
        change.clone_snapshot("tank/e/f@s", "tank/e/clone", &[]).await.unwrap();
        change.promote("tank/e/clone").await.unwrap();
        assert_eq!(opened(&lab, "tank/e").await, 5);
    });
}
