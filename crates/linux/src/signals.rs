//! Whether a signal waits for a thread: a server of FUSE asks this for a caller that it makes wait.
//!
//! Source: `proc_pid_status(5)`: `SigPnd` and `ShdPnd` are the signals that are pending for the thread and for its process,
//! `SigBlk` those that it blocks, in hexadecimal. Ignored signals are never pending unless they are blocked.

/// Whether a signal is pending that the thread does not block; false if the thread is not visible from here.
pub fn is_pending(thread: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| is_pending_in(&status))
}

fn is_pending_in(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd") | mask("ShdPnd")) & !mask("SigBlk") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_signal_counts_unless_it_is_blocked() {
        let status = |pending, shared, blocked| {
            format!("Name:\tsh\nSigQ:\t0/9\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n")
        };
        assert!(is_pending_in(&status(0x100, 0, 0)), "SIGKILL");
        assert!(is_pending_in(&status(0, 0x2000, 0x1)));
        assert!(!is_pending_in(&status(0x2000, 0x2000, 0x2000)));
        assert!(!is_pending_in(&status(0, 0, 0)) && !is_pending_in("SigPnd:\tnone"));
        assert!(!is_pending(std::process::id()) && !is_pending(u32::MAX));
    }
}
