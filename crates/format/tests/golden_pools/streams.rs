//! Compares the records of every golden stream with the counts of `zstream dump`.

use crate::golden;
use weir_format::cursor::Endian;
use weir_format::stream::{Record, RunningChecksum, StreamReader};

#[derive(Default)]
struct Fletcher4([u64; 4]);

impl RunningChecksum for Fletcher4 {
    fn update(&mut self, bytes: &[u8], endian: Endian) {
        assert_eq!(bytes.len() % 4, 0);
        for word in bytes.chunks_exact(4) {
            let word = word.try_into().unwrap();
            let word = if endian == Endian::Little { u32::from_le_bytes(word) } else { u32::from_be_bytes(word) };
            let [a, b, c, d] = &mut self.0;
            *a = a.wrapping_add(word.into());
            *b = b.wrapping_add(*a);
            *c = c.wrapping_add(*b);
            *d = d.wrapping_add(*c);
        }
    }

    fn value(&self) -> [u64; 4] {
        self.0
    }

    fn reset(&mut self) {
        self.0 = [0; 4];
    }
}

/// The number after `Total DRR_… records = ` or `Total … = ` in the output of `zstream dump`.
fn count(dump: &str, line: &str) -> Option<u64> {
    let rest = dump.lines().find_map(|l| l.trim().strip_prefix(&format!("{line} = ")))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Reads a stream and compares its counts with the output of `zstream dump`.
pub fn check(bytes: &[u8], dump: &str, file: &str) {
    let reader = StreamReader::new(bytes, Fletcher4::default()).unwrap();
    let endian = reader.endian();
    let mut counts = [0u64; 11];
    let mut payload = 0;
    let mut records = 0;
    let mut checked = 0;
    for item in reader {
        let item = item.unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(item.checksum_holds(), "{file} at {}: {item:?}", item.offset);
        counts[item.record.kind() as usize] += 1;
        payload += item.payload.len() as u64;
        records += 1;
        checked += u64::from(item.stored != [0; 4]);
        let raw = &bytes[item.offset as usize..][..312];
        assert_eq!(item.record.encode(endian, item.stored), raw, "{file} at {}", item.offset);
    }
    for (kind, name) in Record::NAMES.iter().enumerate() {
        if let Some(expected) = count(dump, &format!("Total DRR_{name} records")) {
            assert_eq!(counts[kind], expected, "{file}: {name}");
        }
    }
    assert_eq!(count(dump, "Total records"), Some(records), "{file}");
    assert_eq!(count(dump, "Total payload size"), Some(payload), "{file}");
    assert_eq!(count(dump, "Total stream length"), Some(bytes.len() as u64), "{file}");
    assert!(checked > 0, "{file}: no record had a checksum");
}

#[test]
fn golden_streams_match_zstream_dump() {
    let Some(folder) = golden::folder() else { return };
    let mut streams = 0;
    for (_, list) in golden::pools(&folder.join("streams")) {
        for stream in list.as_array().unwrap() {
            let file = stream["file"].as_str().unwrap();
            let bytes = golden::unpack_file(&folder.join("streams").join(format!("{file}.zst")));
            assert_eq!(bytes.len() as u64, stream["size"].as_u64().unwrap());
            check(&bytes, stream["dump"].as_str().unwrap(), file);
            streams += 1;
        }
    }
    assert!(streams >= 10, "only {streams} streams");
}
