//! The stores: how each is found, started, and reached.

use crate::process::Running;
use crate::zdb::output;
use crate::{JudgeError, io, wrong};
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::{HttpRequest, HttpRequestBody};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Names of the stores.
pub const KINDS: [&str; 5] = ["folder", "versitygw", "moto", "azurite", "google"];
/// Time within which a server answers.
const READY_WITHIN: Duration = Duration::from_secs(60);
const BUCKET: &str = "bucket";
const KEY: &str = "tester";
const SECRET: &str = "testers-secret";
/// As Azure wants it: in base64.
const AZURE_SECRET: &str = "dGVzdGVycy1zZWNyZXQ=";

/// A store that runs, with an empty bucket.
pub struct Started {
    /// Name of the store.
    pub kind: &'static str,
    /// Variables of the environment that reach it.
    pub environment: Vec<(&'static str, String)>,
    /// The server's log of requests.
    log: Option<PathBuf>,
    folder: tempfile::TempDir,
    _server: Option<Running>,
}

/// A server's program: named by a variable, in `PATH`, or where `--fetch --stores` puts it.
fn program(variable: &str, name: &str) -> Result<PathBuf, JudgeError> {
    let fetched = || {
        let exe = std::env::current_exe().ok()?;
        exe.ancestors().map(|above| above.join("judges/stores/bin").join(name)).find(|path| path.is_file())
    };
    let in_path = || {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
    };
    let named = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_file());
    named.or_else(in_path).or_else(fetched).ok_or_else(|| JudgeError::Missing {
        what: format!("{name} is not installed: cargo xtask judge --fetch --stores, or {variable}"),
    })
}

fn free_port() -> Result<u16, JudgeError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(io("a port"))?;
    Ok(listener.local_addr().map_err(io("a port"))?.port())
}

/// The command that starts a server, and its log of requests if it writes one. Its data are below `folder`.
fn command(kind: &str, port: u16, folder: &Path) -> Result<(Command, Option<PathBuf>), JudgeError> {
    let buckets = folder.join("buckets");
    std::fs::create_dir_all(buckets.join(BUCKET)).map_err(io("a folder"))?;
    let port = port.to_string();
    Ok(match kind {
        "versitygw" => {
            let mut command = Command::new(program("WEIR_VERSITYGW", "versitygw")?);
            command.env("ROOT_ACCESS_KEY", KEY).env("ROOT_SECRET_KEY", SECRET);
            let access = folder.join("requests.log");
            command.args(["--port", &format!("127.0.0.1:{port}"), "--access-log"]).arg(&access);
            command.arg("posix").arg(&buckets);
            (command, Some(access))
        }
        "azurite" => {
            let mut command = Command::new(program("WEIR_AZURITE", "azurite-blob")?);
            command.env("AZURITE_ACCOUNTS", format!("{KEY}:{AZURE_SECRET}"));
            command.args(["--blobHost", "127.0.0.1", "--blobPort", &port, "--silent", "--skipApiVersionCheck"]);
            command.args(["--disableTelemetry", "--location"]).arg(&buckets);
            (command, None)
        }
        _ => {
            let mut command = Command::new(program("WEIR_MOTO_SERVER", "moto_server")?);
            command.args(["-H", "127.0.0.1", "-p", &port]);
            (command, None)
        }
    })
}

impl Started {
    /// Starts a store.
    ///
    /// # Errors
    /// Its program is missing or does not answer.
    pub fn new(kind: &'static str) -> Result<Started, JudgeError> {
        Self::in_folder(kind, tempfile::tempdir().map_err(io("a folder"))?)
    }

    /// Starts a store with its data in a new folder below `parent`.
    ///
    /// # Errors
    /// As of [`Started::new`].
    pub fn within(kind: &'static str, parent: &Path) -> Result<Started, JudgeError> {
        Self::in_folder(kind, tempfile::tempdir_in(parent).map_err(io("a folder"))?)
    }

