//! `weir daemon status`: what the daemon has open, exports, and to whom.

use super::StatusArgs;
use super::alerts;
use super::jobs::{JobStatus, Run, Work};
use super::keeper::Daemon;
use crate::admin::ServedPool;
use crate::call::{Call, outln};
use crate::command_target::now;
use crate::failure::Failure;
use crate::json::{self, Numbers};
use crate::replicate::progress::Progress;
use crate::units::human_bytes;
use crate::web;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use weir_analytics::metrics::{AlertState, JobState, ServiceState};
use weir_daemon::ProtocolServer;
use weir_daemon::service::exported_names;
use weir_daemon::shares::ShareState;
use weir_machine::Request;
use weir_pool::OpenOptions;
use weir_pool::status::{SUSPENDED, VdevState};
use weir_web::HistoryStatus;

impl Daemon {
    /// The state in one line, for the service manager.
    pub fn summary(&self) -> String {
        let open = self.process.all();
        let names: Vec<String> = open.iter().map(|pool| pool.engine.name()).collect();
        let missing: Vec<String> = self.remembered.all().into_iter().map(|pool| pool.cached.name).collect();
        let part = |what: &str, names: &[String]| match names {
            [] => String::new(),
            names => format!("; {what}: {}", names.join(", ")),
        };
        format!("{} pools{}{}", open.len(), part("serving", &names), part("not open", &missing))
    }
}

impl Daemon {
    /// Alerts and jobs, for the metrics.
    pub fn service_state(&self) -> ServiceState {
        let time = now().sec.max(0).cast_unsigned();
        let state = |alert: &alerts::Alert| match (alert.muted_until, alert.acknowledged) {
            (Some(until), _) if time < until => "muted",
            (_, true) => "acknowledged",
            _ => "open",
        };
        let alert = |alert: alerts::Alert| AlertState {
            severity: if alert.critical { "critical" } else { "warning" },
            state: state(&alert),
            since_s: alert.since,
            name: alert.name,
        };
        let seconds = |time: i64| time.max(0).cast_unsigned();
        let job = |status: JobStatus| JobState {
            is_running: status.is_running,
            last: status.runs.first().map(|run| (seconds(run.began), run.result.is_err())),
            next_s: status.next.map(seconds),
            name: status.job.name,
        };
        ServiceState {
            alerts: self.alerts.all().into_iter().map(alert).collect(),
            jobs: self.jobs.all().into_iter().map(job).collect(),
        }
    }
}

/// Prints the status.
pub fn show(call: &Call, daemon: &Arc<Daemon>, args: &StatusArgs) -> Result<u8, Failure> {
    let numbers = args.json.numbers::<StatusArgs>()?;
    let object = gather(call, daemon)?;
    if args.json.json {
        let mut answer = json::frame("weir daemon status");
        answer.extend(with_numbers(object, numbers));
        json::print(call, answer);
    } else {
        text(call, &object);
    }
    Ok(0)
}

/// The status as an object whose numbers are integers.
fn gather(call: &Call, daemon: &Arc<Daemon>) -> Result<Map<String, Value>, Failure> {
    let uptime = daemon.machine.clock.now().since(daemon.started);
    let limits = daemon.limits();
    let mut out = Map::new();
    out.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    out.insert("pid".into(), std::process::id().into());
    out.insert("uptime_s".into(), uptime.as_secs().into());
    let mut pools = Map::new();
    for pool in daemon.process.all() {
        pools.insert(pool.engine.name(), Value::Object(pool_object(call, daemon, &pool)?));
    }
    for missing in daemon.remembered.all() {
        // Between two looks at the tables, it may have been opened.
        if daemon.process.named(&missing.cached.guid.to_string()).is_some() {
            continue;
        }
        let why = if missing.why.is_empty() { "not tried yet".to_owned() } else { missing.why };
        pools.insert(missing.cached.name, unopened(missing.cached.guid, "NOT OPEN", why));
    }
    for (guid, opening) in daemon.opening.all() {
        let time = daemon.machine.clock.now().since(opening.since);
        let mut object = unopened(guid, "OPENING", format!("opening for {}", age(time)));
        object["opening_s"] = time.as_secs().into();
        pools.insert(opening.name, object);
    }
    out.insert("pools".into(), Value::Object(pools));
    let mut protocols = Map::new();
    if let Some(service) = daemon.service() {
        call.machine()?.block_on(service.refresh());
        let all = service.protocols().into_iter();
        protocols.extend(all.map(|server| (server.protocol().name().to_owned(), protocol_object(&*server))));
    }
    out.insert("protocols".into(), Value::Object(protocols));
    if let Some(address) = daemon.http_address() {
        let file = web::token_file().map(|path| path.display().to_string()).unwrap_or_default();
        let page = daemon.page().unwrap_or_default();
        let http = [("address", address.to_string()), ("page", page), ("token_file", file)];
        let http = http.map(|(name, text)| (name.to_owned(), Value::String(text)));
        out.insert("http".into(), Value::Object(http.into_iter().collect()));
    }
    if let Some(history) = daemon.history() {
        out.insert("history".into(), history_object(history));
    }
    let jobs = daemon.jobs.all().into_iter().map(|status| (status.job.name.clone(), job_object(status)));
    out.insert("jobs".into(), Value::Object(jobs.collect()));
    out.insert("alerts".into(), alerts::object(&daemon.alerts));
    let memory = [
        ("arc_max_bytes", limits.arc_bytes),
        ("dirty_max_bytes", limits.dirty_bytes),
        ("memory_bytes", limits.memory_bytes()),
    ];
    out.insert(
        "limits".into(),
        Value::Object(memory.map(|(name, bytes)| (name.to_owned(), bytes.into())).into_iter().collect()),
    );
    Ok(out)
}

