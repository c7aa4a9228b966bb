//! Sending of alerts: to a program, by HTTP POST, by mail through the machine's `sendmail`.
//!
//! Each blocks, for at most [`SEND_TIME`], and is called outside the threads of the runtime.
#![allow(clippy::disallowed_methods, reason = "a real process, in real time")]

use super::settings::{Receiver, Webhook, check_url};
use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time for one delivery.
const SEND_TIME: Duration = Duration::from_secs(30);
/// Interval in which a program is looked at.
const POLL: Duration = Duration::from_millis(20);
/// Maximum length of what is read of a program's error output, and of a file with an address, in bytes.
const MAX_READ: u64 = 4096;

/// Message of one alert.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Subject in one line.
    pub subject: String,
    /// The text.
    pub text: String,
    /// JSON for programs. It has the field `text`, which chat servers show.
    pub json: Value,
}

/// Delivers a message.
///
/// # Errors
/// Why it was not delivered, without secrets.
pub fn deliver(receiver: &Receiver, message: &Message) -> Result<(), String> {
    match receiver {
        Receiver::Command(words) => {
            let (program, arguments) = words.split_first().ok_or("the program is missing")?;
            let mut command = Command::new(program);
            command.args(arguments);
            for (name, key) in [("EVENT", "event"), ("NAME", "name"), ("SUBJECT", "subject"), ("SEVERITY", "severity")]
            {
                let value = message.json.get(key).and_then(Value::as_str).unwrap_or_default();
                command.env(format!("WEIR_ALERT_{name}"), value);
            }
            run(command, message.json.to_string().as_bytes())
        }
        Receiver::Webhook(webhook) => post(webhook, message),
        Receiver::Mail { program, to, from } => {
            let mut command = Command::new(program);
            command.args(["-i", "-t"]);
            if let Some(from) = from {
                command.args(["-f", from]);
            }
            run(command, mail(to, from.as_deref(), message).as_bytes())
        }
    }
}

/// The mail with its header.
fn mail(to: &str, from: Option<&str>, message: &Message) -> String {
    // Names of datasets and devices may have any character.
    let subject: String =
        message.subject.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect();
    let from = from.map(|from| format!("From: {from}\n")).unwrap_or_default();
    let header = "MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nAuto-Submitted: auto-generated\n";
    format!("To: {to}\n{from}Subject: {subject}\n{header}\n{}\n", message.text)
}

/// Runs a program with that input.
fn run(mut command: Command, input: &[u8]) -> Result<(), String> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    // More than a pipe holds is not sent: a program that reads nothing must not block this one.
    let input = input.get(..input.len().min(MAX_INPUT)).unwrap_or(input).to_vec();
    if let Some(mut to) = child.stdin.take() {
        let _closed_by_program = to.write_all(&input);
    }
    let until = Instant::now() + SEND_TIME;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(POLL),
            Ok(None) => {
                kill(&mut child);
                return Err(format!("the program did not end within {} s, and was killed", SEND_TIME.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    if status.success() {
        return Ok(());
    }
    Err(format!("{status}{}", first_line(&mut child)))
}

/// Size of a pipe, in bytes.
const MAX_INPUT: usize = 64 << 10;

fn kill(child: &mut Child) {
    let _ended_meanwhile = child.kill();
    let _reaped = child.wait();
}

/// The first line of a program's error output, as far as it has written it.
fn first_line(child: &mut Child) -> String {
    let Some(from) = child.stderr.take() else { return String::new() };
    // A descendant of the program may keep the pipe open.
    if rustix::fs::fcntl_setfl(&from, rustix::fs::OFlags::NONBLOCK).is_err() {
        return String::new();
    }
    let mut bytes = Vec::new();
    let _nothing_more = from.take(MAX_READ).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    text.lines().next().map(|line| format!(": {}", line.escape_debug())).unwrap_or_default()
}

fn post(webhook: &Webhook, message: &Message) -> Result<(), String> {
    let url = match webhook {
        Webhook::Url(url) => url.clone(),
        Webhook::File(path) => address_in(path)?,
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = ureq::tls::TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
    if url.starts_with("https:") {
        let found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            return Err("this machine has no certificates of authorities (package ca-certificates)".to_owned());
        }
        let certificates: Vec<_> =
            found.certs.iter().map(|der| ureq::tls::Certificate::from_der(der).to_owned()).collect();
        tls = tls.root_certs(ureq::tls::RootCerts::new_with_certs(&certificates));
    }
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(SEND_TIME))
        .max_redirects(0)
        .http_status_as_error(false)
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls.build())
        .build();
    let request = ureq::Agent::new_with_config(config).post(&url).content_type("application/json");
    // The library's messages may contain the address, and the address a secret.
    let answer = request.send(message.json.to_string()).map_err(|error| what(&error))?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status => Err(format!("the server answered {status}")),
    }
}

