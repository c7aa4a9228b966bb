//! Timing models of disks: realistic ones for "what if" questions, and random timing to find races.
//!
//! A model tracks when each of its channels becomes free. An operation waits for the first free channel and occupies
//! it for its service time. The figures are from data sheets of common drives:
//!
//! | model | channels | small read | stream |
//! |---|---|---|---|
//! | [`Timing::Rpm7k`] | 1 arm | seek 0.6–15 ms by distance + 0–8.33 ms of rotation | 180 MB/s |
//! | [`Timing::SataSsd`] | 1 link, 60 µs of flash in parallel | 60–90 µs | 540 MB/s |
//! | [`Timing::Nvme`] | 64 | 60–80 µs | 3.2 GB/s over all |
//! | [`Timing::Chaos`] | none | 1 µs–5 ms, any order | — |

use crate::rng::Rng;
use weir_machine::Op;

/// A timing model of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// Random service times from one microsecond to five milliseconds: completions in any order.
    #[default]
    Chaos,
    /// A disk of 7,200 revolutions a minute.
    Rpm7k,
    /// An SSD with SATA interface.
    SataSsd,
    /// An SSD with NVMe interface.
    Nvme,
}

/// State of a timing model: when its channels become free, and the arm's position.
#[derive(Clone, Debug, Default)]
pub struct TimingState {
    free_ns: Vec<u64>,
    link_free_ns: u64,
    arm: u64,
}

fn transfer_ns(len: u64, bytes_per_us: u64) -> u64 {
    len.saturating_mul(1000) / bytes_per_us
}

impl Timing {
    /// Completion time in nanoseconds of an operation submitted at `now_ns`.
    #[allow(clippy::too_many_arguments, reason = "the parameters of one operation")]
    pub fn completes_ns(
        self,
        state: &mut TimingState,
        now_ns: u64,
        op: Op,
        offset: u64,
        len: u64,
        size_bytes: u64,
        rng: &mut Rng,
    ) -> u64 {
        match self {
            Timing::Chaos => now_ns + 1000 + rng.below(5_000_000),
            Timing::Rpm7k => {
                let distance = offset.abs_diff(state.arm);
                let seek = if distance == 0 {
                    0
                } else {
                    let share = (distance as f64 / size_bytes.max(1) as f64).min(1.0);
                    600_000 + (14_400_000.0 * share.sqrt()) as u64 + rng.below(8_330_000)
                };
                let flush = if op == Op::Flush { 8_330_000 } else { 0 };
                if op != Op::Flush {
                    state.arm = offset + len;
                }
                occupy(state, 1, now_ns, seek * u64::from(op != Op::Flush) + flush + transfer_ns(len, 180))
            }
            Timing::SataSsd => {
                let flash = if op == Op::Flush { 500_000 } else { 60_000 + rng.below(30_000) };
                state.link_free_ns = state.link_free_ns.max(now_ns) + transfer_ns(len, 540);
                state.link_free_ns + flash
            }
            Timing::Nvme => {
                let flash = if op == Op::Flush { 20_000 } else { 60_000 + rng.below(20_000) };
                state.link_free_ns = state.link_free_ns.max(now_ns) + transfer_ns(len, 3_200);
                let ready = occupy(state, 64, now_ns, flash);
                ready.max(state.link_free_ns + flash)
            }
        }
    }
}

/// Occupies the first free channel for `service_ns`; returns the completion time.
fn occupy(state: &mut TimingState, channels: usize, now_ns: u64, service_ns: u64) -> u64 {
    state.free_ns.resize(channels, 0);
    let Some(channel) = state.free_ns.iter_mut().min() else { return now_ns + service_ns };
    *channel = (*channel).max(now_ns) + service_ns;
    *channel
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream_mb_s(timing: Timing, len: u64, random: bool) -> f64 {
        let mut state = TimingState::default();
        let mut rng = Rng::new(1);
        let size = 1u64 << 40;
        let mut end = 0;
        for n in 0..1000 {
            let offset = if random { rng.below(size / len) * len } else { n * len };
            end = end.max(timing.completes_ns(&mut state, 0, Op::Read, offset, len, size, &mut rng));
        }
        (1000 * len) as f64 * 1e3 / end as f64
    }

    #[test]
    fn models_match_their_data_sheets() {
        let near = |value: f64, want: f64| assert!((value / want - 1.0).abs() < 0.15, "{value} is not about {want}");
        near(stream_mb_s(Timing::Rpm7k, 1 << 20, false), 180.0);
        near(stream_mb_s(Timing::SataSsd, 1 << 20, false), 540.0);
        near(stream_mb_s(Timing::Nvme, 1 << 20, false), 3200.0);
        // About 80 random reads per second without reordering, as such disks achieve.
        near(stream_mb_s(Timing::Rpm7k, 4096, true) * 1e6 / 4096.0, 80.0);
    }
}
