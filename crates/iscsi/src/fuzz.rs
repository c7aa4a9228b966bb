//! Fuzz targets: each must return for any input, in time and memory bounded by the input's length.

use crate::login::{Admission, ChapConfig, Credentials, Directory, Login, Next, Parameters, Secret};
use crate::login::{Established, MAX_RECEIVE_BYTES};
use crate::scsi::cdb;
use crate::scsi::execute::{Context, Surroundings, execute};
use crate::scsi::reservations::{Port, Reservations};
use crate::scsi::unit::{Nexus, OpenUnit, Unit};
use crate::session::{Action, MAX_WINDOW, Place, Session};
use crate::wire::text::{binary, number};
use crate::wire::{BHS_BYTES, Bhs, Keys};
use bytes::BytesMut;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use std::io;
use std::sync::Arc;
use weir_front::memory::MemoryDevice;
use weir_machine::entropy::{Entropy, EntropySource};
use weir_machine::{Protocol, Request};

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets of this crate.
pub const TARGETS: &[Target] = &[
    ("iscsi_text", text_target),
    ("iscsi_login", login_target),
    ("iscsi_session", session_target),
    ("iscsi_cdb", cdb_target),
    ("iscsi_reservations", reservations_target),
];

/// Bytes that are not random, so that an input has one result.
struct Fixed;

impl EntropySource for Fixed {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

/// One target without authentication, and one with.
pub struct TwoTargets;

impl Directory for TwoTargets {
    fn admission(&self, _: &str, target: &str) -> Admission {
        let credentials = |user: &str| Credentials { user: user.to_owned(), secret: Secret::new("secret") };
        match target {
            "iqn.open" => Admission::Admitted(None),
            "iqn.chap" => Admission::Admitted(Some(ChapConfig {
                initiator: credentials("user"),
                mutual: Some(credentials("target")),
            })),
            "iqn.closed" => Admission::Forbidden,
            _ => Admission::NotFound,
        }
    }

    fn has_session(&self, tsih: u16, _: [u8; 6]) -> bool {
        tsih == 1
    }

    fn window(&self) -> u32 {
        MAX_WINDOW
    }
}

/// Source of random bytes for tests, which are always the same.
pub fn fixed_entropy() -> Entropy {
    Entropy::new(Arc::new(Fixed))
}

fn text_target(data: &[u8]) {
    if let Some(keys) = Keys::decode(data) {
        let again = Keys::decode(&keys.encode());
        assert_eq!(again.as_ref(), Some(&keys));
        for (_, value) in keys.iter() {
            let _ = (number(value), binary(value));
        }
    }
}

/// Cuts the next unit off: its header, and as much of its data segment as there is.
fn next_unit<'a>(data: &mut &'a [u8]) -> Option<(Bhs, &'a [u8])> {
    let (header, rest) = data.split_first_chunk::<BHS_BYTES>()?;
    let bhs = Bhs(*header);
    let (segment, rest) = rest.split_at(bhs.data_bytes().min(rest.len()));
    *data = rest;
    Some((bhs, segment))
}

fn login_target(mut data: &[u8]) {
    let mut login = Login::new(fixed_entropy(), 9);
    while let Some((bhs, text)) = next_unit(&mut data) {
        let step = login.receive(&TwoTargets, &bhs, text);
        assert!(step.text.len() < 64 << 10);
        if step.next != Next::Request {
            return;
        }
    }
}

