//! Alerts of the daemon: conditions of pools and jobs, sent to programs, web addresses and mail.
//!
//! ```text
//!   pools, jobs ─ conditions ─► Alert: raised, changed, reminded, resolved ─► a queue per receiver ─ send ─► delivered
//!                                 │  acknowledged, muted                       tried again for a day
//!                                 └► alerts.json in the state directory
//! ```
//!
//! A condition that holds is one alert, however often it is seen. It is sent when it begins, when it becomes another one, once
//! per reminder interval unless it was acknowledged, and when it has ended. A muted alert is not sent until its time is over.
#![allow(clippy::disallowed_methods, reason = "a real process, in real time")]

mod conditions;
mod lag;
mod send;
mod settings;
mod store;

pub use settings::{AlertSettings, AlertsText, checked};
pub use store::Alert;

use super::keeper::Daemon;
use crate::command_target::now;
use conditions::{Condition, PoolPast, gather};
use send::{Message, deliver};
use serde_json::{Value, json};
use settings::Receiver;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use store::{Record, Stored};
use weir_machine::lock::Mutex;

/// Number of looks at the pools for which a condition must be away before its alert is resolved.
const LOOKS_TO_RESOLVE: u32 = 2;
/// Maximum number of messages that wait for one receiver. The oldest go first.
const MAX_WAITING: usize = 100;
/// Seconds after which a message that cannot be delivered is given up.
const GIVE_UP: u64 = 86_400;
/// Seconds after which a delivery is tried again: doubled each time, up to the maximum.
const FIRST_RETRY: u64 = 30;
const MAX_RETRY: u64 = 3600;

/// The alerts.
pub struct Alerts {
    settings: Mutex<AlertSettings>,
    state: Mutex<State>,
    file: Option<PathBuf>,
}

#[derive(Default)]
struct State {
    stored: Stored,
    /// Looks at the pools since an alert's condition was seen last.
    unseen: BTreeMap<String, u32>,
    queues: Vec<Queue>,
    is_looking: bool,
    next_look: u64,
}

/// Messages for one receiver.
struct Queue {
    receiver: Receiver,
    waiting: Vec<(u64, Message)>,
    is_sending: bool,
    retry_at: u64,
    retry_after: u64,
    problem: Option<String>,
}

/// A receiver as `weir daemon alerts` shows it.
pub struct ReceiverStatus {
    /// Name of the receiver, without secrets.
    pub name: String,
    /// Messages that wait for it.
    pub waiting: usize,
    /// Why the last delivery failed.
    pub problem: Option<String>,
}

fn seconds() -> u64 {
    now().sec.max(0).cast_unsigned()
}

impl Alerts {
    /// The alerts that are stored in the state directory `folder`.
    pub fn new(settings: AlertSettings, folder: Option<PathBuf>) -> Self {
        let file = folder.map(|folder| folder.join(store::NAME));
        let stored = file.as_deref().map(Stored::load).unwrap_or_default();
        let alerts =
            Alerts { settings: Mutex::default(), state: Mutex::new(State { stored, ..State::default() }), file };
        alerts.set(settings);
        alerts
    }

    /// Replaces the settings. What waits for a receiver that stays is kept.
    pub fn set(&self, settings: AlertSettings) {
        let mut state = self.state.lock();
        let mut before = std::mem::take(&mut state.queues);
        for receiver in &settings.receivers {
            let old = before.iter().position(|queue| queue.receiver == *receiver).map(|at| before.remove(at));
            state.queues.push(old.unwrap_or_else(|| Queue {
                receiver: receiver.clone(),
                waiting: Vec::new(),
                is_sending: false,
                retry_at: 0,
                retry_after: FIRST_RETRY,
                problem: None,
            }));
        }
        state.next_look = 0;
        drop(state);
        *self.settings.lock() = settings;
    }

    /// All alerts, the critical ones first.
    pub fn all(&self) -> Vec<Alert> {
        let mut all: Vec<Alert> = self.state.lock().stored.alerts.values().cloned().collect();
        all.sort_by_key(|alert| (!alert.critical, alert.since));
        all
    }

    /// The receivers.
    pub fn receivers(&self) -> Vec<ReceiverStatus> {
        let of = |queue: &Queue| ReceiverStatus {
            name: queue.receiver.name(),
            waiting: queue.waiting.len(),
            problem: queue.problem.clone(),
        };
        self.state.lock().queues.iter().map(of).collect()
    }

    /// No more reminders of an alert, until it becomes another one.
    ///
    /// # Errors
    /// If there is no such alert.
    pub fn acknowledge(&self, name: &str) -> Result<(), String> {
        self.change(name, |alert| alert.acknowledged = true)
    }

