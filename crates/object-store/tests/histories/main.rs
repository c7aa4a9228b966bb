//! Random histories on a faulty store, compared with a model: nothing that was flushed is lost, no old byte comes back.
//!
//! A history writes, flushes, reads and discards; it closes the disk, kills the process that has it, or stops that process until
//! another one has taken the disk over. For each sector the model knows which values it may have. Planted bugs must be found.

mod bucket;
mod probing;
mod seen;

use bucket::{Behaviour, Bucket, Client, Faults, Power};
use seen::Ledger;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use weir_machine::lock::Mutex;
use weir_machine::{Access, Disk, Machine};
use weir_object_store::io::StoreDisk;
use weir_object_store::lease::LeaseTimes;
use weir_object_store::record::{Holder, KEY, Record};
use weir_object_store::requests::Requests;
use weir_object_store::{Bug, Core, Settings, open_writer};
use weir_sim::{Rng, SimWorld, run_twice};

const OBJECT_BYTES: u64 = 64 << 10;
const OBJECTS: u64 = 16;
const SECTOR: u64 = 4096;
const SECTORS: u64 = OBJECTS * OBJECT_BYTES / SECTOR;
const PER_OBJECT: u64 = OBJECT_BYTES / SECTOR;
/// Sectors in which a take-over marks the labels.
const MARKED: [u64; 4] = [1, 65, SECTORS - 127, SECTORS - 63];

/// A sector's values.
#[derive(Clone, Debug)]
struct Sector {
    /// After a crash it has one of these or of `pending`; `None` for any value.
    stable: Option<BTreeSet<u64>>,
    /// Values written since the last flush that succeeded.
    pending: BTreeSet<u64>,
    /// Values that a read may see now; `None` for any.
    now: Option<BTreeSet<u64>>,
}

struct Model(Vec<Sector>);

impl Model {
    fn new() -> Self {
        let zero = Some(BTreeSet::from([0]));
        Model(vec![Sector { stable: zero.clone(), pending: BTreeSet::new(), now: zero }; SECTORS as usize])
    }

    fn range(&mut self, at: u64, count: u64) -> &mut [Sector] {
        &mut self.0[at as usize..(at + count) as usize]
    }

    fn wrote(&mut self, at: u64, count: u64, value: u64) {
        for sector in self.range(at, count) {
            sector.pending.insert(value);
            sector.now = Some(BTreeSet::from([value]));
        }
    }

    fn discarded(&mut self, at: u64, count: u64) {
        for sector in self.range(at, count) {
            sector.stable = None;
            sector.now = None;
        }
    }

    fn flushed(&mut self) {
        for sector in self.0.iter_mut().filter(|sector| !sector.pending.is_empty()) {
            sector.stable = sector.now.clone();
            sector.pending.clear();
        }
    }

    /// A flush failed: what was written is still written.
    fn crashed(&mut self) {
        for sector in &mut self.0 {
            if let Some(stable) = &mut sector.stable {
                stable.append(&mut sector.pending);
            }
            sector.pending.clear();
            sector.now = sector.stable.clone();
        }
    }

    fn check(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        for (n, bytes) in bytes.chunks(SECTOR as usize).enumerate() {
            let sector = at + n as u64;
            if MARKED.contains(&sector) {
                continue;
            }
            let value = u64::from_le_bytes(bytes[..8].try_into().map_err(|_| "short")?);
            if bytes.chunks(8).any(|word| word != value.to_le_bytes()) {
                return Err(format!("sector {sector} is a mixture"));
            }
            if let Some(allowed) = &self.0[sector as usize].now
                && !allowed.contains(&value)
            {
                return Err(format!("sector {sector} has {value} instead of one of {allowed:?}"));
            }
        }
        Ok(())
    }
}

/// Operations of a history, and how the store behaves.
#[derive(Clone, Copy)]
struct Plan {
    behaviour: Behaviour,
    stops: bool,
    bug: Option<Bug>,
}

/// A process that has the disk open.
struct Process {
    core: Arc<Core>,
    disk: Arc<dyn Disk>,
    power: Arc<Mutex<Power>>,
}

struct History {
    machine: Machine,
    bucket: Arc<Bucket>,
    rng: Rng,
    plan: Plan,
    model: Model,
    nonce: u64,
    next_value: u64,
    ledger: Ledger,
}

impl History {
    fn settings(&self) -> Settings {
        Settings {
            parallel: 4,
            gather_bytes: 6 * OBJECT_BYTES,
            cache_bytes: 3 * OBJECT_BYTES,
            deadline: Duration::from_secs(200),
            request_life: self.plan.behaviour.latest + Duration::from_secs(2),
            lease: LeaseTimes::default(),
            bug: self.plan.bug,
        }
    }

