//! Corrupt links that form cycles: each walk along them ends, with an error.

use super::{Lab, bookmark, branch, create, file_system, names, promote, properties, rename, run, snapshot, synced};
use crate::bpobj::{self, EmptyList};
use crate::deadlist;
use crate::sync_tasks;
use crate::sync_tasks::space::{Delta, Use};
use crate::sync_tasks::*;
use weir_format::dsl::Bpobj;
use weir_format::{BlockPointer, DslDataset, ObjectId};

fn is_corrupt<T: std::fmt::Debug>(result: Result<T, DslError>) {
    assert!(matches!(result, Err(DslError::Object(ObjectError::Corrupt { .. }))), "{result:?}");
}

#[test]
fn directories_that_contain_each_other() {
    run(20, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        for name in ["tank/a", "tank/a/b"] {
            create::create(&mut change, &file_system(name)).await.unwrap();
        }
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        let a = names::find_dir(&mut change, "tank/a").await.unwrap();
        let b = names::find_dir(&mut change, "tank/a/b").await.unwrap();
        change.put_dir(a.id, &weir_format::DslDir { parent: b.id, ..a.dir }).await.unwrap();
        is_corrupt(synced::book(&mut change, b.id, Use::Head, Delta::used(1)).await);
        is_corrupt(sync_tasks::limits::available_in(&mut change, b.id).await);
        is_corrupt(names::dir_name(&mut change, b.id).await);
        is_corrupt(create::create(&mut change, &file_system("tank/a/b/c")).await);
        is_corrupt(rename::rename(&mut change, "tank/a/b", "tank/c").await);
        // From above as well.
        change.insert_word(b.dir.children, "a", a.id.0).await.unwrap();
        is_corrupt(sync_tasks::limits::limits(&mut change).await);
        is_corrupt(properties::start_counting(&mut change, a.id).await);
        is_corrupt(rename::check_rename(&mut change, "tank/a/b", "tank/c").await);
        assert_eq!(lab.dsl().await.damaged().len(), 1);
    });
}

#[test]
fn names_are_bounded() {
    run(21, |machine| async move {
        let lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        let name = "x".repeat(200);
        let mut at = names::root_dir(&mut change).await.unwrap();
        for _ in 0..9 {
            at = create::create_dir(&mut change, Some(at), &name).await.unwrap();
        }
        let dsl = lab.dsl().await;
        assert_eq!((dsl.dirs().len(), dsl.damaged().len()), (6, 1));
    });
}

#[test]
fn snapshots_and_clones_that_descend_from_themselves() {
    run(22, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let tx = lab.tx();
        create::create(&mut lab.change(&tx), &file_system("tank/a")).await.unwrap();
        let tx = lab.next_tx();
        snapshot::snapshot(&mut lab.change(&tx), &["tank/a@s".into()], &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        branch::clone_snapshot(&mut change, "tank/a@s", "tank/c", &[]).await.unwrap();
        create::create(&mut change, &file_system("tank/d")).await.unwrap();
        let tx = lab.next_tx();
        snapshot::snapshot(&mut lab.change(&tx), &["tank/d@s".into()], &[]).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        let s = names::find(&mut change, "tank/a@s").await.unwrap();
        change.put_dataset(s.id, &DslDataset { prev_snapshot: s.id, ..s.phys.clone() }).await.unwrap();
        is_corrupt(promote::promote(&mut change, "tank/c").await);
        let dsl = lab.dsl().await;
        let rq = &lab.rq;
        let later = dsl.find(rq, "tank/a").await.unwrap();
        let since = dsl.find(rq, "tank/d@s").await.unwrap();
        let written = crate::space::written_since(&dsl, rq, &later, &since).await;
        assert!(matches!(written, Err(ObjectError::NoName { .. })), "{written:?}");
        // Makes tank/a a clone of its own snapshot.
        let a = names::find_dir(&mut change, "tank/a").await.unwrap();
        change.put_dir(a.id, &weir_format::DslDir { origin: s.id, ..a.dir }).await.unwrap();
        is_corrupt(bookmark::bookmark(&mut change, &[("tank/c#b".into(), "tank/d@s".into())]).await);
    });
}

