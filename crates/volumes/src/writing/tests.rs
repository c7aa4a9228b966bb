use super::*;
use proptest::prelude::*;
use weir_dmu::live::{NewObject, scratch};
use weir_dmu::zap::NewZap;
use weir_format::{ObjectType, ObjsetKind};
use weir_sim::SimWorld;

const BLOCK: u32 = 4096;
const SIZE_BYTES: u64 = 64 << 10;

async fn empty(rq: &Request, machine: &weir_machine::Machine, options: WriteOptions) -> Arc<Volume> {
    let set = scratch(machine, ObjsetKind::Zvol);
    let tx = set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
    set.changes().create_at(rq, &tx, DATA, &NewObject::new(ObjectType::ZVOL, BLOCK)).await.unwrap();
    zap::create_at(rq, &set, &tx, PROPERTIES, &NewZap::new(ObjectType::ZVOL_PROP)).await.unwrap();
    zap::put_word(rq, &set, &tx, PROPERTIES, SIZE, SIZE_BYTES).await.unwrap();
    drop(tx);
    Volume::open_writable(rq, set, "p/v", options).await.unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize, u8),
    Zero(u64, u64, bool),
    Resize(u64),
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = 0..SIZE_BYTES;
    let step = prop_oneof![
        5 => (at.clone(), 1usize..20_000, any::<u8>()).prop_map(|(at, len, byte)| Step::Write(at, len, byte)),
        3 => (at.clone(), 0u64..20_000, any::<bool>()).prop_map(|(at, len, discard)| Step::Zero(at, len, discard)),
        1 => at.prop_map(Step::Resize),
        1 => Just(Step::Close),
    ];
    proptest::collection::vec(step, 1..20)
}

async fn play(machine: &weir_machine::Machine, steps: &[Step]) {
    let rq = &Request::internal("test");
    let volume = empty(rq, machine, WriteOptions::default()).await;
    let mut model = vec![0u8; SIZE_BYTES as usize];
    for step in steps {
        match step {
            Step::Write(at, len, byte) => {
                let done = volume.write(rq, *at, Bytes::from(vec![*byte; *len]), false).await;
                match model.get_mut(*at as usize..*at as usize + len) {
                    Some(part) => {
                        done.unwrap();
                        part.fill(*byte);
                    }
                    None => assert!(matches!(done, Err(VolumeError::OutOfRange { .. }))),
                }
            }
            Step::Zero(at, len, discard) => {
                let done = volume.zero(rq, *at, *len, *discard, false).await;
                let start = *at as usize;
                let end = (*at + *len) as usize;
                if end > model.len() {
                    assert!(matches!(done, Err(VolumeError::OutOfRange { .. })));
                    continue;
                }
                done.unwrap();
                model[start..end].fill(0);
            }
            Step::Resize(size) => {
                volume.resize(rq, *size).await.unwrap();
                model.resize(*size as usize, 0);
                volume.refresh_size(rq).await.unwrap();
                assert_eq!(volume.size_bytes(), *size);
            }
            Step::Close => drop(volume.objects.txgs().unwrap().quiesce().await),
        }
        assert!(volume.read(rq, 0, model.len()).await.unwrap() == model, "{step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_volume_is_an_array_of_bytes(steps in steps()) {
        let world = SimWorld::new(3);
        let machine = world.machine();
        world.run(async move { play(&machine, &steps).await }).unwrap();
    }
}

#[test]
fn a_read_only_volume_rejects_writes() {
    let world = SimWorld::new(3);
    let machine = world.machine();
    let run = world.run(async move {
        let rq = &Request::internal("test");
        let volume = empty(rq, &machine, WriteOptions { read_only: true, ..WriteOptions::default() }).await;
        assert!(!volume.is_writable());
        let result = volume.write(rq, 0, Bytes::from_static(b"x"), false).await;
        assert!(matches!(result, Err(VolumeError::ReadOnly { .. })));
        volume.set_read_only(false);
        volume.write(rq, 0, Bytes::from_static(b"x"), false).await.unwrap();
        assert_eq!(volume.extents(rq, 0, SIZE_BYTES, 9).await.unwrap().len(), 2);
    });
    run.unwrap();
}

#[test]
fn a_record_beyond_the_end_is_truncated() {
    let world = SimWorld::new(3);
    let machine = world.machine();
    let run = world.run(async move {
        let rq = &Request::internal("test");
        let volume = empty(rq, &machine, WriteOptions::default()).await;
        let data = &[7u8; 100][..];
        let write = |offset| {
            LogBody::Write(weir_format::zil::WriteBody {
                object: DATA,
                offset,
                length: 100,
                block_offset: 0,
                pointer: weir_format::BlockPointer::HOLE,
                data: Some(data),
            })
        };
        for offset in [10, SIZE_BYTES - 50, SIZE_BYTES + 5] {
            volume.replay_body(rq, &write(offset), None).await.unwrap();
        }
        volume.replay_body(rq, &LogBody::Truncate { object: DATA, offset: 20, length: 10 }, None).await.unwrap();
        let head = volume.read(rq, 10, 101).await.unwrap();
        assert_eq!((head[9], head[10], head[19], head[20], head[100]), (7, 0, 0, 7, 0));
        assert_eq!(volume.read(rq, SIZE_BYTES - 50, 50).await.unwrap()[..], [7; 50]);
        assert!(volume.replay_body(rq, &LogBody::Link { dir: DATA, object: DATA, name: b"x" }, None).await.is_err());
    });
    run.unwrap();
}
