//! A session with all calls that change something.

use crate::session::{Client, HOST, Memory, Protocol, State, done, read};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, LocalBoxFuture, ready};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use weir_engine::Engine;
use weir_files::{Attributes, FileKind, FileSystem};
use weir_machine::Request;
use weir_nfs::wire::{Decoder, Encoder};
use weir_sim::SimStream;

const PROGRAM: u32 = 100_003;
const LOOKUP: u32 = 3;
const EXIST: u32 = 17;
const NOENT: u32 = 2;

/// A client that repeats its calls from the same port, as NFS clients do, or not.
pub struct Nfs {
    pub same_port: bool,
}

/// A call: the procedure, the names of its handles and of the file that it makes, and the rest of its arguments.
struct Step {
    procedure: u32,
    arguments: fn(&Memory, &mut Encoder),
    makes: Option<&'static str>,
    is_stable: bool,
}

fn step(procedure: u32, arguments: fn(&Memory, &mut Encoder)) -> Step {
    Step { procedure, arguments, makes: None, is_stable: true }
}

/// `sattr3` with mode and size.
fn sattr(out: &mut Encoder, mode: u32, size: Option<u64>) {
    out.u32(1).u32(mode).u32(0).u32(0);
    match size {
        Some(size) => out.u32(1).u64(size),
        None => out.u32(0),
    };
    out.u32(0).u32(0);
}

/// Arguments of a WRITE.
fn write(out: &mut Encoder, file: &[u8], offset: u64, stable: u32, data: &[u8]) {
    out.opaque(file).u64(offset).u32(data.len() as u32).u32(stable).opaque(data);
}

fn steps() -> Vec<Step> {
    vec![
        // MKDIR d
        Step {
            makes: Some("d"),
            ..step(9, |of, out| {
                out.opaque(&of["root"]).opaque(b"d");
                sattr(out, 0o755, None);
            })
        },
        // CREATE d/f, guarded
        Step {
            makes: Some("f"),
            ..step(8, |of, out| {
                out.opaque(&of["d"]).opaque(b"f").u32(1);
                sattr(out, 0o644, None);
            })
        },
        // WRITE and COMMIT
        Step { is_stable: false, ..step(7, |of, out| write(out, &of["f"], 0, 0, &[1; 8192])) },
        Step { is_stable: false, ..step(7, |of, out| write(out, &of["f"], 4096, 0, &[2; 4096])) },
        step(21, |of, out| {
            out.opaque(&of["f"]).u64(0).u32(0);
        }),
        // WRITE with FILE_SYNC, SETATTR
        step(7, |of, out| write(out, &of["f"], 8192, 2, &[3; 4096])),
        step(2, |of, out| {
            out.opaque(&of["f"]);
            sattr(out, 0o600, Some(10_000));
            out.u32(0);
        }),
        // SYMLINK d/s, MKNOD d/p, LINK d/g, RENAME d/f to h
        step(10, |of, out| {
            out.opaque(&of["d"]).opaque(b"s");
            sattr(out, 0o777, None);
            out.opaque(b"over/there");
        }),
        step(11, |of, out| {
            out.opaque(&of["d"]).opaque(b"p").u32(7);
            sattr(out, 0o600, None);
        }),
        step(15, |of, out| {
            out.opaque(&of["f"]).opaque(&of["d"]).opaque(b"g");
        }),
        step(14, |of, out| {
            out.opaque(&of["d"]).opaque(b"f").opaque(&of["root"]).opaque(b"h");
        }),
        // CREATE d/x, exclusive; WRITE and COMMIT
        Step {
            makes: Some("x"),
            ..step(8, |of, out| {
                out.opaque(&of["d"]).opaque(b"x").u32(2).fixed(b"verifier");
            })
        },
        Step { is_stable: false, ..step(7, |of, out| write(out, &of["x"], 0, 0, &[4; 3000])) },
        step(21, |of, out| {
            out.opaque(&of["x"]).u64(0).u32(0);
        }),
        // REMOVE d/p, MKDIR e, RMDIR e
        step(12, |of, out| {
            out.opaque(&of["d"]).opaque(b"p");
        }),
        step(9, |of, out| {
            out.opaque(&of["root"]).opaque(b"e");
            sattr(out, 0o700, None);
        }),
        step(13, |of, out| {
            out.opaque(&of["root"]).opaque(b"e");
        }),
    ]
}

/// A call of user 0 with its record mark.
fn call(program: u32, procedure: u32, xid: u32, arguments: &Encoder) -> Vec<u8> {
    let mut out = Encoder::default();
    for word in [xid, 0, 2, program, 3, procedure] {
        out.u32(word);
    }
    let mut credential = Encoder::default();
    credential.u32(0).opaque(b"test").u32(0).u32(0).u32(0);
    out.u32(1).opaque(&credential.bytes).u32(0).u32(0);
    out.bytes.extend_from_slice(&arguments.bytes);
    [&(1 << 31 | out.bytes.len() as u32).to_be_bytes()[..], &out.bytes].concat()
}

/// Status and the rest of results.
fn results(reply: &[u8]) -> (u32, Decoder<'_>) {
    let mut input = Decoder::new(&reply[24..]);
    (input.u32().unwrap(), input)
}

