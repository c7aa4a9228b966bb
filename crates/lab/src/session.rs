//! One target under measurement: preparation, rounds, and the result that grows with them.

use crate::clock::{self, Stopwatch};
use crate::environment::{self, Disk, DiskCounters, ProcessorTicks};
use crate::error::LabError;
use crate::fio::{Fio, Monitor, file_stem};
use crate::load::{FILE_PREFIX, Load};
use crate::native::carrier::Carrier;
use crate::native::network::load::UNMEASURED;
use crate::plan::{Plan, StepLoad, StepPlan};
use crate::result::{Round, RunResult, SCHEMA, Step};
use crate::target::Target;
use crate::{ceilings, judge, steady};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Difference between the bytes of the client and of a server from which on they are not of the same load.
const MAX_SERVER_ERROR: f64 = 0.02;

/// Receives the progress of a session and may stop it.
pub trait Watcher {
    /// Something that must precede the steps begins.
    fn prepares(&mut self, what: &str);
    /// A step begins; it takes `seconds` if its length is known.
    fn begins(&mut self, step: &str, seconds: Option<f64>);
    /// A step has run for `seconds`.
    fn ticks(&mut self, seconds: f64);
    /// Whether the session shall stop.
    fn is_cancelled(&self) -> bool;
    /// Present counters of the server, if it is a Weir on this machine; those that are 0 may be absent.
    fn server_counters(&mut self) -> Option<BTreeMap<String, u64>>;
}

/// Choices of the user about a session.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the result, the job files and fio's answers.
    pub folder: PathBuf,
    /// Words of the command line, for the result.
    pub command: Vec<String>,
    /// Whether data on a file, device or export may be overwritten.
    pub may_overwrite: bool,
    /// Whether files made in the target stay there.
    pub keeps_files: bool,
    /// Whether ceilings are measured first.
    pub measures_ceilings: bool,
    /// Further facts for the result's environment.
    pub facts: BTreeMap<String, String>,
}

/// A target under measurement.
#[derive(Debug)]
pub struct Session {
    plan: Plan,
    target: Target,
    /// fio; `None` if no step needs it, or a client of Weir's own carries the load.
    fio: Option<Fio>,
    disk: Option<Disk>,
    options: Options,
    /// Time since this process began, and the seconds that an interrupted run had begun before.
    started: Stopwatch,
    earlier_seconds: f64,
    result: RunResult,
}

impl Session {
    /// Prepares a session: checks the target and its room, collects facts. Nothing is written to the target yet.
    ///
    /// # Errors
    /// If fio is missing, there is no room, or the plan writes over data without permission.
    pub fn new(plan: Plan, word: &str, options: Options) -> Result<Self, LabError> {
        Self::of_target(plan, word, Target::parse(word)?, options)
    }

