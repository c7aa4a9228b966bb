//! Order of measurements over rounds, steps and targets.

use crate::error::LabError;
use crate::session::{Session, Watcher};

/// Measures all steps of all sessions `rounds` times, and finishes their results. `false` if the watcher stopped it: the results are then valid and
/// incomplete.
///
/// The sessions take turns within each step, in alternating order, so that a drift of the machine meets all of them alike. Rounds that a
/// session has already (of an interrupted run) are not repeated.
///
/// # Errors
/// The first error of a session; the results of rounds before it are written.
pub fn run(sessions: &mut [Session], rounds: usize, watcher: &mut dyn Watcher) -> Result<bool, LabError> {
    let outcome = measure(sessions, rounds, watcher);
    let complete = matches!(outcome, Ok(true));
    for session in sessions.iter_mut() {
        let finished = session.finish(complete).map(|_| ());
        // An error of the measurement says more than one of the end.
        if outcome.is_ok() {
            finished?;
        }
    }
    outcome
}

fn measure(sessions: &mut [Session], rounds: usize, watcher: &mut dyn Watcher) -> Result<bool, LabError> {
    for session in sessions.iter_mut() {
        if !session.prepare(watcher)? {
            return Ok(false);
        }
    }
    let steps = sessions.iter().map(Session::steps).max().unwrap_or_default();
    for round in 0..rounds {
        for step in 0..steps {
            let mut order: Vec<usize> = (0..sessions.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for number in order {
                let Some(session) = sessions.get_mut(number).filter(|session| session.rounds(step) <= round) else {
                    continue;
                };
                if !session.measure(step, watcher)? {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}
