//! Random histories of datasets against a model that knows which dataset refers to which block.
//!
//! Blocks are simulated: a block is its birth, its number and its size. After each txg the model computes what each
//! dataset refers to, its unique bytes, and the uses of its directory; and checks that every block without references
//! was handed out to be freed, exactly once.

use super::{
    Lab, bookmark, branch, create, destroy, destroy_head, features, file_system, names, promote, properties, rename,
    rollback, run, snapshot, synced, trees,
};
use crate::sync_tasks::*;
use std::collections::{BTreeMap, BTreeSet};
use weir_format::dsl::pool as mos_names;
use weir_format::features::Feature;

type Block = u64;

/// A simulated block pointer, with the number as its offset.
fn pointer(number: Block, birth: u64) -> BlockPointer {
    let sectors = 1 + number % 7;
    let mut words = [0; 16];
    words[0] = sectors;
    words[1] = number + 1;
    // Little-endian, plain file, fletcher4, uncompressed, lsize equal to psize.
    words[6] = 1 << 63 | 19 << 48 | 7 << 40 | 2 << 32 | (sectors - 1) << 16 | (sectors - 1);
    words[10] = birth;
    words[11] = 1;
    BlockPointer::from_words(words)
}

fn bytes(number: Block) -> u64 {
    (1 + number % 7) * 512
}

#[derive(Clone, Default)]
struct Snapshot {
    name: String,
    txg: u64,
    blocks: BTreeMap<Block, u64>,
}

#[derive(Clone, Default)]
struct Model {
    /// Heads by name: blocks with their births, snapshots oldest first, the txg of the origin.
    heads: BTreeMap<String, Head>,
}

#[derive(Clone, Default)]
struct Head {
    blocks: BTreeMap<Block, u64>,
    snapshots: Vec<Snapshot>,
    origin: Option<(String, String)>,
}

/// A small generator of numbers, so that a seed determines a history.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below.max(1)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { from.get(self.roll(from.len() as u64) as usize).cloned() }
    }
}

impl Model {
    /// All blocks with a reference.
    fn alive(&self) -> BTreeSet<Block> {
        let mut out = BTreeSet::new();
        for head in self.heads.values() {
            out.extend(head.blocks.keys().copied());
            head.snapshots.iter().for_each(|s| out.extend(s.blocks.keys().copied()));
        }
        out
    }

    fn origin_txg(&self, head: &Head) -> u64 {
        let Some((of, name)) = &head.origin else { return 1 };
        self.heads[of].snapshots.iter().find(|s| s.name == *name).unwrap().txg
    }

    fn clones_of(&self, of: &str, snapshot: &str) -> Vec<String> {
        let wanted = Some((of.to_owned(), snapshot.to_owned()));
        self.heads.iter().filter(|(_, h)| h.origin == wanted).map(|(n, _)| n.clone()).collect()
    }

    /// Bytes of the head alone and of its snapshots alone, in its own directory.
    fn uses(&self, head: &Head) -> (u64, u64) {
        let after = self.origin_txg(head);
        let own = |blocks: &BTreeMap<Block, u64>| {
            blocks.iter().filter(|(_, birth)| **birth > after).map(|(b, _)| *b).collect::<BTreeSet<_>>()
        };
        let of_head = own(&head.blocks);
        let mut of_snapshots = BTreeSet::new();
        head.snapshots.iter().for_each(|s| of_snapshots.extend(own(&s.blocks)));
        let sum = |set: BTreeSet<Block>| set.into_iter().map(bytes).sum();
        (sum(of_head.clone()), sum(of_snapshots.difference(&of_head).copied().collect()))
    }
}

struct World<'a> {
    lab: &'a mut Lab,
    model: Model,
    dice: Dice,
    next_block: Block,
    next_name: u64,
    freed: BTreeSet<Block>,
    /// Blocks whose tree was added to the bptree when their dataset was destroyed or rolled back.
    trees: BTreeSet<Block>,
}

