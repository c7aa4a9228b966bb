use super::*;
use crate::fuzz::small_exports;
use futures_util::FutureExt;
use weir_front::memory::MemoryDevice;

fn header(command: u16, flags: u16, offset: u64, length: u32) -> RequestHeader {
    RequestHeader { flags, command, cookie: 0x1122, offset, length }
}

fn negotiated(structured: bool) -> Negotiated {
    Negotiated { export: "p/v".into(), structured, allocation: structured, writable: false }
}

fn ask(export: &str, structured: bool, header: RequestHeader) -> Vec<u8> {
    let exports = small_exports();
    let device = &*exports.0[export];
    let plan = plan(&header, device.size_bytes(), &negotiated(structured));
    let rq = Request::internal("test");
    answer(device, &rq, &negotiated(structured), &header, plan, Bytes::new()).now_or_never().unwrap().concat()
}

/// A writable device of two and a half blocks, all ones.
fn writable() -> MemoryDevice {
    MemoryDevice::new(vec![1; 10_000]).with_writing(true)
}

/// Executes a modifying request and returns its error number.
fn change(device: &MemoryDevice, command: u16, flags: u16, offset: u64, payload: &[u8], length: u32) -> u32 {
    let negotiated = Negotiated { writable: true, ..negotiated(false) };
    let header = header(command, flags, offset, length);
    let plan = plan(&header, device.size_bytes(), &negotiated);
    let rq = Request::internal("test");
    let payload = Bytes::copy_from_slice(payload);
    let reply = answer(device, &rq, &negotiated, &header, plan, payload).now_or_never().unwrap().concat();
    u32::from_be_bytes(reply[4..8].try_into().unwrap())
}

/// Flags, type and payload of each chunk.
fn chunks(bytes: &[u8]) -> Vec<(u16, u16, Vec<u8>)> {
    let mut reader = wire::Reader::new(bytes);
    let mut all = Vec::new();
    while reader.u32() == Some(wire::STRUCTURED_REPLY_MAGIC) {
        let flags = reader.u16().unwrap();
        let kind = reader.u16().unwrap();
        assert_eq!(reader.u64(), Some(0x1122));
        let len = reader.u32().unwrap() as usize;
        all.push((flags, kind, reader.take(len).unwrap().to_vec()));
    }
    assert!(reader.rest().is_empty());
    all
}

#[test]
fn plans_stay_inside_the_device_and_the_limits() {
    let with = |structured, command, flags, offset, length| {
        plan(&header(command, flags, offset, length), 10_000, &negotiated(structured))
    };
    let plain = |command, offset, length| with(true, command, 0, offset, length);
    assert_eq!(plain(command::READ, 0, 10_000), CommandPlan::Read { whole: false });
    assert_eq!(plain(command::READ, 1, 10_000), CommandPlan::Refuse(Errno::Einval));
    assert_eq!(plain(command::READ, u64::MAX, 2), CommandPlan::Refuse(Errno::Einval));
    assert_eq!(plain(command::READ, 0, (32 << 20) + 1), CommandPlan::Refuse(Errno::Eoverflow));
    assert_eq!(with(true, command::READ, wire::COMMAND_FLAG_DF, 0, 1), CommandPlan::Read { whole: true });
    assert_eq!(with(false, command::READ, wire::COMMAND_FLAG_DF, 0, 1), CommandPlan::Refuse(Errno::Einval));
    assert_eq!(plain(command::WRITE, 0, 512), CommandPlan::SkipAndRefuse(512, Errno::Eperm));
    assert_eq!(with(true, command::WRITE, 1, 0, 512), CommandPlan::SkipAndRefuse(512, Errno::Eperm));
    assert_eq!(plain(command::WRITE, 0, u32::MAX), CommandPlan::Close);
    assert_eq!(plain(command::TRIM, 0, 512), CommandPlan::Refuse(Errno::Eperm));
    assert_eq!(plain(command::WRITE_ZEROES, 0, 512), CommandPlan::Refuse(Errno::Eperm));
    assert_eq!(plain(command::FLUSH, 0, 0), CommandPlan::Flush);
    assert_eq!(plain(command::DISC, 0, 0), CommandPlan::Disconnect);
    assert_eq!(plain(command::CACHE, 0, 100), CommandPlan::Cache);
    assert_eq!(plain(77, 0, 100), CommandPlan::Refuse(Errno::Enotsup));
    assert_eq!(with(true, command::BLOCK_STATUS, 8, 0, 100), CommandPlan::Status { one: true });
    assert_eq!(plain(command::BLOCK_STATUS, 0, 0), CommandPlan::Refuse(Errno::Einval));
    assert_eq!(with(false, command::BLOCK_STATUS, 0, 0, 100), CommandPlan::Refuse(Errno::Einval));
}

