//! A run of a replication: `weir replicate` as a process of its own, which asks this one.

use super::{Daemon, Job};
use crate::replicate::progress::Progress;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;

/// Longest text of a run that is read, in bytes. Lines of progress are not among it.
const MAX_TEXT: usize = 64 << 10;

/// Runs the replication of a job, and notes its progress. Returns what it printed.
///
/// # Errors
/// All that it printed, if it failed.
pub(super) async fn run(
    daemon: &Arc<Daemon>,
    job: &Job,
    arguments: &[String],
    due: i64,
) -> Result<Option<String>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["replicate", "--progress", "--due", &due.max(0).to_string()]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (daemon, job) = (daemon.clone(), job.clone());
    let follow = move || follow(command, |progress| daemon.jobs.note_progress(&job, progress));
    let out = tokio::task::spawn_blocking(follow).await.map_err(|error| error.to_string())?;
    let (status, all) = out.map_err(|error| format!("weir replicate: {error}"))?;
    match status.success() {
        true => Ok(Some(all).filter(|all| !all.is_empty())),
        false if all.is_empty() => Err(format!("weir replicate: {status}")),
        false => Err(all),
    }
}

/// Runs a command to its end. Returns the lines for people that it printed on both outputs.
fn follow(mut command: Command, note: impl Fn(Progress)) -> std::io::Result<(ExitStatus, String)> {
    let mut child = command.spawn()?;
    let errors = child.stderr.take();
    let errors = std::thread::spawn(move || errors.map(lines).unwrap_or_default());
    let mut said = Vec::new();
    let mut bytes = 0;
    let out = child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).split(b'\n'));
    for line in out.map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        match Progress::of_line(&line) {
            Some(progress) => note(progress),
            None if bytes < MAX_TEXT => {
                bytes += line.len();
                said.push(line);
            }
            None => {}
        }
    }
    let status = child.wait()?;
    said.extend(errors.join().unwrap_or_default());
    Ok((status, said.join("; ")))
}

/// All lines of a stream, up to [`MAX_TEXT`]. The rest is read and forgotten, so that the program never waits for a reader.
fn lines(stream: impl Read) -> Vec<String> {
    let mut text = Vec::new();
    let mut stream = stream;
    let read = stream.by_ref().take(MAX_TEXT as u64).read_to_end(&mut text);
    let _rest = read.and_then(|_| std::io::copy(&mut stream, &mut std::io::sink()));
    String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
}
