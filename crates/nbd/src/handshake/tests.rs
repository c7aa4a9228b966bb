use super::*;
use crate::fuzz::small_exports;
use std::sync::Arc;
use weir_front::memory::MemoryDevice;

fn header(option: u32, len: u32) -> Vec<u8> {
    [&wire::OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// A handshake that has received the client flags.
fn begun(flags: u32) -> Handshake {
    let (mut handshake, step) = Handshake::begin(TlsMode::Off);
    assert_eq!(step.send, [&b"NBDMAGICIHAVEOPT"[..], &[0, 3]].concat());
    let step = handshake.receive(&small_exports(), &flags.to_be_bytes());
    assert_eq!(step.next, NextAction::Read(16));
    handshake
}

fn send(handshake: &mut Handshake, option: u32, data: &[u8]) -> HandshakeStep {
    let step = handshake.receive(&small_exports(), &header(option, data.len() as u32));
    if data.is_empty() {
        return step;
    }
    assert_eq!(step, HandshakeStep { send: Vec::new(), next: NextAction::Read(data.len()) });
    handshake.receive(&small_exports(), data)
}

/// Type and data of each reply in a step.
fn replies(step: &HandshakeStep) -> Vec<(u32, Vec<u8>)> {
    let mut reader = Reader::new(&step.send);
    let mut all = Vec::new();
    while reader.u64() == Some(wire::OPTION_REPLY_MAGIC) {
        reader.u32().unwrap();
        let kind = reader.u32().unwrap();
        let len = reader.u32().unwrap() as usize;
        all.push((kind, reader.take(len).unwrap().to_vec()));
    }
    all
}

fn named(name: &str, rest: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), rest].concat()
}

#[test]
fn go_describes_the_export_and_starts_transmission() {
    let mut handshake = begun(3);
    let step = send(&mut handshake, option::GO, &named("p/v", &[0, 1, 0, 1]));
    let wanted = Negotiated { export: "p/v".into(), structured: false, allocation: false, writable: false };
    assert_eq!(step.next, NextAction::Serve(wanted));
    let replies = replies(&step);
    assert_eq!(replies[0].1, [&[0, 0][..], &65_536u64.to_be_bytes(), &[0x05, 0x07]].concat());
    assert_eq!(replies[1].1, b"\0\x01p/v");
    assert_eq!(replies[2].1, [0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 0x02, 0, 0, 0]);
    assert_eq!(replies[3], (reply::ACK, Vec::new()));
}

#[test]
fn meta_contexts_require_structured_replies() {
    let mut handshake = begun(3);
    let query = named("p/v", &[&1u32.to_be_bytes()[..], &named("base:allocation", &[])].concat());
    let early = send(&mut handshake, option::SET_META_CONTEXT, &query);
    assert_eq!(replies(&early)[0].0, reply::ERR_INVALID);
    assert_eq!(replies(&send(&mut handshake, option::STRUCTURED_REPLY, &[]))[0].0, reply::ACK);
    let set = replies(&send(&mut handshake, option::SET_META_CONTEXT, &query));
    assert_eq!(set[0], (reply::META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec()));
    let NextAction::Serve(negotiated) = send(&mut handshake, option::GO, &named("p/v", &[0, 0])).next else { panic!() };
    assert!(negotiated.structured && negotiated.allocation);
}

#[test]
fn a_meta_context_applies_to_its_export_until_the_next_selection() {
    let query = |name: &str, context: &str| named(name, &[&1u32.to_be_bytes()[..], &named(context, &[])].concat());
    for (last, export, wanted) in
        [("base:allocation", "p/v", true), ("base:allocation", "p/w", false), ("other:thing", "p/v", false)]
    {
        let mut handshake = begun(3);
        send(&mut handshake, option::STRUCTURED_REPLY, &[]);
        send(&mut handshake, option::SET_META_CONTEXT, &query("p/v", "base:allocation"));
        send(&mut handshake, option::SET_META_CONTEXT, &query("p/v", last));
        let NextAction::Serve(negotiated) = send(&mut handshake, option::GO, &named(export, &[0, 0])).next else {
            panic!()
        };
        assert_eq!(negotiated.allocation, wanted, "{last} {export}");
    }
    let mut handshake = begun(3);
    send(&mut handshake, option::STRUCTURED_REPLY, &[]);
    for queries in [&0u32.to_be_bytes()[..], &[&1u32.to_be_bytes()[..], &named("base:", &[])].concat()] {
        let listed = replies(&send(&mut handshake, option::LIST_META_CONTEXT, &named("p/v", queries)));
        assert_eq!(listed[0], (reply::META_CONTEXT, b"\0\0\0\0base:allocation".to_vec()));
    }
}

#[test]
fn export_name_replies_without_options() {
    let mut handshake = begun(1);
    let step = send(&mut handshake, option::EXPORT_NAME, b"p/w");
    assert_eq!(step.send, [&5000u64.to_be_bytes()[..], &[0x05, 0x07], &[0; 124]].concat());
    assert!(matches!(step.next, NextAction::Serve(negotiated) if negotiated.export == "p/w"));
    assert_eq!(send(&mut begun(3), option::EXPORT_NAME, b"p/w").send.len(), 10);
    assert!(
        matches!(send(&mut begun(3), option::EXPORT_NAME, &[]).next, NextAction::Serve(negotiated) if negotiated.export == "p/v")
    );
    assert_eq!(send(&mut begun(3), option::EXPORT_NAME, b"p/x").next, NextAction::Close);
}

