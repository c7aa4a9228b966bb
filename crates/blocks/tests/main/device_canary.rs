//! Devices that hang, are slow, answer late, come back stale, or fail flushes: nothing is lost and what must be reported is.
//! For each of these faults a bug is planted, which the same histories must find: otherwise they test nothing.

use crate::store::*;
use futures_util::future::{Either, join_all, select};
use std::pin::pin;
use std::time::Duration;
use weir_blocks::vdev::{Deadlines, DeviceBug};
use weir_blocks::{Blocks, Class, VdevGrid, VdevKind, WriteOptions};
use weir_format::{BlockPointer, Txg};
use weir_machine::Request;
use weir_sim::{Fault, Timing};

const SEEDS: std::ops::Range<u64> = 0..24;
const DEADLINES: Deadlines = Deadlines { slow: Duration::from_millis(200), hang: Duration::from_secs(2) };
const EIO: i32 = 5;
/// GUID of the first disk, on which faults are laid.
const FIRST: u64 = 100;

type Known = Vec<(BlockPointer, Vec<u8>)>;

/// A pool so small that freed space is soon used again.
fn small(bench: &Bench, disks: usize, missing: &[usize]) -> std::sync::Arc<Blocks> {
    let blocks = bench.blocks(vec![top(0, VdevKind::Mirror, 12, bench.leaves(0..disks, missing))]);
    blocks.tree().set_writable(true);
    let grid = VdevGrid { vdev: 0, class: Class::Normal, metaslab_shift: 18, metaslab_count: 1, non_allocating: false };
    blocks.add_vdev(&grid).unwrap();
    blocks.metaslabs().set_free(0, 0, std::slice::from_ref(&(0..1 << 18))).unwrap();
    blocks
}

/// Writes `count` blocks in `txg`.
async fn write_some(blocks: &Blocks, txg: Txg, count: u64) -> Result<Known, String> {
    let request = Request::internal("test");
    let options = WriteOptions { txg, ..options() };
    let writes = (0..count).map(|n| {
        let data = pattern(8192, txg.0 * 1000 + n);
        let (request, options) = (&request, &options);
        async move { blocks.write(request, data.clone().into(), options).await.map(|pointer| (pointer, data)) }
    });
    let all: Result<Known, _> = join_all(writes).await.into_iter().collect();
    all.map_err(|error| format!("a write of txg {} fails: {error}", txg.0))
}

/// Ends a txg: its frees become free space two txgs later.
async fn end_txg(blocks: &Blocks, txg: Txg) -> Result<(), String> {
    blocks.take_changes(txg);
    blocks.flush().await.map_err(|error| format!("the flush of txg {} fails: {error}", txg.0))?;
    blocks.synced(txg, true);
    Ok(())
}

async fn read_all(blocks: &Blocks, known: &Known, who: &str) -> Result<(), String> {
    for (pointer, data) in known {
        let read = blocks.read(&Request::internal("test"), pointer, &Default::default()).await;
        match read {
            Ok(bytes) if bytes == data.as_slice() => {}
            Ok(_) => return Err(format!("{who} returns other bytes")),
            Err(error) => return Err(format!("{who}: {error}")),
        }
    }
    Ok(())
}

/// Takes devices that hang out of service while redundancy lasts, as the engine's supervisor does.
async fn supervise(bench: &Bench, blocks: &Blocks) {
    loop {
        bench.machine.clock.sleep(Duration::from_millis(50)).await;
        for leaf in blocks.tree().check_deadlines(&DEADLINES) {
            if leaf.hang.is_some() && leaf.is_dispensable {
                blocks.tree().leaf(leaf.guid).unwrap().take_out();
            }
        }
    }
}

/// A mirror's side hangs while blocks are written; it is taken out of service, its space is used again, it is put back, and
/// what it was asked before arrives late.
async fn hangs_and_returns(bench: &Bench, blocks: &Blocks) -> Result<(), String> {
    let clock = &bench.machine.clock;
    let mut live = write_some(blocks, TXG, 4).await?;
    end_txg(blocks, TXG).await?;
    let hang = bench.disks[0].lay(Fault::Hang);
    let during = {
        let writes = pin!(write_some(blocks, Txg(TXG.0 + 1), 8));
        let watched = pin!(async {
            match select(pin!(supervise(bench, blocks)), pin!(clock.sleep(Duration::from_secs(20)))).await {
                Either::Left(((), _)) | Either::Right(((), _)) => {}
            }
        });
        match select(writes, watched).await {
            Either::Left((written, _)) => written?,
            Either::Right(_) => return Err("writes wait for a device that hangs".into()),
        }
    };
    end_txg(blocks, Txg(TXG.0 + 1)).await?;
    for (pointer, _) in &during {
        blocks.free(&Request::internal("test"), pointer, Txg(TXG.0 + 2)).await.map_err(|error| error.to_string())?;
    }
    live.extend(write_some(blocks, Txg(TXG.0 + 2), 2).await?);
    for txg in (2..7).map(|n| Txg(TXG.0 + n)) {
        end_txg(blocks, txg).await?;
    }
    let leaf = blocks.tree().leaf(FIRST).unwrap();
    let early = leaf.put_back();
    bench.disks[0].lift(hang);
    if early.is_err() {
        clock.sleep(Duration::from_secs(5)).await;
        leaf.put_back().map_err(|error| format!("a device that answers again cannot be put back: {error:?}"))?;
    }
    // These fill the space, that of the writes given up included.
    let after = write_some(blocks, Txg(TXG.0 + 7), 20).await?;
    end_txg(blocks, Txg(TXG.0 + 7)).await?;
    clock.sleep(Duration::from_secs(5)).await;
    live.extend(after.iter().cloned());
    for _ in 0..4 {
        read_all(blocks, &live, "the pool").await?;
    }
    for leaf in blocks.tree().health() {
        if leaf.counts.checksum_errors > 0 {
            return Err(format!("{} was read although it lacks blocks", leaf.name));
        }
        if leaf.counts.write_errors > 0 {
            return Err(format!("writes that {} was given up with count as its errors", leaf.name));
        }
    }
    read_all(&small(bench, 2, &[1]), &after, "the device that came back").await
}