/// A job with its runs.
pub(super) fn job_object(status: JobStatus) -> Value {
    let mut out = Map::new();
    let texts = |names: Vec<String>| Value::Array(names.into_iter().map(Value::String).collect());
    out.insert("schedule".into(), status.job.schedule_text.into());
    match status.job.work {
        Work::Snapshot { datasets, recursive, keep } => {
            out.insert("snapshot".into(), texts(datasets));
            out.insert("recursive".into(), recursive.into());
            out.insert("keep".into(), keep.into());
        }
        Work::Replicate { source, target, lag_seconds, .. } => {
            out.insert("replicate".into(), source.into());
            out.insert("to".into(), target.into());
            if let Some(seconds) = lag_seconds {
                out.insert("lag_seconds".into(), seconds.into());
            }
        }
        Work::Scrub { pools } => drop(out.insert("scrub".into(), texts(pools))),
    }
    let added = status.added.and_then(|text| serde_json::to_value(text).ok());
    out.insert("added".into(), added.unwrap_or(Value::Null));
    out.insert("running".into(), status.is_running.into());
    out.insert("progress".into(), status.progress.map_or(Value::Null, progress_object));
    out.insert("next".into(), status.next.map_or(Value::Null, |next| utc(next).into()));
    let run = |Run { began, result }: Run| {
        let (key, text) = match result {
            Ok(what) => ("done", what),
            Err(why) => ("problem", why),
        };
        let fields = [("began", utc(began)), (key, text)].map(|(name, text)| (name.to_owned(), text.into()));
        Value::Object(fields.into_iter().collect())
    };
    out.insert("runs".into(), status.runs.into_iter().map(run).collect());
    Value::Object(out)
}

/// Progress of a replication, with the time left and the whole in words.
fn progress_object(progress: Progress) -> Value {
    let (left, text) = (progress.seconds_left(), progress.text());
    let mut out = serde_json::to_value(progress).unwrap_or_default();
    out["seconds_left"] = left.map_or(Value::Null, Value::from);
    out["text"] = text.into();
    out
}