    /// Sends nothing about an alert for that time; 0 hours end it.
    ///
    /// # Errors
    /// If there is no such alert.
    pub fn mute(&self, name: &str, hours: u32) -> Result<(), String> {
        let until = seconds().saturating_add(u64::from(hours) * 3600);
        self.change(name, |alert| alert.muted_until = Some(until).filter(|_| hours > 0))
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Alert)) -> Result<(), String> {
        let mut state = self.state.lock();
        let alert = state.stored.alerts.get_mut(name).ok_or_else(|| format!("there is no alert '{name}'"))?;
        change(alert);
        self.save(&state.stored);
        Ok(())
    }

    fn save(&self, stored: &Stored) {
        if let Some(Err(error)) = self.file.as_deref().map(|file| stored.save(file)) {
            tracing::error!("alerts are not stored: {error}");
        }
    }

    /// Compares the conditions with the alerts, and puts messages into the queues.
    fn take(&self, found: Vec<Condition>, past: BTreeMap<u64, PoolPast>, now: u64) {
        let settings = self.settings.lock().clone();
        let mut state = self.state.lock();
        let state = &mut *state;
        let before = state.stored.clone();
        state.stored.past = past;
        let mut events: Vec<(&str, Alert)> = Vec::new();
        let mut seen = Vec::new();
        for condition in found {
            let id = condition.id();
            state.unseen.remove(&id);
            seen.push(id.clone());
            match state.stored.alerts.get_mut(&id) {
                None => {
                    let alert = Alert::new(condition, now);
                    events.push(("raised", alert.clone()));
                    state.stored.alerts.insert(id, alert);
                }
                Some(alert) if alert.state != condition.state => {
                    let muted_until = alert.muted_until;
                    *alert = Alert { since: alert.since, muted_until, ..Alert::new(condition, now) };
                    events.push(("changed", alert.clone()));
                }
                Some(alert) => {
                    alert.text = condition.text;
                    let is_due = settings.remind.is_some_and(|time| now >= alert.sent.saturating_add(time.as_secs()));
                    if is_due && !alert.acknowledged {
                        alert.sent = now;
                        events.push(("reminder", alert.clone()));
                    }
                }
            }
        }
        let gone: Vec<String> = state.stored.alerts.keys().filter(|id| !seen.contains(id)).cloned().collect();
        for id in gone {
            let unseen = state.unseen.entry(id.clone()).or_default();
            *unseen += 1;
            if *unseen >= LOOKS_TO_RESOLVE {
                state.unseen.remove(&id);
                let alert = state.stored.alerts.remove(&id);
                events.extend(alert.map(|alert| ("resolved", alert)));
            }
        }
        for (event, alert) in events {
            match event {
                "resolved" => tracing::info!("alert {} resolved", alert.name),
                _ => tracing::warn!("alert {} {event}: {}", alert.name, alert.text),
            }
            state.stored.note(Record { time: now, event: event.to_owned(), name: alert.name.clone() });
            if !alert.is_muted(now) {
                state.put(&message(event, &alert), now);
            }
        }
        if state.stored != before {
            self.save(&state.stored);
        }
    }

    /// Puts a message for a try into every queue.
    ///
    /// # Errors
    /// If there is no receiver.
    pub fn test(&self) -> Result<usize, String> {
        let mut state = self.state.lock();
        if state.queues.is_empty() {
            return Err("no receiver of alerts is configured: see [[alerts.send]] in weir.toml".to_owned());
        }
        let alert = Alert::for_test(seconds());
        state.put(&message("test", &alert), seconds());
        Ok(state.queues.len())
    }
}

impl State {
    fn put(&mut self, message: &Message, now: u64) {
        for queue in &mut self.queues {
            if queue.waiting.len() >= MAX_WAITING {
                queue.waiting.remove(0);
            }
            queue.waiting.push((now, message.clone()));
            debug_assert!(queue.waiting.len() <= MAX_WAITING, "a queue is bounded");
        }
    }
}

/// The message about an alert.
fn message(event: &str, alert: &Alert) -> Message {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let severity = if alert.critical { "critical" } else { "warning" };
    let what = match event {
        "raised" => severity,
        other => other,
    };
    let subject = format!("[weir {host}] {what}: {}", alert.name);
    let text = match event {
        "resolved" => format!("{host}: no longer: {}", alert.text),
        _ => format!("{host}: {}", alert.text),
    };
    let json = json!({
        "event": event, "name": alert.name, "kind": alert.kind, "object": alert.subject, "severity": severity,
        "host": host, "since": super::status::utc(alert.since.cast_signed()), "subject": subject, "text": text,
    });
    Message { subject, text, json }
}

/// Looks at the pools if it is time, and delivers what waits.
pub fn look(daemon: &Arc<Daemon>) {
    let alerts = &daemon.alerts;
    let settings = alerts.settings.lock().clone();
    let time = seconds();
    let is_due = {
        let mut state = alerts.state.lock();
        // A clock that was set back does not stop the alerts.
        let is_due = !state.is_looking && (time >= state.next_look || state.next_look > time + 2 * 86_400);
        if is_due {
            state.is_looking = true;
            state.next_look = time.saturating_add(settings.interval.as_secs());
        }
        is_due
    };
    if is_due {
        let daemon = daemon.clone();
        // As commands are: what reads a pool is not bound to the runtime's threads.
        drop(tokio::task::spawn_blocking(move || {
            let alerts = &daemon.alerts;
            let mut past = alerts.state.lock().stored.past.clone();
            let found = daemon.machine.block_on(gather(&daemon, &settings, &mut past, seconds()));
            alerts.take(found, past, seconds());
            alerts.state.lock().is_looking = false;
            send_waiting(&daemon);
        }));
    }
    send_waiting(daemon);
}

