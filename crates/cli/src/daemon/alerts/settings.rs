//! `[alerts]` of the configuration, checked.

use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// Seconds between two looks at the pools, if the configuration does not say.
const DEFAULT_INTERVAL: u64 = 60;
/// Percent of a pool that may be allocated.
const DEFAULT_CAPACITY: u64 = 80;
/// Days within which a pool must not become full.
const DEFAULT_FILL_DAYS: u64 = 7;
/// Days within which a pool must have been scrubbed.
const DEFAULT_SCRUB_DAYS: u64 = 35;
/// Hours after which an alert that was not acknowledged is sent again.
const DEFAULT_REMIND_HOURS: u64 = 24;
/// Maximum number of receivers.
const MAX_RECEIVERS: usize = 16;
/// Programs that take a mail on their standard input, as Sendmail's options say.
const SENDMAIL: [&str; 2] = ["/usr/sbin/sendmail", "/usr/lib/sendmail"];

/// Alerts as the configuration says them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertsText {
    interval: Option<u64>,
    capacity: Option<u64>,
    fill_days: Option<u64>,
    scrub_days: Option<u64>,
    remind_hours: Option<u64>,
    ignore: Option<Vec<Kind>>,
    #[serde(default)]
    send: Vec<ReceiverText>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceiverText {
    command: Option<Vec<String>>,
    webhook: Option<String>,
    webhook_file: Option<PathBuf>,
    mail: Option<String>,
    from: Option<String>,
}

/// Kind of condition that is alerted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The pool is not healthy, as `zpool status -x` decides.
    Pool,
    /// A vdev that has redundancy has none left: the next failure loses data.
    NoRedundancy,
    /// A pool of the cache file cannot be opened.
    NotOpen,
    /// Too much of a pool is allocated.
    Capacity,
    /// At its present rate, a pool is full soon.
    Filling,
    /// A device needed longer for an operation than `slow_io`.
    SlowDevice,
    /// The last scrub is too long ago.
    ScrubOverdue,
    /// `sync=disabled`: what clients believe to be stable may be lost.
    SyncDisabled,
    /// The last run of a job failed.
    JobFailed,
    /// The target of a replication is further behind than its job allows.
    ReplicationLag,
}

impl Kind {
    /// Word of the configuration, and first part of an alert's name.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Pool => "pool",
            Kind::NoRedundancy => "no-redundancy",
            Kind::NotOpen => "not-open",
            Kind::Capacity => "capacity",
            Kind::Filling => "filling",
            Kind::SlowDevice => "slow-device",
            Kind::ScrubOverdue => "scrub-overdue",
            Kind::SyncDisabled => "sync-disabled",
            Kind::JobFailed => "job-failed",
            Kind::ReplicationLag => "replication-lag",
        }
    }
}

/// A place that alerts are sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// A program with its arguments; it has the alert as JSON on its standard input.
    Command(Vec<String>),
    /// An address that takes the alert as JSON by HTTP POST. The address may contain a secret and is not shown.
    Webhook(Webhook),
    /// A mail through the machine's `sendmail`.
    Mail {
        /// The program.
        program: PathBuf,
        /// Receiver's address.
        to: String,
        /// Sender's address; `None` leaves it to the program.
        from: Option<String>,
    },
}

/// Address of a webhook: in the configuration, or in a file that is read when something is sent.
#[derive(Clone, PartialEq, Eq)]
pub enum Webhook {
    /// The address.
    Url(String),
    /// File whose first line is the address.
    File(PathBuf),
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Webhook")
    }
}

impl Receiver {
    /// Name in messages: no secret, and no arguments, which may be ones.
    pub fn name(&self) -> String {
        match self {
            Receiver::Command(words) => format!("command {}", words.first().map_or("", String::as_str)),
            Receiver::Webhook(Webhook::Url(url)) => format!("webhook {}", host_of(url)),
            Receiver::Webhook(Webhook::File(path)) => format!("webhook of {}", path.display()),
            Receiver::Mail { to, .. } => format!("mail to {to}"),
        }
    }
}

