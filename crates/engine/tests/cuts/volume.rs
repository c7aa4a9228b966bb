//! Client of a volume that writes, zeroes, flushes, resizes and changes the key. Any subset of the blocks that were not
//! flushed may be missing.

use crate::op_counters::Counter;
use crate::states::{Moments, Shared, States, When};
use crate::world::root;
use bytes::Bytes;
use std::sync::Arc;
use weir_codec::crypt::Suite;
use weir_engine::{Engine, KeyChange};
use weir_machine::{Machine, Request};
use weir_sim::Rng;
use weir_volumes::Volume;

pub const NAME: &str = "tank/volume";
pub const BYTES: u64 = 512 << 10;
/// Bytes of a unit, which is written with one value and judged as a whole.
const UNIT: u64 = 4 << 10;

/// Bytes that a cut does not split: the intent log splits long writes between its blocks at multiples of this, as OpenZFS
/// does (`zil_lwb_assign`), and the power may fail between two blocks.
const ATOMIC_BYTES: usize = 8;

/// Acknowledged state of the volume. Each unit repeats one byte; units beyond the end count as zeros.
pub struct Known {
    units: Vec<States<u8>>,
    size_bytes: Option<States<u64>>,
    /// Numbers of the volume's keys.
    keys: Option<States<u8>>,
    pub promises: u64,
}

impl Known {
    pub fn new() -> Self {
        Known { units: Vec::new(), size_bytes: None, keys: None, promises: 0 }
    }

    /// Number of the last key.
    pub fn last_key(&self) -> u8 {
        self.keys.as_ref().map_or(0, |keys| *keys.last())
    }

    /// The last states, which a flush that begins now makes stable.
    fn due(&self) -> Vec<usize> {
        self.units.iter().map(States::number).collect()
    }

    fn promise(&mut self, now: When, due: Vec<usize>) {
        self.promises += 1;
        self.units.iter_mut().zip(due).for_each(|(unit, number)| unit.promise(now, number));
    }
}

pub struct Client {
    pub engine: Arc<Engine>,
    pub machine: Machine,
    pub moments: Moments,
    pub known: Shared<Known>,
    pub rng: Rng,
    pub counter: Counter,
    pub suite: Option<Suite>,
}

impl Client {
    pub async fn run(mut self, changes: u64) {
        let rq = Request::internal("client");
        let volume = self.engine.volume(&rq, NAME).await.unwrap();
        let begun = self.moments.now();
        let fresh = || {
            let mut unit = States::new(begun, 0);
            unit.promise(begun, 0);
            unit
        };
        {
            let mut known = self.known.lock().unwrap();
            known.units = (0..BYTES / UNIT).map(|_| fresh()).collect();
            known.size_bytes = Some(States::new(begun, BYTES));
            known.keys = Some(fresh());
        }
        for n in 0..changes {
            self.machine.clock.sleep(std::time::Duration::from_micros(self.rng.below(10_000))).await;
            match self.rng.below(16) {
                0..3 => {
                    let due = self.known.lock().unwrap().due();
                    volume.flush(&rq).await.unwrap();
                    let now = self.moments.now();
                    self.known.lock().unwrap().promise(now, due);
                    self.counter.did("volume-flush");
                }
                3 => self.resize().await,
                4 if self.suite.is_some() => self.change_key().await,
                what => {
                    let byte = if what < 8 { 0 } else { (n % 255) as u8 + 1 };
                    self.write(&rq, &volume, byte).await;
                }
            }
        }
    }

    async fn write(&mut self, rq: &Request, volume: &Volume, byte: u8) {
        let began = self.moments.now();
        let units = volume.size_bytes() / UNIT;
        let first = self.rng.below(units);
        let count = (1 + self.rng.below(6)).min(units - first);
        let stable = self.rng.chance(1, 6);
        let range = first as usize..(first + count) as usize;
        self.known.lock().unwrap().units[range.clone()].iter_mut().for_each(|u| u.push(began, byte));
        let data = Bytes::from(vec![byte; (count * UNIT) as usize]);
        match byte {
            0 => volume.zero(rq, first * UNIT, count * UNIT, true, stable).await.unwrap(),
            _ => volume.write(rq, first * UNIT, data, stable).await.unwrap(),
        }
        self.counter.did(if byte == 0 { "volume-zero" } else { "volume-write" });
        if stable {
            let now = self.moments.now();
            for unit in &mut self.known.lock().unwrap().units[range] {
                let number = unit.number();
                unit.promise(now, number);
            }
        }
    }