impl Protocol for Nfs {
    fn steps(&self) -> usize {
        steps().len()
    }

    fn call(&self, number: usize, memory: &Memory) -> Vec<u8> {
        let step = &steps()[number];
        let mut arguments = Encoder::default();
        (step.arguments)(memory, &mut arguments);
        call(PROGRAM, step.procedure, 100 + number as u32, &arguments)
    }

    fn reply<'a>(&self, stream: &'a mut SimStream) -> BoxFuture<'a, Option<Vec<u8>>> {
        async move {
            let mark = read(stream, 4).await?;
            let len = u32::from_be_bytes(mark.try_into().unwrap()) & !(1 << 31);
            read(stream, len as usize).await
        }
        .boxed()
    }

    fn succeeded(&self, number: usize, reply: &[u8], repeated: bool) -> bool {
        let repeated = |of: &[u32]| repeated && of.contains(&steps()[number].procedure);
        match results(reply).0 {
            0 => true,
            EXIST => repeated(&[8, 9, 10, 11, 15]),
            NOENT => repeated(&[12, 13, 14]),
            _ => false,
        }
    }

    fn remember<'a>(&'a self, number: usize, reply: &'a [u8], client: &'a mut Client<'_>) -> LocalBoxFuture<'a, ()> {
        let step = &steps()[number];
        let Some(name) = step.makes else { return done(()) };
        async move {
            let (status, mut input) = results(reply);
            let handle = match status {
                0 => {
                    assert_eq!(input.u32(), Some(1), "a handle follows");
                    input.opaque(64).unwrap().to_vec()
                }
                // It had been made before.
                _ => {
                    let dir = if name == "d" { "root" } else { "d" };
                    let mut arguments = Encoder::default();
                    arguments.opaque(&client.memory[dir]).opaque(name.as_bytes());
                    let reply = client.exchange(&call(PROGRAM, LOOKUP, 1, &arguments), None, |_| {}).await;
                    let (status, mut input) = results(&reply);
                    assert_eq!(status, 0, "{name} exists");
                    input.opaque(64).unwrap().to_vec()
                }
            };
            client.memory.insert(name, handle);
        }
        .boxed_local()
    }

    fn stable_items(&self, number: usize, _: usize) -> Vec<usize> {
        if steps()[number].is_stable { vec![0] } else { Vec::new() }
    }

    fn addresses(&self, connection: u16) -> (SocketAddr, SocketAddr) {
        let port = if self.same_port { 700 } else { 700 + connection };
        (SocketAddr::new(HOST, 2049), SocketAddr::new(HOST, port))
    }

    fn begin<'a>(&'a self, _: &'a mut SimStream) -> BoxFuture<'a, bool> {
        ready(true).boxed()
    }

    fn first<'a>(&'a self, client: &'a mut Client<'_>) -> LocalBoxFuture<'a, ()> {
        async move {
            let mut arguments = Encoder::default();
            arguments.opaque(b"/tank");
            let reply = client.exchange(&call(100_005, 1, 1, &arguments), None, |_| {}).await;
            let (status, mut input) = results(&reply);
            assert_eq!(status, 0, "mounted");
            client.memory.insert("root", input.opaque(64).unwrap().to_vec());
        }
        .boxed_local()
    }

    /// All files with kind, mode, owner, links, size and contents, as text.
    fn state<'a>(&'a self, engine: &'a Arc<Engine>) -> LocalBoxFuture<'a, State> {
        async move {
            let rq = &Request::internal("test");
            let files = engine.file_system(rq, "tank").await.unwrap();
            let mut out = String::new();
            let mut dirs = vec![(String::new(), files.root())];
            while let Some((path, dir)) = dirs.pop() {
                for entry in files.directories().read_dir(rq, dir, 0, 100).await.unwrap() {
                    let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
                    let about = files.attrs().get(rq, entry.object).await.unwrap();
                    describe(rq, &files, &path, &about, &mut out).await;
                    if about.kind == FileKind::Directory {
                        dirs.push((path, entry.object));
                    }
                }
            }
            let mut lines: Vec<&str> = out.lines().collect();
            lines.sort_unstable();
            vec![lines.join("\n").into_bytes()]
        }
        .boxed_local()
    }
}

/// Appends the line of a file.
async fn describe(rq: &Request, files: &FileSystem, path: &str, about: &Attributes, out: &mut String) {
    let (kind, mode, links, size) = (about.kind, about.mode, about.links, about.size_bytes);
    write!(out, "{path} {kind:?} {mode:o} {}:{} links {links} size {size}", about.uid, about.gid).unwrap();
    match kind {
        FileKind::Regular => {
            let bytes = files.contents().read(rq, about.object, 0, size as usize).await.unwrap();
            for run in bytes.chunk_by(|one, other| one == other) {
                write!(out, " {}x{}", run[0], run.len()).unwrap();
            }
        }
        FileKind::Symlink => write!(out, " {:?}", files.contents().read_link(rq, about.object).await.unwrap()).unwrap(),
        _ => {}
    }
    out.push('\n');
}