/// A mirror's side is slow: it is reported, and stays in service.
async fn is_slow(bench: &Bench, blocks: &Blocks) -> Result<(), String> {
    bench.disks[0].lay(Fault::Slow { factor: 100 });
    let writes = pin!(write_some(blocks, TXG, 4));
    let watching = pin!(supervise(bench, blocks));
    let live = match select(writes, watching).await {
        Either::Left((written, _)) => written?,
        Either::Right(((), _)) => return Err("the supervisor ended".into()),
    };
    let health = blocks.tree().health();
    let slow = health.iter().find(|leaf| leaf.guid == FIRST).map_or(0, |leaf| leaf.counts.slow);
    if slow == 0 {
        return Err("slow operations are not counted".into());
    }
    bench.disks[0].lift_all();
    end_txg(blocks, TXG).await?;
    read_all(blocks, &live, "the pool").await
}

/// Flushes fail and drop what was written; when they succeed again, the writes are repeated.
async fn flushes_fail(bench: &Bench, blocks: &Blocks) -> Result<(), String> {
    blocks.tree().keep_unstable(64 << 20);
    let mut live = write_some(blocks, TXG, 4).await?;
    end_txg(blocks, TXG).await?;
    let fails = bench.disks[0].lay(Fault::FailFlushes { errno: EIO });
    live.extend(write_some(blocks, Txg(TXG.0 + 1), 12).await?);
    for _ in 0..2 {
        if blocks.flush().await.is_ok() {
            return Err("a failed flush is reported as good".into());
        }
        let repeated = blocks.tree().repeat_unstable().await;
        if repeated.is_empty() {
            return Err("writes count as repeated although the flush fails".into());
        }
    }
    bench.disks[0].lift(fails);
    if let Some(error) = blocks.tree().repeat_unstable().await.first() {
        return Err(format!("the writes cannot be repeated: {error}"));
    }
    end_txg(blocks, Txg(TXG.0 + 1)).await?;
    if !blocks.tree().dtls().is_empty() {
        return Err("the device counts as incomplete".into());
    }
    read_all(blocks, &live, "the pool").await
}

/// Runs the history of one seed.
fn run(scenario: Scenario, seed: u64, bug: Option<DeviceBug>) -> Result<(), String> {
    let disks = if scenario == Scenario::FailedFlushes { 1 } else { 2 };
    let bench = Bench::new(seed, disks, Timing::Chaos);
    let blocks = small(&bench, disks, &[]);
    bug.into_iter().for_each(|bug| blocks.tree().plant(bug));
    let done = match scenario {
        Scenario::HangAndReturn => bench.world.run(hangs_and_returns(&bench, &blocks)),
        Scenario::Slow => bench.world.run(is_slow(&bench, &blocks)),
        Scenario::FailedFlushes => bench.world.run(flushes_fail(&bench, &blocks)),
    };
    done.unwrap_or_else(|error| Err(format!("the history does not end: {error:?}")))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    HangAndReturn,
    Slow,
    FailedFlushes,
}

#[test]
fn devices_that_hang_are_slow_return_or_fail_flushes_lose_nothing() {
    for seed in SEEDS {
        for scenario in [Scenario::HangAndReturn, Scenario::Slow, Scenario::FailedFlushes] {
            assert_eq!(run(scenario, seed, None), Ok(()), "{scenario:?}, seed {seed}");
        }
    }
}

#[test]
fn the_planted_bugs_are_found() {
    for (scenario, bug) in [
        (Scenario::HangAndReturn, DeviceBug::KeepsWaiting),
        (Scenario::HangAndReturn, DeviceBug::PutBackEarly),
        (Scenario::HangAndReturn, DeviceBug::ForgetsDtl),
        (Scenario::Slow, DeviceBug::CountsNothingSlow),
        (Scenario::FailedFlushes, DeviceBug::TrustsNextFlush),
    ] {
        let found = SEEDS.into_iter().find_map(|seed| Some((seed, run(scenario, seed, Some(bug)).err()?)));
        let (seed, why) = found.unwrap_or_else(|| panic!("{bug:?} is not found: the histories test nothing"));
        println!("{bug:?} is found with seed {seed}: {why}");
    }
}
