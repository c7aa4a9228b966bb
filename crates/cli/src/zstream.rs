//! `weir zstream dump FILE`: what is in a send stream.

use crate::args::Spec;
use crate::failure::Failure;
use std::ffi::OsString;
use std::io::Read;
use weir_format::stream::{Begin, Record, RunningChecksum, StreamReader};
use weir_format::{Endian, NvList};

const SPEC: Spec = Spec { command: "zstream dump", letters: "vCd", long: &[], usage: "zstream dump [-Cv] [FILE]" };
/// The kinds of records in the order in which OpenZFS sums them up; the others follow where there are any.
const SUMMARY: [usize; 9] = [0, 5, 1, 2, 3, 6, 8, 4, 7];
/// Bytes of a record's header.
const HEADER_BYTES: u64 = 312;

/// Fletcher-4, running over the whole stream.
#[derive(Default)]
struct Fletcher([u64; 4]);

impl RunningChecksum for Fletcher {
    fn update(&mut self, bytes: &[u8], endian: Endian) {
        let [mut a, mut b, mut c, mut d] = self.0;
        for word in bytes.as_chunks::<4>().0 {
            let word = match endian {
                Endian::Little => u32::from_le_bytes(*word),
                Endian::Big => u32::from_be_bytes(*word),
            };
            a = a.wrapping_add(word.into());
            b = b.wrapping_add(a);
            c = c.wrapping_add(b);
            d = d.wrapping_add(c);
        }
        self.0 = [a, b, c, d];
    }

    fn value(&self) -> [u64; 4] {
        self.0
    }

    fn reset(&mut self) {
        self.0 = [0; 4];
    }
}

/// Runs the command.
pub fn run(mut line: Vec<OsString>) -> Result<u8, Failure> {
    if line.is_empty() || line.remove(0) != "dump" {
        return Err(SPEC.misused("the only command is 'dump'"));
    }
    let args = SPEC.parse(line)?;
    let name = args.word(0).unwrap_or_else(|| "standard input".into());
    let failed = |e: &dyn std::fmt::Display| Failure::failed(format!("{name}: {e}"));
    let mut bytes = Vec::new();
    match args.words.first() {
        Some(path) => std::fs::File::open(path).and_then(|mut f| f.read_to_end(&mut bytes)),
        None => std::io::stdin().read_to_end(&mut bytes),
    }
    .map_err(|e| failed(&e))?;
    let reader = StreamReader::new(&bytes, Fletcher::default()).map_err(|e| failed(&e))?;
    let mut counts = [(0u64, 0u64); Record::NAMES.len()];
    let mut payload = 0;
    for item in reader {
        let item = item.map_err(|e| failed(&e))?;
        if !args.has('C') && !item.checksum_holds() {
            return Err(failed(&format!("wrong checksum in the record at {:#x}", item.offset)));
        }
        if let Some((count, bytes)) = counts.get_mut(item.record.kind() as usize) {
            *count += 1;
            *bytes += item.payload.len() as u64;
        }
        payload += item.payload.len() as u64;
        match &item.record {
            Record::Begin(begin) => print!("{}", begin_text(begin, item.payload)),
            Record::End { checksum: [a, b, c, d], .. } => println!("END checksum = {a:x}/{b:x}/{c:x}/{d:x}"),
            other if args.has('v') => println!("{other:?}"),
            _ => {}
        }
    }
    println!("SUMMARY:");
    for kind in SUMMARY {
        let (Some(name), Some((count, bytes))) = (Record::NAMES.get(kind), counts.get(kind)) else { continue };
        println!("\tTotal DRR_{name} records = {count} ({bytes} bytes)");
    }
    for kind in (0..Record::NAMES.len()).filter(|k| !SUMMARY.contains(k)) {
        let (Some(name), Some((count, bytes))) = (Record::NAMES.get(kind), counts.get(kind)) else { continue };
        if *count > 0 {
            println!("\tTotal DRR_{name} records = {count} ({bytes} bytes)");
        }
    }
    let total: u64 = counts.iter().map(|c| c.0).sum();
    let overhead = total * HEADER_BYTES;
    println!("\tTotal records = {total}");
    println!("\tTotal payload size = {payload} ({payload:#x})");
    println!("\tTotal header overhead = {overhead} ({overhead:#x})");
    println!("\tTotal stream length = {} ({:#x})", payload + overhead, payload + overhead);
    Ok(0)
}

fn begin_text(begin: &Begin, payload: &[u8]) -> String {
    let mut out = format!(
        "BEGIN record\n\thdrtype = {}\n\tfeatures = {:x}\n\tmagic = {:x}\n\tcreation_time = {:x}\n\ttype = {}\n\
         \tflags = 0x{:x}\n\ttoguid = {:x}\n\tfromguid = {:x}\n\ttoname = {}\n\tpayloadlen = {}\n",
        begin.header_type,
        begin.features,
        Begin::MAGIC,
        begin.creation_time_s,
        begin.objset_type,
        begin.flags,
        begin.to_guid,
        begin.from_guid,
        String::from_utf8_lossy(&begin.to_name),
        begin.payload_len,
    );
    if !payload.is_empty() {
        match NvList::decode(payload) {
            Ok(list) => out.push_str(&list.to_text(4)),
            Err(error) => out.push_str(&format!("failed to unpack DRR_BEGIN nvlist: {error}\n")),
        }
    }
    out
}
