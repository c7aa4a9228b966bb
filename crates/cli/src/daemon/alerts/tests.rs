use super::settings::Kind;
use super::*;
use std::time::Duration;

fn condition(state: &str) -> Condition {
    let state = state.to_owned();
    Condition { kind: Kind::Pool, subject: "tank".into(), text: format!("it is {state}"), state, critical: true }
}

fn alerts(folder: &std::path::Path) -> Alerts {
    let receivers = vec![Receiver::Command(vec!["/bin/true".into()])];
    let remind = Some(Duration::from_secs(3600));
    Alerts::new(AlertSettings { receivers, remind, ..AlertSettings::default() }, Some(folder.to_owned()))
}

/// Events of the messages that wait, which are taken out.
fn events(alerts: &Alerts) -> Vec<String> {
    let waiting = std::mem::take(&mut alerts.state.lock().queues[0].waiting);
    waiting.into_iter().map(|(_, message)| message.json["event"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_condition_is_sent_once_until_it_changes_or_ends() {
    let dir = tempfile::tempdir().unwrap();
    let alerts = alerts(dir.path());
    let degraded = || vec![condition("DEGRADED")];
    alerts.take(degraded(), BTreeMap::new(), 1000);
    alerts.take(degraded(), BTreeMap::new(), 1060);
    assert_eq!(events(&alerts), ["raised"]);
    alerts.take(degraded(), BTreeMap::new(), 4600);
    assert_eq!(events(&alerts), ["reminder"]);
    alerts.acknowledge("pool:tank").unwrap();
    alerts.take(degraded(), BTreeMap::new(), 9000);
    assert_eq!(events(&alerts), [""; 0]);
    alerts.take(vec![condition("FAULTED")], BTreeMap::new(), 9060);
    assert_eq!(events(&alerts), ["changed"]);
    assert!(!alerts.all()[0].acknowledged, "another condition is news");
    // One look without it may be by chance.
    alerts.take(Vec::new(), BTreeMap::new(), 9100);
    alerts.take(vec![condition("FAULTED")], BTreeMap::new(), 9160);
    alerts.take(Vec::new(), BTreeMap::new(), 9200);
    assert_eq!(events(&alerts), [""; 0]);
    alerts.take(Vec::new(), BTreeMap::new(), 9260);
    assert_eq!((events(&alerts), alerts.all().len()), (vec!["resolved".to_owned()], 0));
    let kept = Stored::load(&dir.path().join(store::NAME));
    let names: Vec<&str> = kept.history.iter().map(|record| record.event.as_str()).collect();
    assert_eq!(names, ["raised", "reminder", "changed", "resolved"]);
}

#[test]
fn a_restart_keeps_alerts_and_muted_ones_are_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let first = alerts(dir.path());
    first.take(vec![condition("DEGRADED")], BTreeMap::new(), 1000);
    first.mute("pool:tank", 2).unwrap();
    assert_eq!(first.mute("pool:other", 2).unwrap_err(), "there is no alert 'pool:other'");
    let second = alerts(dir.path());
    second.take(vec![condition("DEGRADED")], BTreeMap::new(), 1060);
    second.take(vec![condition("FAULTED")], BTreeMap::new(), 1120);
    assert_eq!(events(&second), [""; 0], "it was raised before, and is muted");
    second.mute("pool:tank", 0).unwrap();
    second.take(vec![condition("DEGRADED")], BTreeMap::new(), 1180);
    assert_eq!(events(&second), ["changed"]);
}

#[test]
fn a_receiver_that_fails_is_tried_again_later_and_its_queue_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let alerts = alerts(dir.path());
    for n in 0..MAX_WAITING as u64 + 10 {
        alerts.take(vec![condition(&n.to_string())], BTreeMap::new(), n);
    }
    let receiver = alerts.settings.lock().receivers[0].clone();
    let message = alerts.state.lock().queues[0].waiting[0].1.clone();
    assert_eq!(message.json["text"].as_str().unwrap().rsplit(' ').next(), Some("10"), "the oldest went");
    for _ in 0..20 {
        alerts.note_sent(&receiver, &message, Err("no".into()));
    }
    let status = &alerts.receivers()[0];
    assert_eq!((status.waiting, status.problem.as_deref()), (MAX_WAITING, Some("no")));
    assert_eq!(alerts.state.lock().queues[0].retry_after, MAX_RETRY);
    alerts.note_sent(&receiver, &message, Ok(()));
    assert_eq!(alerts.receivers()[0].waiting, MAX_WAITING - 1);
    // New settings keep what waits for a receiver that stays.
    let settings = alerts.settings.lock().clone();
    alerts.set(settings);
    assert_eq!(alerts.receivers()[0].waiting, MAX_WAITING - 1);
    assert_eq!(alerts.test(), Ok(1));
    alerts.set(AlertSettings::default());
    assert!(alerts.test().unwrap_err().contains("[[alerts.send]]"));
}
