use super::*;
use crate::scsi::execute::{Outcome, status};
use crate::wire::bhs::{FLAG_CONTINUE, FLAG_FINAL, FLAG_READ, FLAG_STATUS, FLAG_WRITE, opcode, reject as reason};
use bytes::Bytes;
use weir_front::Pieces;

fn established(change: impl FnOnce(&mut Parameters)) -> Established {
    let mut parameters = Parameters { max_burst_bytes: 4096, first_burst_bytes: 1024, ..Parameters::default() };
    change(&mut parameters);
    let target = Some("iqn.t".to_owned());
    Established { initiator: "i".into(), target, isid: [0; 6], cid: 7, parameters, exp_cmd_sn: 10, stat_sn: 1 }
}

fn session(change: impl FnOnce(&mut Parameters)) -> Session<()> {
    Session::new(&established(change), 4)
}

/// WRITE (10) of this many blocks.
fn write(itt: u32, cmd_sn: u32, blocks: u8, flags: u8) -> Bhs {
    let mut bhs = Bhs::new(opcode::COMMAND).with_flags(flags | FLAG_WRITE).with_itt(itt);
    (bhs.0[32], bhs.0[40]) = (0x2a, blocks);
    bhs.with_word(20, u32::from(blocks) * 512).with_word(24, cmd_sn)
}

fn read(itt: u32, cmd_sn: u32) -> Bhs {
    let mut bhs = Bhs::new(opcode::COMMAND).with_flags(FLAG_FINAL | FLAG_READ).with_itt(itt);
    (bhs.0[32], bhs.0[40]) = (0x28, 1);
    bhs.with_word(20, 512).with_word(24, cmd_sn)
}

fn data_out(itt: u32, ttt: u32, data_sn: u32, offset: u32, flags: u8) -> Bhs {
    Bhs::new(opcode::DATA_OUT)
        .with_flags(flags)
        .with_itt(itt)
        .with_ttt(ttt)
        .with_word(36, data_sn)
        .with_word(40, offset)
}

/// Sends a unit as the server does.
fn send(session: &mut Session<()>, mut bhs: Bhs, data: &[u8], memory: bool) -> Result<Vec<Action<()>>, &'static str> {
    bhs.set_data_bytes(data.len());
    let place = session.place(&bhs)?;
    let mut buffer = match place {
        Place::Task(itt) => session.take_buffer(itt).unwrap(),
        _ => BytesMut::new(),
    };
    if place != Place::Skip {
        buffer.extend_from_slice(data);
    }
    if let Place::Task(itt) = place {
        session.put_buffer(itt, std::mem::take(&mut buffer));
    }
    Ok(session.receive(&bhs, buffer, memory.then_some(())))
}

fn sent(actions: &[Action<()>]) -> Vec<Bhs> {
    let unit = |action: &Action<()>| match action {
        Action::Send(pdu) => pdu.bhs,
        other => panic!("{other:?}"),
    };
    actions.iter().map(unit).collect()
}