impl World<'_> {
    /// One txg: some datasets are written to, then one operation.
    async fn txg(&mut self) {
        let tx = self.lab.tx();
        let names: Vec<String> = self.model.heads.keys().cloned().collect();
        for name in names {
            if self.dice.roll(3) > 0 {
                self.write(&tx, &name).await;
            }
        }
        self.operate(&tx).await;
        self.check(&tx).await;
        self.lab.txg += 1;
    }

    async fn write(&mut self, tx: &Tx, name: &str) {
        let txg = self.lab.txg;
        let (born, killed): (Vec<Block>, Vec<Block>) = {
            let head = self.model.heads.get_mut(name).unwrap();
            let keys: Vec<Block> = head.blocks.keys().copied().collect();
            let killed: Vec<Block> = keys.into_iter().filter(|_| self.dice.roll(4) == 0).collect();
            let born: Vec<Block> = (0..self.dice.roll(6)).map(|n| self.next_block + n).collect();
            self.next_block += 6;
            (born, killed)
        };
        let head = self.model.heads.get_mut(name).unwrap();
        let dead: Vec<BlockPointer> = killed.iter().map(|b| pointer(*b, head.blocks[b])).collect();
        head.blocks.retain(|b, _| !killed.contains(b));
        head.blocks.extend(born.iter().map(|b| (*b, txg)));
        let new: Vec<BlockPointer> = born.iter().map(|b| pointer(*b, txg)).collect();
        let mut change = self.lab.change(tx);
        let id = names::find_head(&mut change, name).await.unwrap().id;
        let synced = SyncedSet { root: BlockPointer::HOLE, born: &new, killed: &dead };
        synced::apply_synced(&mut change, id, &synced).await.unwrap();
        let frees = change.take_frees();
        self.take(frees);
    }

    fn take(&mut self, frees: Vec<BlockPointer>) {
        for pointer in frees {
            let number = (pointer.dva(0).offset_bytes / 512) - 1;
            assert!(self.freed.insert(number), "block {number} is freed twice");
            assert!(!self.model.alive().contains(&number), "block {number} is still in use");
        }
    }

    fn snapshots(&self) -> Vec<(String, String)> {
        let of = |(n, h): (&String, &Head)| h.snapshots.iter().map(|s| (n.clone(), s.name.clone())).collect::<Vec<_>>();
        self.model.heads.iter().flat_map(of).collect()
    }

    async fn operate(&mut self, tx: &Tx) {
        match self.dice.roll(12) {
            0..=2 => self.snapshot(tx).await,
            3..=4 => self.destroy_snapshot(tx).await,
            5 => self.clone_one(tx).await,
            6 => self.destroy(tx).await,
            7 => self.promote(tx).await,
            8 => self.rollback(tx).await,
            9 => self.set(tx).await,
            10 => self.rename(tx).await,
            _ => self.create(tx).await,
        }
    }

    async fn create(&mut self, tx: &Tx) {
        if self.model.heads.len() > 6 {
            return;
        }
        let parents: Vec<String> = self.model.heads.keys().cloned().collect();
        let parent = self.dice.pick(&parents).unwrap();
        self.next_name += 1;
        let name = format!("{parent}/d{}", self.next_name);
        create::create(&mut self.lab.change(tx), &file_system(&name)).await.unwrap();
        self.model.heads.insert(name, Head::default());
    }

    async fn snapshot(&mut self, tx: &Tx) {
        self.next_name += 1;
        let short = format!("s{}", self.next_name);
        let all: Vec<String> = self.model.heads.keys().cloned().collect();
        let chosen: Vec<String> = all.into_iter().filter(|_| self.dice.roll(2) == 0).collect();
        let full: Vec<String> = chosen.iter().map(|n| format!("{n}@{short}")).collect();
        match snapshot::snapshot(&mut self.lab.change(tx), &full, &[]).await {
            Ok(_) => {}
            Err(DslError::Space { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        for name in chosen {
            let head = self.model.heads.get_mut(&name).unwrap();
            let blocks = head.blocks.clone();
            head.snapshots.push(Snapshot { name: short.clone(), txg: self.lab.txg, blocks });
        }
        if self.dice.roll(3) == 0
            && let Some(name) = full.first()
        {
            let bookmark = name.replace('@', "#");
            bookmark::bookmark(&mut self.lab.change(tx), &[(bookmark, name.clone())]).await.unwrap();
        }
    }

    async fn destroy_snapshot(&mut self, tx: &Tx) {
        let Some((of, name)) = self.dice.pick(&self.snapshots()) else { return };
        let full = format!("{of}@{name}");
        let mut change = self.lab.change(tx);
        let done = destroy::destroy_snapshots(&mut change, std::slice::from_ref(&full), false).await;
        assert_eq!(done.is_err(), !self.model.clones_of(&of, &name).is_empty(), "{full}: {done:?}");
        if done.is_ok() {
            self.model.heads.get_mut(&of).unwrap().snapshots.retain(|s| s.name != name);
        }
    }

    async fn clone_one(&mut self, tx: &Tx) {
        let Some((of, snapshot)) = self.dice.pick(&self.snapshots()) else { return };
        if self.model.heads.len() > 7 {
            return;
        }
        self.next_name += 1;
        let name = format!("tank/c{}", self.next_name);
        branch::clone_snapshot(&mut self.lab.change(tx), &format!("{of}@{snapshot}"), &name, &[]).await.unwrap();
        let from = self.model.heads[&of].snapshots.iter().find(|s| s.name == snapshot).unwrap();
        let head = Head { blocks: from.blocks.clone(), origin: Some((of, snapshot)), ..Head::default() };
        self.model.heads.insert(name, head);
    }

    async fn destroy(&mut self, tx: &Tx) {
        let all: Vec<String> = self.model.heads.keys().filter(|n| *n != "tank").cloned().collect();
        let Some(name) = self.dice.pick(&all) else { return };
        let below = format!("{name}/");
        let busy =
            !self.model.heads[&name].snapshots.is_empty() || self.model.heads.keys().any(|n| n.starts_with(&below));
        let done = destroy_head::destroy(&mut self.lab.change(tx), &name).await;
        assert_eq!(done.is_err(), busy, "{name}: {done:?}");
        if done.is_ok() {
            let head = self.model.heads.remove(&name).unwrap();
            self.gone(head.blocks);
        }
    }

    /// Moves the blocks of a removed head that have no other reference to its tree.
    fn gone(&mut self, blocks: BTreeMap<Block, u64>) {
        let alive = self.model.alive();
        self.trees.extend(blocks.into_keys().filter(|b| !alive.contains(b)));
    }

    async fn promote(&mut self, tx: &Tx) {
        let clones: Vec<String> =
            self.model.heads.iter().filter(|(_, h)| h.origin.is_some()).map(|(n, _)| n.clone()).collect();
        let Some(name) = self.dice.pick(&clones) else { return };
        match promote::promote(&mut self.lab.change(tx), &name).await {
            Ok(()) => {}
            Err(DslError::Space { .. } | DslError::HasDependents { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        let (of, snapshot) = self.model.heads[&name].origin.clone().unwrap();
        let origin = self.model.heads.get_mut(&of).unwrap();
        let at = origin.snapshots.iter().position(|s| s.name == snapshot).unwrap();
        let kept = origin.snapshots.split_off(at + 1);
        let moved = std::mem::replace(&mut origin.snapshots, kept);
        let above = origin.origin.replace((name.clone(), snapshot));
        for head in self.model.heads.values_mut() {
            if let Some((from, s)) = &mut head.origin
                && *from == of
                && moved.iter().any(|m| m.name == *s)
            {
                *from = name.clone();
            }
        }
        let head = self.model.heads.get_mut(&name).unwrap();
        head.origin = above;
        head.snapshots.splice(0..0, moved);
    }

    async fn rollback(&mut self, tx: &Tx) {
        let all: Vec<String> = self.model.heads.keys().cloned().collect();
        let Some(name) = self.dice.pick(&all) else { return };
        let head = &self.model.heads[&name];
        let to = match (head.snapshots.last(), &head.origin) {
            (Some(last), _) => last.clone(),
            (None, Some((of, s))) => self.model.heads[of].snapshots.iter().find(|x| x.name == *s).unwrap().clone(),
            (None, None) => return,
        };
        if to.txg == self.lab.txg {
            return;
        }
        match rollback::rollback(&mut self.lab.change(tx), &name, None).await {
            Ok(()) => {}
            Err(DslError::Space { .. } | DslError::HasDependents { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        let head = self.model.heads.get_mut(&name).unwrap();
        let old = std::mem::replace(&mut head.blocks, to.blocks);
        self.gone(old);
    }

    async fn set(&mut self, tx: &Tx) {
        let all: Vec<String> = self.model.heads.keys().cloned().collect();
        let name = self.dice.pick(&all).unwrap();
        let property = self.dice.pick(&["reservation", "refreservation", "quota", "refquota"]).unwrap();
        let bytes = self.dice.roll(40) * 1024;
        let value = if property.ends_with("quota") && bytes > 0 { bytes + 60_000 } else { bytes };
        let setting = Setting::Set(crate::props::Value::Number(value));
        match properties::set_property(&mut self.lab.change(tx), &name, property, &setting).await {
            Ok(()) | Err(DslError::Space { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    async fn rename(&mut self, tx: &Tx) {
        let all: Vec<String> = self.model.heads.keys().filter(|n| *n != "tank").cloned().collect();
        let (Some(from), Some(under)) = (self.dice.pick(&all), self.dice.pick(&all)) else { return };
        self.next_name += 1;
        let to = format!("{under}/r{}", self.next_name);
        match rename::rename(&mut self.lab.change(tx), &from, &to).await {
            Ok(()) => {}
            Err(DslError::Kind { .. } | DslError::Space { .. }) => return,
            Err(error) => panic!("{from} -> {to}: {error}"),
        }
        let moved = |name: &str| match name.strip_prefix(&from) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
            _ => name.to_owned(),
        };
        let heads = std::mem::take(&mut self.model.heads);
        for (name, mut head) in heads {
            head.origin = head.origin.map(|(of, s)| (moved(&of), s));
            self.model.heads.insert(moved(&name), head);
        }
    }

    async fn check(&mut self, tx: &Tx) {
        let mut change = self.lab.change(tx);
        trees::free_listed_for_test(&mut change).await;
        let frees = change.take_frees();
        self.take(frees);
        let alive = self.model.alive();
        for number in 0..self.next_block {
            let waits = self.trees.contains(&number);
            let made = alive.contains(&number) || waits || self.freed.contains(&number);
            let places = [alive.contains(&number), waits, self.freed.contains(&number)];
            assert!(!made || places.iter().filter(|p| **p).count() == 1, "block {number} is in {places:?}");
        }
        let names: Vec<String> = self.model.heads.keys().cloned().collect();
        for name in &names {
            self.check_head(tx, name).await;
        }
        self.check_freeing(tx).await;
    }

    async fn check_head(&self, tx: &Tx, name: &str) {
        let mut change = self.lab.change(tx);
        let found = names::find_head(&mut change, name).await.unwrap();
        let head = &self.model.heads[name];
        let referenced: u64 = head.blocks.keys().map(|b| bytes(*b)).sum();
        assert_eq!(found.phys.referenced_bytes, referenced, "{name} in {}", self.lab.txg);
        let previous: BTreeSet<Block> = match (head.snapshots.last(), &head.origin) {
            (Some(last), _) => last.blocks.keys().copied().collect(),
            (None, Some((of, s))) => {
                let origin = self.model.heads[of].snapshots.iter().find(|x| x.name == *s).unwrap();
                origin.blocks.keys().copied().collect()
            }
            (None, None) => BTreeSet::new(),
        };
        let unique: u64 = head.blocks.keys().filter(|b| !previous.contains(b)).map(|b| bytes(*b)).sum();
        assert_eq!(found.phys.unique_bytes, unique, "unique of {name} in {}", self.lab.txg);
        let dir = &found.at.dir;
        let (of_head, of_snapshots) = self.model.uses(head);
        let reserved = synced::ref_reservation(&mut change, found.at.id).await.unwrap();
        let [own, snapshots, children, child_reservations, ref_reservation] = dir.used_breakdown;
        assert_eq!((own, snapshots), (of_head, of_snapshots), "{name} in {}", self.lab.txg);
        assert_eq!(ref_reservation, reserved.saturating_sub(unique), "{name}");
        assert_eq!(dir.used_breakdown.iter().sum::<u64>(), dir.used_bytes, "{name}");
        let mut below = 0;
        let mut unused = 0;
        for (_, id) in change.entries(dir.children).await.unwrap() {
            let child = change.dir(ObjectId(id.first().unwrap())).await.unwrap();
            below += child.used_bytes;
            unused += child.reserved_bytes.saturating_sub(child.used_bytes);
        }
        assert_eq!((children, child_reservations), (below, unused), "children of {name} in {}", self.lab.txg);
        for (n, snapshot) in head.snapshots.iter().enumerate() {
            self.check_snapshot(&mut change, name, n, snapshot).await;
        }
    }

    async fn check_snapshot(&self, change: &mut DslSyncContext<'_>, name: &str, n: usize, snapshot: &Snapshot) {
        let head = &self.model.heads[name];
        let full = format!("{name}@{}", snapshot.name);
        let found = names::find_snapshot(change, &full).await.unwrap();
        let sum = |blocks: &BTreeMap<Block, u64>| blocks.keys().map(|b| bytes(*b)).sum::<u64>();
        assert_eq!(found.phys.referenced_bytes, sum(&snapshot.blocks), "{full}");
        let clones = self.model.clones_of(name, &snapshot.name).len() as u64;
        assert_eq!(found.phys.children, 1 + clones, "{full}");
        let next = head.snapshots.get(n + 1).map_or(&head.blocks, |s| &s.blocks);
        let before = match (n, &head.origin) {
            (0, Some((of, s))) => Some(&self.model.heads[of].snapshots.iter().find(|x| x.name == *s).unwrap().blocks),
            (0, None) => None,
            (n, _) => Some(&head.snapshots[n - 1].blocks),
        };
        let alone = |b: &&Block| !next.contains_key(b) && before.is_none_or(|before| !before.contains_key(b));
        let unique: u64 = snapshot.blocks.keys().filter(alone).map(|b| bytes(*b)).sum();
        assert_eq!(found.phys.unique_bytes, unique, "unique of {full} in {}", self.lab.txg);
    }

    /// Checks that the space waiting to be freed is accounted to `$FREE`, and is in the bptree's header.
    async fn check_freeing(&self, tx: &Tx) {
        let mut change = self.lab.change(tx);
        let free = names::special_dir(&mut change, "$FREE").await.unwrap().unwrap();
        let waiting: u64 = self.trees.iter().map(|b| bytes(*b)).sum();
        assert_eq!(change.dir(free).await.unwrap().used_bytes, waiting, "in {}", self.lab.txg);
        let trees = change.word(DIRECTORY, mos_names::BPTREE_OBJ).await.unwrap();
        assert_eq!(trees.is_some(), features::is_active(&mut change, Feature::ASYNC_DESTROY).await.unwrap());
        // The shared empty list exists while it has references.
        let empty = change.word(DIRECTORY, mos_names::EMPTY_BPOBJ).await.unwrap();
        assert_eq!(empty.is_some(), features::is_active(&mut change, Feature::EMPTY_BPOBJ).await.unwrap());
    }
}

fn history(seed: u64, txgs: u64) {
    run(seed, move |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let mut model = Model::default();
        model.heads.insert("tank".into(), Head::default());
        let dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut world = World {
            lab: &mut lab,
            model,
            dice,
            next_block: 0,
            next_name: 0,
            freed: BTreeSet::new(),
            trees: BTreeSet::new(),
        };
        for _ in 0..txgs {
            world.txg().await;
        }
    });
}

#[test]
fn random_histories() {
    for seed in 0..12 {
        history(seed, 60);
    }
}
