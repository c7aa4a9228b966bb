//! A writer on a unit as a guest's file system is: several writes at once, then a flush or a commit record with FUA. The power
//! is cut below the server after every answer, and the unit is compared with what the writer knew at that moment.
//!
//! | | `sync=standard` | `sync=disabled` |
//! |---|---|---|
//! | found | each block has its stable version or a later one | the versions after a prefix of the answered writes |
//! | lost | nothing that is stable | as many bytes as [`weir_machine::Accounts::unstable_bytes`] counted |
//!
//! With `sync=disabled`, a txg whose uberblock is on its way when the power fails may or may not be there: only then may less
//! be lost than was counted.

use crate::iscsi::{BLOCK, Iscsi, command, long_cdb};
use crate::session::{Bug, Protocol, VOLUME_BYTES, create_pool, read, serve};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use weir_engine::Engine;
use weir_iscsi::wire::Bhs;
use weir_iscsi::wire::bhs::opcode;
use weir_machine::Machine;
use weir_sim::{Recording, Replay, Rng, SimStream, SimWorld};

const BLOCKS: usize = (VOLUME_BYTES / BLOCK) as usize;
/// Blocks of the writes; the last one is the commit record.
const DATA_BLOCKS: u64 = BLOCKS as u64 - 1;
const ROUNDS: u64 = 40;
const SEED: u64 = 11;

/// How the unit and the pool treat writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// Stable after a flush, or with FUA.
    WriteCache,
    /// Stable when answered: `wce=off`.
    NoWriteCache,
    /// Stable when the txg has synced: `sync=disabled`.
    SyncDisabled,
}

/// A write that was sent.
#[derive(Clone, Debug)]
struct Write {
    blocks: Range<u64>,
    fua: bool,
    version: u8,
}

/// A moment after an answer.
struct CutAt {
    moment: u64,
    /// Number of writes that were sent.
    sent: usize,
    /// For each block, the number of writes after which its version is stable.
    floors: Vec<usize>,
    unstable_bytes: u64,
    /// Whether a txg was being synced.
    is_syncing: bool,
}

/// The writer, and what it knows.
struct Writer<'a> {
    stability: Stability,
    /// Whether the pool makes changes stable before it answers.
    is_honest: bool,
    engine: &'a Arc<Engine>,
    world: SimWorld,
    stream: SimStream,
    rng: Rng,
    next: usize,
    writes: Vec<Write>,
    floors: Vec<usize>,
    cuts: Vec<CutAt>,
}

impl Writer<'_> {
    /// Several writes at once, which do not overlap.
    async fn write_some(&mut self) {
        // One at a time with `sync=disabled`: a write that is not answered may be counted or not.
        let most = if self.stability == Stability::SyncDisabled { 1 } else { 5 };
        let mut batch = Vec::new();
        let mut first = self.rng.below(4);
        for _ in 0..1 + self.rng.below(most) {
            let end = (first + 1 + self.rng.below(3)).min(DATA_BLOCKS);
            if first >= end {
                break;
            }
            batch.push((first..end, self.rng.chance(1, 5)));
            first = end + self.rng.below(3);
        }
        self.send(batch).await;
    }

    /// Sends writes, and takes the answers in any order.
    async fn send(&mut self, batch: Vec<(Range<u64>, bool)>) {
        let mut bytes = Vec::new();
        let mut open = Vec::new();
        for (blocks, fua) in batch {
            let version = (self.writes.len() % 255) as u8 + 1;
            let data = vec![version; ((blocks.end - blocks.start) * BLOCK) as usize];
            bytes.extend(command(self.next, &long_cdb(0x8a, u8::from(fua) << 3, &blocks), &data, data.len()));
            open.push((self.next as u32, self.writes.len()));
            self.writes.push(Write { blocks, fua, version });
            self.next += 1;
        }
        self.stream.write_all(&bytes).await.unwrap();
        while !open.is_empty() {
            let tag = self.answer().await;
            let at = open.iter().position(|(itt, _)| *itt == tag).expect("an answer to a command in flight");
            let (_, number) = open.swap_remove(at);
            let Write { blocks, fua, .. } = self.writes[number].clone();
            if self.stability == Stability::NoWriteCache || self.stability == Stability::WriteCache && fua {
                let range = blocks.start as usize..blocks.end as usize;
                self.floors[range].fill(number + 1);
            }
            self.note();
        }
        if self.stability == Stability::NoWriteCache && self.is_honest {
            assert_eq!(self.unstable_bytes(), 0, "every write is stable when it is answered");
        }
    }

    /// SYNCHRONIZE CACHE.
    async fn flush(&mut self) {
        let before = self.unstable_bytes();
        self.stream.write_all(&command(self.next, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0)).await.unwrap();
        self.next += 1;
        self.answer().await;
        if self.stability == Stability::SyncDisabled {
            assert!(self.unstable_bytes() <= before, "a flush writes nothing");
        } else {
            self.floors.fill(self.writes.len());
            assert!(!self.is_honest || self.unstable_bytes() == 0, "a flush makes everything stable");
        }
        self.note();
    }

    /// Tag of the command that is answered next.
    async fn answer(&mut self) -> u32 {
        let bhs = Bhs(read(&mut self.stream, 48).await.unwrap().try_into().unwrap());
        assert_eq!((bhs.opcode(), bhs.0[3], bhs.data_bytes()), (opcode::RESPONSE, 0, 0), "the command succeeds");
        bhs.word(16)
    }

    fn unstable_bytes(&self) -> u64 {
        self.engine.cache.accounts().unstable_bytes()
    }

    fn note(&mut self) {
        let txgs = self.engine.txgs();
        self.cuts.push(CutAt {
            moment: self.world.recorded(),
            sent: self.writes.len(),
            floors: self.floors.clone(),
            unstable_bytes: self.unstable_bytes(),
            is_syncing: txgs.open().0 > txgs.last_synced().0 + 1,
        });
    }
}