fn executed(actions: Vec<Action<()>>) -> BytesMut {
    match actions.into_iter().next() {
        Some(Action::Execute(ready)) => ready.data,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_write_is_executed_when_its_data_are_there() {
    let mut all = session(|parameters| parameters.max_r2t = 2);
    // Immediate data, then what was asked for in two sequences.
    let actions = send(&mut all, write(1, 10, 20, FLAG_FINAL), &[1; 1024], false).unwrap();
    assert!(matches!(actions[..], [Action::Memory { itt: 1, bytes: 10240 }]), "{actions:?}");
    let asked = sent(&all.granted(1, ()));
    let ranges: Vec<(u32, u32)> = asked.iter().map(|bhs| (bhs.word(40), bhs.word(44))).collect();
    assert_eq!(ranges, [(1024, 4096), (5120, 4096)]);
    assert!(send(&mut all, data_out(1, asked[0].ttt(), 0, 1024, 0), &[2; 2048], false).unwrap().is_empty());
    let more = send(&mut all, data_out(1, asked[0].ttt(), 1, 3072, FLAG_FINAL), &[2; 2048], false).unwrap();
    let last = sent(&more);
    assert_eq!((last[0].word(36), last[0].word(40), last[0].word(44)), (2, 9216, 1024), "the third R2T");
    assert!(send(&mut all, data_out(1, asked[1].ttt(), 0, 5120, FLAG_FINAL), &[3; 4096], false).unwrap().is_empty());
    let data = executed(send(&mut all, data_out(1, last[0].ttt(), 0, 9216, FLAG_FINAL), &[4; 1024], false).unwrap());
    assert_eq!(data, [vec![1; 1024], vec![2; 4096], vec![3; 4096], vec![4; 1024]].concat());
    assert!(all.finish(1) && all.is_empty());
}

#[test]
fn unsolicited_data_follow_if_that_was_agreed() {
    let mut all = session(|parameters| parameters.initial_r2t = false);
    assert!(send(&mut all, write(1, 10, 2, 0), &[1; 512], false).unwrap().is_empty());
    let data = executed(send(&mut all, data_out(1, NO_TAG, 0, 512, FLAG_FINAL), &[2; 512], false).unwrap());
    assert_eq!(data.len(), 1024);
    send(&mut all, write(2, 11, 2, 0), &[], false).unwrap();
    let beyond = send(&mut all, data_out(2, NO_TAG, 0, 0, FLAG_FINAL), &[0; 1028], false).unwrap();
    assert_eq!(sent(&beyond)[0].0[3], status::CHECK_CONDITION, "beyond the first burst");
    let mut other = session(|_| {});
    let closed = send(&mut other, write(1, 10, 2, 0), &[], false).unwrap();
    assert!(matches!(closed[..], [Action::Close(_)]));
    let mut other = session(|parameters| parameters.immediate_data = false);
    assert!(send(&mut other, write(1, 10, 2, FLAG_FINAL), &[0; 512], false).is_err());
}

#[test]
fn a_command_with_data_out_of_order_fails_after_the_last_unit() {
    let begin = || {
        let mut all = session(|_| {});
        let asked = sent(&send(&mut all, write(1, 10, 8, FLAG_FINAL), &[], true).unwrap());
        (all, asked[0].ttt())
    };
    // Tag, number, offset and length of the first unit, and whether it is the last.
    let wrong = [
        (0, 1, 0, 512, false),
        (0, 0, 512, 512, false),
        (1, 0, 0, 512, false),
        (0, 0, 0, 512, true),
        (0, 0, 0, 4096, false),
        (0, 0, 0, 4608, true),
    ];
    for (ttt, data_sn, offset, len, is_final) in wrong {
        let (mut all, own) = begin();
        let flags = if is_final { FLAG_FINAL } else { 0 };
        let mut actions = send(&mut all, data_out(1, own + ttt, data_sn, offset, flags), &vec![0; len], false).unwrap();
        if !is_final {
            assert!(actions.is_empty(), "the sequence goes on");
            actions = send(&mut all, data_out(1, own, 1, 512, FLAG_FINAL), &[0; 512], false).unwrap();
        }
        let answer = sent(&actions);
        assert_eq!((answer[0].opcode(), answer[0].0[3]), (opcode::RESPONSE, status::CHECK_CONDITION));
        assert!(all.is_empty(), "{ttt} {data_sn} {offset} {len}");
    }
    let (mut all, own) = begin();
    assert!(send(&mut all, data_out(9, own, 0, 0, 0), &[0; 512], false).unwrap().is_empty(), "no such task");
}

#[test]
fn commands_outside_of_the_window_are_ignored() {
    let mut all = session(|_| {});
    assert!(send(&mut all, read(1, 9), &[], false).unwrap().is_empty());
    assert!(send(&mut all, read(1, 14), &[], false).unwrap().is_empty());
    for n in 0..4 {
        assert!(matches!(send(&mut all, read(n, 10 + n), &[], false).unwrap()[..], [Action::Execute(_)]));
    }
    assert!(send(&mut all, read(5, 14), &[], false).unwrap().is_empty(), "the window is full");
    all.finish(0);
    all.numbers().answered();
    let gap = send(&mut all, read(5, 14), &[], false).unwrap();
    assert!(matches!(gap[..], [Action::Execute(_)]));
    all.numbers().answered();
    all.numbers().answered();
    assert!(matches!(send(&mut all, read(6, 16), &[], false).unwrap()[..], [Action::Close(_)]), "15 is missing");
}

#[test]
fn a_tag_in_use_is_rejected() {
    let mut all = session(|_| {});
    send(&mut all, read(1, 10), &[], false).unwrap();
    let rejected = sent(&send(&mut all, read(1, 11), &[], false).unwrap());
    assert_eq!((rejected[0].opcode(), rejected[0].0[2]), (opcode::REJECT, reason::TASK_IN_PROGRESS));
    let rejected = sent(&send(&mut all, Bhs::new(opcode::SNACK), &[], false).unwrap());
    assert_eq!(rejected[0].0[2], reason::SNACK);
    let rejected = sent(&send(&mut all, Bhs::new(0x1f), &[], false).unwrap());
    assert_eq!(rejected[0].0[2], reason::UNSUPPORTED);
}

#[test]
fn aborted_tasks_are_not_answered() {
    let mut all = session(|_| {});
    send(&mut all, read(1, 10), &[], false).unwrap();
    send(&mut all, write(2, 11, 8, FLAG_FINAL), &[], true).unwrap();
    let (freed, executing) = all.abort(|_, _| true);
    assert_eq!((freed, &executing[..]), (1, &[1][..]), "the write had not begun");
    assert!(all.has_any(&executing) && !all.finish(1) && !all.has_any(&executing));
}

#[test]
fn pings_go_both_ways() {
    let mut all = session(|_| {});
    let ping = Bhs::new(opcode::NOP_OUT | 0x40).with_itt(3).with_ttt(NO_TAG);
    let answer = send(&mut all, ping, b"data", false).unwrap();
    let [Action::Send(answer)] = &answer[..] else { panic!("{answer:?}") };
    assert_eq!((answer.bhs.opcode(), answer.bhs.itt(), &answer.data[0][..]), (opcode::NOP_IN, 3, &b"data"[..]));
    let own = all.ping().unwrap();
    assert!(all.ping().is_none(), "the first one was not answered");
    let answer = Bhs::new(opcode::NOP_OUT | 0x40).with_itt(NO_TAG).with_ttt(own.bhs.ttt());
    assert!(send(&mut all, answer, &[], false).unwrap().is_empty());
    assert!(all.ping().is_some());
}

#[test]
fn long_texts_are_split() {
    let mut all = session(|parameters| parameters.max_send_bytes = 512);
    let request = Bhs::new(opcode::TEXT).with_flags(FLAG_CONTINUE).with_itt(3).with_ttt(NO_TAG).with_word(24, 10);
    let more = sent(&send(&mut all, request, b"SendTar", false).unwrap());
    let rest = Bhs::new(opcode::TEXT).with_itt(3).with_ttt(more[0].ttt()).with_word(24, 11);
    let actions = send(&mut all, rest, b"gets=All\0", false).unwrap();
    let [Action::Text { bhs, text, frees_slot: true }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(text, b"SendTargets=All\0");
    let first = all.text_reply(bhs, vec![b'x'; 700], true);
    assert_eq!((first.bhs.flags(), first.bhs.data_bytes()), (FLAG_CONTINUE, 512));
    let next = Bhs::new(opcode::TEXT).with_itt(3).with_ttt(first.bhs.ttt()).with_word(24, 12);
    let last = sent(&send(&mut all, next, &[], false).unwrap());
    assert_eq!((last[0].flags(), last[0].data_bytes(), last[0].ttt()), (FLAG_FINAL, 188, NO_TAG));
}

#[test]
fn data_are_split_into_units_and_bursts() {
    let parameters = Parameters { max_send_bytes: 1024, max_burst_bytes: 1536, ..Parameters::default() };
    let mut command = read(1, 10);
    command.set_word(20, 4000);
    let pieces: Pieces = [700, 1300, 1000].map(|len| Bytes::from(vec![len as u8; len])).into_iter().collect();
    let outcome = Outcome { data: pieces, ..Outcome::default() };
    let units = response(&command, outcome, 0, true, &parameters);
    let shape: Vec<(u32, usize, u8)> =
        units.iter().map(|unit| (unit.bhs.word(40), unit.bhs.data_bytes(), unit.bhs.flags())).collect();
    let last = FLAG_FINAL | FLAG_STATUS | crate::wire::bhs::FLAG_UNDERFLOW;
    assert_eq!(shape, [(0, 1024, 0), (1024, 512, FLAG_FINAL), (1536, 1024, 0), (2560, 440, last)]);
    assert_eq!((units[3].bhs.word(44), units[3].stat_sn, units[3].frees_slot), (1000, StatSn::Next, true));
    let bytes: usize = units.iter().flat_map(|unit| unit.data.iter()).map(Bytes::len).sum();
    assert_eq!(bytes, 3000);
    let failed = Outcome { status: status::CHECK_CONDITION, sense: vec![0x70; 18], ..Outcome::default() };
    let units = response(&write(1, 10, 2, FLAG_FINAL), failed, 3, true, &parameters);
    assert_eq!((units.len(), units[0].bhs.opcode(), units[0].bhs.word(36)), (1, opcode::RESPONSE, 3));
    assert_eq!(units[0].data[0][..3], [0, 18, 0x70]);
}
