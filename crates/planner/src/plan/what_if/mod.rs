//! Changes of a server that runs, predicted for the load that it has had.
//!
//! ```text
//!   counters of an hour ─► Recorded ─┐                    ┌─► simulation of now
//!   vdevs of the pool ───► Running ──┴─► description ─────┼─► simulation with change 1
//!                                        with think times └─► …
//! ```
//!
//! The load is a closed loop: each client has as many requests outstanding as it had, and asks again as long after an answer as it
//! did. So a server that answers sooner is asked more often, and an idle one stays idle. The simulation of now is beside what was
//! measured: the difference says how far the others may be believed.

mod base;

pub use base::{Recorded, Running};

use super::PlanError;
use super::description::Description;
use super::load::{Prediction, predict};
use crate::simulate::outcome::Outcome;
use base::{Base, base, gigabytes};
use serde::Serialize;

/// Operations that a simulation should have, and the virtual seconds that it takes for them at least and at most.
const WANTED_OPERATIONS: f64 = 2000.0;
const MIN_SECONDS: f64 = 5.0;
/// Operations of a simulation below which the text says that they are few.
const FEW_OPERATIONS: f64 = 100.0;
const MAX_SECONDS: f64 = 60.0;

/// A change of the hardware.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A log device of this model.
    Log(String),
    /// An ARC of this size in bytes, or larger by it.
    Arc {
        /// Bytes.
        bytes: u64,
        /// Added to what there is.
        more: bool,
    },
    /// A cache device (L2ARC) of this size in bytes that is full, beside the present ones, of the model that a description has
    /// without a name.
    CacheDevice(u64),
    /// Another layout of the present drives; a RAID-Z vdev without a width has all of them.
    Layout {
        /// As in a description, without the width.
        layout: String,
        /// Drives of a vdev.
        width: Option<usize>,
    },
    /// A network link of this many Gbit/s.
    Link(f64),
}

fn wrong(option: &str, why: String) -> PlanError {
    PlanError::Value { key: format!("--{option}"), why }
}

impl Change {
    /// Reads `64G` or `+64G`.
    ///
    /// # Errors
    /// [`PlanError::Value`].
    pub fn arc(text: &str) -> Result<Change, PlanError> {
        let refuse = || wrong("arc", format!("'{text}' is not a size such as +64G or 128G"));
        let bytes = Change::size(text.strip_prefix('+').unwrap_or(text)).ok_or_else(refuse)?;
        Ok(Change::Arc { bytes, more: text.starts_with('+') })
    }

    /// Reads `400G`, the size of a cache device of at least 100 MB.
    ///
    /// # Errors
    /// [`PlanError::Value`].
    pub fn cache_device(text: &str) -> Result<Change, PlanError> {
        let refuse = || wrong("l2arc", format!("'{text}' is not a size such as 400G, of at least 100 MB"));
        let bytes = Change::size(text).filter(|bytes| *bytes >= 100_000_000).ok_or_else(refuse)?;
        Ok(Change::CacheDevice(bytes))
    }

    /// Bytes of `64G`, from a MiB on.
    fn size(size: &str) -> Option<u64> {
        let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match size.get(digits.len()..).unwrap_or_default() {
            "M" | "MiB" => 1u64 << 20,
            "G" | "GiB" => 1 << 30,
            "T" | "TiB" => 1 << 40,
            _ => return None,
        };
        // A number may have a sign, and a size may not.
        let number: f64 = digits.parse().ok().filter(|_| digits.starts_with(|c: char| c.is_ascii_digit()))?;
        let bytes = number * unit as f64;
        (1048576.0..=1e15).contains(&bytes).then_some(bytes as u64)
    }