    /// Opens the disk in a new process. With faults in a quarter of the requests, several attempts may be necessary.
    async fn open(&mut self) -> Result<Process, String> {
        let mut last = String::new();
        for _ in 0..10 {
            let client: Client = self.bucket.client();
            let power = client.power();
            self.nonce += 1;
            let holder = Holder {
                host: "h".into(),
                boot: "b".into(),
                pid: self.nonce as u32,
                started: 0,
                nonce: self.nonce,
                renewal: 0,
            };
            let (store, counters) = (Arc::new(self.ledger.watch(client)), self.ledger.counters());
            let requests = Requests::counted(store, self.machine.clock.clone(), Duration::from_secs(5), counters);
            match open_writer(Arc::new(requests), self.machine.tasks.clone(), self.settings(), holder, None).await {
                Ok(core) => {
                    let buffers = self.machine.read_buffers.clone();
                    let disk: Arc<dyn Disk> = Arc::new(StoreDisk::new(core.clone(), Access::ReadWrite, buffers, None));
                    return Ok(Process { core, disk, power });
                }
                Err(why) => {
                    *power.lock() = Power::Dead;
                    last = why;
                }
            }
        }
        Err(format!("cannot be opened: {last}"))
    }

    fn value(&mut self) -> u64 {
        // Sometimes one that was there before: then the object may get the tag of an earlier version.
        if self.next_value > 4 && self.rng.chance(1, 4) {
            return self.next_value - 1 - self.rng.below(3);
        }
        self.next_value += 1;
        self.next_value
    }

    fn place(&mut self) -> (u64, u64) {
        // A few objects, so that histories meet.
        let object = self.rng.below(5) * 3;
        match self.rng.below(3) {
            0 => (object * PER_OBJECT, PER_OBJECT),
            1 => {
                let at = object * PER_OBJECT + self.rng.below(PER_OBJECT);
                (at, 1)
            }
            _ => {
                let at = object * PER_OBJECT + self.rng.below(PER_OBJECT);
                (at, 1 + self.rng.below((2 * PER_OBJECT).min(SECTORS - at)))
            }
        }
    }

    async fn write(&mut self, process: &Process) -> Result<(), String> {
        let (at, count) = self.place();
        let value = self.value();
        let bytes: Vec<u8> = value.to_le_bytes().repeat((count * SECTOR / 8) as usize);
        process.disk.write(at * SECTOR, bytes).await.map_err(|error| error.to_string())?;
        self.model.wrote(at, count, value);
        Ok(())
    }

    async fn read(&mut self, process: &Process, at: u64, count: u64) -> Result<(), String> {
        let bytes = process.disk.read(at * SECTOR, (count * SECTOR) as usize).await;
        self.model.check(at, bytes.map_err(|error| format!("read: {error}"))?.as_ref())
    }

    async fn check_all(&mut self, process: &Process) -> Result<(), String> {
        for object in 0..OBJECTS {
            self.read(process, object * PER_OBJECT, PER_OBJECT).await?;
        }
        Ok(())
    }

    async fn step(&mut self, process: &mut Process) -> Result<(), String> {
        match self.rng.below(if self.plan.stops { 24 } else { 22 }) {
            0 => self.return_to_earlier_bytes(process).await,
            1..=8 => self.write(process).await.map_err(|why| format!("write: {why}")),
            9..=12 => {
                process.disk.flush().await.map_err(|error| format!("flush: {error}"))?;
                self.model.flushed();
                Ok(())
            }
            13..=16 => {
                let (at, count) = self.place();
                self.read(process, at, count).await
            }
            17 | 18 => {
                let (at, count) = self.place();
                self.model.discarded(at, count);
                process.disk.discard(at * SECTOR, count * SECTOR).await.map_err(|error| format!("discard: {error}"))
            }
            19 => {
                process.core.close().await;
                *process.power.lock() = Power::Dead;
                // Closing writes what was gathered.
                self.model.crashed();
                *process = self.open().await?;
                self.check_all(process).await
            }
            20 | 21 => {
                *process.power.lock() = Power::Dead;
                self.model.crashed();
                *process = self.open().await?;
                self.check_all(process).await
            }
            _ => self.stop_and_take_over(process).await,
        }
    }

    /// An object gets other bytes, and then its earlier ones, with the earlier tag.
    async fn return_to_earlier_bytes(&mut self, process: &Process) -> Result<(), String> {
        let object = self.rng.below(5) * 3;
        let earlier = 1 << 40 | object;
        for value in [earlier, earlier + (1 << 30), earlier] {
            let bytes = value.to_le_bytes().repeat((OBJECT_BYTES / 8) as usize);
            process.disk.write(object * OBJECT_BYTES, bytes).await.map_err(|error| error.to_string())?;
            self.model.wrote(object * PER_OBJECT, PER_OBJECT, value);
            process.disk.flush().await.map_err(|error| format!("flush: {error}"))?;
            self.model.flushed();
        }
        self.machine.clock.sleep(Duration::from_secs(self.rng.below(30))).await;
        Ok(())
    }

