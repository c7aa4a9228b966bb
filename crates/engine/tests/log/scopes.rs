//! Reads of single directories and subtrees agree with reads of all directories, and cost what their depth costs.

use crate::world::{self, HOME, Shape};
use std::collections::BTreeMap;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset, Setting};
use weir_dsl::{Dir, Dsl, Scope};
use weir_engine::{Engine, Layout};
use weir_machine::{Request, Source};

const SHAPE: Shape = Shape { layout: Layout::Single, devices: 1, log: false };

async fn create(engine: &Engine, name: &str) {
    let new =
        NewDataset { name: name.to_owned(), kind: Kind::FileSystem(FileSystemSpec::default()), properties: Vec::new() };
    engine.create_dataset(new).await.unwrap();
}

/// Bytes of metadata that a request has read, from the ARC or a disk.
fn read_bytes(rq: &Request) -> u64 {
    Source::ALL.iter().map(|source| rq.read_bytes(*source)).sum()
}

/// Names and object numbers of directories, with those of their children.
fn shape(dirs: &[&Dir]) -> BTreeMap<String, (u64, Vec<u64>)> {
    let children = |dir: &Dir| dir.children.iter().map(|child| child.0).collect();
    dirs.iter().map(|dir| (dir.name.clone(), (dir.id.0, children(dir)))).collect()
}

#[test]
fn the_cost_of_one_dataset_does_not_depend_on_their_number() {
    let world = world::world(21, SHAPE);
    let machine = world.machine();
    world
        .run(async move {
            let (engine, _files) = world::create(&machine, SHAPE).await.unwrap();
            let mut costs = Vec::new();
            for counts in [0..40, 40..240] {
                for n in counts {
                    create(&engine, &format!("{HOME}/d{n}")).await;
                }
                let one = Request::internal("test");
                let dsl = engine.synced().dsl_of(&one, &format!("{HOME}/d7")).await.unwrap();
                assert_eq!(dsl.dirs().len(), 3, "the pool's, the parent's and the dataset's");
                let all = Request::internal("test");
                engine.synced().dsl(&all).await.unwrap();
                costs.push((read_bytes(&one), read_bytes(&all)));
            }
            let [(one_of_few, few), (one_of_many, many)] = costs[..] else { panic!("{costs:?}") };
            // A ZAP of more entries is one level deeper.
            assert!(one_of_many <= one_of_few * 2, "{one_of_few} bytes read, then {one_of_many}");
            assert!(many > few * 3, "reading all costs more with more datasets: {few} bytes, then {many}");
            engine.export().await.unwrap();
        })
        .unwrap();
}

#[test]
fn each_scope_contains_what_it_says() {
    let world = world::world(22, SHAPE);
    let machine = world.machine();
    world
        .run(async move {
            let (engine, _files) = world::create(&machine, SHAPE).await.unwrap();
            for name in ["tank/a", "tank/a/b", "tank/a/b/c", "tank/a/d", "tank/ab"] {
                create(&engine, name).await;
            }
            engine.snapshot(vec!["tank/a/b@s".into()], Vec::new()).await.unwrap();
            let rq = &Request::internal("test");
            let all = engine.synced().dsl(rq).await.unwrap();
            let in_all = shape(&all.dirs());
            for top in all.dirs() {
                let read = async |scope| Dsl::read(rq, all.mos().clone(), "tank", scope).await.unwrap();
                let subtree = read(Scope::Subtree(&top.name)).await;
                let inside: Vec<&Dir> =
                    subtree.dirs().into_iter().filter(|dir| Scope::Subtree(&top.name).contains(&dir.name)).collect();
                let mut wanted = in_all.clone();
                wanted.retain(|name, _| *name == top.name || name.starts_with(&format!("{}/", top.name)));
                assert_eq!(shape(&inside), wanted, "{}", top.name);
                let path = read(Scope::Path(&top.name)).await;
                let ancestors = top.name.match_indices('/').map(|(at, _)| &top.name[..at]).chain([&*top.name]);
                assert_eq!(
                    path.dirs().iter().map(|dir| dir.name.as_str()).collect::<Vec<_>>(),
                    Vec::from_iter(ancestors)
                );
                assert_eq!(path.dir_named(&top.name).unwrap().id, top.id);
            }
            let snapshot =
                engine.synced().dsl_of(rq, "tank/a/b@s").await.unwrap().find(rq, "tank/a/b@s").await.unwrap();
            assert_eq!(snapshot.id, all.find(rq, "tank/a/b@s").await.unwrap().id);
            for absent in
                ["tank/x", "tank/a/x/y", "tank/", "tank//a", "tan", "tankx", "other/a", "", "tank/$MOS", "$MOS"]
            {
                let dsl = engine.synced().dsl_of(rq, absent).await.unwrap();
                assert!(dsl.dir_named(absent).is_none(), "{absent}");
                assert!(dsl.root().is_some(), "the root is always there");
                let subtree = engine.synced().dsl_in(rq, Scope::Subtree(absent)).await.unwrap();
                assert!(subtree.dir_named(absent).is_none() && subtree.dirs().len() <= 2, "{absent}");
            }
            drop(all);
            engine.export().await.unwrap();
        })
        .unwrap();
}

#[test]
fn open_datasets_follow_the_properties_of_their_ancestors() {
    let world = world::world(23, SHAPE);
    let machine = world.machine();
    world
        .run(async move {
            let (engine, home) = world::create(&machine, SHAPE).await.unwrap();
            create(&engine, "tank/other").await;
            create(&engine, &format!("{HOME}/below")).await;
            let rq = &Request::internal("test");
            let below = engine.file_system(rq, &format!("{HOME}/below")).await.unwrap();
            let other = engine.file_system(rq, "tank/other").await.unwrap();
            let set = async |name: &str, to: u64| {
                let setting = Setting::Set(Value::Number(to));
                engine
                    .properties()
                    .set_properties(name.to_owned(), vec![("readonly".to_owned(), setting)])
                    .await
                    .unwrap();
            };
            let writable = || [&home, &below, &other].map(|files| files.is_writable());
            assert_eq!(writable(), [true; 3]);
            set(HOME, 1).await;
            assert_eq!(writable(), [false, false, true]);
            set(&format!("{HOME}/below"), 0).await;
            assert_eq!(writable(), [false, true, true]);
            set("tank", 1).await;
            assert_eq!(writable(), [false, true, false]);
            set(HOME, 0).await;
            assert_eq!(writable(), [true, true, false]);
            // A dataset that moves inherits from its new parent.
            engine.rename("tank/other".into(), format!("{HOME}/other")).await.unwrap();
            assert_eq!(writable(), [true; 3]);
            drop((home, below, other));
            engine.export().await.unwrap();
        })
        .unwrap();
}