#[test]
fn simple_reads_return_data_or_an_error() {
    let bytes = ask("p/v", false, header(command::READ, 0, 8190, 5));
    assert_eq!(bytes[..16], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, 0x22]);
    assert_eq!(bytes[16..], [0, 0, (8192 % 251) as u8 + 1, (8193 % 251) as u8 + 1, (8194 % 251) as u8 + 1]);
    let bad = ask("p/w", false, header(command::READ, 0, 0, 5000));
    assert_eq!((bad.len(), bad[7]), (16, 5));
}

#[test]
fn structured_reads_distinguish_holes_from_data() {
    let all = chunks(&ask("p/v", true, header(command::READ, 0, 4096, 40_000)));
    let mut seen = vec![0xffu8; 40_000];
    for (_, kind, payload) in &all {
        let Some((offset, rest)) = payload.split_first_chunk::<8>() else { continue };
        let at = (u64::from_be_bytes(*offset) - 4096) as usize;
        match *kind {
            chunk::OFFSET_DATA => seen[at..at + rest.len()].copy_from_slice(rest),
            chunk::OFFSET_HOLE => {
                let len = u32::from_be_bytes(rest.try_into().unwrap()) as usize;
                seen[at..at + len].fill(0);
            }
            other => panic!("chunk {other}"),
        }
    }
    assert_eq!(seen, small_exports().0["p/v"].bytes()[4096..44_096]);
    assert!(all.iter().any(|(_, kind, _)| *kind == chunk::OFFSET_HOLE));
    assert_eq!(all.iter().filter(|(flags, ..)| flags & wire::CHUNK_DONE != 0).count(), 1);
    assert_eq!(all.last().unwrap().1, chunk::NONE);
    let whole = chunks(&ask("p/v", true, header(command::READ, wire::COMMAND_FLAG_DF, 0, 40_000)));
    assert_eq!((whole.len(), whole[0].0, whole[0].1, whole[0].2.len()), (1, 1, chunk::OFFSET_DATA, 40_008));
}

#[test]
fn holes_of_an_answer_are_accounted() {
    let exports = small_exports();
    let device = &*exports.0["p/v"];
    let header = header(command::READ, 0, 4096, 40_000);
    let plan = plan(&header, device.size_bytes(), &negotiated(true));
    let rq = Request::internal("test");
    let reply = answer(device, &rq, &negotiated(true), &header, plan, Bytes::new()).now_or_never().unwrap().concat();
    let holes = chunks(&reply).into_iter().filter(|(_, kind, _)| *kind == chunk::OFFSET_HOLE);
    let bytes = holes.map(|(.., payload)| u64::from(u32::from_be_bytes(payload[8..].try_into().unwrap()))).sum::<u64>();
    assert!(bytes > 0);
    assert_eq!(rq.answered_bytes(Source::Hole), bytes);
}

#[test]
fn an_unreadable_piece_is_an_error_at_its_offset() {
    let all = chunks(&ask("p/w", true, header(command::READ, 0, 0, 5000)));
    assert_eq!(all[0].1, chunk::ERROR_OFFSET);
    assert_eq!(all[0].2[..4], 5u32.to_be_bytes());
    let good = chunks(&ask("p/w", true, header(command::READ, 0, 0, 4096)));
    assert_eq!(good[0].1, chunk::OFFSET_DATA);
    let whole = chunks(&ask("p/w", true, header(command::READ, wire::COMMAND_FLAG_DF, 0, 5000)));
    assert_eq!((whole[0].0, whole[0].1, whole[0].2.len()), (1, chunk::ERROR, 6));
}

#[test]
fn block_status_reports_the_range() {
    let all = chunks(&ask("p/v", true, header(command::BLOCK_STATUS, 0, 0, 65_536)));
    let mut wanted = 1u32.to_be_bytes().to_vec();
    for (len, flags) in [(8192u32, 3u32), (20_480, 0), (36_864, 3)] {
        wanted.extend_from_slice(&len.to_be_bytes());
        wanted.extend_from_slice(&flags.to_be_bytes());
    }
    assert_eq!(all, [(1, chunk::BLOCK_STATUS, wanted.clone())]);
    let one = chunks(&ask("p/v", true, header(command::BLOCK_STATUS, wire::COMMAND_FLAG_REQ_ONE, 0, 65_536)));
    assert_eq!(one[0].2, wanted[..12]);
}