/// Writes the header of a list.
async fn put_list(lab: &Lab, tx: &Tx, id: ObjectId, header: &Bpobj) {
    let bonus = header.encode(Endian::Little);
    lab.mos.changes().set_bonus(&lab.rq, tx, id, ObjectType::BPOBJ_HDR, &bonus).await.unwrap();
}

fn block(n: u64) -> BlockPointer {
    let mut words = [0; 16];
    (words[0], words[1], words[6], words[10]) = (1, n, 1 << 63 | 19 << 48 | 7 << 40, 2);
    BlockPointer::from_words(words)
}

#[test]
fn lists_that_contain_themselves() {
    run(23, |machine| async move {
        let lab = Lab::new(&machine).await;
        let rq = &lab.rq;
        let mos = &lab.mos;
        let tx = &lab.tx();
        let list = bpobj::create(rq, mos, tx, false).await.unwrap();
        let subs = mos.changes().create(rq, tx, &NewObject::new(ObjectType::BPOBJ_SUBOBJ, 512)).await.unwrap();
        weir_dmu::write_words(rq, mos, tx, subs, 0, &[list.0, list.0]).await.unwrap();
        bpobj::push(rq, mos, tx, list, &[block(1)], false, &super::size).await.unwrap();
        let header = Bpobj { pointers: 1, sizes: Some((0, 0)), sub_objects: Some((subs, 2)), ..Bpobj::default() };
        put_list(&lab, tx, list, &header).await;
        let mut walk = bpobj::Walk::new(list);
        assert_eq!(walk.next(rq, mos).await.unwrap().unwrap().len(), 1);
        let end = walk.next(rq, mos).await;
        assert!(matches!(end, Err(ObjectError::Corrupt { .. })), "{end:?}");
    });
}

/// A sparse list of holes, of which only the last block exists.
#[test]
fn lists_of_extreme_length() {
    run(25, |machine| async move {
        let lab = Lab::new(&machine).await;
        let rq = &lab.rq;
        let mos = &lab.mos;
        let tx = &lab.tx();
        let list = bpobj::create(rq, mos, tx, false).await.unwrap();
        mos.writes().write(rq, tx, list, 1 << 50, &[1; 128]).await.unwrap();
        put_list(&lab, tx, list, &Bpobj { pointers: 1 << 43, sizes: Some((0, 0)), ..Bpobj::default() }).await;
        let walked = bpobj::Walk::new(list).next(rq, mos).await;
        assert!(matches!(walked, Err(ObjectError::Corrupt { .. })), "{walked:?}");
        let taken = bpobj::take(rq, mos, tx, list, 9, &super::size).await;
        assert!(matches!(taken, Err(ObjectError::Corrupt { .. })), "{taken:?}");
    });
}

/// A plain list is merged into a deadlist that refers to it: inserted blocks must not be taken out again.
#[test]
fn a_list_that_is_merged_into_itself() {
    run(24, |machine| async move {
        let lab = Lab::new(&machine).await;
        let rq = &lab.rq;
        let mos = &lab.mos;
        let tx = &lab.tx();
        let dead = deadlist::create(rq, mos, tx).await.unwrap();
        let list = bpobj::create(rq, mos, tx, false).await.unwrap();
        zap::put_int(rq, mos, tx, dead, 0, list.0).await.unwrap();
        bpobj::push(rq, mos, tx, list, &[block(1), block(2)], false, &super::size).await.unwrap();
        let mut empty = EmptyList::default();
        deadlist::merge(rq, mos, tx, dead, list, &super::size, &mut empty).await.unwrap();
        assert_eq!(bpobj::Walk::new(list).next(rq, mos).await.unwrap().unwrap().len(), 2);
        // A key in another than the canonical spelling is refused as well.
        zap::put_word(rq, mos, tx, dead, "00A", list.0).await.unwrap();
        assert!(matches!(deadlist::lists(rq, mos, dead).await, Err(ObjectError::Corrupt { .. })));
    });
}