/// Scheme, host and port of an address.
fn host_of(url: &str) -> &str {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let end = url.get(begin..).and_then(|rest| rest.find(['/', '?', '#'])).map_or(url.len(), |at| begin + at);
    let shown = url.get(..end).unwrap_or("");
    // User and password come before the host.
    shown.rfind('@').and_then(|at| shown.get(at + 1..)).unwrap_or(shown)
}

/// Limits of alerts, and who receives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertSettings {
    /// Time between two looks at the pools.
    pub interval: Duration,
    /// Percent of a pool that may be allocated.
    pub capacity_percent: u64,
    /// Days within which a pool must not become full.
    pub fill_days: u64,
    /// Days within which a pool must have been scrubbed; `None`: no limit.
    pub scrub_days: Option<u64>,
    /// Time after which an alert that was not acknowledged is sent again; `None`: never.
    pub remind: Option<Duration>,
    /// Kinds that are not alerted.
    pub ignored: Vec<Kind>,
    /// Receivers.
    pub receivers: Vec<Receiver>,
}

impl Default for AlertSettings {
    fn default() -> Self {
        AlertSettings {
            interval: Duration::from_secs(DEFAULT_INTERVAL),
            capacity_percent: DEFAULT_CAPACITY,
            fill_days: DEFAULT_FILL_DAYS,
            scrub_days: Some(DEFAULT_SCRUB_DAYS),
            remind: Some(Duration::from_secs(DEFAULT_REMIND_HOURS * 3600)),
            ignored: Vec::new(),
            receivers: Vec::new(),
        }
    }
}

/// Checks the alerts of a configuration.
///
/// # Errors
/// The first value that is wrong, and why.
pub fn checked(text: AlertsText) -> Result<AlertSettings, String> {
    let number = |key: &str, value: Option<u64>, default: u64, range: std::ops::RangeInclusive<u64>| {
        let value = value.unwrap_or(default);
        let text = || format!("alerts: {key}: {value} is not from {} to {}", range.start(), range.end());
        if range.contains(&value) { Ok(value) } else { Err(text()) }
    };
    let interval = number("interval", text.interval, DEFAULT_INTERVAL, 1..=86_400)?;
    let capacity_percent = number("capacity", text.capacity, DEFAULT_CAPACITY, 1..=100)?;
    let fill_days = number("fill_days", text.fill_days, DEFAULT_FILL_DAYS, 0..=3650)?;
    let scrub_days = number("scrub_days", text.scrub_days, DEFAULT_SCRUB_DAYS, 0..=3650)?;
    let remind = number("remind_hours", text.remind_hours, DEFAULT_REMIND_HOURS, 0..=8760)?;
    if text.send.len() > MAX_RECEIVERS {
        return Err(format!("alerts: send: there are {}, and at most {MAX_RECEIVERS} are possible", text.send.len()));
    }
    let receivers = text.send.into_iter().map(ReceiverText::checked).collect::<Result<_, _>>()?;
    Ok(AlertSettings {
        interval: Duration::from_secs(interval),
        capacity_percent,
        fill_days,
        scrub_days: Some(scrub_days).filter(|days| *days > 0),
        remind: Some(Duration::from_secs(remind * 3600)).filter(|time| !time.is_zero()),
        ignored: text.ignore.unwrap_or_default(),
        receivers,
    })
}

