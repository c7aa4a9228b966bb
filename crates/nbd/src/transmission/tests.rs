use super::*;
use crate::fuzz::small_exports;
use futures_util::FutureExt;

fn header(command: u16, flags: u16, offset: u64, length: u32) -> RequestHeader {
    RequestHeader { flags, command, cookie: 0x1122, offset, length }
}

fn agreed(structured: bool) -> Agreed {
    Agreed { export: "p/v".into(), structured, allocation: structured }
}

fn ask(export: &str, structured: bool, header: RequestHeader) -> Vec<u8> {
    let exports = small_exports();
    let device = &exports.0[export];
    let plan = plan(&header, device.size_bytes(), &agreed(structured));
    let rq = Request::internal("test");
    answer(device, &rq, &agreed(structured), &header, plan).now_or_never().unwrap().concat()
}

/// Flags, type and payload of each chunk.
fn chunks(bytes: &[u8]) -> Vec<(u16, u16, Vec<u8>)> {
    let mut reader = wire::Reader::new(bytes);
    let mut all = Vec::new();
    while reader.u32() == Some(wire::STRUCTURED_REPLY_MAGIC) {
        let (flags, kind) = (reader.u16().unwrap(), reader.u16().unwrap());
        assert_eq!(reader.u64(), Some(0x1122));
        let len = reader.u32().unwrap() as usize;
        all.push((flags, kind, reader.take(len).unwrap().to_vec()));
    }
    assert!(reader.rest().is_empty());
    all
}

#[test]
fn plans_keep_inside_the_device_and_the_limits() {
    let with = |structured, command, flags, offset, length| {
        plan(&header(command, flags, offset, length), 10_000, &agreed(structured))
    };
    let plain = |command, offset, length| with(true, command, 0, offset, length);
    assert_eq!(plain(command::READ, 0, 10_000), Plan::Read { whole: false });
    assert_eq!(plain(command::READ, 1, 10_000), Plan::Refuse(Errno::Einval));
    assert_eq!(plain(command::READ, u64::MAX, 2), Plan::Refuse(Errno::Einval));
    assert_eq!(plain(command::READ, 0, (32 << 20) + 1), Plan::Refuse(Errno::Eoverflow));
    assert_eq!(with(true, command::READ, wire::COMMAND_FLAG_DF, 0, 1), Plan::Read { whole: true });
    assert_eq!(with(false, command::READ, wire::COMMAND_FLAG_DF, 0, 1), Plan::Refuse(Errno::Einval));
    assert_eq!(plain(command::WRITE, 0, 512), Plan::SkipAndRefuse(512, Errno::Eperm));
    assert_eq!(with(true, command::WRITE, 1, 0, 512), Plan::SkipAndRefuse(512, Errno::Eperm));
    assert_eq!(plain(command::WRITE, 0, u32::MAX), Plan::Close);
    assert_eq!(plain(command::TRIM, 0, 512), Plan::Refuse(Errno::Eperm));
    assert_eq!(plain(command::WRITE_ZEROES, 0, 512), Plan::Refuse(Errno::Eperm));
    assert_eq!(plain(command::FLUSH, 0, 0), Plan::Done);
    assert_eq!(plain(command::DISC, 0, 0), Plan::Disconnect);
    assert_eq!(plain(command::CACHE, 0, 100), Plan::Cache);
    assert_eq!(plain(77, 0, 100), Plan::Refuse(Errno::Enotsup));
    assert_eq!(with(true, command::BLOCK_STATUS, 8, 0, 100), Plan::Status { one: true });
    assert_eq!(plain(command::BLOCK_STATUS, 0, 0), Plan::Refuse(Errno::Einval));
    assert_eq!(with(false, command::BLOCK_STATUS, 0, 0, 100), Plan::Refuse(Errno::Einval));
}

#[test]
fn simple_reads_give_the_bytes_or_an_error() {
    let bytes = ask("p/v", false, header(command::READ, 0, 8190, 5));
    assert_eq!(bytes[..16], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, 0x22]);
    assert_eq!(bytes[16..], [0, 0, (8192 % 251) as u8 + 1, (8193 % 251) as u8 + 1, (8194 % 251) as u8 + 1]);
    let bad = ask("p/w", false, header(command::READ, 0, 0, 5000));
    assert_eq!((bad.len(), bad[7]), (16, 5));
}

#[test]
fn structured_reads_tell_holes_from_data() {
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
    assert_eq!(seen, small_exports().0["p/v"].bytes[4096..44_096]);
    assert!(all.iter().any(|(_, kind, _)| *kind == chunk::OFFSET_HOLE));
    assert_eq!(all.iter().filter(|(flags, ..)| flags & wire::CHUNK_DONE != 0).count(), 1);
    assert_eq!(all.last().unwrap().1, chunk::NONE);
    let whole = chunks(&ask("p/v", true, header(command::READ, wire::COMMAND_FLAG_DF, 0, 40_000)));
    assert_eq!((whole.len(), whole[0].0, whole[0].1, whole[0].2.len()), (1, 1, chunk::OFFSET_DATA, 40_008));
}

#[test]
fn a_bad_piece_is_an_error_at_its_offset() {
    let all = chunks(&ask("p/w", true, header(command::READ, 0, 0, 5000)));
    assert_eq!(all[0].1, chunk::ERROR_OFFSET);
    assert_eq!(all[0].2[..4], 5u32.to_be_bytes());
    let good = chunks(&ask("p/w", true, header(command::READ, 0, 0, 4096)));
    assert_eq!(good[0].1, chunk::OFFSET_DATA);
    let whole = chunks(&ask("p/w", true, header(command::READ, wire::COMMAND_FLAG_DF, 0, 5000)));
    assert_eq!((whole[0].0, whole[0].1, whole[0].2.len()), (1, chunk::ERROR, 6));
}

#[test]
fn block_status_maps_the_range() {
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
