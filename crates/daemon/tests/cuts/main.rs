//! NFS, NBD and iSCSI sessions of which every message is cut once, in both directions, and the power right after it. The client
//! connects again and repeats the call, as clients do. No call is executed twice with another outcome; nothing that was
//! acknowledged as stable is lost.
//!
//! ```text
//!   call  ──┬────┬────┬──►            reply ◄──┬────┬────┬──
//!         before  in  after                 before  in  after        one run per point: each call is cut there once
//!           │     │    │                      │     │     │
//!           └─────┴────┴──── power cut ───────┴─────┴─────┘          from the recording of the disks of that run
//! ```
//!
//! After a power cut, the state must be one that the acknowledged calls allow; then the session goes on to its end, whose
//! state is known.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod iscsi;
mod nbd;
mod nfs;
mod session;

use std::cell::Cell;

use session::{Bug, Point, Protocol, Session};

fn survives_every_cut(protocol: &dyn Protocol) {
    let session = Session::of(protocol, Bug::Nothing);
    let mut powers = 0;
    for point in Point::ALL {
        let run = session.run(point).unwrap_or_else(|why| panic!("{point:?}: {why}"));
        assert_eq!(run.cuts.len(), session.steps(), "{point:?}: every message is cut once");
        powers += session.cut_power(&run.recording, &run.cuts).unwrap_or_else(|why| panic!("{point:?}: {why}"));
    }
    assert_eq!(powers, session.steps() * Point::ALL.len());
}

/// The server answers before the change is stable: something that was acknowledged as stable is lost after some cut.
fn finds_early_answers(protocol: &dyn Protocol) {
    let session = Session::of(protocol, Bug::AnswersEarly);
    let found = Point::ALL.into_iter().find_map(|point| {
        let run = session.run(point).unwrap();
        session.cut_power(&run.recording, &run.cuts).err()
    });
    assert!(found.as_ref().is_some_and(|why| why.contains("the stable state")), "{found:?}");
}

#[test]
fn an_nfs_session_survives_every_cut() {
    survives_every_cut(&nfs::Nfs { same_port: true });
}

#[test]
fn an_nbd_session_survives_every_cut() {
    survives_every_cut(&nbd::Nbd);
}

#[test]
fn iscsi_sessions_survive_every_cut() {
    for write_cache in [true, false] {
        survives_every_cut(&iscsi::Iscsi { write_cache, next: Cell::new(0) });
    }
}

#[test]
fn canary_early_answers_are_found() {
    finds_early_answers(&nfs::Nfs { same_port: true });
    finds_early_answers(&nbd::Nbd);
    finds_early_answers(&iscsi::Iscsi { write_cache: false, next: Cell::new(0) });
}

/// A client that repeats its calls from another port is not recognised: its calls are executed twice.
#[test]
fn canary_calls_that_are_executed_twice_are_found() {
    let session = Session::of(&nfs::Nfs { same_port: false }, Bug::Nothing);
    let found: Vec<Point> = Point::ALL.into_iter().filter(|point| session.run(*point).is_err()).collect();
    // Only if the call had arrived completely, and its reply had not.
    assert_eq!(found, [Point::AfterCall, Point::BeforeReply, Point::InReply]);
}