    /// The process stops, another one takes the disk, and then the first one goes on.
    async fn stop_and_take_over(&mut self, process: &mut Process) -> Result<(), String> {
        // In the middle of a flush.
        let flushing = {
            let disk = process.disk.clone();
            self.machine.tasks.spawn(async move { disk.flush().await.is_ok() })
        };
        let pause = Duration::from_millis(self.rng.below(200));
        self.machine.clock.sleep(pause).await;
        *process.power.lock() = Power::Paused;
        self.model.crashed();
        let stopped = std::mem::replace(process, self.open().await?);
        self.write(process).await?;
        process.disk.flush().await.map_err(|error| format!("flush after a take-over: {error}"))?;
        self.model.flushed();
        *stopped.power.lock() = Power::Running;
        // It does not know yet. Its value must never be seen.
        let bytes: Vec<u8> = u64::MAX.to_le_bytes().repeat((OBJECTS * OBJECT_BYTES / 8) as usize);
        let wrote = stopped.disk.write(0, bytes).await.is_ok();
        let flushed = stopped.disk.flush().await.is_ok();
        // A flush that was in progress may have ended before the stop.
        let _ = flushing.await;
        *stopped.power.lock() = Power::Dead;
        if wrote && flushed {
            return Err("a process that had lost the disk flushed a write".into());
        }
        self.check_all(process).await
    }
}

fn history(world: &SimWorld, plan: Plan, steps: u64) -> Result<Faults, String> {
    let machine = world.machine();
    let mut rng = world.rng();
    let bucket = Bucket::new(rng.fork(), plan.behaviour, machine.clock.clone(), machine.tasks.clone());
    let model = Model::new();
    let ledger = Ledger::default();
    let mut history =
        History { machine, bucket: bucket.clone(), rng, plan, model, nonce: 0, next_value: 0, ledger: ledger.clone() };
    let ran = world.run(async {
        let record = Record::new(OBJECTS * OBJECT_BYTES, OBJECT_BYTES, true);
        bucket.set(KEY, record.encode().into());
        let mut process = history.open().await?;
        for step in 0..steps {
            history.step(&mut process).await.map_err(|why| format!("step {step}: {why}"))?;
        }
        process.disk.flush().await.map_err(|error| format!("last flush: {error}"))?;
        history.model.flushed();
        *process.power.lock() = Power::Dead;
        history.model.crashed();
        let process = history.open().await?;
        history.check_all(&process).await?;
        let counts = ledger.assert_equal();
        // Not each history deletes objects.
        if counts.requests[..3].contains(&0) || counts.retries == 0 || counts.failed == [0; 4] {
            return Err(format!("a kind of request was not made, or none failed: {counts:?}"));
        }
        Ok(bucket.faults())
    });
    ran.map_err(|error| error.to_string())?
}

/// Tags as of S3; requests are late by less than a lease.
const DIGESTS: Plan = Plan {
    behaviour: Behaviour { faults: 25, tags_are_digests: true, latest: Duration::from_secs(25) },
    stops: false,
    bug: None,
};

/// Each version has its own tag; requests are late by much more than a lease, and processes stop and go on.
const UNIQUE: Plan = Plan {
    behaviour: Behaviour { faults: 12, tags_are_digests: false, latest: Duration::from_secs(100) },
    stops: true,
    bug: None,
};

fn seeds() -> u64 {
    std::env::var("WEIR_STORE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(30)
}

fn survives(plan: Plan) {
    let mut faults = Faults::default();
    for seed in 0..seeds() {
        let ran = run_twice(seed, |world| history(world, plan, 60)).expect("a seed is reproducible");
        faults.add(&ran.unwrap_or_else(|why| panic!("seed {seed}: {why}")));
    }
    faults.assert_all_occurred();
    println!("{} histories: {faults:?}", seeds());
}

fn is_found(plan: Plan, bug: Bug) {
    let plan = Plan { bug: Some(bug), ..plan };
    let found = (0..4 * seeds()).filter(|seed| history(&SimWorld::new(*seed), plan, 60).is_err()).count();
    assert!(found > 0, "{bug:?} is not found");
    println!("{bug:?}: found by {found} of {} seeds", 4 * seeds());
}

#[test]
fn histories_with_tags_as_of_s3_lose_nothing() {
    survives(DIGESTS);
}

#[test]
fn histories_with_processes_that_stop_lose_nothing() {
    survives(UNIQUE);
}

#[test]
fn a_retry_without_looking_at_the_tag_is_found() {
    is_found(DIGESTS, Bug::RetriesWithoutEtag);
}

#[test]
fn forgetting_unanswered_requests_is_found() {
    is_found(DIGESTS, Bug::ForgetsUnanswered);
}

#[test]
fn writing_without_the_lease_is_found() {
    is_found(UNIQUE, Bug::IgnoresLease);
}