    fn in_folder(kind: &'static str, folder: tempfile::TempDir) -> Result<Started, JudgeError> {
        if kind == "folder" {
            return Ok(Started { kind, environment: Vec::new(), log: None, folder, _server: None });
        }
        if kind == "google" {
            let port = super::google::start()?;
            let environment = vec![
                ("GOOGLE_BEARER_TOKEN", SECRET.to_owned()),
                ("GOOGLE_BASE_URL", format!("http://127.0.0.1:{port}")),
            ];
            return Ok(Started { kind, environment, log: None, folder, _server: None });
        }
        let port = free_port()?;
        let (mut command, log) = command(kind, port, folder.path())?;
        let server = Running::start(&mut command)?;
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if begun.elapsed() > READY_WITHIN {
                return Err(wrong(kind, "it does not answer within a minute"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let environment = match kind {
            "azurite" => {
                make_container(port)?;
                vec![
                    ("AZURE_STORAGE_ACCOUNT_NAME", KEY.to_owned()),
                    ("AZURE_STORAGE_ACCOUNT_KEY", AZURE_SECRET.to_owned()),
                    ("AZURE_ENDPOINT", format!("http://127.0.0.1:{port}/{KEY}")),
                ]
            }
            _ => {
                if kind == "moto" {
                    make_bucket(port)?;
                }
                vec![
                    ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
                    ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
                    ("AWS_REGION", "us-east-1".to_owned()),
                    ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
                ]
            }
        };
        Ok(Started { kind, environment, log, folder, _server: Some(server) })
    }

    /// The URL of a disk of this name.
    pub fn url(&self, disk: &str) -> String {
        match self.kind {
            "folder" => format!("file://{}/{disk}", self.folder.path().display()),
            "azurite" => format!("az://{BUCKET}/{disk}"),
            "google" => format!("gs://{BUCKET}/{disk}"),
            _ => format!("s3://{BUCKET}/{disk}"),
        }
    }

    /// The folder of a disk, if the store is one.
    pub fn folder_of(&self, disk: &str) -> PathBuf {
        self.folder.path().join(disk)
    }

    /// Runs this program as a client of the store: see [`super::child`].
    ///
    /// # Errors
    /// What the client printed.
    pub fn client(&self, words: &[&str]) -> Result<String, JudgeError> {
        self.program("object-child", words)
    }

    /// Removes the objects of a disk of versitygw, which are files of its folder.
    pub fn remove(&self, disk: &str) {
        // What cannot be removed goes with the folder.
        let _ = std::fs::remove_dir_all(self.folder.path().join("buckets").join(BUCKET).join(disk));
    }

    /// Runs this program as `judge` with what reaches the store in its environment; returns what it printed.
    ///
    /// # Errors
    /// What it printed about its failure.
    pub fn program(&self, judge: &str, words: &[&str]) -> Result<String, JudgeError> {
        let exe = std::env::current_exe().map_err(io("this program"))?;
        let mut command = Command::new(exe);
        command.arg(judge).args(words).envs(self.environment.iter().cloned());
        let out = output(&mut command)?;
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned()),
            false => Err(wrong(words.join(" "), String::from_utf8_lossy(&out.stderr).trim())),
        }
    }

    /// Which conditions the store obeys. Those without which no disk is made are required.
    ///
    /// # Errors
    /// A required one is ignored, or the store fails.
    pub fn abilities(&self) -> Result<String, JudgeError> {
        let url = self.url("abilities");
        if self.kind == "folder" {
            std::fs::create_dir_all(self.folder_of("abilities")).map_err(io("a folder"))?;
        }
        let found = self.client(&["abilities", &url])?;
        let ignored: Vec<&str> = found.lines().filter(|line| line.ends_with(": ignored")).collect();
        if ignored.iter().any(|line| line.starts_with("PUT")) {
            return Err(wrong(url, format!("a disk needs what this store ignores: {}", ignored.join("; "))));
        }
        Ok(found.replace('\n', "; "))
    }

    /// Requests for the objects of a disk that the server has logged, by kind in the order get, put, head, delete; `None` if it
    /// logs none.
    pub fn requests_seen(&self) -> Option<impl Fn(&str) -> Result<[u64; 4], JudgeError> + '_> {
        let log = self.log.as_deref()?;
        Some(move |disk: &str| logged(log, disk))
    }
}

/// Counts the lines of versitygw's access log: an operation, and the key after it.
fn logged(log: &Path, disk: &str) -> Result<[u64; 4], JudgeError> {
    let text = std::fs::read_to_string(log).map_err(io(log.display()))?;
    let mut counts = [0; 4];
    let prefix = format!("{disk}/");
    for line in text.lines() {
        let mut words = line.split_whitespace().skip_while(|word| !word.starts_with("s3_"));
        let operations = ["s3_GetObject", "s3_PutObject", "s3_HeadObject", "s3_DeleteObject"];
        let place = words.next().and_then(|word| operations.iter().position(|known| *known == word));
        if let Some(place) = place.filter(|_| words.next().is_some_and(|key| key.starts_with(&prefix))) {
            counts[place] += 1;
        }
    }
    Ok(counts)
}

/// Makes the bucket by a request without a signature, which moto accepts.
fn make_bucket(port: u16) -> Result<(), JudgeError> {
    let request = http::Request::put(format!("http://127.0.0.1:{port}/{BUCKET}")).body(HttpRequestBody::empty());
    make("moto", port, &request.map_err(|error| wrong("moto", error.to_string()))?)
}

/// Makes the container by a signed request.
fn make_container(port: u16) -> Result<(), JudgeError> {
    let failed = |error: &dyn std::fmt::Display| wrong("azurite", error.to_string());
    let url = format!("http://127.0.0.1:{port}/{KEY}/{BUCKET}?restype=container");
    let request = http::Request::put(url).header("content-length", "0").body(HttpRequestBody::empty());
    let mut request = request.map_err(|error| failed(&error))?;
    let key = AzureAccessKey::try_new(AZURE_SECRET).map_err(|error| failed(&error))?;
    let credential = AzureCredential::AccessKey(key);
    AzureAuthorizer::new(&credential, KEY).try_authorize(&mut request).map_err(|error| failed(&error))?;
    make("azurite", port, &request)
}

/// Sends a request without a body to a server that must make something.
fn make(server: &'static str, port: u16, request: &HttpRequest) -> Result<(), JudgeError> {
    let mut head =
        format!("{} {} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n", request.method(), request.uri());
    for (name, value) in request.headers().iter().filter(|(name, _)| *name != "content-length") {
        head += &format!("{name}: {}\r\n", value.to_str().unwrap_or_default());
    }
    let head = head.replace(&format!("http://127.0.0.1:{port}"), "") + "Content-Length: 0\r\n\r\n";
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(io(server))?;
    stream.write_all(head.as_bytes()).map_err(io(server))?;
    let mut answer = String::new();
    stream.take(4096).read_to_string(&mut answer).map_err(io(server))?;
    let status = answer.lines().next().unwrap_or_default();
    if status.contains(" 20") { Ok(()) } else { Err(wrong(server, format!("the bucket was not made: {status}"))) }
}
