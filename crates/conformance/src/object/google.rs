//! A server of the judge's own that speaks the part of Google's XML API that a disk needs, in memory.
//!
//! No emulator that can be had speaks it: fake-gcs-server 1.56 refuses a PUT that has no signature in its URL, and storage-testbench
//! 0.45 answers one without an ETag. Written after Google's reference of the XML API ("Request preconditions", "HTTP status codes"): as there,
//! ETags depend on the bytes alone, and generations grow.

use crate::{JudgeError, io};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Most bytes of an object that are taken: more than a disk has in one.
const MAX_BODY_BYTES: usize = 64 << 20;
/// A date: the client wants one, and nothing depends on it.
const DATE: &str = "Thu, 01 Jan 1970 00:00:00 GMT";

struct Bucket {
    /// Generation and bytes by name, as the URL has it.
    objects: BTreeMap<String, (u64, Vec<u8>)>,
    last_generation: u64,
}

impl Default for Bucket {
    fn default() -> Self {
        // As Google's, in microseconds since 1970: a small number is that of no object.
        Bucket { objects: BTreeMap::new(), last_generation: 1_700_000_000_000_000 }
    }
}

#[derive(Default)]
struct Request {
    method: String,
    name: String,
    generation_match: Option<u64>,
    range: Option<(usize, usize)>,
    body: Vec<u8>,
}

struct Answer {
    status: &'static str,
    headers: String,
    body: Vec<u8>,
}

/// Starts the server, which ends with the process; returns its port.
///
/// # Errors
/// No port is free.
pub fn start() -> Result<u16, JudgeError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(io("a port"))?;
    let port = listener.local_addr().map_err(io("a port"))?.port();
    let bucket = Arc::new(Mutex::new(Bucket::default()));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let bucket = bucket.clone();
            // A connection that ends in the midst of a request is the client's matter.
            std::thread::spawn(move || serve(&stream, &bucket));
        }
    });
    Ok(port)
}

fn serve(stream: &TcpStream, bucket: &Mutex<Bucket>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let request = read(&mut reader)?;
        let answer = bucket.lock().unwrap_or_else(PoisonError::into_inner).answer(&request);
        let Answer { status, headers, body } = answer;
        let head = format!("HTTP/1.1 {status}\r\nDate: {DATE}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        let mut out = head.into_bytes();
        if request.method != "HEAD" {
            out.extend(body);
        }
        let mut writer = stream;
        writer.write_all(&out).ok()?;
    }
}

/// Reads a request; `None` at the end, or if it is none.
fn read(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let mut request = Request { method: words.next()?.into(), name: words.next()?.into(), ..Request::default() };
    let mut body_bytes = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => body_bytes = value.parse().ok().filter(|bytes| *bytes <= MAX_BODY_BYTES)?,
            "x-goog-if-generation-match" => request.generation_match = Some(value.parse().ok()?),
            "range" => {
                let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                request.range = Some((first.parse().ok()?, last.parse().ok()?));
            }
            _ => {}
        }
    }
    request.body = vec![0; body_bytes];
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}

fn failed(status: &'static str, code: &str) -> Answer {
    let body = format!("<?xml version='1.0'?><Error><Code>{code}</Code><Message>as Google says it</Message></Error>");
    Answer { status, headers: "Content-Type: application/xml\r\n".into(), body: body.into() }
}

/// Headers that name a version.
fn version(generation: u64, bytes: &[u8]) -> String {
    let digest = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |d, b| (d ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    format!("ETag: \"{digest:032x}\"\r\nx-goog-generation: {generation}\r\nLast-Modified: {DATE}\r\n")
}

impl Bucket {
    fn answer(&mut self, request: &Request) -> Answer {
        let now = self.objects.get(&request.name);
        // 0 is met if there is no object.
        if request.generation_match.is_some_and(|wanted| wanted != now.map_or(0, |(generation, _)| *generation)) {
            return failed("412 Precondition Failed", "PreconditionFailed");
        }
        match (request.method.as_str(), now) {
            ("PUT", _) => {
                self.last_generation += 1;
                let generation = self.last_generation;
                self.objects.insert(request.name.clone(), (generation, request.body.clone()));
                Answer { status: "200 OK", headers: version(generation, &request.body), body: Vec::new() }
            }
            ("GET" | "HEAD" | "DELETE", None) => failed("404 Not Found", "NoSuchKey"),
            ("DELETE", Some(_)) => {
                self.objects.remove(&request.name);
                Answer { status: "204 No Content", headers: String::new(), body: Vec::new() }
            }
            ("GET" | "HEAD", Some((generation, bytes))) => {
                let headers = version(*generation, bytes);
                let Some((first, last)) = request.range else {
                    return Answer { status: "200 OK", headers, body: bytes.clone() };
                };
                let end = bytes.len().min(last.saturating_add(1));
                let Some(part) = bytes.get(first..end).filter(|part| !part.is_empty()) else {
                    return failed("416 Requested Range Not Satisfiable", "InvalidRange");
                };
                let headers = format!("{headers}Content-Range: bytes {first}-{}/{}\r\n", end - 1, bytes.len());
                Answer { status: "206 Partial Content", headers, body: part.to_vec() }
            }
            _ => failed("405 Method Not Allowed", "MethodNotAllowed"),
        }
    }
}