#[test]
fn write_plans_stay_inside_the_device_and_honour_flags() {
    let negotiated = Negotiated { writable: true, ..negotiated(true) };
    let with = |command, flags, offset, length| plan(&header(command, flags, offset, length), 10_000, &negotiated);
    assert_eq!(with(command::WRITE, 0, 9_000, 1_000), CommandPlan::Write { fua: false });
    assert_eq!(with(command::WRITE, 1, 0, 0), CommandPlan::Write { fua: true });
    assert_eq!(with(command::WRITE, 0, 9_001, 1_000), CommandPlan::SkipAndRefuse(1_000, Errno::Enospc));
    assert_eq!(with(command::WRITE, 0, u64::MAX, 1_000), CommandPlan::SkipAndRefuse(1_000, Errno::Enospc));
    assert_eq!(with(command::WRITE, 2, 0, 1_000), CommandPlan::SkipAndRefuse(1_000, Errno::Einval));
    assert_eq!(with(command::WRITE, 0, 0, u32::MAX), CommandPlan::Close);
    assert_eq!(with(command::WRITE_ZEROES, 0, 0, 10_000), CommandPlan::Zero { holes: true, fua: false });
    assert_eq!(with(command::WRITE_ZEROES, 0x13, 0, 10_000), CommandPlan::Refuse(Errno::Enotsup));
    assert_eq!(with(command::WRITE_ZEROES, 0x11, 0, 10_000), CommandPlan::Zero { holes: true, fua: true });
    assert_eq!(with(command::WRITE_ZEROES, 0x02, 0, 10_000), CommandPlan::Zero { holes: false, fua: false });
    assert_eq!(with(command::WRITE_ZEROES, 0, 1, 10_000), CommandPlan::Refuse(Errno::Enospc));
    assert_eq!(with(command::TRIM, 1, 0, 10_000), CommandPlan::Trim { fua: true });
    assert_eq!(with(command::TRIM, 0, 1, 10_000), CommandPlan::Refuse(Errno::Einval));
    assert_eq!(with(command::TRIM, 2, 0, 1), CommandPlan::Refuse(Errno::Einval));
    assert_eq!(with(command::FLUSH, 1, 0, 0), CommandPlan::Flush);
    assert_eq!(memory_bytes(&CommandPlan::Write { fua: false }, &header(command::WRITE, 0, 0, 4096)), 4096);
}

#[test]
fn writes_are_readable_and_stable_after_flush_or_fua() {
    let device = writable();
    assert_eq!(change(&device, command::WRITE, 0, 100, &[7; 50], 50), 0);
    assert_eq!(device.bytes()[99..151], [&[1][..], &[7; 50], &[1]].concat());
    assert_eq!(device.flushed(), vec![1; 10_000], "not stable yet");
    assert_eq!(change(&device, command::FLUSH, 0, 0, &[], 0), 0);
    assert_eq!(device.flushed(), device.bytes());
    assert_eq!(change(&device, command::WRITE, wire::COMMAND_FLAG_FUA, 0, &[8; 3], 3), 0);
    assert_eq!(device.flushed()[..4], [8, 8, 8, 1]);
}

#[test]
fn zeroing_is_exact_and_trim_frees_whole_blocks() {
    for flags in [0, wire::COMMAND_FLAG_NO_HOLE] {
        let device = writable();
        assert_eq!(change(&device, command::WRITE_ZEROES, flags, 10, &[], 9_000), 0);
        assert_eq!(device.bytes().iter().filter(|byte| **byte == 0).count(), 9_000);
        assert_eq!((device.bytes()[9], device.bytes()[9_010]), (1, 1));
    }
    for (offset, length, zeros) in
        [(0, 4_095, 0), (1, 8_191, 4_096), (0, 4_097, 4_096), (4_096, 5_904, 5_904), (1, 7, 0)]
    {
        let device = writable();
        assert_eq!(change(&device, command::TRIM, wire::COMMAND_FLAG_FUA, offset, &[], length), 0);
        let count = device.flushed().iter().filter(|byte| **byte == 0).count();
        assert_eq!(count, zeros, "{length} at {offset}");
    }
}

#[test]
fn full_and_read_only_devices_return_their_errors() {
    let full = writable().with_max_write_bytes(10);
    assert_eq!(change(&full, command::WRITE, 0, 0, &[7; 11], 11), Errno::Enospc as u32);
    assert_eq!(change(&full, command::WRITE, 0, 0, &[7; 10], 10), 0);
    // Negotiated as writable, read-only since.
    let locked = MemoryDevice::new(vec![1; 10_000]);
    assert_eq!(change(&locked, command::WRITE, 0, 0, &[7; 10], 10), Errno::Eperm as u32);
    assert_eq!(change(&locked, command::WRITE_ZEROES, 0, 0, &[], 10), Errno::Eperm as u32);
}