    /// Reads `mirrors`, `mirror3`, `raidz2` or `raidz2:6`.
    ///
    /// # Errors
    /// [`PlanError::Value`] if the width is no number. Unknown layouts are found when the change is made.
    pub fn layout(text: &str) -> Result<Change, PlanError> {
        let (layout, width) = match text.split_once(':') {
            Some((layout, width)) => {
                let refuse = |_| wrong("layout", format!("'{text}' is not a layout such as mirrors or raidz2:6"));
                (layout, Some(width.parse().map_err(refuse)?))
            }
            None => (text, None),
        };
        let layout = if layout == "mirrors" { "mirror" } else { layout };
        Ok(Change::Layout { layout: layout.to_owned(), width })
    }

    /// Reads the Gbit/s of `10GbE`, `10G` or `10`.
    ///
    /// # Errors
    /// [`PlanError::Value`].
    pub fn gbit(option: &str, text: &str) -> Result<f64, PlanError> {
        let digits = text.strip_suffix("bE").unwrap_or(text);
        let number: Option<f64> = digits.strip_suffix('G').unwrap_or(digits).parse().ok();
        let valid = number.filter(|gbit| (0.001..=10_000.0).contains(gbit));
        valid.ok_or_else(|| wrong(option, format!("'{text}' is not a rate such as 10GbE")))
    }

    /// The change as it is written on the command line.
    pub fn words(&self) -> String {
        match self {
            Change::Log(drive) if drive == "log-device" => "--log".to_owned(),
            Change::Log(drive) => format!("--log={drive}"),
            Change::Arc { bytes, more } => {
                format!("--arc {}{:.1}G", if *more { "+" } else { "" }, *bytes as f64 / (1u64 << 30) as f64)
            }
            Change::CacheDevice(bytes) => format!("--l2arc {:.1}G", *bytes as f64 / (1u64 << 30) as f64),
            Change::Layout { layout, width: None } => format!("--layout {layout}"),
            Change::Layout { layout, width: Some(width) } => format!("--layout {layout}:{width}"),
            Change::Link(gbit) => format!("--link {gbit}GbE"),
        }
    }

    /// The description with the change.
    fn applied(&self, now: &Description, running: &Running) -> Result<Description, PlanError> {
        let mut changed = now.clone();
        match self {
            Change::Log(_) if running.has_log => {
                return Err(wrong("log", format!("pool '{}' has a log device", running.pool)));
            }
            Change::Log(drive) => changed.pool.log = Some(toml::Value::String(drive.clone())),
            Change::Arc { bytes, more } => {
                let before = if *more { running.arc_bytes[0] } else { 0 };
                let arc_gb = gigabytes(before.saturating_add(*bytes));
                changed.server.arc_gb = Some(arc_gb);
                changed.server.memory_gb = changed.server.memory_gb.max(arc_gb);
            }
            Change::CacheDevice(bytes) => {
                // The model has one cache device, which has the bytes of the present ones and of the new one.
                changed.pool.cache_gb = Some(*bytes as f64 / 1e9 + changed.pool.cache_gb.unwrap_or(0.0));
            }
            Change::Layout { layout, width } => {
                let drives = running.vdevs * running.layout.disks();
                let own = if layout.starts_with("raidz") { Some(drives) } else { None };
                changed.pool.layout.clone_from(layout);
                changed.pool.width = width.or(own);
                let disks = changed.pool_spec()?.layout.disks();
                if disks > drives {
                    return Err(wrong("layout", format!("the pool has {drives} drives, and a vdev needs {disks}")));
                }
                changed.pool.vdevs = drives / disks;
            }
            Change::Link(gbit) => match &mut changed.link {
                Some(link) => link.gbit = *gbit,
                None => {
                    let why = "the rate of the present link is not known; give it as --link-now 1GbE";
                    return Err(wrong("link", why.to_owned()));
                }
            },
        }
        changed.checked()
    }
}

/// A simulation beside the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    /// `now`, or the change as on the command line.
    pub name: String,
    /// Pool in words.
    pub pool: String,
    /// The simulation.
    pub prediction: Prediction,
    /// Operations per second as a multiple of those of now.
    pub gain: f64,
}

