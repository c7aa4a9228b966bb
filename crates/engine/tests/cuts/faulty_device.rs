//! A device that is slow, or hangs for a while, while clients change the pool. The pool takes a device that hangs out of
//! service, and its late answers change nothing.

use crate::op_counters::{Counter, HUNG, SLOW_IOS};
use std::sync::Arc;
use std::time::Duration;
use weir_blocks::vdev::Deadlines;
use weir_engine::Engine;
use weir_engine::supervision::supervise;
use weir_machine::Clock;
use weir_sim::{Fault, SimDisk};

/// Thresholds for these pools, whose devices need milliseconds.
const DEADLINES: Deadlines = Deadlines { slow: Duration::from_millis(100), hang: Duration::from_secs(20) };
/// Time for which the fault lasts: a device that hangs is taken out of service, and answers afterwards.
const LASTS: Duration = Duration::from_secs(40);

/// Factor by which a slow device takes longer: its operations become slow I/Os, but it does not hang.
const SLOW_FACTOR: u32 = 1000;

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFault {
    Slow,
    Hang,
}

/// A device of an open pool that fails for a while.
pub struct FaultyDevice {
    pub engine: Arc<Engine>,
    pub clock: Clock,
    pub disk: Arc<SimDisk>,
    pub fault: DeviceFault,
    /// Time until the fault begins.
    pub after: Duration,
    pub counter: Counter,
}

impl FaultyDevice {
    /// Supervises the pool, and has the device fail.
    pub async fn fail(self) {
        supervise(&self.engine, DEADLINES, Arc::new(|why| panic!("{why}"))).await.unwrap();
        self.clock.sleep(self.after).await;
        let laid = self.disk.lay(match self.fault {
            DeviceFault::Slow => Fault::Slow { factor: SLOW_FACTOR },
            DeviceFault::Hang => Fault::Hang,
        });
        self.clock.sleep(LASTS).await;
        let health = self.engine.cache.blocks().tree().health();
        self.disk.lift(laid);
        let hung = health.iter().filter(|device| device.faulted).count() as u64;
        assert!(
            hung <= u64::from(self.fault == DeviceFault::Hang),
            "{:?}: {hung} devices are out of service",
            self.fault
        );
        let slow: u64 = health.iter().map(|device| device.counts.slow).sum();
        let mut counters = self.counter.0.lock().unwrap();
        counters.add(SLOW_IOS, slow);
        counters.add(HUNG, hung);
    }
}