fn address_in(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut text = String::new();
    std::fs::File::open(path).map_err(failed)?.take(MAX_READ).read_to_string(&mut text).map_err(failed)?;
    let url = text.lines().next().unwrap_or_default().trim().to_owned();
    check_url(&url).map_err(|why| format!("{}: {why}", path.display()))?;
    Ok(url)
}

/// Kind of an error of HTTP, without the address.
fn what(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Timeout(_) => format!("no answer within {} s", SEND_TIME.as_secs()),
        ureq::Error::HostNotFound => "the host is not known".to_owned(),
        ureq::Error::ConnectionFailed => "no connection".to_owned(),
        ureq::Error::Tls(why) => format!("TLS: {why}"),
        ureq::Error::Rustls(error) => format!("TLS: {error}"),
        _ => "HTTP failed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn message() -> Message {
        let json = serde_json::json!({"event": "raised", "name": "pool:tank", "subject": "s", "severity": "critical"});
        Message { subject: "tank\nBcc: all".to_owned(), text: "It is DEGRADED.".to_owned(), json }
    }

    fn shell(script: &str) -> Receiver {
        Receiver::Command(["/bin/sh", "-c", script].map(str::to_owned).to_vec())
    }

    #[test]
    fn a_program_has_the_alert() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("got");
        let script =
            format!("(echo $WEIR_ALERT_EVENT $WEIR_ALERT_NAME $WEIR_ALERT_SEVERITY; cat) > {}", file.display());
        assert_eq!(deliver(&shell(&script), &message()), Ok(()));
        let got = std::fs::read_to_string(&file).unwrap();
        assert!(got.starts_with("raised pool:tank critical\n{\"event\":\"raised\""), "{got}");
        assert_eq!(deliver(&shell("exec 0<&-; true"), &message()), Ok(()), "it need not read");
        let error = deliver(&shell("echo no way >&2; echo more >&2; exit 3"), &message()).unwrap_err();
        assert_eq!(error, "exit status: 3: no way");
        let absent = deliver(&Receiver::Command(vec!["/nowhere/x".into()]), &message()).unwrap_err();
        assert!(absent.contains("No such file"), "{absent}");
        // A descendant that stays does not delay the answer.
        let began = Instant::now();
        assert!(deliver(&shell("sleep 30 & exit 1"), &message()).is_err());
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_mail_has_one_header() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("sendmail");
        let file = dir.path().join("got");
        std::fs::write(&program, format!("#!/bin/sh\n(echo \"$@\"; cat) > {}\n", file.display())).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, executable).unwrap();
        let receiver = Receiver::Mail { program, to: "root".into(), from: Some("weir@host".into()) };
        assert_eq!(deliver(&receiver, &message()), Ok(()));
        let got = std::fs::read_to_string(&file).unwrap();
        assert!(got.starts_with("-i -t -f weir@host\nTo: root\nFrom: weir@host\nSubject: tank?Bcc: all\n"), "{got}");
        assert!(got.ends_with("\n\nIt is DEGRADED.\n"), "{got}");
        let absent = Receiver::Mail { program: PathBuf::from("/nowhere/sendmail"), to: "root".into(), from: None };
        assert!(deliver(&absent, &message()).is_err());
    }

    /// Answers one request, and returns it.
    fn server(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook?token=secret", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut got = Vec::new();
            let mut part = [0; 4096];
            while !got.ends_with(b"}") {
                match stream.read(&mut part).unwrap() {
                    0 => break,
                    n => got.extend_from_slice(&part[..n]),
                }
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(got).unwrap()
        });
        (url, thread)
    }

    #[test]
    fn a_webhook_has_the_alert_and_errors_do_not_have_its_secret() {
        let (url, thread) = server("HTTP/1.1 204 No Content\r\n\r\n");
        assert_eq!(deliver(&Receiver::Webhook(Webhook::Url(url)), &message()), Ok(()));
        let got = thread.join().unwrap();
        assert!(got.starts_with("POST /hook?token=secret HTTP/1.1\r\n"), "{got}");
        assert!(got.to_lowercase().contains("content-type: application/json") && got.contains("{\"event\""), "{got}");
        for (answer, why) in [
            ("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "the server answered 500"),
            ("HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "answered 302"),
            ("malformed\r\n\r\n", "HTTP failed"),
        ] {
            let (url, thread) = server(answer);
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("url");
            std::fs::write(&file, format!("{url}\n")).unwrap();
            let error = deliver(&Receiver::Webhook(Webhook::File(file)), &message()).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
            thread.join().unwrap();
        }
        let closed = deliver(&Receiver::Webhook(Webhook::Url("http://127.0.0.1:1/?secret".into())), &message());
        assert!(!closed.unwrap_err().contains("secret"));
    }
}
