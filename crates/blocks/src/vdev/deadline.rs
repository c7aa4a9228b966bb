//! Deadlines of a device's operations: slow ones are counted, and a device that hangs can be taken out of service.
//!
//! ```text
//!   leaf, labels ─► WatchedDisk ─► disk
//!                     │  operations in progress: when they began, and who waits
//!                     ├─ slow I/O threshold (`zio_slow_io_ms`) ─► counted once per operation
//!                     └─ out of service: every waiter gets an error now; a late answer finds no waiter and changes nothing
//! ```
//!
//! The watched disk owns the completion callbacks of all operations in progress, so taking the device out of service
//! completes them at once: a mirror reads its other side, RAID-Z reconstructs, and a write counts as missed in the DTL. The
//! memory of such an operation stays with the disk until it answers.
//!
//! A device can also be lost: its path leads to no device, or to one with other labels. Then it counts as missing until a
//! device with its labels is opened.
//!
//! A device may be put back only when no such operation is left, because a late write could otherwise overwrite a block that
//! was written after the device came back.

use super::canary::{Canary, DeviceBug};
use arc_swap::ArcSwap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Buf, Bufs, Clock, Disk, DiskError, Done, Geometry, Io, Nanos, Op, invariant};

/// Thresholds of a pool's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// An operation that takes longer is slow (`zio_slow_io_ms`).
    pub slow: Duration,
    /// A device with an operation that takes longer hangs (`zfs_deadman_ziotime_ms`).
    pub hang: Duration,
}

impl Default for Deadlines {
    /// 30 s as in OpenZFS, and 60 s: OpenZFS waits 300 s, but takes no device out of service.
    fn default() -> Self {
        Deadlines { slow: Duration::from_secs(30), hang: Duration::from_secs(60) }
    }
}

/// An operation in progress.
struct Pending {
    begun: Nanos,
    op: Op,
    is_slow: bool,
    done: Done,
}

#[derive(Default)]
struct State {
    next: u64,
    pending: BTreeMap<u64, Pending>,
    /// Operations that were given up and have not completed.
    given_up: u64,
}

struct Shared {
    clock: Clock,
    slow_ns: AtomicU64,
    is_out_of_service: AtomicBool,
    is_lost: AtomicBool,
    is_gone: AtomicBool,
    slow: AtomicU64,
    canary: Canary,
    state: Mutex<State, { order::DEVICE_OPERATIONS }>,
}

/// A disk whose operations in progress are known.
pub(crate) struct WatchedDisk {
    inner: ArcSwap<Arc<dyn Disk>>,
    shared: Arc<Shared>,
}

/// The longest operation in progress of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongestOperation {
    /// The operation.
    pub op: Op,
    /// Time since it began.
    pub age: Duration,
}

impl Shared {
    /// Locks the operations; the lock is held for a few instructions.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn complete(&self, id: u64, answer: Result<Bufs, DiskError>) {
        let done = {
            let mut state = self.state();
            let Some(pending) = state.pending.remove(&id) else {
                invariant!(state.given_up > 0, "operation {id} of a device completed twice");
                state.given_up = state.given_up.saturating_sub(1);
                return;
            };
            let slow_ns = self.slow_ns.load(Ordering::Relaxed);
            let is_slow = self.clock.now().ns_since(pending.begun) >= slow_ns;
            if is_slow && !pending.is_slow && !self.canary.has(DeviceBug::CountsNothingSlow) {
                self.slow.fetch_add(1, Ordering::Relaxed);
            }
            pending.done
        };
        done(answer);
    }
}

fn out_of_service(op: Op) -> DiskError {
    DiskError::Refused { op, why: "the device is out of service, because it did not answer" }
}

impl WatchedDisk {
    pub fn new(inner: Arc<dyn Disk>, clock: &Clock) -> Arc<Self> {
        let shared = Arc::new(Shared {
            clock: clock.clone(),
            slow_ns: AtomicU64::new(u64::try_from(Deadlines::default().slow.as_nanos()).unwrap_or(u64::MAX)),
            is_out_of_service: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            slow: AtomicU64::new(0),
            canary: Canary::default(),
            state: Mutex::default(),
        });
        Arc::new(WatchedDisk { inner: ArcSwap::from_pointee(inner), shared })
    }

    pub fn is_in_service(&self) -> bool {
        !self.shared.is_out_of_service.load(Ordering::Acquire)
    }

    /// Whether the device counts as missing.
    pub fn is_lost(&self) -> bool {
        self.shared.is_lost.load(Ordering::Acquire)
    }