/// A run of the writer.
pub struct Run {
    stability: Stability,
    writes: Vec<Write>,
    cuts: Vec<CutAt>,
    recording: Recording,
}

/// Runs the writer without faults. With `bug`, the pool answers before changes are stable.
pub fn run(stability: Stability, bug: Bug) -> Run {
    let early = stability == Stability::SyncDisabled;
    let pool = create_pool(if early { Bug::AnswersEarly } else { bug });
    let world = pool.world(SEED);
    let start = world.record();
    let machine = world.machine();
    let ran = world.run(write(stability, bug == Bug::Nothing, &world, &machine));
    let (writes, cuts) = ran.unwrap();
    let recording = world.recording(start);
    world.power_failure();
    Run { stability, writes, cuts, recording }
}

async fn write(stability: Stability, is_honest: bool, world: &SimWorld, machine: &Machine) -> (Vec<Write>, Vec<CutAt>) {
    let (engine, _service) = serve(machine).await;
    let protocol = Iscsi { write_cache: stability != Stability::NoWriteCache, next: Cell::new(0) };
    let (to, from) = protocol.addresses(1);
    let mut stream = world.net().connect(from, to).unwrap();
    assert!(protocol.begin(&mut stream).await);
    let mut writer = Writer {
        stability,
        is_honest,
        engine: &engine,
        world: world.clone(),
        stream,
        rng: Rng::new(SEED),
        next: 0,
        writes: Vec::new(),
        floors: vec![0; BLOCKS],
        cuts: Vec::new(),
    };
    for _ in 0..ROUNDS {
        writer.write_some().await;
        match writer.rng.below(4) {
            // As journals do: the data, a flush, the commit record.
            0 => {
                writer.flush().await;
                writer.send(vec![(DATA_BLOCKS..DATA_BLOCKS + 1, true)]).await;
            }
            1 => writer.flush().await,
            // A txg syncs every five seconds.
            _ => machine.clock.sleep(Duration::from_millis(writer.rng.below(1500))).await,
        }
    }
    assert!(writer.writes.len() < 255, "every write has a version of its own");
    (writer.writes, writer.cuts)
}

/// Result of the power cuts of a run.
#[derive(Debug, Default)]
pub struct Lost {
    /// Cuts after which exactly as many bytes were lost as had been counted.
    pub exact: usize,
    /// Cuts that lost something.
    pub losing: usize,
    /// Cuts while an uberblock was on its way, which lost less.
    pub less: usize,
}

impl Run {
    /// Cuts the power after each answer, imports the pool, and compares.
    pub fn cut_power(&self) -> Result<Lost, String> {
        let mut replay = Replay::new(&self.recording);
        let mut lost = Lost::default();
        for (number, cut) in self.cuts.iter().enumerate() {
            replay.advance(cut.moment);
            let world = replay.cut(SEED + number as u64).world();
            let machine = world.machine();
            let looked = async {
                let (engine, _service) = serve(&machine).await;
                Iscsi { write_cache: true, next: Cell::new(0) }.state(&engine).await
            };
            let found = world.run(looked).map_err(|error| error.to_string())?;
            world.power_failure();
            let judged = match self.stability {
                Stability::SyncDisabled => self.judge_count(cut, &found, &mut lost),
                _ => self.judge_blocks(cut, &found),
            };
            judged.map_err(|why| format!("power cut after answer {number}: {why}"))?;
        }
        Ok(lost)
    }

    /// The version of a block after this many writes.
    fn version(&self, block: usize, writes: usize) -> u8 {
        let last = self.writes[..writes].iter().rev().find(|write| write.blocks.contains(&(block as u64)));
        last.map_or(0, |write| write.version)
    }

    /// Each block has the stable version or a later one.
    fn judge_blocks(&self, cut: &CutAt, found: &[Vec<u8>]) -> Result<(), String> {
        for (block, found) in found.iter().enumerate() {
            let mut allowed = (cut.floors[block]..=cut.sent).map(|writes| self.version(block, writes));
            if !allowed.any(|version| found.iter().all(|byte| *byte == version)) {
                let stable = self.version(block, cut.floors[block]);
                return Err(format!("block {block} begins with {}, the stable version is {stable}", found[0]));
            }
        }
        Ok(())
    }

    /// A prefix of the writes is there, and the others have as many bytes as were counted.
    fn judge_count(&self, cut: &CutAt, found: &[Vec<u8>], lost: &mut Lost) -> Result<(), String> {
        let is_after = |writes: usize| {
            found.iter().enumerate().all(|(block, found)| {
                let version = self.version(block, writes);
                found.iter().all(|byte| *byte == version)
            })
        };
        let kept =
            (0..=cut.sent).rev().find(|writes| is_after(*writes)).ok_or("the blocks are no prefix of the writes")?;
        let len = |write: &Write| (write.blocks.end - write.blocks.start) * BLOCK;
        let lost_bytes: u64 = self.writes[kept..cut.sent].iter().map(len).sum();
        lost.losing += usize::from(lost_bytes > 0);
        match lost_bytes.cmp(&cut.unstable_bytes) {
            std::cmp::Ordering::Equal => lost.exact += 1,
            std::cmp::Ordering::Less if cut.is_syncing => lost.less += 1,
            _ => return Err(format!("{lost_bytes} bytes are lost, {} were counted", cut.unstable_bytes)),
        }
        Ok(())
    }

    /// Number of power cuts.
    pub fn cuts(&self) -> usize {
        self.cuts.len()
    }
}