    /// As [`Session::new`], for a target that is open. `word` names it in the result.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn of_target(plan: Plan, word: &str, target: Target, options: Options) -> Result<Self, LabError> {
        let has_loads = plan.steps.iter().any(|step| matches!(step.load, StepLoad::Fio(_)));
        let needs_fio = has_loads && target.carrier().is_none();
        let fio = needs_fio.then(|| Fio::find(&target)).transpose()?;
        check(&plan, &target, &options)?;
        std::fs::create_dir_all(&options.folder).map_err(LabError::io(&options.folder))?;
        let disk = Disk::below(&target);
        let mut environment = environment::facts(&target);
        if let Some(fio) = &fio {
            environment.insert("fio".to_owned(), fio.version.clone());
            environment.insert("engine".to_owned(), fio.engine.name().to_owned());
        }
        if let Some(carrier) = target.carrier() {
            environment.insert("engine".to_owned(), carrier.engine().to_owned());
        }
        let is_direct = fio.as_ref().map_or(target.carrier().is_some(), |fio| fio.is_direct);
        environment.extend(options.facts.clone());
        let now = clock::unix_seconds();
        let steps = plan.steps.iter().map(|step| {
            let mut workload = step.workload(is_direct);
            if target.carrier().is_some_and(|carrier| !carrier.has_depth()) {
                workload.depth = 0;
            }
            let expected = ceilings::rule_of_thumb(step, disk.as_ref());
            Step { name: step.name.clone(), workload, expected, rounds: Vec::new() }
        });
        let result = RunResult {
            schema: SCHEMA.to_owned(),
            warnings: Vec::new(),
            verdict: Vec::new(),
            method: plan.method.to_owned(),
            target: word.to_owned(),
            command: options.command.clone(),
            started_unix_seconds: now,
            started: clock::rfc3339(now),
            complete: false,
            client: match (&fio, target.carrier()) {
                (Some(fio), _) => target.client(&fio.version),
                (None, Some(carrier)) => carrier.client(),
                (None, None) => format!("weir {}", env!("CARGO_PKG_VERSION")),
            },
            environment,
            ceilings: Vec::new(),
            steps: steps.collect(),
        };
        Ok(Self { plan, target, fio, disk, options, started: Stopwatch::start(), earlier_seconds: 0.0, result })
    }

    /// Takes over the rounds of an interrupted run of the same steps.
    pub fn resume(&mut self, former: RunResult) {
        let same = former
            .steps
            .iter()
            .zip(&self.result.steps)
            .all(|(old, new)| old.name == new.name && old.workload == new.workload);
        if same && former.steps.len() == self.result.steps.len() {
            self.earlier_seconds = clock::unix_seconds().saturating_sub(former.started_unix_seconds) as f64;
            self.result = RunResult { environment: self.result.environment.clone(), complete: false, ..former };
        }
    }

    /// Directory of the results.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.options.folder
    }

    /// Number of steps.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.plan.steps.len()
    }

    /// Rounds that a step has.
    #[must_use]
    pub fn rounds(&self, step: usize) -> usize {
        self.result.steps.get(step).map_or(0, |step| step.rounds.len())
    }

    /// The result so far.
    #[must_use]
    pub fn result(&self) -> &RunResult {
        &self.result
    }

    /// Measures ceilings and writes the data that the steps read. `false` if the watcher stopped it.
    ///
    /// # Errors
    /// If fio fails.
    pub fn prepare(&mut self, watcher: &mut dyn Watcher) -> Result<bool, LabError> {
        if self.fio.is_none() && self.target.carrier().is_none() {
            return Ok(true);
        }
        if self.options.measures_ceilings && self.result.ceilings.is_empty() {
            watcher.prepares("measure ceilings");
            let measured = ceilings::measure(
                &self.plan,
                &self.target,
                self.disk.as_ref(),
                self.fio.as_ref().map_or("", |fio| fio.version.as_str()),
                &self.options.folder,
                &mut StepMonitor::new(watcher),
            )?;
            let Some(measured) = measured else { return Ok(false) };
            self.result.ceilings = measured;
            self.result.ceilings.extend(ceilings::links(&self.target));
        }
        let reads_as_found = self.target.holds_data() && !self.options.may_overwrite;
        if self.plan.data_bytes == 0 || reads_as_found {
            return Ok(true);
        }
        watcher.prepares("write the test data");
        let fill = Load {
            workers: self.plan.data_workers,
            depth: 8,
            size_bytes: self.plan.data_bytes,
            ..Load::sequential(1 << 20, 0)
        };
        let done = self.carry("prepare", &fill, &mut StepMonitor::new(watcher))?;
        Ok(done.is_some())
    }

    /// Measures one round of a step. `false` if the watcher stopped it; the unfinished round is left out.
    ///
    /// # Errors
    /// If the load fails.
    pub fn measure(&mut self, step: usize, watcher: &mut dyn Watcher) -> Result<bool, LabError> {
        let Some(plan) = self.plan.steps.get(step).cloned() else { return Ok(true) };
        watcher.begins(&plan.name, plan.expected_seconds());
        let at_seconds = self.earlier_seconds + self.started.seconds();
        let server = watcher.server_counters();
        let ticks = ProcessorTicks::now();
        let watch = Stopwatch::start();
        let mut monitor = StepMonitor { watcher, disk: self.disk.as_ref(), samples: Vec::new(), next: 0.0 };
        monitor.sample(0.0);
        let Some(mut round) = self.run_load(&plan, self.rounds(step), &mut monitor)? else { return Ok(false) };
        monitor.sample(watch.seconds());
        let samples = std::mem::take(&mut monitor.samples);
        round.at_seconds = at_seconds;
        round.machine_busy = ProcessorTicks::now().zip(ticks).and_then(|(now, then)| now.busy_since(then));
        add_disk(&mut round, &samples);
        if let Some((then, now)) = server.zip(watcher.server_counters()) {
            round.server = growth(&then, &now);
            // Counters of a server that may be another one count only if they are those of this load.
            let is_named = self.target.network().is_none() && !matches!(self.target, Target::Nbd(_));
            if !is_named && !is_of_this_load(&round, self.uncounted_ramp(&plan)) {
                round.server.clear();
            }
        }
        let rates: Vec<f64> =
            round.series.iter().map(|second| (second.read_bytes + second.written_bytes) as f64).collect();
        round.window = steady::window(&rates, 1.0);
        if let Some(step) = self.result.steps.get_mut(step) {
            step.rounds.push(round);
        }
        self.save(false)?;
        Ok(true)
    }

    /// The ramp of a load, as a share of the measured time, if the client does not count its bytes: fio does not.
    fn uncounted_ramp(&self, plan: &StepPlan) -> f64 {
        match (&plan.load, self.target.carrier()) {
            (StepLoad::Fio(load), None) => load.ramp_seconds as f64 / load.seconds.max(1) as f64,
            _ => 0.0,
        }
    }

    /// Runs a load with fio, or with the client of a network target.
    fn carry(&self, name: &str, load: &Load, monitor: &mut StepMonitor<'_>) -> Result<Option<Round>, LabError> {
        match (&self.fio, self.target.carrier()) {
            (_, Some(carrier)) => carrier.run(load, monitor),
            (Some(fio), None) => fio.run(name, load, &self.target, &self.options.folder, monitor),
            (None, None) => Err(LabError::Program { program: "fio", what: "not looked for".to_owned() }),
        }
    }

    fn run_load(
        &self,
        step: &StepPlan,
        round: usize,
        monitor: &mut StepMonitor<'_>,
    ) -> Result<Option<Round>, LabError> {
        let folder = &self.options.folder;
        match (&step.load, &self.target) {
            (StepLoad::Fio(load), _) => self.carry(&step.name, load, monitor),
            (StepLoad::Frames(load), Target::Directory(path)) => load.run(path, monitor),
            (StepLoad::Frames(load), Target::InProcess(dataset)) if !dataset.holds_data() => {
                load.run_on(&mut dataset.frames(), monitor)
            }
            (StepLoad::List(load), Target::Directory(path)) => load.run(path, monitor),
            (StepLoad::Mix(load), Target::Directory(path)) => load.run(path, monitor),
            (StepLoad::Service(load), _) => load.run(monitor),
            (StepLoad::Powercut(load), Target::Directory(path)) => {
                load.run(path, round as u64, &folder.join(format!("{}.err", file_stem(&step.name))), monitor)
            }
            (StepLoad::Frames(_) | StepLoad::List(_) | StepLoad::Mix(_) | StepLoad::Powercut(_), _) => {
                Err(LabError::Target(format!("{}: this method needs a directory", self.result.target)))
            }
        }
    }

    /// Judges and writes the result, and removes the files that were made in the target.
    ///
    /// # Errors
    /// If the result cannot be written.
    pub fn finish(&mut self, complete: bool) -> Result<&RunResult, LabError> {
        if let (Target::Directory(path), false) = (&self.target, self.options.keeps_files) {
            remove_files(path);
        }
        if let (Some(carrier), false) = (self.target.carrier(), self.options.keeps_files) {
            // A server that is gone keeps its files; the error of the measurement says that it is gone.
            let _ = carrier.remove_files();
        }
        self.save(complete)?;
        Ok(&self.result)
    }

    fn save(&mut self, complete: bool) -> Result<(), LabError> {
        self.result.complete = complete;
        judge::judge(&mut self.result, &self.plan);
        self.result.write(&self.options.folder.join("result.json"))
    }
}