    /// Whether the device is in service although its path does not lead to it any more.
    pub fn is_gone(&self) -> bool {
        self.is_in_service() && self.shared.is_gone.load(Ordering::Acquire)
    }

    /// Records whether the path of a device in service leads to it. Returns whether that is new.
    pub fn set_gone(&self, is_gone: bool) -> bool {
        self.shared.is_gone.swap(is_gone, Ordering::AcqRel) != is_gone
    }

    /// Takes the device out of service as a missing one.
    pub fn lose(&self) {
        self.shared.is_gone.store(false, Ordering::Release);
        self.shared.is_lost.store(true, Ordering::Release);
        self.take_out();
        debug_assert!(self.is_lost() && !self.is_in_service());
    }

    /// Puts a lost device back into service, with the disk that was opened anew.
    ///
    /// # Errors
    /// The number of operations of the former disk that are still in progress, if there are any.
    pub fn replace(&self, disk: Arc<dyn Disk>) -> Result<(), u64> {
        invariant!(self.is_lost() && !self.is_in_service(), "a device in service gets another disk");
        {
            let state = self.shared.state();
            if state.given_up > 0 {
                return Err(state.given_up);
            }
            self.inner.store(Arc::new(disk));
        }
        self.shared.is_lost.store(false, Ordering::Release);
        self.put_back()
    }

    /// Number of slow operations so far.
    pub fn slow(&self) -> u64 {
        self.shared.slow.load(Ordering::Relaxed)
    }

    /// Sets the number of slow operations to zero.
    pub fn clear_slow(&self) {
        self.shared.slow.store(0, Ordering::Relaxed);
    }

    /// Counts the operations in progress that have become slow, and returns their number and the longest operation.
    pub fn check(&self, slow: Duration) -> (u64, Option<LongestOperation>) {
        self.shared.slow_ns.store(u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let now = self.shared.clock.now();
        let mut newly_slow = 0;
        let mut state = self.shared.state();
        for pending in state.pending.values_mut().filter(|pending| !pending.is_slow) {
            pending.is_slow = now.since(pending.begun) >= slow;
            newly_slow += u64::from(pending.is_slow && !self.shared.canary.has(DeviceBug::CountsNothingSlow));
        }
        let longest = state.pending.values().min_by_key(|pending| pending.begun);
        let longest = longest.map(|pending| LongestOperation { op: pending.op, age: now.since(pending.begun) });
        drop(state);
        self.shared.slow.fetch_add(newly_slow, Ordering::Relaxed);
        (newly_slow, longest)
    }

    #[cfg(feature = "canary")]
    pub fn plant(&self, bug: DeviceBug) {
        self.shared.canary.plant(bug);
    }

    /// Takes the device out of service: operations in progress and all later ones fail.
    pub fn take_out(&self) {
        let given_up = {
            let mut state = self.shared.state();
            self.shared.is_out_of_service.store(true, Ordering::Release);
            let waits_on = self.shared.canary.has(DeviceBug::KeepsWaiting);
            let pending = if waits_on { BTreeMap::new() } else { std::mem::take(&mut state.pending) };
            state.given_up += pending.len() as u64;
            pending
        };
        for pending in given_up.into_values() {
            (pending.done)(Err(out_of_service(pending.op)));
        }
    }

    /// Puts the device back into service.
    ///
    /// # Errors
    /// The number of operations that were given up and are still in progress, if there are any.
    pub fn put_back(&self) -> Result<(), u64> {
        let state = self.shared.state();
        if state.given_up > 0 && !self.shared.canary.has(DeviceBug::PutBackEarly) {
            return Err(state.given_up);
        }
        let is_idle = state.pending.is_empty() || self.is_in_service();
        invariant!(is_idle, "{} operations of a device that is out of service", state.pending.len());
        self.shared.is_out_of_service.store(false, Ordering::Release);
        Ok(())
    }
}

impl Disk for WatchedDisk {
    fn geometry(&self) -> Geometry {
        self.inner.load().geometry()
    }

    fn look_again(&self) -> Geometry {
        self.inner.load().look_again()
    }

    fn submit(&self, mut io: Io) {
        let shared = self.shared.clone();
        let id = {
            let mut state = shared.state();
            // Checked under the lock: no operation begins after the device was taken out of service.
            if shared.is_out_of_service.load(Ordering::Acquire) {
                drop(state);
                let op = io.op;
                return io.fail(out_of_service(op));
            }
            state.next += 1;
            let id = state.next;
            let done = std::mem::replace(&mut io.done, Box::new(drop));
            let replaced =
                state.pending.insert(id, Pending { begun: shared.clock.now(), op: io.op, is_slow: false, done });
            debug_assert!(replaced.is_none(), "operation {id} began twice");
            id
        };
        io.done = Box::new(move |answer| shared.complete(id, answer));
        self.inner.load().submit(io);
    }

