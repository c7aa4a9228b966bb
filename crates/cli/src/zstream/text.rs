//! The lines of `zstream dump`, in OpenZFS's words and order of fields, which scripts select by position
//! (`cmd/zstream/zstream_dump.c`).

use weir_dsl::ResumeState;
use weir_format::NvList;
use weir_format::stream::{Begin, ObjectRecord, Record, SpillRecord, WriteRecord};

/// The line of a record other than BEGIN.
pub(super) fn record_text(record: &Record, payload_bytes: usize) -> String {
    match record {
        Record::Begin(begin) => begin_text(begin, &[]),
        Record::Object(object) => object_text(object),
        Record::FreeObjects { first, count, .. } => format!("FREEOBJECTS firstobj = {} numobjs = {count}", first.0),
        Record::Write(write) => write_text(write, payload_bytes),
        // OpenZFS shows lengths as signed numbers: -1 is the rest of the object.
        Record::Free { object, offset, length, .. } => {
            format!("FREE object = {} offset = {offset} length = {}", object.0, length.cast_signed())
        }
        Record::End { checksum: [a, b, c, d], .. } => format!("END checksum = {a:x}/{b:x}/{c:x}/{d:x}"),
        Record::WriteByRef {
            object,
            offset,
            length,
            to_guid,
            ref_guid,
            ref_object,
            ref_offset,
            checksum_type,
            flags,
            key,
        } => format!(
            "WRITE_BYREF object = {} checksum type = {checksum_type} props = {:x} offset = {offset} length = {length} \
             toguid = {to_guid:x} refguid = {ref_guid:x} refobject = {} refoffset = {ref_offset} flags = {flags}",
            object.0, key.prop, ref_object.0
        ),
        Record::Spill(spill) => spill_text(spill, payload_bytes),
        Record::WriteEmbedded { object, offset, length, to_guid, compression, etype, lsize_bytes, psize_bytes } => {
            format!(
                "WRITE_EMBEDDED object = {} offset = {offset} length = {length} toguid = {to_guid:x} comp = {compression} \
                 etype = {etype} lsize = {lsize_bytes} psize = {psize_bytes}",
                object.0
            )
        }
        Record::ObjectRange { first, slots, salt, iv, mac, flags, .. } => format!(
            "OBJECT_RANGE firstobj = {} numslots = {slots} flags = {flags} salt = {} iv = {} mac = {}",
            first.0,
            hex(salt),
            hex(iv),
            hex(mac)
        ),
        Record::Redact { object, offset, length, .. } => {
            format!("REDACT object = {} offset = {offset} length = {length}", object.0)
        }
    }
}

