//! Limits that are checked before any change, and the counts that some of them use.

use super::{
    Lab, branch, create, destroy, destroy_head, features, file_system, names, promote, properties, rename, rollback,
    run, snapshot,
};
use crate::bpobj;
use crate::sync_tasks::*;
use weir_format::dsl::dir_field::{FILESYSTEM_COUNT, SNAPSHOT_COUNT};
use weir_format::features::Feature;

fn with(name: &str, properties: &[(&str, u64)]) -> NewDataset {
    let number = |(name, n): &(&str, u64)| ((*name).to_owned(), crate::props::Value::Number(*n));
    NewDataset { properties: properties.iter().map(number).collect(), ..file_system(name) }
}

async fn limit(change: &mut DslSyncContext<'_>, name: &str, property: &str, most: u64) {
    properties::set_property(change, name, property, &Setting::Set(crate::props::Value::Number(most))).await.unwrap();
}

/// Counts of file systems and snapshots at and below a dataset.
async fn counts(change: &mut DslSyncContext<'_>, name: &str) -> [Option<u64>; 2] {
    let dir = names::find_dir(change, name).await.unwrap().id;
    [
        create::dir_word(change, dir, FILESYSTEM_COUNT).await.unwrap(),
        create::dir_word(change, dir, SNAPSHOT_COUNT).await.unwrap(),
    ]
}

#[test]
fn reservations_beyond_the_pool_are_refused() {
    run(10, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        let all = lab.pool.capacity_bytes;
        for properties in [
            &[("refreservation", 2 * all)][..],
            &[("reservation", 2 * all)],
            &[("reservation", 1 << 20), ("quota", 1 << 19)],
            &[("refreservation", 1 << 20), ("refquota", 1 << 19)],
        ] {
            let refused = create::create(&mut change, &with("tank/a", properties)).await;
            assert!(matches!(refused, Err(DslError::Space { .. })), "{properties:?}");
            assert!(matches!(names::find_head(&mut change, "tank/a").await, Err(DslError::Missing { .. })));
        }
        create::create(&mut change, &with("tank/a", &[("refreservation", 1 << 20), ("reservation", 1 << 20)]))
            .await
            .unwrap();
        let tx = lab.next_tx();
        snapshot::snapshot(&mut lab.change(&tx), &["tank/a@s".into()], &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        let huge = with("tank/c", &[("refreservation", 2 * all)]).properties;
        let refused = branch::clone_snapshot(&mut change, "tank/a@s", "tank/c", &huge).await;
        assert!(matches!(refused, Err(DslError::Space { .. })));
        assert!(matches!(names::find_head(&mut change, "tank/c").await, Err(DslError::Missing { .. })));
    });
}

/// Blocks written with such a value could not be accounted, and the pool would suspend.
#[test]
fn values_without_their_pool_feature_are_refused() {
    run(15, |machine| async move {
        let lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        create::create(&mut change, &file_system("tank/a")).await.unwrap();
        let values = [
            ("recordsize", 1 << 20),
            ("compression", 16 | 3 << 7),
            ("checksum", 14),
            ("dedup", 11 | 1 << 8),
            ("dnodesize", 1024),
            ("longname", 1),
        ];
        for (property, n) in values {
            let refused = create::create(&mut change, &with("tank/b", &[(property, n)])).await;
            assert!(matches!(refused, Err(DslError::Feature { .. })), "{property}");
            let setting = Setting::Set(crate::props::Value::Number(n));
            let refused = properties::set_property(&mut change, "tank/a", property, &setting).await;
            assert!(matches!(refused, Err(DslError::Feature { .. })), "{property}");
        }
        let volume = Kind::Volume(VolumeSpec { size_bytes: 1 << 20, block_bytes: 1 << 20 });
        let large = Kind::FileSystem(FileSystemSpec { slots: 2, ..FileSystemSpec::default() });
        for kind in [volume, large] {
            let refused = create::create(&mut change, &NewDataset { kind, ..file_system("tank/b") }).await;
            assert!(matches!(refused, Err(DslError::Feature { .. })), "{kind:?}");
        }
        for feature in [
            Feature::LARGE_BLOCKS,
            Feature::ZSTD_COMPRESS,
            Feature::BLAKE3,
            Feature::SHA512,
            Feature::LARGE_DNODE,
            Feature::LONGNAME,
        ] {
            features::enable_feature(&mut change, feature).await.unwrap();
        }
        for (property, n) in values {
            limit(&mut change, "tank/a", property, n).await;
        }
        // zstd is active with the property, the others with the first block or object.
        let active = features::is_active(&mut change, Feature::ZSTD_COMPRESS).await.unwrap();
        assert!(active && !features::is_active(&mut change, Feature::BLAKE3).await.unwrap());
        create::create(&mut change, &NewDataset { kind: volume, ..file_system("tank/b") }).await.unwrap();
    });
}

