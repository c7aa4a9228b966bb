//! Commands about pools that the daemon is opening: they wait for the outcome, as they would wait for a pool that is being imported.

use super::{daemon, query, readers_daemon};
use crate::call::Call;
use crate::failure::Failure;
use weir_admin::{Query, RefusalKind};

/// Maximum number of words of a command that are taken for names.
const MAX_NAMES: usize = 64;

/// Waits until the daemon has opened the pools that the words of the command name, or all pools with `-a`. The daemon bounds
/// the time; a pool that it could not open is an error of the command itself.
///
/// # Errors
/// If one is not open after that time.
pub fn await_opening(call: &Call) -> Result<(), Failure> {
    let Some(pools) = pools_of(call.caller.words.iter().filter_map(|word| word.to_str())) else { return Ok(()) };
    let why = match call.process() {
        Some(process) => match process.daemon() {
            Some(daemon) => call.machine()?.block_on(daemon.until_all_opened(&pools)).err(),
            None => None,
        },
        None => match daemon().or_else(readers_daemon) {
            Some(remote) => match query(call, &remote, &Query::Opened { pools }, &mut |_| {}) {
                Ok(Err(refusal)) if refusal.kind == RefusalKind::Pool => Some(refusal.why),
                // The command asks the daemon itself, and reports what is wrong with it.
                _ => None,
            },
            None => None,
        },
    };
    why.map_or(Ok(()), |why| Err(Failure::failed(why)))
}

/// The pools that the words of a command may name; none of them for all pools. `None` if there is nothing to wait for.
fn pools_of<'a>(words: impl Iterator<Item = &'a str>) -> Option<Vec<String>> {
    let mut words = words;
    // An import waits by itself, for what it finds.
    let command = words.next().filter(|command| *command != "import")?;
    let mut pools = Vec::new();
    for word in words {
        if word == "-a" && ["mount", "unmount", "umount", "share", "unshare"].contains(&command) {
            return Some(Vec::new());
        }
        let name = word.split(['/', '@', '#', '%']).next().unwrap_or_default();
        if !name.is_empty() && !name.starts_with('-') && pools.len() < MAX_NAMES {
            pools.push(name.to_owned());
        }
    }
    (!pools.is_empty()).then_some(pools)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_found_among_the_words_of_a_command() {
        let of = |line: &str| pools_of(line.split_whitespace()).map(|pools| pools.join(" "));
        assert_eq!(of("list -H rz/a@b"), Some("rz".into()));
        assert_eq!(of("mount -a"), Some(String::new()));
        assert_eq!(of("mount rz/fs"), Some("rz".into()));
        assert_eq!(of("status"), None);
        assert_eq!(of("import rz"), None);
        assert_eq!(of("upgrade -a"), None);
        assert_eq!(of("unmount /mnt/x"), None);
        let many = vec!["p"; 200].join(" ");
        assert_eq!(pools_of(format!("status {many}").split(' ')).unwrap().len(), MAX_NAMES);
    }
}
