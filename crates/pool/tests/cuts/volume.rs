//! A client of a volume: writes, zeroes, flushes. What was not flushed may be missing in any order, block by block.

use crate::states::{Moments, Shared, States, When};
use bytes::Bytes;
use std::sync::Arc;
use weir_machine::{Clock, Request};
use weir_pool::Engine;
use weir_sim::Rng;

pub const NAME: &str = "tank/volume";
pub const BYTES: u64 = 512 << 10;
/// What is written at once, and judged as one.
const UNIT: u64 = 4 << 10;

/// Bytes that stay together: the intent log splits long writes between its blocks at multiples of so many, as OpenZFS's
/// does (`zil_lwb_assign`), and the power may fail between two blocks.
const TOGETHER: usize = 8;

/// Each unit is full of one byte.
pub struct Known {
    units: Vec<States<u8>>,
    pub promises: u64,
}

impl Known {
    pub fn new() -> Self {
        Known { units: Vec::new(), promises: 0 }
    }
}

pub struct Client {
    pub engine: Arc<Engine>,
    pub clock: Clock,
    pub moments: Moments,
    pub known: Shared<Known>,
    pub rng: Rng,
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
        self.known.lock().unwrap().units = (0..BYTES / UNIT).map(|_| fresh()).collect();
        for n in 0..changes {
            self.clock.sleep(std::time::Duration::from_micros(self.rng.below(10_000))).await;
            let began = self.moments.now();
            let first = self.rng.below(BYTES / UNIT);
            let count = (1 + self.rng.below(6)).min(BYTES / UNIT - first);
            let stable = self.rng.chance(1, 6);
            match self.rng.below(5) {
                0 => {
                    let due: Vec<usize> = self.known.lock().unwrap().units.iter().map(States::number).collect();
                    volume.flush(&rq).await.unwrap();
                    let now = self.moments.now();
                    let mut known = self.known.lock().unwrap();
                    known.promises += 1;
                    known.units.iter_mut().zip(due).for_each(|(unit, number)| unit.promise(now, number));
                }
                what => {
                    let byte = if what == 1 { 0 } else { (n % 255) as u8 + 1 };
                    let range = first as usize..(first + count) as usize;
                    self.known.lock().unwrap().units[range.clone()].iter_mut().for_each(|u| u.push(began, byte));
                    let data = Bytes::from(vec![byte; (count * UNIT) as usize]);
                    match byte {
                        0 => volume.zero(&rq, first * UNIT, count * UNIT, true, stable).await.unwrap(),
                        _ => volume.write(&rq, first * UNIT, data, stable).await.unwrap(),
                    }
                    if stable {
                        let now = self.moments.now();
                        for unit in &mut self.known.lock().unwrap().units[range] {
                            let number = unit.number();
                            unit.promise(now, number);
                        }
                    }
                }
            }
        }
    }
}

/// What the volume holds.
pub async fn look(engine: &Arc<Engine>) -> Result<Bytes, String> {
    let rq = Request::internal("judge");
    let volume = engine.volume(&rq, NAME).await.map_err(|e| e.to_string())?;
    volume.read(&rq, 0, BYTES as usize).await.map_err(|e| e.to_string())
}

/// Holds what was found after a cut at `cut` against what is known.
pub fn judge(found: &[u8], known: &Known, cut: When) -> Result<(), String> {
    if known.units.first().is_none_or(|unit| !unit.is_promised(cut)) {
        return Ok(());
    }
    for (n, (unit, found)) in known.units.iter().zip(found.chunks(UNIT as usize)).enumerate() {
        let allowed: Vec<u8> = unit.allowed(cut).copied().collect();
        let full_of = |bytes: &[u8]| allowed.iter().any(|byte| bytes.iter().all(|b| b == byte));
        if full_of(found) {
            continue;
        }
        // A write that no flush had promised may be there in part.
        if let Some(at) = found.chunks(TOGETHER).position(|word| !full_of(word)) {
            return Err(format!("{NAME}: word {at} of unit {n} is {}…, allowed {allowed:?}", found[at * TOGETHER]));
        }
    }
    Ok(())
}