impl ReceiverText {
    fn checked(self) -> Result<Receiver, String> {
        let absolute = |key: &str, path: &std::path::Path| {
            let text = || format!("alerts: {key}: '{}' is not an absolute path", path.display());
            if path.is_absolute() { Ok(()) } else { Err(text()) }
        };
        if self.from.is_some() && self.mail.is_none() {
            return Err("alerts: from belongs to mail".to_owned());
        }
        match (self.command, self.webhook, self.webhook_file, self.mail) {
            (Some(words), None, None, None) => {
                let program = words.first().ok_or("alerts: command: the program is missing")?;
                absolute("command", program.as_ref())?;
                Ok(Receiver::Command(words))
            }
            (None, Some(url), None, None) => {
                check_url(&url)?;
                Ok(Receiver::Webhook(Webhook::Url(url)))
            }
            (None, None, Some(path), None) => {
                absolute("webhook_file", &path)?;
                Ok(Receiver::Webhook(Webhook::File(path)))
            }
            (None, None, None, Some(to)) => {
                for address in [Some(&to), self.from.as_ref()].into_iter().flatten() {
                    check_address(address)?;
                }
                let found = SENDMAIL.iter().map(PathBuf::from).find(|path| path.exists());
                let program = found.unwrap_or_else(|| PathBuf::from(SENDMAIL[0]));
                Ok(Receiver::Mail { program, to, from: self.from })
            }
            _ => Err("alerts: send: one of command, webhook, webhook_file and mail is needed".to_owned()),
        }
    }
}

/// Refuses what is no address of a web server. The message does not repeat it, because it may contain a secret.
pub fn check_url(url: &str) -> Result<(), String> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic());
    match rest.filter(|rest| is_plain && !rest.is_empty() && !rest.starts_with('/')) {
        Some(_) => Ok(()),
        None => Err("alerts: webhook: an address that begins with http:// or https:// is needed".to_owned()),
    }
}

/// Refuses addresses that would be options of `sendmail` or further header lines.
fn check_address(address: &str) -> Result<(), String> {
    let is_allowed = |letter: char| letter.is_alphanumeric() || "@._+-=%".contains(letter);
    if address.is_empty() || address.len() > 254 || address.starts_with('-') || !address.chars().all(is_allowed) {
        return Err(format!("alerts: mail: '{}' is no address", address.escape_debug()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<AlertSettings, String> {
        let text: AlertsText = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        checked(text)
    }

    #[test]
    fn alerts_are_read() {
        let text = "interval = 5\ncapacity = 90\nscrub_days = 0\nignore = [\"sync-disabled\"]\n\
                    [[send]]\ncommand = [\"/bin/notify\", \"a\"]\n[[send]]\nwebhook = \"https://u:p@example.org:8/x?token=1\"\n\
                    [[send]]\nmail = \"root\"\nfrom = \"weir@example.org\"\n";
        let settings = of(text).unwrap();
        assert_eq!((settings.interval.as_secs(), settings.capacity_percent, settings.scrub_days), (5, 90, None));
        assert_eq!(settings.ignored, [Kind::SyncDisabled]);
        let names: Vec<String> = settings.receivers.iter().map(Receiver::name).collect();
        assert_eq!(names, ["command /bin/notify", "webhook example.org:8", "mail to root"]);
        assert!(!format!("{settings:?}").contains("token"));
        assert_eq!(of("").unwrap(), AlertSettings::default());
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        for (text, why) in [
            ("interval = 0", "interval: 0 is not from 1 to 86400"),
            ("capacity = 101", "capacity: 101"),
            ("ignore = [\"all\"]", "unknown variant"),
            ("[[send]]\ncommand = []", "the program is missing"),
            ("[[send]]\ncommand = [\"notify\"]", "'notify' is not an absolute path"),
            ("[[send]]\nwebhook = \"ftp://a\"", "http:// or https://"),
            ("[[send]]\nwebhook = \"https://\"", "http:// or https://"),
            ("[[send]]\nwebhook = \"https://a\\r\\nX: y\"", "http:// or https://"),
            ("[[send]]\nwebhook_file = \"url\"", "absolute path"),
            ("[[send]]\nmail = \"-OQueueDirectory=/\"", "is no address"),
            ("[[send]]\nmail = \"a\\nBcc: b\"", "is no address"),
            ("[[send]]\nfrom = \"a\"", "from belongs to mail"),
            ("[[send]]\nmail = \"a\"\nwebhook = \"https://a\"", "one of command"),
            ("[[send]]\n", "one of command"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