/// Refuses plans that the target's client cannot carry, that would destroy data, or that do not fit.
fn check(plan: &Plan, target: &Target, options: &Options) -> Result<(), LabError> {
    for step in &plan.steps {
        let refused = match (&step.load, target) {
            (StepLoad::Fio(load), _) => {
                target.carrier().map_or(Ok(()), |carrier| carrier.check(load))?;
                None
            }
            (StepLoad::Frames(_), Target::InProcess(dataset)) if !dataset.holds_data() => None,
            (StepLoad::Frames(_), Target::InProcess(dataset)) => Some((dataset.0.name().to_owned(), "a file system")),
            (_, Target::InProcess(dataset)) => {
                Some((dataset.0.name().to_owned(), "a directory: mount the dataset first"))
            }
            (_, Target::Network(network)) => Some((network.to_string(), "a directory: mount the target first")),
            _ => None,
        };
        if let Some((target, needed)) = refused {
            return Err(LabError::Target(format!("{target}: the method {} needs {needed}", plan.method)));
        }
    }
    if plan.steps.iter().any(StepPlan::writes) && target.holds_data() && !options.may_overwrite {
        let text = "this method writes over the data of the target; allow it with --overwrite, or choose a method or pattern that only reads";
        return Err(LabError::Target(text.to_owned()));
    }
    let largest = plan.steps.iter().map(|step| step.workload(true).size_bytes).fold(plan.data_bytes, u64::max);
    let is_sample = plan.steps.iter().all(|step| matches!(step.load, StepLoad::Service(_)));
    if let Some(room) = target.room_bytes()?.filter(|room| !is_sample && *room < largest) {
        let text = format!("the target has room for {room} bytes, the method needs {largest}; choose less with --size");
        return Err(LabError::Target(text));
    }
    Ok(())
}

/// Removes the files and directories that loads made in a directory: their names begin with [`FILE_PREFIX`].
fn remove_files(directory: &Path) {
    let made = format!("{FILE_PREFIX}.");
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&made) {
            let path = entry.path();
            let _ = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        }
    }
}

