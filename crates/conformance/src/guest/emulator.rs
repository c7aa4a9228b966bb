//! The emulated machine: QEMU without KVM, its start, the scripts that run in it, and its end.
//!
//! QEMU's user network translates: the guest's 10.0.2.2 is the loopback of this machine, and nothing else is reached. With a
//! tap device it is the address of that device.
//! The agent answers on a virtio port that is QEMU's standard input and output; the kernel's console is a file, whose
//! end is shown if the machine fails.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::parts::Parts;
use crate::JudgeError;
use crate::kill::failed;

/// Address of this machine's loopback in the guest.
pub const HOST: &str = "10.0.2.2";
/// Time to boot on a busy machine.
const BOOT: Duration = Duration::from_secs(180);
/// Time that the agent gets beyond a script's own limit to tell its end.
const ANSWER: Duration = Duration::from_secs(30);
/// Memory of the guest.
const MEMORY_MIB: u32 = 768;

/// Network of the guest, whose own address is 10.0.2.15 in both.
#[derive(Clone, Copy, Debug)]
pub enum Network {
    /// QEMU's translation of addresses: servers see this machine's loopback as the client.
    User,
    /// A tap device of this name, which has the address [`HOST`]: servers see the guest's own address, and can call it.
    Tap(&'static str),
}

impl Network {
    /// The value of QEMU's `-nic`.
    fn option(self) -> String {
        match self {
            Network::User => "user,model=virtio-net-pci,ipv6=off".to_owned(),
            Network::Tap(name) => format!("tap,model=virtio-net-pci,ifname={name},script=no,downscript=no"),
        }
    }
}

/// A script in the guest.
#[derive(Default, Debug)]
pub struct Job {
    /// Lines of its output so far.
    pub lines: Vec<String>,
    /// Exit code, once it ended.
    pub code: Option<i32>,
}

/// A running machine; killed when dropped.
pub struct Guest {
    qemu: Child,
    requests: ChildStdin,
    answers: Receiver<String>,
    console: PathBuf,
    jobs: BTreeMap<u32, Job>,
}

impl Guest {
    /// Boots a machine with this host name and waits for its agent.
    ///
    /// # Errors
    /// If QEMU does not start, or the agent does not answer in time.
    pub fn boot(parts: &Parts, folder: &Path, name: &str, network: Network) -> Result<Guest, JudgeError> {
        let console = folder.join(format!("console-{name}"));
        let file = |what: &str| {
            let path = folder.join(format!("{what}-{name}"));
            std::fs::File::create(&path).map_err(|e| failed("a file of the guest", e))
        };
        let mut command = Command::new(&parts.qemu);
        // Two processors are emulated by two threads; KVM is not used, because it hangs on some hosts.
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", &MEMORY_MIB.to_string()]);
        command.args(["-nodefaults", "-display", "none", "-no-reboot"]);
        command.arg("-kernel").arg(parts.folder.join("vmlinuz")).arg("-initrd").arg(parts.folder.join("initramfs"));
        // On a busy machine the kernel's check of its timer takes late interrupts for missing ones.
        command.args(["-append", &format!("console=ttyS0 quiet panic=-1 no_timer_check guest={name}")]);
        command.arg("-serial").arg(format!("file:{}", console.display()));
        // The root file system may be written: the changes go to a temporary file of QEMU's.
        let root = parts.folder.join("root.img");
        command.arg("-drive").arg(format!("file={},if=virtio,format=raw,snapshot=on", root.display()));
        let judge = parts.programs.path();
        command.arg("-drive").arg(format!("file={},if=virtio,format=raw,readonly=on", judge.display()));
        command.args(["-nic", &network.option(), "-device", "virtio-rng-pci"]);
        command.args(["-chardev", "stdio,id=judge,signal=off", "-device", "virtio-serial"]);
        command.args(["-device", "virtserialport,chardev=judge,name=judge"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file("qemu")?);
        let mut qemu = command.spawn().map_err(|e| failed("qemu-system-x86_64", e))?;
        let (Some(requests), Some(output)) = (qemu.stdin.take(), qemu.stdout.take()) else {
            return Err(failed("qemu-system-x86_64", "has no standard input or output"));
        };
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        let mut guest = Guest { qemu, requests, answers, console, jobs: BTreeMap::new() };
        let until = Instant::now() + BOOT;
        while guest.line(until)? != "READY" {}
        Ok(guest)
    }

    /// Next line of the agent.
    fn line(&mut self, until: Instant) -> Result<String, JudgeError> {
        match self.answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(self.failure("did not answer in time")),
            Err(RecvTimeoutError::Disconnected) => Err(self.failure("ended")),
        }
    }

    /// An error with the last lines of the kernel's console.
    fn failure(&self, how: &str) -> JudgeError {
        let text = std::fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let last: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = last[last.len().saturating_sub(4)..].join(" | ");
        failed("the guest", format!("{how}; its console: {last}"))
    }

    /// Starts a script; the agent kills it after `limit`.
    ///
    /// # Errors
    /// If the machine has ended.
    pub fn start(&mut self, script: &str, limit: Duration) -> Result<u32, JudgeError> {
        let id = self.jobs.last_key_value().map_or(1, |(last, _)| last + 1);
        let head = format!("RUN {id} {} {}\n", limit.as_secs(), script.len());
        let sent = self.requests.write_all(format!("{head}{script}").as_bytes()).and_then(|()| self.requests.flush());
        sent.map_err(|_| self.failure("ended"))?;
        let before = self.jobs.insert(id, Job::default());
        debug_assert!(before.is_none(), "ids of scripts are not used again");
        Ok(id)
    }

    /// State of a script.
    pub fn job(&self, id: u32) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// Reads the agent's lines until a script is as `is` wants it, or ended.
    ///
    /// # Errors
    /// If that takes longer than `limit`, or the machine ends.
    pub fn wait(&mut self, id: u32, limit: Duration, is: impl Fn(&Job) -> bool) -> Result<(), JudgeError> {
        let until = Instant::now() + limit;
        loop {
            let job = self.jobs.get(&id).ok_or_else(|| failed("the guest", format!("no script has the id {id}")))?;
            if job.code.is_some() || is(job) {
                return Ok(());
            }
            let line = self.line(until)?;
            self.take(&line);
        }
    }

    /// Records a line of the agent.
    fn take(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        let kind = words.next().unwrap_or_default();
        let id = words.next().and_then(|id| id.parse::<u32>().ok());
        let text = words.next().unwrap_or_default();
        let Some(job) = id.and_then(|id| self.jobs.get_mut(&id)) else { return };
        match kind {
            "OUT" => job.lines.push(text.to_owned()),
            "END" => job.code = Some(text.parse().unwrap_or(126)),
            _ => {}
        }
    }

    /// Runs a script to its end.
    ///
    /// # Errors
    /// If the machine ends, or its agent does not answer.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<Job, JudgeError> {
        let id = self.start(script, limit)?;
        self.end(id, limit)
    }

    /// Waits for the end of a script, and takes its output.
    ///
    /// # Errors
    /// If the machine ends, or its agent does not answer.
    pub fn end(&mut self, id: u32, limit: Duration) -> Result<Job, JudgeError> {
        self.wait(id, limit + ANSWER, |_| false)?;
        // The entry remains, so that its number is not given again.
        let job = self.jobs.get_mut(&id).map(std::mem::take).unwrap_or_default();
        debug_assert!(job.code.is_some());
        Ok(job)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // All that it wrote is temporary, so nothing is lost by ending it at once.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