/// The lines of BEGIN and of the list that follows it.
pub(super) fn begin_text(begin: &Begin, payload: &[u8]) -> String {
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

/// The list in a resume token.
pub fn token_text(state: &ResumeState) -> String {
    let numbers = [
        ("fromguid", state.from_guid.unwrap_or(0)),
        ("object", state.object.0),
        ("offset", state.offset),
        ("bytes", state.bytes),
        ("toguid", state.to_guid),
    ];
    let forms = &state.forms;
    let flags = [
        ("largeblockok", forms.large_blocks),
        ("embedok", forms.embedded),
        ("compressok", forms.compressed),
        ("rawok", forms.raw),
    ];
    let mut out = "resume token contents:\nnvlist version: 0\n".to_owned();
    // A full stream has no `fromguid`.
    let is_shown = |(name, number): &&(&str, u64)| *name != "fromguid" || *number != 0;
    numbers.iter().filter(is_shown).for_each(|(name, number)| out.push_str(&format!("\t{name} = {number:#x}\n")));
    out.push_str(&format!("\ttoname = {}\n", state.to_name));
    flags.iter().filter(|(_, is_set)| *is_set).for_each(|(name, _)| out.push_str(&format!("\t{name} = 1\n")));
    for (name, guids) in [("redact_snaps", &state.redact_snaps), ("book_redact_snaps", &state.book_redact_snaps)] {
        if let Some(guids) = guids {
            let guids: Vec<String> = guids.iter().map(|guid| format!("{guid:#x}")).collect();
            out.push_str(&format!("\t{name} = {}\n", guids.join(" ")));
        }
    }
    out
}

fn object_text(object: &ObjectRecord) -> String {
    format!(
        "OBJECT object = {} type = {} bonustype = {} blksz = {} bonuslen = {} dn_slots = {} raw_bonuslen = {} flags = {} \
         maxblkid = {} indblkshift = {} nlevels = {} nblkptr = {}",
        object.object.0,
        object.object_type,
        object.bonus_type,
        object.block_bytes,
        object.bonus_len,
        object.dnode_slots,
        object.raw_bonus_len,
        object.flags,
        object.max_block_id,
        object.indirect_shift,
        object.levels,
        object.pointers,
    )
}

fn write_text(write: &WriteRecord, payload_bytes: usize) -> String {
    format!(
        "WRITE object = {} type = {} checksum type = {} compression type = {} flags = {} offset = {} logical_size = {} \
         compressed_size = {} payload_size = {payload_bytes} props = {:x} salt = {} iv = {} mac = {}",
        write.object.0,
        write.object_type,
        write.checksum_type,
        write.compression,
        write.flags,
        write.offset,
        write.logical_bytes,
        write.compressed_bytes,
        write.key.prop,
        hex(&write.salt),
        hex(&write.iv),
        hex(&write.mac),
    )
}

fn spill_text(spill: &SpillRecord, payload_bytes: usize) -> String {
    format!(
        "SPILL block for object = {} length = {} flags = {} compression type = {} compressed_size = {} payload_size = \
         {payload_bytes} salt = {} iv = {} mac = {}",
        spill.object.0,
        spill.length,
        spill.flags,
        spill.compression,
        spill.compressed_bytes,
        hex(&spill.salt),
        hex(&spill.iv),
        hex(&spill.mac),
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::ObjectId;

    /// The words at the places where OpenZFS's tests look for them, counted from 1 as awk does.
    fn word(line: &str, place: usize) -> &str {
        line.split_whitespace().nth(place - 1).unwrap_or_default()
    }

    #[test]
    fn writes_have_their_sizes_where_scripts_look_for_them() {
        let write = WriteRecord {
            object: ObjectId(2),
            object_type: 19,
            offset: 131_072,
            logical_bytes: 4096,
            compressed_bytes: 1024,
            compression: 15,
            salt: [0x17, 0, 0, 0, 0, 0, 0, 0x6a],
            ..WriteRecord::default()
        };
        let line = record_text(&Record::Write(write), 1024);
        assert!(line.starts_with("WRITE object = 2 type = 19 checksum type = 0 compression type = 15 "), "{line}");
        assert_eq!((word(&line, 24), word(&line, 27), word(&line, 30)), ("4096", "1024", "1024"), "{line}");
        assert!(line.contains("props = 0 salt = 170000000000006a iv = "), "{line}");
    }

    #[test]
    fn a_token_is_shown_as_the_list_in_it() {
        let mut state = ResumeState { to_guid: 0x1f, to_name: "p/a@s".into(), bytes: 4096, ..ResumeState::default() };
        let shown = "resume token contents:\nnvlist version: 0\n\tobject = 0x0\n\toffset = 0x0\n\tbytes = 0x1000\n\ttoguid = 0x1f\n\ttoname = p/a@s\n";
        assert_eq!(token_text(&state), shown);
        state.forms.compressed = true;
        state.from_guid = Some(16);
        let said = token_text(&ResumeState::from_token(&state.to_token()).unwrap());
        assert!(said.contains("\tfromguid = 0x10\n") && said.ends_with("\tcompressok = 1\n"), "{said}");
    }

    #[test]
    fn lengths_and_guids_are_shown_as_openzfs_shows_them() {
        let object = ObjectId(4);
        let to_guid = 0x4f35_9643;
        let free = Record::Free { object, offset: 1024, length: u64::MAX, to_guid };
        assert_eq!(record_text(&free, 0), "FREE object = 4 offset = 1024 length = -1");
        let embedded = Record::WriteEmbedded {
            object,
            offset: 0,
            length: 512,
            to_guid,
            compression: 15,
            etype: 0,
            lsize_bytes: 512,
            psize_bytes: 17,
        };
        assert_eq!(
            record_text(&embedded, 24),
            "WRITE_EMBEDDED object = 4 offset = 0 length = 512 toguid = 4f359643 comp = 15 etype = 0 lsize = 512 psize = 17"
        );
        let redact = Record::Redact { object, offset: 8192, length: 8192, to_guid };
        assert_eq!(record_text(&redact, 0), "REDACT object = 4 offset = 8192 length = 8192");
    }
}
