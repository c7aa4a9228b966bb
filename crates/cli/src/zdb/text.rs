//! Block pointers and uberblocks as zdb writes them.

use crate::times::date_and_time;
use std::fmt::Write;
use weir_format::{BlockPointer, Endian, Uberblock};

/// A block pointer on one line.
pub fn block_pointer(bp: &BlockPointer) -> String {
    let mut out = String::new();
    let birth = bp.logical_birth();
    let name = bp.object_type().name();
    let compression = bp.compression().map_or("unknown", |c| c.name());
    if bp.is_hole() {
        let _ = write!(out, "HOLE [L{} {name}] size={:x}L birth={birth}L", bp.level(), bp.lsize_bytes());
        return out;
    }
    if bp.is_redacted() {
        let _ = write!(out, "REDACTED [L{} {name}] size={:x}L birth={birth}L", bp.level(), bp.lsize_bytes());
        return out;
    }
    if let Some(e) = bp.embedded() {
        let l = e.lsize_bytes;
        let p = e.psize_bytes;
        let level = bp.level();
        let _ =
            write!(out, "EMBEDDED [L{level} {name}] et={} {compression} size={l:x}L/{p:x}P birth={birth}L", e.etype);
        return out;
    }
    for (i, d) in bp.dvas().enumerate() {
        let _ = write!(out, "DVA[{i}]=<{}:{:x}:{:x}> ", d.vdev, d.offset_bytes, d.asize_bytes);
    }
    let copies = ["zero", "single", "double", "triple"].get(bp.dvas().count()).copied().unwrap_or("?");
    let checksum = bp.checksum_kind().map_or("unknown", |c| c.name());
    let crypt = match (bp.is_encrypted(), bp.is_authenticated(), bp.has_indirect_mac()) {
        (true, _, _) => "encrypted",
        (_, true, _) => "authenticated",
        (_, _, true) => "indirect-MAC",
        _ => "unencrypted",
    };
    let order = if bp.endian() == Endian::Little { "LE" } else { "BE" };
    let layout = if bp.is_gang() { "gang" } else { "contiguous" };
    let dedup = if bp.is_dedup() { "dedup" } else { "unique" };
    let [a, b, c, d] = bp.checksum();
    let _ = write!(
        out,
        "[L{} {name}] {checksum} {compression} {crypt} {order} {layout} {dedup} {copies} size={:x}L/{:x}P \
         birth={birth}L/{}P fill={} cksum={a:016x}:{b:016x}:{c:016x}:{d:016x}",
        bp.level(),
        bp.lsize_bytes(),
        bp.psize_bytes(),
        bp.physical_birth(),
        bp.fill(),
    );
    out
}

/// An uberblock, one field a line.
pub fn uberblock(u: &Uberblock) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| out.push_str(&format!("\t{name} = {value}\n"));
    line("magic", format!("{:016x}", Uberblock::MAGIC));
    line("version", u.version.to_string());
    line("txg", u.txg.to_string());
    line("guid_sum", u.guid_sum.to_string());
    line("timestamp", format!("{} UTC = {}", u.timestamp_s, date_and_time(u.timestamp_s)));
    line("bp", block_pointer(&u.root));
    match u.mmp {
        None => line("mmp_magic", format!("{:016x}", 0)),
        Some(mmp) => {
            line("mmp_magic", format!("{:016x}", Uberblock::MMP_MAGIC));
            line("mmp_delay", mmp.delay_ns.to_string());
            let optional = [
                ("mmp_seq", mmp.sequence().map(u64::from)),
                ("mmp_fail", mmp.fail_intervals().map(u64::from)),
                ("mmp_write", mmp.write_interval_ms()),
            ];
            for (name, value) in optional {
                if let Some(value) = value {
                    line(name, value.to_string());
                }
            }
            line("mmp_valid", format!("{:x}", mmp.config & 0xff));
        }
    }
    line("checkpoint_txg", u.checkpoint_txg.to_string());
    out.push_str(&format!("\traidz_reflow state={} off={}\n", u.reflow.scratch_state, u.reflow.offset_bytes));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole() {
        assert_eq!(block_pointer(&BlockPointer::HOLE), "HOLE [L0 unallocated] size=0L birth=0L");
    }
}
