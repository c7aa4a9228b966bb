//! The six lights of every screen: Pool, Capacity, Disk, Net, CPU, Job. Each says in words what it counted.

use super::Administrator;
use super::host::HostCounters;
use super::words::CommandLine;
use crate::sampler::Sampler;
use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use utoipa::ToSchema;
use weir_analytics::Sample;

/// Share of a pool's space, in percent, from which on it is a warning, and critical.
const FULL_PERCENT: [u64; 2] = [80, 90];

/// State of a light.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LightState {
    /// Nothing to say: there is no such object, or it was not counted.
    Unknown,
    /// In order.
    Good,
    /// Work is in progress.
    Active,
    /// To be looked at.
    Warning,
    /// Data, its redundancy, or service is in danger.
    Critical,
}

/// A light.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Light {
    /// Name.
    pub name: &'static str,
    /// State.
    pub state: LightState,
    /// One line with the figures.
    pub text: String,
}

impl Light {
    pub fn new(name: &'static str, state: LightState, text: impl Into<String>) -> Self {
        Light { name, state, text: text.into() }
    }
}

/// The lights, and the number of alerts.
#[derive(Serialize, ToSchema)]
pub(crate) struct Lights {
    /// Pool, Capacity, Disk, Net, CPU, Job.
    lights: Vec<Light>,
    /// Alerts that are neither acknowledged nor muted.
    alerts: usize,
}

/// State of the pools, their space and disks, the network, the processors and the jobs, each in one line.
#[utoipa::path(get, path = "/api/v1/admin/lights", responses((status = 200, body = Lights)))]
pub(crate) async fn lights(
    State(sampler): State<Arc<Sampler>>,
    State(admin): State<Option<Arc<Administrator>>>,
) -> Json<Lights> {
    let samples = sampler.samples();
    let status = match &admin {
        Some(admin) => {
            let line = CommandLine::new("daemon", ["status", "-j", "--json-int"]);
            serde_json::from_str(&admin.run(&line).await.out).unwrap_or(Value::Null)
        }
        None => Value::Null,
    };
    let now = sampler.machine.clock.now();
    let host = HostCounters::read(now);
    let before = admin.as_ref().and_then(|admin| admin.replace_host(&host));
    let [net, cpu] = host.lights(before.as_ref());
    let lights = vec![pools(&status, &samples), capacity(&samples), disks(&samples), net, cpu, jobs(&status)];
    Json(Lights { lights, alerts: open_alerts(&status) })
}

fn open_alerts(status: &Value) -> usize {
    let is_open = |alert: &&Value| alert["acknowledged"] != Value::Bool(true) && alert["muted_until"].is_null();
    status["alerts"]["alerts"].as_array().map_or(0, |all| all.iter().filter(is_open).count())
}

/// Health of the pools, those that are not open among them.
fn pools(status: &Value, samples: &[Sample]) -> Light {
    let Some(all) = status["pools"].as_object() else {
        // A process that is no daemon.
        let text = if samples.len() == 1 { "1 pool open".into() } else { format!("{} pools open", samples.len()) };
        return Light::new("Pool", if samples.is_empty() { LightState::Unknown } else { LightState::Good }, text);
    };
    let state_of = |pool: &Value| match pool["health"].as_str() {
        Some("ONLINE") => LightState::Good,
        Some("OPENING") => LightState::Active,
        Some("DEGRADED") => LightState::Warning,
        _ => LightState::Critical,
    };
    let worst = all.values().map(state_of).max().unwrap_or(LightState::Unknown);
    let name = |(name, pool): (&String, &Value)| format!("{name} {}", pool["health"].as_str().unwrap_or("?"));
    let wrong = all.iter().filter(|(_, pool)| state_of(pool) > LightState::Good).map(name).collect::<Vec<_>>();
    let text = match (all.len(), wrong.as_slice()) {
        (0, _) => "no pool".to_owned(),
        (count, []) => format!("all {count} ONLINE"),
        (_, wrong) => wrong.join(", "),
    };
    Light::new("Pool", worst, text)
}