#[test]
fn malformed_options_are_rejected_and_the_handshake_continues() {
    let mut handshake = begun(3);
    let mut refused = |option, data: &[u8]| {
        let step = send(&mut handshake, option, data);
        assert_eq!(step.next, NextAction::Read(16));
        replies(&step)[0].0
    };
    assert_eq!(refused(option::STARTTLS, &[]), reply::ERR_POLICY);
    assert_eq!(refused(99, b"what"), reply::ERR_UNSUP);
    assert_eq!(refused(option::LIST, b"x"), reply::ERR_INVALID);
    assert_eq!(refused(option::STRUCTURED_REPLY, b"x"), reply::ERR_INVALID);
    assert_eq!(refused(option::GO, &[0xff; 8]), reply::ERR_INVALID);
    assert_eq!(refused(option::INFO, &named("p/x", &[0, 0])), reply::ERR_UNKNOWN);
    assert_eq!(refused(option::INFO, &named("p/v", &[0, 9])), reply::ERR_INVALID);
    let names = replies(&send(&mut handshake, option::LIST, &[]));
    assert_eq!(names[0], (reply::SERVER, named("p/v", &[])));
    assert_eq!((names.len(), names[2].0), (3, reply::ACK));
    let long = handshake.receive(&small_exports(), &header(option::LIST, MAX_OPTION_BYTES + 1));
    assert_eq!(long.next, NextAction::Skip(MAX_OPTION_BYTES + 1));
    assert_eq!(replies(&handshake.receive(&small_exports(), &[]))[0].0, reply::ERR_TOO_BIG);
    assert_eq!(handshake.receive(&small_exports(), &header(option::LIST, u32::MAX)).next, NextAction::Close);
    assert_eq!(send(&mut begun(3), option::ABORT, &[]).next, NextAction::Close);
    assert_eq!(begun(3).receive(&small_exports(), &[0; 16]).next, NextAction::Close);
    let (mut handshake, _) = Handshake::begin(TlsMode::Off);
    assert_eq!(handshake.receive(&small_exports(), &[0, 0, 0, 4]).next, NextAction::Close);
}

#[test]
fn a_client_that_sends_too_many_options_is_disconnected() {
    let mut handshake = begun(3);
    let last = (0..=MAX_OPTIONS).map(|_| send(&mut handshake, option::LIST, &[]).next).last();
    assert_eq!(last, Some(NextAction::Close));
}

#[test]
fn writable_flags_need_a_writable_export() {
    let mut exports = small_exports();
    let writable = MemoryDevice::new(vec![1; 512]).with_writing(true);
    exports.0.insert("p/rw".into(), Arc::new(writable));
    for (name, flags) in [("p/rw", [0x0d, 0x6d]), ("p/w", [0x05, 0x07])] {
        let (mut handshake, _) = Handshake::begin(TlsMode::Off);
        handshake.receive(&exports, &3u32.to_be_bytes());
        handshake.receive(&exports, &header(option::EXPORT_NAME, name.len() as u32));
        let step = handshake.receive(&exports, name.as_bytes());
        assert_eq!(step.send[8..10], flags, "{name}");
        assert!(matches!(step.next, NextAction::Serve(negotiated) if negotiated.writable == (flags[0] == 0x0d)));
    }
}

#[test]
fn tls_is_started_once_and_forgets_what_came_before() {
    let begun = |mode| {
        let (mut handshake, _) = Handshake::begin(mode);
        handshake.receive(&small_exports(), &3u32.to_be_bytes());
        handshake
    };
    let first = |step: &HandshakeStep| replies(step)[0].0;
    let mut off = begun(TlsMode::Off);
    assert_eq!(first(&send(&mut off, option::STARTTLS, &[])), reply::ERR_POLICY);
    let mut allowed = begun(TlsMode::Allowed);
    assert_eq!(first(&send(&mut allowed, option::STRUCTURED_REPLY, &[])), reply::ACK);
    assert_eq!(first(&send(&mut allowed, option::STARTTLS, b"x")), reply::ERR_INVALID);
    let step = send(&mut allowed, option::STARTTLS, &[]);
    assert_eq!((first(&step), step.next), (reply::ACK, NextAction::StartTls));
    assert_eq!(first(&send(&mut allowed, option::STARTTLS, &[])), reply::ERR_INVALID, "once");
    let NextAction::Serve(negotiated) = send(&mut allowed, option::GO, &named("p/v", &[0, 0])).next else {
        panic!("it is served")
    };
    assert!(!negotiated.structured, "negotiated in clear text");
    let mut required = begun(TlsMode::Required);
    for option in [option::LIST, option::GO, option::INFO, option::STRUCTURED_REPLY, 99] {
        assert_eq!(first(&send(&mut required, option, &[])), reply::ERR_TLS_REQUIRED, "{option}");
    }
    assert_eq!(send(&mut required, option::STARTTLS, &[]).next, NextAction::StartTls);
    assert!(matches!(send(&mut required, option::GO, &named("p/v", &[0, 0])).next, NextAction::Serve(_)));
    assert_eq!(send(&mut begun(TlsMode::Required), option::EXPORT_NAME, b"p/v").next, NextAction::Close);
}
