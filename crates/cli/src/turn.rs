//! Waiting for other commands: a command that finds a pool locked by another command tries again until that command
//! has ended.
//!
//! Commands lock a pool's devices for as long as they change the pool ([`crate::locks`]), usually for less than a
//! second. A process that accepts commands is not waited for: it runs the command itself ([`crate::admin`]).

use crate::call::Call;
use crate::failure::Failure;
use std::time::Duration;
use weir_machine::Machine;

/// Environment variable with the maximum wait in seconds.
pub const WAIT_VARIABLE: &str = "WEIR_WAIT";
/// Maximum wait if the environment does not set one.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
/// Time after which the wait is reported.
const QUIET: Duration = Duration::from_secs(2);
/// Pause before the second attempt. Each further pause is longer by half, up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// Maximum pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// Maximum time that a command waits for others.
fn max_wait() -> Duration {
    let given = std::env::var(WAIT_VARIABLE).ok().and_then(|text| text.parse().ok());
    given.map_or(DEFAULT_WAIT, Duration::from_secs)
}

/// Repeats `attempt` while another command has the devices locked, until the maximum wait is over. After 2 seconds
/// `report` receives one line that names the other command's process.
///
/// # Errors
/// The error of the last attempt.
pub fn in_turn<T>(
    machine: &Machine,
    report: impl Fn(&str),
    mut attempt: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let max_wait = max_wait();
    let begun = machine.clock.now();
    let mut is_reported = false;
    let mut pause = MIN_PAUSE;
    loop {
        let mut failure = match attempt() {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        let waited = machine.clock.now().since(begun);
        let Some(holder) = failure.take_wait_for().filter(|_| waited < max_wait) else { return Err(failure) };
        if waited >= QUIET && !is_reported {
            is_reported = true;
            report(&format!("waiting for {holder}, at most {} s more", max_wait.saturating_sub(waited).as_secs()));
        }
        machine.block_on(machine.clock.sleep(pause));
        pause = pause.saturating_mul(3).checked_div(2).unwrap_or(MAX_PAUSE).min(MAX_PAUSE);
    }
}

/// [`in_turn`] for a command: the line about the wait goes to its caller's standard error at once.
pub fn in_turn_of<T>(call: &Call, attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    in_turn(call.machine()?, |line| call.eprint_now(format_args!("{line}\n")), attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_repeated_only_while_another_command_is_at_work() {
        let machine = weir_linux::machine().unwrap();
        // Runs until the attempt `last`, which ends as `end` says; returns the outcome and the number of attempts.
        let run = |last: u32, end: fn() -> Result<(), Failure>| {
            let mut attempts = 0;
            let attempt = || {
                attempts += 1;
                if attempts < last { Err(Failure::not_yet("busy", "process 1")) } else { end() }
            };
            let done = in_turn(&machine, |_| {}, attempt);
            (done.map_err(|failure| failure.line), attempts)
        };
        assert_eq!(run(4, || Ok(())), (Ok(()), 4));
        assert_eq!(run(1, || Err(Failure::busy("served"))), (Err("served".into()), 1));
    }
}