    fn buffer(&self, len: usize) -> Buf {
        self.inner.load().buffer(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use weir_machine::time::ClockSource;

    /// A disk that answers when the test says so.
    #[derive(Default)]
    struct Holding(std::sync::Mutex<Vec<Io>>);

    impl Disk for Holding {
        fn geometry(&self) -> Geometry {
            Geometry { size_bytes: 1 << 30, sector_bytes: 512, rotational: false }
        }

        fn submit(&self, io: Io) {
            self.0.lock().unwrap().push(io);
        }
    }

    /// A clock that the test sets.
    #[derive(Default)]
    struct SetClock(AtomicU64);

    impl ClockSource for SetClock {
        fn now(&self) -> Nanos {
            Nanos(self.0.load(Ordering::Relaxed))
        }

        fn wall(&self) -> std::time::SystemTime {
            std::time::UNIX_EPOCH
        }

        fn sleep_until(&self, _: Nanos) -> futures_util::future::BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_lost_device_comes_back_with_another_disk() {
        let holding = [Arc::new(Holding::default()), Arc::new(Holding::default())];
        let watched = WatchedDisk::new(holding[0].clone(), &Clock::new(Arc::new(SetClock::default())));
        let disk: Arc<dyn Disk> = watched.clone();
        let mut write = Box::pin(disk.write(0, vec![7; 512]));
        assert!((&mut write).now_or_never().is_none());
        watched.lose();
        assert!(matches!(write.now_or_never(), Some(Err(DiskError::Refused { op: Op::Write, .. }))));
        assert_eq!((watched.replace(holding[1].clone()), watched.is_lost()), (Err(1), true));
        std::mem::take(&mut *holding[0].0.lock().unwrap()).into_iter().for_each(Io::succeed);
        assert_eq!((watched.replace(holding[1].clone()), watched.is_lost()), (Ok(()), false));
        let mut flush = Box::pin(disk.flush());
        assert!((&mut flush).now_or_never().is_none());
        let of = |index: usize| holding[index].0.lock().unwrap().len();
        assert_eq!((watched.is_in_service(), of(0), of(1)), (true, 0, 1));
    }

    #[test]
    fn a_late_answer_changes_nothing_and_the_device_comes_back_after_it() {
        let time = Arc::new(SetClock::default());
        let holding = Arc::new(Holding::default());
        let watched = WatchedDisk::new(holding.clone(), &Clock::new(time.clone()));
        let disk: Arc<dyn Disk> = watched.clone();
        let mut write = Box::pin(disk.write(0, vec![7; 512]));
        let mut read = Box::pin(disk.read(512, 512));
        assert!((&mut write).now_or_never().is_none() && (&mut read).now_or_never().is_none());
        let slow = Duration::from_secs(30);
        assert_eq!(watched.check(slow), (0, Some(LongestOperation { op: Op::Write, age: Duration::ZERO })));
        time.0.store(31 * SECOND, Ordering::Relaxed);
        assert_eq!(watched.check(slow).0, 2);
        assert_eq!((watched.check(slow).0, watched.slow()), (0, 2), "each operation is counted once");
        watched.take_out();
        assert!(matches!(write.now_or_never(), Some(Err(DiskError::Refused { op: Op::Write, .. }))));
        assert!(matches!(read.now_or_never(), Some(Err(DiskError::Refused { op: Op::Read, .. }))));
        assert!(disk.flush().now_or_never().unwrap().is_err(), "nothing reaches the device any more");
        assert_eq!((watched.put_back(), watched.is_in_service()), (Err(2), false));
        let late: Vec<Io> = std::mem::take(&mut *holding.0.lock().unwrap());
        assert_eq!(late.len(), 2);
        late.into_iter().for_each(Io::succeed);
        assert_eq!((watched.put_back(), watched.is_in_service()), (Ok(()), true));
        let mut flush = Box::pin(disk.flush());
        assert!((&mut flush).now_or_never().is_none());
        time.0.store(70 * SECOND, Ordering::Relaxed);
        holding.0.lock().unwrap().pop().unwrap().succeed();
        assert_eq!((flush.now_or_never(), watched.slow()), (Some(Ok(())), 3), "slow, although no check saw it");
    }
}