#[test]
fn counts_hold_after_a_rollback() {
    run(11, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        limit(&mut change, "tank", "filesystem_limit", 9).await;
        create::create(&mut change, &file_system("tank/a")).await.unwrap();
        let tx = lab.next_tx();
        snapshot::snapshot(&mut lab.change(&tx), &["tank/a@s".into()], &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        rollback::rollback(&mut change, "tank/a", None).await.unwrap();
        assert_eq!(counts(&mut change, "tank").await, [Some(1), Some(1)]);
        assert_eq!(counts(&mut change, "tank/a").await, [Some(0), Some(1)]);
    });
}

#[test]
fn a_pool_without_space_takes_no_new_dataset() {
    run(17, |machine| async move {
        let lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        let root = names::root_dir(&mut change).await.unwrap();
        let used_bytes = change.dir(root).await.unwrap().used_bytes;
        change.pool.capacity_bytes = used_bytes + 5 * 3 * (16 << 10) - 1;
        let refused = create::check_create(&mut change, &file_system("tank/a")).await;
        assert!(matches!(refused, Err(DslError::Space { why: "out of space", .. })), "{refused:?}");
        change.pool.capacity_bytes += 1;
        create::check_create(&mut change, &file_system("tank/a")).await.unwrap();
    });
}

/// In a pool that is not quite full, new names fit as long as OpenZFS would admit them.
#[test]
fn a_pool_without_space_takes_no_new_snapshots_and_bookmarks() {
    run(18, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        for name in ["tank/a", "tank/b"] {
            create::create(&mut change, &file_system(name)).await.unwrap();
        }
        let tx = lab.next_tx();
        snapshot::snapshot(&mut lab.change(&tx), &["tank/a@old".into()], &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        let root = names::root_dir(&mut change).await.unwrap();
        let used_bytes = change.dir(root).await.unwrap().used_bytes;
        let both = ["tank/a@s".to_owned(), "tank/b@s".to_owned()];
        let fits_in = |result: Result<(), DslError>| match result {
            Err(DslError::Space { why: "out of space", .. }) => false,
            other => other.map(|()| true).unwrap(),
        };
        // Three blocks of 16 KiB with three copies for each snapshot, one for a bookmark.
        for (blocks, fits) in
            [(6, [true, true, true]), (5, [false, true, true]), (2, [false, false, true]), (0, [false; 3])]
        {
            change.pool.capacity_bytes = used_bytes + blocks * 3 * (16 << 10);
            let results = [
                snapshot::check_snapshots(&mut change, &both).await,
                snapshot::check_snapshots(&mut change, &both[..1]).await,
                bookmark::check_bookmark(&mut change, "tank/a#b", "tank/a@old").await,
            ];
            assert_eq!(results.map(fits_in), fits, "{blocks} blocks");
        }
    });
}

#[test]
fn snapshots_of_one_txg_need_space_together() {
    run(16, |machine| async move {
        const BYTES: u64 = 64 << 20;
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        for name in ["tank/a", "tank/b"] {
            create::create(&mut change, &with(name, &[("refreservation", BYTES)])).await.unwrap();
            let head = names::find_head(&mut change, name).await.unwrap();
            let full = weir_format::DslDataset { unique_bytes: BYTES, ..head.phys };
            change.put_dataset(head.id, &full).await.unwrap();
        }
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        let root = names::root_dir(&mut change).await.unwrap();
        change.pool.capacity_bytes = change.dir(root).await.unwrap().used_bytes + BYTES * 3 / 2;
        let names = ["tank/a@s".to_owned(), "tank/b@s".to_owned()];
        for one in &names {
            snapshot::check_snapshots(&mut change, std::slice::from_ref(one)).await.unwrap();
        }
        assert!(matches!(snapshot::check_snapshots(&mut change, &names).await, Err(DslError::Space { .. })));
        change.pool.capacity_bytes += BYTES;
        snapshot::snapshot(&mut change, &names, &[]).await.unwrap();
    });
}