/// Measured rates of the recorded time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Payload in MB/s.
    pub mb_s: f64,
    /// Reads and writes a second.
    pub operations_per_second: f64,
    /// Mean latency in microseconds, at the server.
    pub mean_us: f64,
    /// Median and 99th percentile, rounded up to powers of two nanoseconds, in microseconds.
    pub latency_us: [f64; 2],
}

/// Answers for a pool.
#[derive(Clone, Debug, Serialize)]
pub struct WhatIf {
    /// Name of the pool.
    pub pool: String,
    /// Seconds that were recorded.
    pub seconds: f64,
    /// The load in words.
    pub load: String,
    /// The time as it was measured.
    pub measured: Measured,
    /// The simulation of now, then one for each change.
    pub alternatives: Vec<Alternative>,
    /// Sentences about what was assumed, because no counter says it.
    pub assumed: Vec<String>,
}

/// Everything that random follows from, and virtual seconds of a measurement at most.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Everything that is random follows from this.
    pub seed: u64,
    /// Virtual seconds of a measurement at most; none: five, or as many as the load needs for 2,000 operations, at most 60.
    pub seconds: Option<f64>,
}

/// Predicts the load with each of the changes; `show` is called with the name of each simulation.
///
/// # Errors
/// [`PlanError`]: too few operations, a change that cannot be made, or a simulation.
pub fn what_if(
    running: &Running,
    recorded: &Recorded,
    changes: &[Change],
    settings: Settings,
    show: &mut dyn FnMut(&str),
) -> Result<WhatIf, PlanError> {
    let base = base(running, recorded)?;
    // All are checked before the first one is simulated.
    let mut all = vec![("now".to_owned(), base.description.clone())];
    for change in changes {
        all.push((change.words(), change.applied(&base.description, running)?));
    }
    let measured = measured(recorded);
    let wanted = WANTED_OPERATIONS / measured.operations_per_second.max(1.0);
    let seconds = settings.seconds.unwrap_or(wanted.clamp(MIN_SECONDS, MAX_SECONDS));
    let mut alternatives: Vec<Alternative> = Vec::new();
    for (name, description) in all {
        show(&name);
        let prediction = predict(&description, settings.seed, seconds)?;
        let before = alternatives.first().map_or(&prediction, |now| &now.prediction);
        let gain = prediction.outcome.operations_per_second / before.outcome.operations_per_second.max(1e-9);
        let pool = super::text::pool_words(&description, &description.pool_spec()?);
        alternatives.push(Alternative { name, pool, prediction, gain });
    }
    debug_assert_eq!(alternatives.len(), changes.len() + 1, "one for each change, and now");
    let Base { load, assumed, .. } = base;
    Ok(WhatIf { pool: running.pool.clone(), seconds: recorded.seconds, load, measured, alternatives, assumed })
}

fn measured(recorded: &Recorded) -> Measured {
    let operations = (recorded.reads[0] + recorded.writes[0]) as f64;
    Measured {
        mb_s: (recorded.reads[1] + recorded.writes[1]) as f64 / 1e6 / recorded.seconds.max(1e-9),
        operations_per_second: operations / recorded.seconds.max(1e-9),
        mean_us: recorded.time_ns as f64 / 1e3 / operations.max(1.0),
        latency_us: recorded.latency_us,
    }
}

impl Alternative {
    /// The limit in a sentence; of changes also the multiple of the operations of now.
    fn sentence(&self, is_now: bool) -> String {
        let Outcome { limit, busy, .. } = &self.prediction.outcome;
        let at_work = match super::advice::share(*limit, busy) {
            0.0 => String::new(),
            share => format!(", at work {:.0} % of the time", share * 100.0),
        };
        let gain = if is_now { String::new() } else { format!("{:.2} × the operations of now; ", self.gain) };
        format!("{}: {gain}the limit is {}{at_work}.", self.name, limit.words())
    }
}

/// Part of the measured mean latency below which that of the simulation shows that the model lacks something. A simulated latency, which
/// is that at the client, may be any multiple of the one that the server measured.
const FAR_LATENCY: f64 = 0.5;