/// A session of which the first byte decides the parameters.
fn session_target(data: &[u8]) {
    let Some((first, mut data)) = data.split_first() else { return };
    let parameters = Parameters {
        initial_r2t: first & 1 != 0,
        immediate_data: first & 2 != 0,
        max_r2t: u32::from(first >> 2 & 3) + 1,
        max_burst_bytes: 4096,
        first_burst_bytes: 2048,
        ..Parameters::default()
    };
    let target = (first & 16 == 0).then(|| "iqn.open".to_owned());
    let established =
        Established { initiator: "i".to_owned(), target, isid: [0; 6], cid: 0, parameters, exp_cmd_sn: 0, stat_sn: 0 };
    let mut session: Session<()> = Session::new(&established, 4);
    while let Some((bhs, segment)) = next_unit(&mut data) {
        // A segment that is not there ends the connection.
        if segment.len() < bhs.data_bytes() || segment.len() > MAX_RECEIVE_BYTES as usize {
            return;
        }
        let Ok(place) = session.place(&bhs) else { return };
        let (mut buffer, keep) = match place {
            Place::Skip => (BytesMut::new(), 0),
            Place::Collect(max) => (BytesMut::new(), max),
            Place::Command(_) => (BytesMut::new(), segment.len()),
            Place::Task(itt) => (session.take_buffer(itt).unwrap_or_default(), segment.len()),
        };
        buffer.extend_from_slice(&segment[..keep.min(segment.len())]);
        if let Place::Task(itt) = place {
            session.put_buffer(itt, std::mem::take(&mut buffer));
        }
        let mut actions = session.receive(&bhs, buffer, None);
        while let Some(action) = actions.pop() {
            match action {
                Action::Memory { itt, bytes } if bytes < 1 << 20 => actions.extend(session.granted(itt, ())),
                Action::Execute(ready) if first & 32 == 0 => {
                    session.finish(ready.bhs.itt());
                    if ready.frees_slot {
                        session.numbers().answered();
                    }
                }
                Action::Text { bhs, text, frees_slot } => drop(session.text_reply(&bhs, text, frees_slot)),
                Action::Close(_) | Action::Logout(_) => return,
                _ => {}
            }
        }
        assert!(session.len() < 64, "{} tasks in progress", session.len());
    }
}

/// The surroundings of a unit in memory.
pub struct Alone(pub OpenUnit);

impl Surroundings for Alone {
    fn luns(&self) -> Vec<u16> {
        vec![0]
    }

    fn unit<'a>(&'a self, _: u16, _: &'a Request) -> BoxFuture<'a, Option<OpenUnit>> {
        ready(Some(self.0.clone())).boxed()
    }

    fn store<'a>(&'a self, _: u64, _: Vec<u8>) -> BoxFuture<'a, io::Result<()>> {
        ready(Ok(())).boxed()
    }

    fn abort_commands<'a>(&'a self, _: u64, _: &'a [Port]) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    fn is_aborted(&self) -> bool {
        false
    }
}

/// A command of 16 bytes and its data: decoded, and executed on a small device of which one byte is unreadable.
fn cdb_target(data: &[u8]) {
    let Some((cdb, data)) = data.split_first_chunk::<16>() else { return };
    let Ok(command) = cdb::decode(cdb) else { return };
    let device = Arc::new(MemoryDevice::new(vec![1; 16 << 10]).with_bad_byte(9000).with_writing(true).with_id(1));
    let unit = Arc::new(Unit::new(1, Reservations::default()));
    let nexus = Nexus { session: 1, initiator: "i".to_owned(), isid: [0; 6], target: "iqn.open".to_owned() };
    unit.attach(&nexus, 16 << 10);
    unit.take_attention(1, 16 << 10);
    let open = OpenUnit { unit, device, write_cache: true };
    let rq =
        Request::new(&weir_machine::Client::unaccounted(Protocol::Iscsi, "fuzz"), weir_machine::Operation::Unknown);
    let announced_bytes = command.data_out_bytes().min(data.len() as u64) as u32;
    let around = Alone(open.clone());
    let context = Context { open: &open, nexus: &nexus, rq: &rq, cdb, announced_bytes, around: &around };
    let sent = bytes::Bytes::copy_from_slice(&data[..announced_bytes as usize]);
    let outcome = execute(&context, sent).now_or_never();
    assert!(outcome.is_some_and(|outcome| outcome.data.iter().map(|piece| piece.len()).sum::<usize>() < 1 << 20));
}

fn reservations_target(data: &[u8]) {
    if let Some(reservations) = Reservations::decode(data) {
        assert_eq!(Reservations::decode(&reservations.encode()), Some(reservations.clone()));
        assert!(reservations.full_status().len() < 1 << 20);
    }
}