/// OpenZFS stops when a count becomes negative.
#[test]
fn a_dataset_that_moves_into_a_counting_directory_is_counted() {
    run(12, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        for name in ["tank/x", "tank/b", "tank/b/c"] {
            create::create(&mut change, &file_system(name)).await.unwrap();
        }
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        snapshot::snapshot(&mut change, &["tank/b/c@s".into()], &[]).await.unwrap();
        limit(&mut change, "tank/x", "filesystem_limit", 2).await;
        rename::rename(&mut change, "tank/b", "tank/x/b").await.unwrap();
        assert_eq!(counts(&mut change, "tank/x").await, [Some(2), Some(1)]);
        assert_eq!(counts(&mut change, "tank/x/b").await, [Some(1), Some(1)]);
        let full = create::create(&mut change, &file_system("tank/x/b/d")).await;
        assert!(matches!(full, Err(DslError::Space { .. })));
        destroy::destroy_snapshots(&mut change, &["tank/x/b/c@s".into()], false).await.unwrap();
        destroy_head::destroy(&mut change, "tank/x/b/c").await.unwrap();
        assert_eq!(counts(&mut change, "tank/x").await, [Some(1), Some(0)]);
    });
}

#[test]
fn a_move_below_one_limit_is_not_counted_twice() {
    run(13, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        for name in ["tank/x", "tank/x/p", "tank/x/q", "tank/x/q/r"] {
            create::create(&mut change, &file_system(name)).await.unwrap();
        }
        limit(&mut change, "tank/x", "filesystem_limit", 3).await;
        rename::rename(&mut change, "tank/x/q/r", "tank/x/p/r").await.unwrap();
        limit(&mut change, "tank/x", "filesystem_limit", 4).await;
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        snapshot::snapshot(&mut change, &["tank/x/p@s".into()], &[]).await.unwrap();
        limit(&mut change, "tank/x", "snapshot_limit", 1).await;
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        branch::clone_snapshot(&mut change, "tank/x/p@s", "tank/x/c", &[]).await.unwrap();
        promote::promote(&mut change, "tank/x/c").await.unwrap();
        assert_eq!(counts(&mut change, "tank/x").await, [Some(4), Some(1)]);
        // Below another limit, it counts.
        limit(&mut change, "tank/x/q", "filesystem_limit", 0).await;
        let refused = rename::rename(&mut change, "tank/x/p/r", "tank/x/q/r").await;
        assert!(matches!(refused, Err(DslError::Space { .. })));
    });
}

/// Pools that were once older than version 26 have datasets with plain deadlists: an operation that is impossible with
/// those is refused before any change.
#[test]
fn old_deadlists_are_left_as_they_are() {
    run(14, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        create::create(&mut lab.change(&tx), &file_system("tank/a")).await.unwrap();
        let tx = lab.next_tx();
        snapshot::snapshot(&mut lab.change(&tx), &["tank/a@s".into()], &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        let list = bpobj::create(&lab.rq, &lab.mos, &tx, false).await.unwrap();
        let head = names::find_head(&mut change, "tank/a").await.unwrap();
        let old = weir_format::DslDataset { deadlist: list, ..head.phys };
        change.put_dataset(head.id, &old).await.unwrap();
        let before = change.marks();
        let names = [["tank/a@s".to_owned()], ["tank/a@t".to_owned()]];
        let refused = [
            destroy::destroy_snapshots(&mut change, &names[0], false).await,
            destroy::destroy_snapshots(&mut change, &names[0], true).await,
            snapshot::snapshot(&mut change, &names[1], &[]).await.map(drop),
            rollback::rollback(&mut change, "tank/a", None).await,
            branch::clone_snapshot(&mut change, "tank/a@s", "tank/c", &[]).await.map(drop),
        ];
        for result in refused {
            assert!(matches!(result, Err(DslError::Object(ObjectError::Unsupported { .. }))), "{result:?}");
        }
        assert_eq!(change.marks(), before, "nothing was changed");
    });
}
