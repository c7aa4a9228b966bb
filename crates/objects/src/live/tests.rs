use super::*;
use crate::read::Seek;
use proptest::prelude::*;
use weir_format::{ObjsetKind, Txg};
use weir_sim::SimWorld;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    Punch(u64, u64),
    Truncate(u64),
    /// The open group closes: what follows belongs to the next.
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = 0u64..6000;
    let step = prop_oneof![
        4 => (at.clone(), proptest::collection::vec(1u8.., 1..1500)).prop_map(|(at, bytes)| Step::Write(at, bytes)),
        2 => (at.clone(), 0u64..3000).prop_map(|(at, len)| Step::Punch(at, len)),
        1 => at.prop_map(Step::Truncate),
        1 => Just(Step::Close),
    ];
    proptest::collection::vec(step, 1..24)
}

/// What a set is like after `steps`: bytes, and where data begins at or after each block.
async fn play(set: &Arc<ObjectSet>, groups: &Arc<TxGroups>, steps: &[Step]) -> Result<(), ObjectError> {
    const END: u64 = 8192;
    let rq = &Request::internal("test");
    let tx = set.begin(rq, 0, Purpose::Write).await?;
    let id = set.create(rq, &tx, &NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, 512)).await?;
    drop(tx);
    let mut model = vec![0u8; END as usize];
    for step in steps {
        let tx = set.begin(rq, 0, Purpose::Write).await?;
        match step {
            Step::Write(at, bytes) => {
                set.write(rq, &tx, id, *at, bytes).await?;
                model[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
            }
            Step::Punch(at, len) => {
                set.punch(rq, &tx, id, *at, *len).await?;
                model[*at as usize..(*at + *len).min(END) as usize].fill(0);
            }
            Step::Truncate(at) => {
                set.punch(rq, &tx, id, *at, u64::MAX).await?;
                model[*at as usize..].fill(0);
            }
            Step::Close => {
                drop(tx);
                groups.quiesce().await;
                continue;
            }
        }
        let object = set.object(rq, id).await?;
        assert_eq!(set.read(rq, &object, 0, END as usize, END).await?, model);
        let mut at = 0;
        while let Some(data) = set.seek(rq, &object, at, END, Seek::Data).await? {
            assert!(model[at as usize..data as usize].iter().all(|b| *b == 0), "data before {data}");
            at = set.seek(rq, &object, data, END, Seek::Hole).await?.unwrap_or(END);
        }
        assert!(model[at as usize..].iter().all(|b| *b == 0), "data after {at}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn unsynced_changes_read_like_an_array_of_bytes(steps in steps()) {
        let world = SimWorld::new(7);
        let machine = world.machine();
        let set = scratch(&machine, ObjsetKind::Zfs);
        let groups = set.live().unwrap().gate.groups().clone();
        world.run(async move { play(&set, &groups, &steps).await.unwrap() }).unwrap();
    }
}

#[test]
fn objects_come_and_go() {
    let world = SimWorld::new(7);
    let machine = world.machine();
    let set = scratch(&machine, ObjsetKind::Zfs);
    let run = world.run(async move {
        let rq = &Request::internal("test");
        let tx = set.begin(rq, 0, Purpose::Names).await.unwrap();
        assert_eq!(tx.txg(), Txg(4));
        let new = NewObject::new(ObjectType::MASTER_NODE, 512);
        set.claim(rq, &tx, ObjectId(1), &new).await.unwrap();
        assert!(matches!(set.claim(rq, &tx, ObjectId(1), &new).await, Err(ObjectError::Exists { .. })));
        let large = NewObject { slots: 2, ..new.clone() }.bonus(ObjectType::SA, vec![7; 700]);
        let a = set.create(rq, &tx, &large).await.unwrap();
        let b = set.create(rq, &tx, &new).await.unwrap();
        assert_eq!((a, b), (ObjectId(2), ObjectId(4)));
        let object = set.object(rq, a).await.unwrap();
        assert_eq!((object.dnode.bonus().len(), object.dnode.block_pointers.len()), (700, 1));
        set.set_bonus(rq, &tx, a, ObjectType::SA, &[1, 2]).await.unwrap();
        assert_eq!(set.object(rq, a).await.unwrap().dnode.bonus(), [1, 2]);
        set.set_spill(rq, &tx, a, Some(vec![5; 512].into())).await.unwrap();
        let object = set.object(rq, a).await.unwrap();
        assert_eq!(set.read_spill(rq, &object).await.unwrap().unwrap().0[..], [5; 512]);
        set.remove(rq, &tx, b).await.unwrap();
        assert!(set.object(rq, b).await.is_err_and(|e| e.is_absent()));
        assert!(set.remove(rq, &tx, b).await.is_err());
        set.write(rq, &tx, a, 0, b"ab").await.unwrap();
        set.set_block_bytes(rq, &tx, a, 1024).await.unwrap();
        let object = set.object(rq, a).await.unwrap();
        assert_eq!(set.read(rq, &object, 0, 4096, 3).await.unwrap()[..], *b"ab\0");
        set.write(rq, &tx, a, 1024, b"c").await.unwrap();
        assert!(set.set_block_bytes(rq, &tx, a, 2048).await.is_err(), "two blocks");
    });
    run.unwrap();
}