/// How far the simulation of now is from what was measured. The rate of clients that wait between requests is that of the load whatever
/// the pool does: then the latency shows how good the simulation is.
fn deviation(measured: &Measured, now: &Outcome) -> String {
    let percent = |now: f64, measured: f64| (now / measured.max(1e-9) - 1.0) * 100.0;
    let [mean_us, ..] = now.latency_us;
    let mut out = format!(
        "\nThe simulation of now differs from what was measured by {:+.0} % of the operations and {:+.0} % of the mean latency. Latencies \
         measured are those at the server, of the simulations those at the client.\n",
        percent(now.operations_per_second, measured.operations_per_second),
        percent(mean_us, measured.mean_us)
    );
    if mean_us < measured.mean_us * FAR_LATENCY {
        out.push_str(
            "The simulated latency is less than half of the measured one: the load waits for something that the simulation lacks, and the \
             changes may do more or less than the table says. 'weir why' shows what the load waits for.\n",
        );
    }
    out
}

/// The answers as text: what was measured, now and the changes in one table, a sentence for each, and what was assumed.
pub fn text(answers: &WhatIf) -> String {
    let Measured { mb_s, operations_per_second, mean_us, latency_us } = answers.measured;
    let columns = ["", "MB/s", "operations/s", "mean", "median", "99 %", "limit", "pool"];
    let mut rows: Vec<Vec<String>> = vec![columns.map(str::to_owned).to_vec()];
    let time = super::text::time_us;
    let within = |us: f64| if us > 0.0 { format!("< {}", time(us)) } else { "-".to_owned() };
    let [median, p99] = latency_us.map(within);
    let figures = [format!("{mb_s:.1}"), super::count(operations_per_second), time(mean_us)];
    rows.push([&["measured".to_owned()][..], &figures, &[median, p99]].concat());
    for one in &answers.alternatives {
        let outcome = &one.prediction.outcome;
        let [mean, median, _, p99] = outcome.latency_us.map(time);
        rows.push(vec![
            one.name.clone(),
            format!("{:.1}", outcome.mb_s()),
            super::count(outcome.operations_per_second),
            mean,
            median,
            p99,
            super::text::limit_word(outcome.limit).to_owned(),
            one.pool.clone(),
        ]);
    }
    let mut out = format!("{}, {:.0} s: {}\n\n", answers.pool, answers.seconds, answers.load);
    out.push_str(&super::text::table(&rows));
    out.push('\n');
    for (at, one) in answers.alternatives.iter().enumerate() {
        out.push_str(&one.sentence(at == 0));
        out.push('\n');
    }
    if let Some(now) = answers.alternatives.first() {
        out.push_str(&deviation(&answers.measured, &now.prediction.outcome));
    }
    for one in &answers.alternatives {
        let Outcome { seconds, operations_per_second, .. } = one.prediction.outcome;
        if seconds * operations_per_second < FEW_OPERATIONS {
            out.push_str(&format!(
                "The simulation of {} had only {:.0} operations in {seconds:.1} s: its figures say little.\n",
                one.name,
                seconds * operations_per_second
            ));
        }
    }
    for sentence in &answers.assumed {
        out.push_str(&format!("{sentence}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::server::VdevLayout;

    fn running() -> Running {
        Running {
            pool: "tank".into(),
            layout: VdevLayout::Single,
            vdevs: 2,
            drive_bytes: 1 << 40,
            drive: None,
            has_log: false,
            cache_bytes: 0,
            record_bytes: 128 << 10,
            data_bytes: 1 << 30,
            arc_bytes: [256 << 20, 128 << 20],
            dirty_bytes: 64 << 20,
            processors: 4,
            link_gbit: Some(1.0),
        }
    }

    /// A client that writes 4 KiB, each stable and 8 ms long, one after the other without a pause, for ten seconds.
    fn sync_writes() -> Recorded {
        Recorded {
            seconds: 10.0,
            clients: 1,
            writes: [1250, 1250 * 4096],
            time_ns: 10_000_000_000,
            log_bytes: 1250 * 8192,
            device: [2500, 2500 * 8_000_000],
            ..Recorded::default()
        }
    }

    fn answers(running: &Running, recorded: &Recorded, changes: &[Change]) -> Result<WhatIf, PlanError> {
        what_if(running, recorded, changes, Settings { seed: 1, seconds: Some(8.0) }, &mut |_| {})
    }

    #[test]
    fn a_log_device_helps_sync_writes_and_more_memory_does_not() {
        let changes = [Change::Log("log-device".into()), Change::arc("+1G").unwrap()];
        let of = answers(&running(), &sync_writes(), &changes).unwrap();
        let gains: Vec<f64> = of.alternatives.iter().map(|one| one.gain).collect();
        assert!(gains[1] > 3.0 && (0.8..1.2).contains(&gains[2]) && gains[0] == 1.0, "{gains:?} {of:#?}");
        assert!(
            of.load.starts_with("1 client with 1 request at a time of 4 KiB, 0 % reads, random, writes stable"),
            "{}",
            of.load
        );
        let text = text(&of);
        assert!(text.contains("\nmeasured ") && text.contains("\n--log: ") && text.contains("--arc +1.0G"), "{text}");
        assert!(text.contains("hdd-7k, because one of their operations took 8.00 ms"), "{text}");
    }

    #[test]
    fn cache_devices_of_the_pool_are_in_the_model_and_new_ones_are_added() {
        let reads = Recorded {
            seconds: 10.0,
            clients: 1,
            reads: [1250, 1250 * 4096],
            time_ns: 9_000_000_000,
            read_from: [50, 0, 50],
            device: [1250, 1250 * 8_000_000],
            ..Recorded::default()
        };
        let bytes = |running: &Running, change: Option<Change>| {
            let mut description = base(running, &reads).unwrap().description;
            if let Some(change) = change {
                description = change.applied(&description, running).unwrap();
            }
            description.pool_spec().unwrap().cache.map(|cache| (cache.bytes as f64 / f64::from(1 << 20)).round())
        };
        let cached = Running { cache_bytes: 1 << 30, ..running() };
        assert_eq!([bytes(&running(), None), bytes(&cached, None)], [None, Some(1024.0)]);
        assert_eq!(bytes(&cached, Some(Change::CacheDevice(1 << 30))), Some(2048.0));
        assert_eq!(bytes(&Running { cache_bytes: 64 << 20, ..running() }, None), None, "smaller than any of the model");

        let of = |running: &Running| answers(running, &reads, &[]).unwrap();
        let [with, without] = [of(&cached), of(&running())];
        let [fast, slow] = [&with, &without].map(|of| of.alternatives[0].prediction.outcome.latency_us[0]);
        assert!(fast < slow / 2.0, "{fast} {slow}");
        assert!(text(&with).contains("\nCache devices: 1.1 GB") && !text(&without).contains("Cache devices"));
    }

    #[test]
    fn an_idle_client_stays_as_idle() {
        // A request of 8 ms each 100 ms: the pauses are the client's.
        let recorded = Recorded { seconds: 125.0, ..sync_writes() };
        let of = answers(&running(), &recorded, &[Change::Log("log-device".into())]).unwrap();
        assert!(of.alternatives[1].gain < 1.2, "{of:#?}");
        let now = of.alternatives[0].prediction.outcome.operations_per_second;
        assert!((now / of.measured.operations_per_second - 1.0).abs() < 0.25, "{now} {of:#?}");
    }

    #[test]
    fn layouts_use_the_same_drives_and_links_replace_the_present_one() {
        let six = Running { layout: VdevLayout::Raidz(2, 6), vdevs: 2, ..running() };
        let now = base(&six, &sync_writes()).unwrap().description;
        let with = |text: &str| Change::layout(text).and_then(|change| change.applied(&now, &six));
        let of = |text: &str| with(text).map(|one| (one.pool_spec().unwrap().layout, one.pool.vdevs)).unwrap();
        assert_eq!(of("mirrors"), (VdevLayout::Mirror(2), 6));
        assert_eq!(of("raidz1:4"), (VdevLayout::Raidz(1, 4), 3));
        assert_eq!(of("raidz3"), (VdevLayout::Raidz(3, 12), 1));
        assert!(with("raidz1:40").unwrap_err().to_string().contains("the pool has 12 drives"));
        assert!(with("stripe").unwrap_err().to_string().contains("no layout is named 'stripe'"));
        let link = |running: &Running| Change::Link(10.0).applied(&base(running, &sync_writes())?.description, running);
        assert_eq!(link(&running()).unwrap().link.unwrap().gbit, 10.0);
        let unknown = link(&Running { link_gbit: None, ..running() }).unwrap_err().to_string();
        assert!(unknown.contains("--link-now"), "{unknown}");
    }

    #[test]
    fn files_follow_from_the_share_of_the_arc() {
        let reads = |cached: u64| Recorded {
            reads: [1000, 1000 << 20],
            read_from: [cached, 0, 1000 - cached],
            clients: 1,
            ..Recorded::default()
        };
        let bytes = |cached| base::working_set(&running(), &reads(cached), 4096).0;
        assert_eq!([bytes(500), bytes(1000), bytes(0)], [256 << 20, 128 << 20, 512 << 20]);
    }

    #[test]
    fn a_simulated_latency_far_below_the_measured_one_is_said() {
        let mut of = answers(&running(), &sync_writes(), &[]).unwrap();
        let [simulated_us, ..] = of.alternatives[0].prediction.outcome.latency_us;
        for (part, is_said) in [(0.4, true), (0.6, false), (3.0, false)] {
            of.measured.mean_us = simulated_us / part;
            let text = text(&of);
            let percent = format!("{:+.0} % of the mean latency", (part - 1.0) * 100.0);
            assert!(text.contains(&percent), "{text}");
            assert_eq!(text.contains("less than half of the measured one"), is_said, "{part}: {text}");
        }
    }

    #[test]
    fn options_are_read_and_wrong_ones_are_refused() {
        assert_eq!(Change::arc("+64G").unwrap(), Change::Arc { bytes: 64 << 30, more: true });
        assert_eq!(Change::cache_device("400G").unwrap(), Change::CacheDevice(400 << 30));
        assert_eq!(Change::CacheDevice(400 << 30).words(), "--l2arc 400.0G");
        for wrong in ["50M", "+400G", "400", "", "NaNG"] {
            assert!(matches!(Change::cache_device(wrong), Err(PlanError::Value { .. })), "{wrong}");
        }
        let with =
            Change::CacheDevice(400 << 30).applied(&base(&running(), &sync_writes()).unwrap().description, &running());
        assert!(with.unwrap().pool_spec().unwrap().cache.is_some_and(|cache| cache.bytes.abs_diff(400 << 30) <= 1));
        assert_eq!(Change::arc("512MiB").unwrap(), Change::Arc { bytes: 512 << 20, more: false });
        assert!(["64", "G", "+-1G", "++1G", "1P", "nanG", ""].iter().all(|text| Change::arc(text).is_err()));
        for (text, gbit) in [("10GbE", 10.0), ("2.5G", 2.5), ("1", 1.0)] {
            assert_eq!(Change::gbit("link", text).unwrap(), gbit);
        }
        assert!(["", "bE", "0", "-1", "fast"].iter().all(|text| Change::gbit("link", text).is_err()));
        let few = answers(&running(), &Recorded { writes: [99, 99], ..sync_writes() }, &[]).unwrap_err().to_string();
        assert!(few.contains("too few"), "{few}");
        let has = answers(&Running { has_log: true, ..running() }, &sync_writes(), &[Change::Log("nvme".into())]);
        assert!(has.unwrap_err().to_string().contains("has a log device"));
    }
}