    /// Changes the size of the volume. The part that is cut off reads as zeros when the volume grows again.
    async fn resize(&mut self) {
        let began = self.moments.now();
        let size_bytes = BYTES / 4 * (1 + self.rng.below(4));
        let due = {
            let mut known = self.known.lock().unwrap();
            known.size_bytes.as_mut().unwrap().push(began, size_bytes);
            known.units[(size_bytes / UNIT) as usize..].iter_mut().for_each(|unit| unit.push(began, 0));
            known.due()
        };
        self.engine.properties().set_volume_size(NAME.to_owned(), size_bytes).await.unwrap();
        let now = self.moments.now();
        let mut known = self.known.lock().unwrap();
        known.promise(now, due);
        let sizes = known.size_bytes.as_mut().unwrap();
        sizes.promise(now, sizes.number());
        self.counter.did("volume-resize");
    }

    async fn change_key(&mut self) {
        let began = self.moments.now();
        let key = {
            let mut known = self.known.lock().unwrap();
            let key = known.last_key() + 1;
            known.keys.as_mut().unwrap().push(began, key);
            key
        };
        let new = root(&self.machine, NAME, key).await;
        self.engine.encryption_keys().change(NAME.to_owned(), KeyChange::New(new)).await.unwrap();
        let now = self.moments.now();
        let mut known = self.known.lock().unwrap();
        let keys = known.keys.as_mut().unwrap();
        keys.promise(now, keys.number());
        self.counter.did("key-change");
    }
}

/// Contents of a volume, and the number of the key that opened it.
#[derive(PartialEq, Eq)]
pub struct Found {
    bytes: Bytes,
    key: u8,
}

/// Reads the volume that this key has opened.
pub async fn look(engine: &Arc<Engine>, key: u8) -> Result<Found, String> {
    let rq = Request::internal("judge");
    let volume = engine.volume(&rq, NAME).await.map_err(|e| e.to_string())?;
    let bytes = volume.read(&rq, 0, volume.size_bytes() as usize).await.map_err(|e| e.to_string())?;
    Ok(Found { bytes, key })
}

/// Compares the contents after a cut at `cut` with the acknowledged state.
pub fn judge(found: &Found, known: &Known, cut: When) -> Result<(), String> {
    if known.units.first().is_none_or(|unit| !unit.is_promised(cut)) {
        return Ok(());
    }
    let size_bytes = found.bytes.len() as u64;
    let key = found.key;
    if !known.size_bytes.iter().any(|sizes| sizes.allowed(cut).any(|size| *size == size_bytes)) {
        return Err(format!("{NAME} has {size_bytes} bytes"));
    }
    if !known.keys.iter().any(|keys| keys.allowed(cut).any(|allowed| *allowed == key)) {
        return Err(format!("{NAME} has key {key}"));
    }
    for (n, (unit, found)) in known.units.iter().zip(found.bytes.chunks(UNIT as usize)).enumerate() {
        let allowed: Vec<u8> = unit.allowed(cut).copied().collect();
        let full_of = |bytes: &[u8]| allowed.iter().any(|byte| bytes.iter().all(|b| b == byte));
        if full_of(found) {
            continue;
        }
        // A write without a completed flush may be there in part.
        if let Some(at) = found.chunks(ATOMIC_BYTES).position(|word| !full_of(word)) {
            return Err(format!("{NAME}: word {at} of unit {n} is {}…, allowed {allowed:?}", found[at * ATOMIC_BYTES]));
        }
    }
    Ok(())
}