/// Increase of counters; those that did not grow are left out. A server that was started anew in between has none.
fn growth(then: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let grown = now.iter().filter_map(|(name, value)| {
        let grown = value.checked_sub(then.get(name).copied().unwrap_or_default())?;
        Some((name.clone(), grown))
    });
    grown.filter(|(_, grown)| *grown > 0).collect()
}

/// Whether the server counted the bytes that the client moved, measured and unmeasured ones, to 2 %. In a ramp whose bytes the
/// client does not count, it may have moved none, or twice as many as in the same time after it.
fn is_of_this_load(round: &Round, uncounted_ramp: f64) -> bool {
    let unmeasured = round.figures.get(UNMEASURED).copied().unwrap_or_default();
    let client = (round.read.bytes + round.written.bytes) as f64 + unmeasured;
    let is_data = |name: &str| name == "written_bytes" || name.starts_with("read_bytes.");
    let server: u64 = round.server.iter().filter(|(name, _)| is_data(name)).map(|(_, bytes)| bytes).sum();
    let (server, most) = (server as f64, 1.0 + 2.0 * uncounted_ramp + MAX_SERVER_ERROR);
    server >= (1.0 - MAX_SERVER_ERROR) * client && server <= most * client
}

/// Passes the progress of a load on, and reads the disk's counters once a second.
struct StepMonitor<'a> {
    watcher: &'a mut dyn Watcher,
    disk: Option<&'a Disk>,
    samples: Vec<(f64, DiskCounters)>,
    next: f64,
}

impl<'a> StepMonitor<'a> {
    fn new(watcher: &'a mut dyn Watcher) -> Self {
        Self { watcher, disk: None, samples: Vec::new(), next: 0.0 }
    }

    /// Reads the disk's counters.
    fn sample(&mut self, seconds: f64) {
        if let Some(counters) = self.disk.and_then(Disk::counters) {
            self.samples.push((seconds, counters));
            self.next = seconds.floor() + 1.0;
        }
    }
}

impl Monitor for StepMonitor<'_> {
    fn poll(&mut self, seconds: f64) -> bool {
        self.watcher.ticks(seconds);
        if seconds >= self.next {
            self.sample(seconds);
        }
        !self.watcher.is_cancelled()
    }
}

/// Puts the disk's counters beside the client's: the last sample belongs to the end of the round, earlier ones to the seconds before it.
fn add_disk(round: &mut Round, samples: &[(f64, DiskCounters)]) {
    let Some((end, last)) = samples.last().copied() else { return };
    let begin = (end - round.seconds).max(0.0);
    let Some((_, first)) = samples.iter().rev().find(|(at, _)| *at <= begin + 0.5).copied() else { return };
    round.disk_read_bytes = last.read_bytes.checked_sub(first.read_bytes);
    round.disk_written_bytes = last.written_bytes.checked_sub(first.written_bytes);
    let steps: Vec<(DiskCounters, DiskCounters)> = samples.windows(2).map(|pair| (pair[0].1, pair[1].1)).collect();
    let whole = round.series.len().min(steps.len());
    let skipped = steps.len() - whole;
    let from = round.series.len() - whole;
    for (second, (before, after)) in round.series[from..].iter_mut().zip(&steps[skipped..]) {
        second.disk_read_bytes = after.read_bytes.checked_sub(before.read_bytes);
        second.disk_written_bytes = after.written_bytes.checked_sub(before.written_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_counters_are_kept_if_they_are_those_of_the_load() {
        let mut round = Round::default();
        round.read.bytes = 60;
        round.figures.insert(UNMEASURED.to_owned(), 40.0);
        round.server.insert("read_bytes.disk".to_owned(), 99);
        round.server.insert("device_bytes.data".to_owned(), 500);
        assert!(is_of_this_load(&round, 0.0));
        round.server.insert("written_bytes".to_owned(), 5);
        assert!(!is_of_this_load(&round, 0.0));
        // fio's ramp of one second before eight.
        assert!(is_of_this_load(&round, 0.125));
        round.server.insert("written_bytes".to_owned(), 35);
        assert!(!is_of_this_load(&round, 0.125));
    }

    #[test]
    fn a_counter_that_appears_during_a_round_grew_from_0() {
        let counters = |pairs: &[(&str, u64)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let then: BTreeMap<String, u64> = counters(&[("read_bytes.disk", 5), ("written_bytes", 7)]);
        let now = counters(&[("read_bytes.disk", 9), ("read_bytes.holes", 3), ("written_bytes", 7)]);
        assert_eq!(growth(&then, &now), counters(&[("read_bytes.disk", 4), ("read_bytes.holes", 3)]));
    }
}