/// A time in seconds since 1970 as text.
pub fn utc(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// A job in one line, with its last run.
pub(super) fn job_line(name: &str, job: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names = |list: &Value| list.as_array().into_iter().flatten().map(word).collect::<Vec<_>>().join(", ");
    let what = match (job.get("snapshot"), job.get("replicate")) {
        (_, Some(source)) => format!("replication of {} to {}", word(source), word(&job["to"])),
        (Some(datasets), None) => {
            let option = if job["recursive"] == Value::Bool(true) { " -r" } else { "" };
            format!("snapshot{option} of {}, keep {}", names(datasets), job["keep"])
        }
        (None, None) => format!("scrub of {}", names(&job["scrub"])),
    };
    let last = match (&job["running"], job["runs"].get(0)) {
        (Value::Bool(true), _) => match job["progress"]["text"].as_str() {
            Some(text) => format!("running: {text}"),
            None => "running".to_owned(),
        },
        (_, None) => "nothing done yet".to_owned(),
        (_, Some(run)) => match run["problem"].as_str() {
            Some(why) => format!("failed at {}: {why}", word(&run["began"])),
            None => format!("last at {}: {}", word(&run["began"]), word(&run["done"])),
        },
    };
    format!("job {name}: {what}; {}, next at {}; {last}", word(&job["schedule"]), word(&job["next"]))
}

/// Sizes of the history of analytics.
fn history_object(history: HistoryStatus) -> Value {
    let mut out = Map::new();
    out.insert("memory_bytes".into(), history.memory_bytes.into());
    if let Some(store) = history.store {
        out.insert("disk_bytes".into(), store.disk_bytes.into());
        out.insert("disk_max_bytes".into(), store.max_bytes.into());
        out.insert("damaged".into(), store.damaged.into());
        store.problem.into_iter().for_each(|why| {
            out.insert("problem".into(), why.into());
        });
    }
    Value::Object(out)
}

/// A pool that is not open.
fn unopened(guid: u64, health: &str, reason: String) -> Value {
    let mut object = Map::new();
    object.insert("guid".into(), guid.into());
    object.insert("health".into(), health.into());
    object.insert("reason".into(), reason.into());
    Value::Object(object)
}

fn pool_object(call: &Call, daemon: &Daemon, pool: &ServedPool) -> Result<Map<String, Value>, Failure> {
    let machine = call.machine()?;
    let options = OpenOptions::new(pool.device_paths(), pool.guid().to_string());
    let viewed = machine.block_on(async { pool.engine.synced().view(&options).await.map(|view| view.health()) });
    // Without its devices, a pool cannot be read.
    let is_suspended = pool.engine.devices().suspended_because().is_some();
    let unread = if is_suspended { SUSPENDED.to_owned() } else { VdevState::Unavail.to_string() };
    let health = viewed.unwrap_or(unread);
    let mut out = Map::new();
    out.insert("guid".into(), pool.guid().into());
    out.insert("health".into(), health.into());
    let exports = pool.front().map(|exports| exported_names(&exports)).unwrap_or_default();
    out.insert("exports".into(), Value::Array(exports.into_iter().map(Value::String).collect()));
    let mut shares = Vec::new();
    if let (Some(service), Some(exports)) = (daemon.service(), pool.front()) {
        match machine.block_on(service.share_states(&Request::internal("status"), &exports)) {
            Ok(states) => shares.extend(states.into_iter().map(share_object)),
            // A pool that cannot be read hides no other.
            Err(error) => drop(out.insert("reason".into(), format!("its shares cannot be read: {error}").into())),
        }
    }
    out.insert("shares".into(), Value::Array(shares));
    let damaged = pool.front().map(|exports| exports.damaged.all()).unwrap_or_default();
    out.insert("damaged".into(), damaged.into_iter().map(|(name, why)| (name, Value::String(why))).collect());
    Ok(out)
}

fn share_object(state: ShareState) -> Value {
    let mut out = Map::new();
    out.insert("dataset".into(), state.dataset.into());
    out.insert("protocol".into(), state.protocol.name().into());
    out.insert("name".into(), state.name.into());
    out.insert("served".into(), state.is_served.into());
    out.insert("problems".into(), Value::Array(state.problems.into_iter().map(Value::String).collect()));
    Value::Object(out)
}

fn protocol_object(server: &dyn ProtocolServer) -> Value {
    let mut out = Map::new();
    out.insert("address".into(), server.address().to_string().into());
    out.insert("listening".into(), server.is_listening().into());
    if let Some(why) = server.problem() {
        out.insert("problem".into(), why.into());
    }
    let clients = server.clients().into_iter().map(|client| {
        let mut object = Map::new();
        object.insert("peer".into(), client.peer.into());
        object.insert("uses".into(), client.uses.into());
        if let Some(counted) = client.counted {
            object.insert("connected_s".into(), counted.age.as_secs().into());
            object.insert("received_bytes".into(), counted.received_bytes.into());
            object.insert("sent_bytes".into(), counted.sent_bytes.into());
        }
        Value::Object(object)
    });
    out.insert("clients".into(), Value::Array(clients.collect()));
    Value::Object(out)
}

/// Numbers as text, as OpenZFS prints them without `--json-int`.
pub(super) fn with_numbers(object: Map<String, Value>, numbers: Numbers) -> Map<String, Value> {
    fn text(value: Value) -> Value {
        match value {
            Value::Number(number) => Value::String(number.to_string()),
            Value::Array(values) => Value::Array(values.into_iter().map(text).collect()),
            Value::Object(object) => {
                Value::Object(object.into_iter().map(|(name, value)| (name, text(value))).collect())
            }
            other => other,
        }
    }
    match (numbers, text(Value::Object(object.clone()))) {
        (Numbers::Text, Value::Object(texts)) => texts,
        _ => object,
    }
}

fn text(call: &Call, status: &Map<String, Value>) {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let field = |object: &Value, name: &str| word(&object[name]);
    let bytes = |object: &Value, name: &str| human_bytes(object[name].as_u64().unwrap_or(0));
    let uptime = Duration::from_secs(status["uptime_s"].as_u64().unwrap_or(0));
    outln!(call, "weir {}, process {}, up {}", word(&status["version"]), word(&status["pid"]), age(uptime));
    let limits = &status["limits"];
    let [arc, dirty, all] = ["arc_max_bytes", "dirty_max_bytes", "memory_bytes"].map(|name| bytes(limits, name));
    outln!(call, "memory: ARC at most {arc}, dirty data at most {dirty}, of {all}");
    if let Some(history) = status.get("history") {
        outln!(call, "{}", history_line(history));
    }
    for (name, pool) in status["pools"].as_object().into_iter().flatten() {
        let reason = pool["reason"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
        outln!(call, "pool {name}: {}{reason}", field(pool, "health"));
        for (dataset, why) in pool["damaged"].as_object().into_iter().flatten() {
            outln!(call, "  {dataset}: damaged, not served: {}", word(why));
        }
        share_lines(pool).into_iter().for_each(|line| outln!(call, "  {line}"));
    }
    for (name, job) in status["jobs"].as_object().into_iter().flatten() {
        outln!(call, "{}", job_line(name, job));
    }
    let alerts = status["alerts"]["alerts"].as_array().map_or(0, Vec::len);
    if alerts > 0 {
        outln!(call, "alerts: {alerts}, see 'weir daemon alerts'");
    }
    if let Some(http) = status.get("http") {
        let [page, file] = ["page", "token_file"].map(|name| field(http, name));
        outln!(call, "page, API and metrics: {page}?token=$(cat {file})");
    }
    for (name, protocol) in status["protocols"].as_object().into_iter().flatten() {
        let clients = protocol["clients"].as_array().map(Vec::as_slice).unwrap_or_default();
        match protocol["problem"].as_str() {
            Some(why) => outln!(call, "{name} on {}: not served: {why}", field(protocol, "address")),
            None if protocol["listening"] == Value::Bool(false) => {
                outln!(call, "{name} on {}: starts with the first share", field(protocol, "address"));
            }
            None => outln!(call, "{name} on {}: {} connections", field(protocol, "address"), clients.len()),
        }
        for client in clients {
            let mut line = format!("  {} {}", field(client, "peer"), field(client, "uses"));
            if let Some(connected_s) = client["connected_s"].as_u64() {
                let since = age(Duration::from_secs(connected_s));
                let [received, sent] = ["received_bytes", "sent_bytes"].map(|name| bytes(client, name));
                line.push_str(&format!(", for {since}, received {received}, sent {sent}"));
            }
            outln!(call, "{line}");
        }
    }
}

/// Sizes of the history of analytics in one line.
fn history_line(history: &Value) -> String {
    let bytes = |name: &str| human_bytes(history[name].as_u64().unwrap_or(0));
    let in_memory = format!("history: {} in memory", bytes("memory_bytes"));
    if history.get("disk_bytes").is_none() {
        return format!("{in_memory}, not on disk");
    }
    let damaged = match history["damaged"].as_u64().unwrap_or(0) {
        0 => String::new(),
        places => format!("; {places} damaged places were passed over"),
    };
    let problem = history["problem"].as_str().map(|why| format!("; not stored: {why}")).unwrap_or_default();
    let [on_disk, at_most] = ["disk_bytes", "disk_max_bytes"].map(bytes);
    format!("{in_memory}, {on_disk} on disk, at most {at_most}{damaged}{problem}")
}

/// The shares of a pool: a line for each dataset, and one below it for each problem.
fn share_lines(pool: &Value) -> Vec<String> {
    let shares = pool["shares"].as_array().map(Vec::as_slice).unwrap_or_default();
    let field = |share: &Value, name: &str| share[name].as_str().unwrap_or_default().to_owned();
    let mut lines = Vec::new();
    for of_dataset in shares.chunk_by(|one, other| one["dataset"] == other["dataset"]) {
        let served = of_dataset.iter().filter(|share| share["served"] == Value::Bool(true));
        let names: Vec<String> =
            served.map(|share| format!("{} {}", field(share, "protocol"), field(share, "name"))).collect();
        let names = if names.is_empty() { "not served".to_owned() } else { names.join(", ") };
        lines.extend(of_dataset.first().map(|share| format!("{}: {names}", field(share, "dataset"))));
        for share in of_dataset {
            let what = if share["served"] == Value::Bool(true) { "" } else { "not served: " };
            let problems = share["problems"].as_array().into_iter().flatten().filter_map(Value::as_str);
            lines.extend(problems.map(|why| format!("  {}: {what}{why}", field(share, "protocol"))));
        }
    }
    lines
}

/// A duration in its two largest units.
fn age(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}
