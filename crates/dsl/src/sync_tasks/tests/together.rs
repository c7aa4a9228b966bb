//! Operations on several names are all or nothing, also if a name occurs twice.

use super::{
    Lab, bookmark, branch, create, destroy, destroy_head, file_system, hold, names, promote, properties, rename, run,
    snapshot, synced,
};
use crate::sync_tasks::*;
use weir_format::dsl::dir_field::SNAPSHOT_COUNT;

fn names<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(String::from).to_vec()
}

fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> Vec<(String, String)> {
    pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec()
}

/// A pool with `tank/a` and `tank/b` below it, a snapshot `s` of each.
async fn lab(machine: &weir_machine::Machine) -> Lab {
    let mut lab = Lab::new(machine).await;
    let tx = lab.tx();
    let mut change = lab.change(&tx);
    for name in ["tank/a", "tank/b"] {
        create::create(&mut change, &file_system(name)).await.unwrap();
    }
    let tx = lab.next_tx();
    snapshot::snapshot(&mut lab.change(&tx), &names(["tank/a@s", "tank/b@s"]), &[]).await.unwrap();
    lab.next_tx();
    lab
}

#[test]
fn names_that_occur_twice() {
    run(30, |machine| async move {
        let lab = lab(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        let hold = pairs([("tank/b@s", "tag")]);
        hold::hold(&mut change, &hold, false).await.unwrap();
        destroy::destroy_snapshots(&mut change, &names(["tank/b@s"]), true).await.unwrap();
        let before = change.marks();
        let twice = hold::release(&mut change, &[hold.clone(), hold.clone()].concat()).await;
        assert!(matches!(twice, Err(DslError::Missing { .. })), "{twice:?}");
        let twice = bookmark::bookmark(&mut change, &pairs([("tank/a#m", "tank/a@s"), ("tank/a#m", "tank/a@s")])).await;
        assert!(matches!(twice, Err(DslError::Exists { .. })), "{twice:?}");
        assert_eq!(change.marks(), before, "nothing was changed");
        hold::release(&mut change, &hold).await.unwrap();
        destroy::destroy_snapshots(&mut change, &names(["tank/a@s", "tank/a@s"]), false).await.unwrap();
        assert!(
            names::find(&mut change, "tank/a@s").await.is_err() && names::find(&mut change, "tank/b@s").await.is_err()
        );
    });
}

#[test]
fn snapshots_are_renamed_all_or_none() {
    run(31, |machine| async move {
        let mut lab = lab(&machine).await;
        let tx = lab.next_tx();
        snapshot::snapshot(&mut lab.change(&tx), &names(["tank/b@t"]), &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        let before = change.marks();
        let taken = rename::rename_snapshots(&mut change, &pairs([("tank/a@s", "t"), ("tank/b@s", "t")])).await;
        assert!(matches!(taken, Err(DslError::Exists { .. })), "{taken:?}");
        let two = rename::rename_snapshots(&mut change, &pairs([("tank/b@s", "u"), ("tank/b@t", "v")])).await;
        assert!(matches!(two, Err(DslError::Kind { .. })), "{two:?}");
        assert_eq!(change.marks(), before, "nothing was changed");
        rename::rename_snapshots(&mut change, &pairs([("tank/a@s", "u"), ("tank/b@s", "u")])).await.unwrap();
        assert!(
            names::find(&mut change, "tank/a@u").await.is_ok() && names::find(&mut change, "tank/b@u").await.is_ok()
        );
        assert!(names::find(&mut change, "tank/a@s").await.is_err());
    });
}

#[test]
fn a_limit_counts_all_snapshots_of_one_txg() {
    run(32, |machine| async move {
        let mut lab = lab(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        let three = Setting::Set(crate::props::Value::Number(3));
        properties::set_property(&mut change, "tank", "snapshot_limit", &three).await.unwrap();
        let both = names(["tank/a@t", "tank/b@t"]);
        let refused = snapshot::snapshot(&mut change, &both, &[]).await;
        assert!(matches!(refused, Err(DslError::Space { .. })), "{refused:?}");
        snapshot::snapshot(&mut change, &both[..1], &[]).await.unwrap();
        let root = names::root_dir(&mut change).await.unwrap();
        assert_eq!(create::dir_word(&change, root, SNAPSHOT_COUNT).await.unwrap(), Some(3));
        let tx = lab.next_tx();
        assert!(snapshot::snapshot(&mut lab.change(&tx), &both[1..], &[]).await.is_err());
    });
}

/// A reservation between a clone and its origin: promoted blocks must fit under it as well.
#[test]
fn a_promotion_needs_space() {
    run(33, |machine| async move {
        const BYTES: u64 = 64 << 20;
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        for name in ["tank/from", "tank/from/a", "tank/to"] {
            create::create(&mut change, &file_system(name)).await.unwrap();
        }
        let head = names::find_head(&mut change, "tank/from/a").await.unwrap();
        let full = weir_format::DslDataset { referenced_bytes: BYTES, unique_bytes: BYTES, ..head.phys };
        change.put_dataset(head.id, &full).await.unwrap();
        synced::book(&mut change, head.at.id, space::Use::Head, space::Delta::new(BYTES, BYTES, BYTES)).await.unwrap();
        let reserved = Setting::Set(crate::props::Value::Number(4 * BYTES));
        properties::set_property(&mut change, "tank/from", "reservation", &reserved).await.unwrap();
        let tx = lab.next_tx();
        snapshot::snapshot(&mut lab.change(&tx), &names(["tank/from/a@s"]), &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        branch::clone_snapshot(&mut change, "tank/from/a@s", "tank/to/c", &[]).await.unwrap();
        // The pool is full except for the reservation below tank/from, which stays reserved there.
        let root = names::root_dir(&mut change).await.unwrap();
        change.pool.capacity_bytes = change.dir(root).await.unwrap().used_bytes + BYTES / 2;
        let refused = promote::promote(&mut change, "tank/to/c").await;
        assert!(matches!(refused, Err(DslError::Space { .. })), "{refused:?}");
        change.pool.capacity_bytes += BYTES;
        promote::promote(&mut change, "tank/to/c").await.unwrap();
    });
}

#[test]
fn names_that_ignore_case() {
    run(34, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        for (name, casesensitivity) in [("tank/i", 1), ("tank/m", 2)] {
            let kind = Kind::FileSystem(FileSystemSpec { casesensitivity, ..FileSystemSpec::default() });
            create::create(&mut change, &NewDataset { kind, ..file_system(name) }).await.unwrap();
        }
        let tx = lab.next_tx();
        snapshot::snapshot(&mut lab.change(&tx), &names(["tank/i@Snap", "tank/m@Snap"]), &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        let flags = async |change: &mut DslSyncContext<'_>, name: &str| {
            names::find(change, name).await.map(|found| found.phys.flags >> 16 & 1)
        };
        assert_eq!(flags(&mut change, "tank/i").await, Ok(1));
        assert_eq!(flags(&mut change, "tank/i@sNAP").await, Ok(1), "a snapshot has its head's flags");
        assert_eq!(flags(&mut change, "tank/m").await, Ok(0));
        assert!(matches!(names::find(&mut change, "tank/m@snap").await, Err(DslError::Missing { .. })));
        assert!(matches!(
            snapshot::check_snapshots(&mut change, &names(["tank/i@SNAP"])).await,
            Err(DslError::Exists { .. })
        ));
        bookmark::bookmark(&mut change, &pairs([("tank/i#Mark", "tank/i@snap")])).await.unwrap();
        let again = bookmark::bookmark(&mut change, &pairs([("tank/i#MARK", "tank/i@snap")])).await;
        assert!(matches!(again, Err(DslError::Exists { .. })), "{again:?}");
        rename::rename_snapshots(&mut change, &pairs([("tank/i@SNAP", "Later")])).await.unwrap();
        let dsl = lab.dsl().await;
        assert!(dsl.find(&lab.rq, "tank/i@later").await.is_ok() && dsl.find(&lab.rq, "tank/i@Snap").await.is_err());
        branch::clone_snapshot(&mut change, "tank/i@LATER", "tank/c", &[]).await.unwrap();
        assert_eq!(flags(&mut change, "tank/c").await, Ok(1));
        destroy_head::destroy(&mut change, "tank/c").await.unwrap();
        bookmark::destroy_bookmarks(&mut change, &names(["tank/i#mark"])).await.unwrap();
        destroy::destroy_snapshots(&mut change, &names(["tank/i@LATER"]), false).await.unwrap();
        destroy_head::destroy(&mut change, "tank/i").await.unwrap();
    });
}

/// Each of the limits alone would be valid.
#[test]
fn limits_that_contradict_each_other() {
    run(35, |machine| async move {
        const MIB: u64 = 1 << 20;
        let lab = lab(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        let all = |limits: &[(&str, u64)]| -> Vec<_> {
            limits.iter().map(|(name, n)| ((*name).to_owned(), Setting::Set(crate::props::Value::Number(*n)))).collect()
        };
        let before = change.marks();
        let most = lab.pool.capacity_bytes / 3 * 2;
        for limits in [
            &[("quota", 4 * MIB), ("reservation", 8 * MIB)][..],
            &[("refquota", 4 * MIB), ("refreservation", 8 * MIB)],
            &[("quota", 4 * MIB), ("refreservation", 8 * MIB)],
            &[("refreservation", most), ("reservation", most * 2)],
        ] {
            let refused = properties::set_properties(&mut change, "tank/a", &all(limits)).await;
            assert!(matches!(refused, Err(DslError::Space { .. })), "{limits:?}: {refused:?}");
            assert_eq!(change.marks(), before, "{limits:?}: nothing was changed");
        }
        properties::set_properties(&mut change, "tank/a", &all(&[("quota", 8 * MIB), ("reservation", 8 * MIB)]))
            .await
            .unwrap();
        // A reservation covers the part of it that the head reserves.
        properties::set_properties(&mut change, "tank/b", &all(&[("refreservation", most), ("reservation", most)]))
            .await
            .unwrap();
    });
}
