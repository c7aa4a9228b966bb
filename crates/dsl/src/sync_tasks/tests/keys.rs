//! Keys of encrypted datasets follow their roots.

use super::{Lab, branch, create, destroy_head, features, file_system, key, promote, rename, run, snapshot};
use crate::KeyFormat;
use crate::sync_tasks::*;
use weir_codec::crypt::{Suite, WrappingKey};
use weir_format::features::Feature;

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
        features::enable_feature(&mut change, Feature::ENCRYPTION).await.unwrap();
        let secrets = [[7u8; 32], [8u8; 32]];
        let [first, second] = secrets.map(|s| WrappingKey::from_raw(&s).unwrap());
        let source = source();
        let root = create::create(&mut change, &file_system("tank/e")).await.unwrap();
        let own = NewKey::Root(source.clone());
        key::encrypt_new(&mut change, root, Suite::Aes256Gcm, &own, &first).await.unwrap();
        let child = create::create(&mut change, &file_system("tank/e/f")).await.unwrap();
        let wrong = key::encrypt_new(&mut change, child, Suite::Aes128Ccm, &NewKey::Inherited, &second).await;
        assert!(matches!(wrong, Err(DslError::Object(weir_dmu::ObjectError::Key { .. }))));
        key::encrypt_new(&mut change, child, Suite::Aes128Ccm, &NewKey::Inherited, &first).await.unwrap();
        let plain = create::create(&mut change, &file_system("tank/p")).await.unwrap();
        assert!(key::encrypt_new(&mut change, plain, Suite::Aes256Gcm, &NewKey::Inherited, &first).await.is_err());
        let opens = |secret: [u8; 32]| {
            let lab = &lab;
            let rq = &lab.rq;
            async move {
                let dsl = lab.dsl().await;
                let dir = dsl.dir_named("tank/e").unwrap();
                crate::keys::load_keys(&dsl, rq, dir, &secret).await.map(|keys| keys.len())
            }
        };
        assert_eq!(opens(secrets[0]).await, Ok(2));
        assert!(key::change_key(&mut change, "tank/e", &second, &first, &source).await.is_err());
        key::change_key(&mut change, "tank/e", &first, &second, &source).await.unwrap();
        assert_eq!(opens(secrets[1]).await, Ok(2));
        assert!(opens(secrets[0]).await.is_err());
        key::change_key(&mut change, "tank/e/f", &second, &first, &source).await.unwrap();
        assert_eq!(opens(secrets[1]).await, Ok(1));
        key::inherit_key(&mut change, "tank/e/f", &first, &second).await.unwrap();
        assert_eq!(opens(secrets[1]).await, Ok(2));
        for name in ["tank/e/f", "tank/e"] {
            destroy_head::destroy(&mut change, name).await.unwrap();
        }
        assert_eq!(features::feature_count(&mut change, Feature::ENCRYPTION).await.unwrap(), Some(0));
    });
}

/// Number of datasets that a root's key opens.
async fn opened(lab: &Lab, root: &str) -> usize {
    let dsl = lab.dsl().await;
    crate::keys::load_keys(&dsl, &lab.rq, dsl.dir_named(root).unwrap(), &SECRET).await.unwrap().len()
}

/// Creates a file system with that key, its own or inherited.
async fn encrypted(change: &mut DslSyncContext<'_>, name: &str, own: bool) {
    let key = if own { NewKey::Root(source()) } else { NewKey::Inherited };
    let made = create::create(change, &file_system(name)).await.unwrap();
    let wrapping = WrappingKey::from_raw(&SECRET).unwrap();
    key::encrypt_new(change, made, Suite::Aes256Gcm, &key, &wrapping).await.unwrap();
}

/// A clone elsewhere has the key of its origin, and datasets created below it inherit that: all of them follow when
/// another clone is promoted and becomes the root.
#[test]
fn all_that_a_root_wraps_follows_a_promotion() {
    run(8, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        features::enable_feature(&mut change, Feature::ENCRYPTION).await.unwrap();
        encrypted(&mut change, "tank/e", true).await;
        let tx = lab.next_tx();
        snapshot::snapshot(&mut lab.change(&tx), &["tank/e@s".into()], &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        branch::clone_snapshot(&mut change, "tank/e@s", "tank/c", &[]).await.unwrap();
        branch::clone_snapshot(&mut change, "tank/e@s", "tank/d", &[]).await.unwrap();
        encrypted(&mut change, "tank/c/below", false).await;
        assert_eq!(opened(&lab, "tank/e").await, 4);
        promote::promote(&mut change, "tank/d").await.unwrap();
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
        features::enable_feature(&mut change, Feature::ENCRYPTION).await.unwrap();
        for (name, own) in [("tank/e", true), ("tank/e/own", true), ("tank/e/f", false), ("tank/e/g", false)] {
            encrypted(&mut change, name, own).await;
        }
        let tx = lab.next_tx();
        snapshot::snapshot(&mut lab.change(&tx), &["tank/e/f@s".into(), "tank/e@s".into()], &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        for to in ["tank/e/own/f", "tank/f"] {
            assert!(matches!(rename::rename(&mut change, "tank/e/f", to).await, Err(DslError::Key { .. })), "{to}");
        }
        rename::rename(&mut change, "tank/e/g", "tank/e/f/g").await.unwrap();
        rename::rename(&mut change, "tank/e/own", "tank/own").await.unwrap();
        branch::clone_snapshot(&mut change, "tank/e/f@s", "tank/own/clone", &[]).await.unwrap();
        assert!(matches!(promote::promote(&mut change, "tank/own/clone").await, Err(DslError::Key { .. })));
        // A clone of a clone: whichever is promoted, the key stays with the first origin.
        branch::clone_snapshot(&mut change, "tank/e/f@s", "tank/e/clone", &[]).await.unwrap();
        promote::promote(&mut change, "tank/e/clone").await.unwrap();
        assert_eq!(opened(&lab, "tank/e").await, 5);
    });
}