/// The fullest pool.
fn capacity(samples: &[Sample]) -> Light {
    let percent = |sample: &&Sample| 100 * sample.space.allocated_bytes / sample.space.size_bytes.max(1);
    let Some(fullest) = samples.iter().max_by_key(percent) else {
        return Light::new("Capacity", LightState::Unknown, "no pool");
    };
    let full = percent(&fullest);
    let [warning, critical] = FULL_PERCENT;
    let state = match full {
        full if full >= critical => LightState::Critical,
        full if full >= warning => LightState::Warning,
        _ => LightState::Good,
    };
    Light::new("Capacity", state, format!("{} {full} % allocated", fullest.pool))
}

/// Devices out of service, and errors since the pools were opened.
fn disks(samples: &[Sample]) -> Light {
    let leaves = || samples.iter().flat_map(|sample| &sample.leaves);
    let count = leaves().count();
    let out: Vec<&str> = leaves().filter(|leaf| !leaf.in_service).map(|leaf| leaf.name.as_str()).collect();
    let errors: u64 = leaves().map(|leaf| leaf.read_errors + leaf.write_errors + leaf.checksum_errors).sum();
    match (count, out.as_slice(), errors) {
        (0, ..) => Light::new("Disk", LightState::Unknown, "no device"),
        (_, [], 0) => Light::new("Disk", LightState::Good, format!("{count} devices, no error")),
        (_, [], errors) => Light::new("Disk", LightState::Warning, format!("{errors} errors on {count} devices")),
        (_, out, errors) => {
            Light::new("Disk", LightState::Critical, format!("out of service: {}; {errors} errors", out.join(", ")))
        }
    }
}

/// Last runs of the jobs.
fn jobs(status: &Value) -> Light {
    let Some(all) = status["jobs"].as_object().filter(|all| !all.is_empty()) else {
        return Light::new("Job", LightState::Unknown, "no job is configured");
    };
    let failed = |(_, job): &(&String, &Value)| job["runs"][0]["problem"].is_string();
    let names =
        |of: Vec<(&String, &Value)>| of.into_iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let wrong: Vec<_> = all.iter().filter(failed).collect();
    if !wrong.is_empty() {
        return Light::new("Job", LightState::Critical, format!("last run failed: {}", names(wrong)));
    }
    let running: Vec<_> = all.iter().filter(|(_, job)| job["running"] == Value::Bool(true)).collect();
    match running.is_empty() {
        false => Light::new("Job", LightState::Active, format!("running: {}", names(running))),
        true => Light::new("Job", LightState::Good, format!("{} jobs, no failed run", all.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lights_name_the_worst_object() {
        let light = |status: Value| pools(&status, &[]);
        assert_eq!(light(json!({"pools": {}})), Light::new("Pool", LightState::Unknown, "no pool"));
        let two = json!({"pools": {"a": {"health": "ONLINE"}, "b": {"health": "DEGRADED"}}});
        assert_eq!(light(two), Light::new("Pool", LightState::Warning, "b DEGRADED"));
        let gone = json!({"pools": {"a": {"health": "NOT OPEN"}, "b": {"health": "DEGRADED"}}});
        assert_eq!(light(gone), Light::new("Pool", LightState::Critical, "a NOT OPEN, b DEGRADED"));
        assert_eq!(light(Value::Null).state, LightState::Unknown);
    }

    #[test]
    fn a_failed_job_is_critical_and_a_running_one_active() {
        let state = |jobs: Value| super::jobs(&json!({"jobs": jobs})).state;
        assert_eq!(state(json!({})), LightState::Unknown);
        assert_eq!(state(json!({"a": {"running": false, "runs": []}})), LightState::Good);
        assert_eq!(state(json!({"a": {"running": true, "runs": []}})), LightState::Active);
        let failed = json!({"a": {"running": true, "runs": []}, "b": {"runs": [{"problem": "x"}, {"done": "y"}]}});
        assert_eq!(state(failed), LightState::Critical);
        let repaired = json!({"b": {"runs": [{"done": "y"}, {"problem": "x"}]}});
        assert_eq!(state(repaired), LightState::Good);
    }

    #[test]
    fn alerts_count_until_they_are_acknowledged_or_muted() {
        let alert = |acknowledged: bool, muted: Value| json!({"acknowledged": acknowledged, "muted_until": muted});
        let all =
            json!([alert(false, Value::Null), alert(true, Value::Null), alert(false, json!("2026-11-28T00:00:00Z"))]);
        assert_eq!(open_alerts(&json!({"alerts": {"alerts": all}})), 1);
        assert_eq!(open_alerts(&Value::Null), 0);
    }
}