/// Starts a delivery for each receiver that has messages and is not being sent to.
fn send_waiting(daemon: &Arc<Daemon>) {
    let time = seconds();
    let mut state = daemon.alerts.state.lock();
    for queue in &mut state.queues {
        let late = queue.waiting.iter().filter(|(put, _)| time > put.saturating_add(GIVE_UP)).count();
        if late > 0 {
            tracing::error!("{}: {late} alerts could not be delivered within a day", queue.receiver.name());
            queue.waiting.retain(|(put, _)| time <= put.saturating_add(GIVE_UP));
        }
        let Some((_, message)) = queue.waiting.first().filter(|_| !queue.is_sending && time >= queue.retry_at) else {
            continue;
        };
        queue.is_sending = true;
        let (daemon, receiver, message) = (daemon.clone(), queue.receiver.clone(), message.clone());
        drop(tokio::spawn(async move {
            let sent = {
                let (receiver, message) = (receiver.clone(), message.clone());
                tokio::task::spawn_blocking(move || deliver(&receiver, &message)).await
            };
            let sent = sent.unwrap_or_else(|error| Err(error.to_string()));
            daemon.alerts.note_sent(&receiver, &message, sent);
            send_waiting(&daemon);
        }));
    }
}

impl Alerts {
    fn note_sent(&self, receiver: &Receiver, message: &Message, sent: Result<(), String>) {
        let mut state = self.state.lock();
        let Some(queue) = state.queues.iter_mut().find(|queue| queue.receiver == *receiver) else { return };
        queue.is_sending = false;
        match sent {
            Ok(()) => {
                if let Some(at) = queue.waiting.iter().position(|(_, waiting)| waiting == message) {
                    queue.waiting.remove(at);
                }
                queue.problem = None;
                queue.retry_after = FIRST_RETRY;
                queue.retry_at = 0;
            }
            Err(why) => {
                tracing::error!("alert not delivered by {}: {why}", queue.receiver.name());
                queue.problem = Some(why);
                queue.retry_at = seconds().saturating_add(queue.retry_after);
                queue.retry_after = (queue.retry_after * 2).min(MAX_RETRY);
            }
        }
        debug_assert!(queue.retry_after <= MAX_RETRY, "the interval is bounded");
    }
}

/// The alerts as `weir daemon status -j` and `weir daemon alerts -j` show them.
pub fn object(alerts: &Alerts) -> Value {
    let utc = |time: u64| super::status::utc(time.cast_signed());
    let time = seconds();
    let one = |alert: Alert| {
        let muted = alert.muted_until.filter(|_| alert.is_muted(time)).map(utc);
        json!({
            "name": alert.name, "kind": alert.kind, "object": alert.subject,
            "severity": if alert.critical { "critical" } else { "warning" }, "since": utc(alert.since),
            "text": alert.text, "acknowledged": alert.acknowledged, "muted_until": muted,
        })
    };
    let receivers = alerts
        .receivers()
        .into_iter()
        .map(|receiver| json!({"name": receiver.name, "waiting": receiver.waiting, "problem": receiver.problem}));
    let history = alerts.state.lock().stored.history.clone();
    let history = history
        .into_iter()
        .rev()
        .map(|record| json!({"time": utc(record.time), "event": record.event, "name": record.name}));
    json!({
        "alerts": alerts.all().into_iter().map(one).collect::<Vec<_>>(),
        "receivers": receivers.collect::<Vec<_>>(),
        "history": history.collect::<Vec<_>>(),
    })
}

/// The alerts as `weir daemon alerts` prints them, without the last line break.
pub fn text(alerts: &Alerts) -> String {
    let time = seconds();
    let utc = |time: u64| super::status::utc(time.cast_signed());
    let mut lines = Vec::new();
    for alert in alerts.all() {
        let severity = if alert.critical { "critical" } else { "warning" };
        let muted = alert.muted_until.filter(|_| alert.is_muted(time));
        let muted = muted.map(|until| format!(", muted until {}", utc(until))).unwrap_or_default();
        let acknowledged = if alert.acknowledged { ", acknowledged" } else { "" };
        lines.push(format!("{}  {severity} since {}{acknowledged}{muted}", alert.name, utc(alert.since)));
        lines.push(format!("    {}", alert.text));
    }
    if lines.is_empty() {
        lines.push("no alerts".to_owned());
    }
    for receiver in alerts.receivers() {
        let waiting =
            if receiver.waiting > 0 { format!(", {} messages wait", receiver.waiting) } else { String::new() };
        let state = receiver.problem.map_or_else(|| "ok".to_owned(), |why| format!("not delivered: {why}"));
        lines.push(format!("{}: {state}{waiting}", receiver.name));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests;
