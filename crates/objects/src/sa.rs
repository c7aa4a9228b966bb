//! System attributes of one object set: which attribute has which number and which layouts there are, read once; then
//! each file's row is cut up without further reading (its bytes: `weir_format::sa`).
//!
//! Numbers are given out per object set in the order of registration, so a name is looked up once, when the table is
//! read: [`SaTable::number`].

use crate::error::ObjectError;
use crate::object::Object;
use crate::object_set::ObjectSet;
use crate::zap::Zap;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_format::sa::{self, SaAttribute, SaHeader, name};
use weir_format::{DecodeError, Endian, ObjectId};
use weir_machine::Request;

/// Most entries that the registry or the layouts are believed to have: numbers have 16 bits.
const MOST: usize = 1 << 16;

/// The attributes and layouts of an object set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaTable {
    numbers: BTreeMap<String, u16>,
    lengths: BTreeMap<u16, u16>,
    layouts: BTreeMap<u16, Vec<u16>>,
}

/// An attribute's number and where its bytes stand.
pub type SaRow<'a> = Vec<(u16, &'a [u8])>;

impl SaTable {
    /// Reads the table whose master node is `master` (the entry `SA_ATTRS` of a file system's master node).
    pub async fn read(rq: &Request, set: &Arc<ObjectSet>, master: ObjectId) -> Result<Self, ObjectError> {
        let master = Zap::open(rq, set, master).await?;
        let mut table = SaTable::default();
        for (what, is_registry) in [(name::REGISTRY, true), (name::LAYOUTS, false)] {
            let found = master.lookup(rq, what.as_bytes(), Default::default()).await?;
            // A file system whose files have all older znodes may have neither yet.
            let Some(id) = found.and_then(|v| v.first()) else { continue };
            for entry in Zap::open(rq, set, ObjectId(id)).await?.all(rq, MOST).await? {
                let wrong = |error| ObjectError::decode(set.place(ObjectId(id), 0, 0), error);
                match is_registry {
                    true => table.register(entry.key.text(), entry.value.first().unwrap_or(0)).map_err(wrong)?,
                    false => table.add_layout(&entry.key.text(), &entry.value.words),
                }
            }
        }
        Ok(table)
    }

    fn register(&mut self, name: String, word: u64) -> Result<(), DecodeError> {
        let attribute = SaAttribute::from_word(word)?;
        self.lengths.insert(attribute.number, attribute.length);
        self.numbers.insert(name, attribute.number);
        Ok(())
    }

    fn add_layout(&mut self, number: &str, attributes: &[u64]) {
        if let Ok(number) = number.parse() {
            self.layouts.insert(number, attributes.iter().map(|a| *a as u16).collect());
        }
    }

    /// The number of an attribute, if it is registered.
    pub fn number(&self, name: &str) -> Option<u16> {
        self.numbers.get(name).copied()
    }

    /// The name of an attribute.
    pub fn name(&self, number: u16) -> Option<&str> {
        self.numbers.iter().find(|(_, n)| **n == number).map(|(name, _)| name.as_str())
    }

    /// The attributes in a bonus area or spill block.
    pub fn row<'a>(&self, bytes: &'a [u8], endian: Endian) -> Result<SaRow<'a>, DecodeError> {
        let header = SaHeader::decode(bytes, endian)?;
        let unknown = DecodeError::Field { what: "system attributes", field: "layout", value: header.layout.into() };
        let layout = self.layouts.get(&header.layout).ok_or(unknown)?;
        sa::attributes(bytes, endian, layout, |n| self.lengths.get(&n).copied())
    }

    /// All attributes of an object: those in its bonus area, then those in its spill block, which is read if there is
    /// one. Each with its bytes and their order.
    pub async fn attributes(
        &self,
        rq: &Request,
        set: &Arc<ObjectSet>,
        object: &Arc<Object>,
    ) -> Result<Vec<(u16, Bytes, Endian)>, ObjectError> {
        let mut out = Vec::new();
        let bonus = Bytes::copy_from_slice(object.dnode.bonus());
        let wrong = |block| move |e| ObjectError::decode(set.place(object.id, 0, block), e);
        if !bonus.is_empty() {
            let row = self.row(&bonus, object.dnode.endian).map_err(wrong(0))?;
            out.extend(row.into_iter().map(|(n, part)| (n, bonus.slice_ref(part), object.dnode.endian)));
        }
        if let Some((spill, endian)) = set.read_spill(rq, object).await? {
            let row = self.row(&spill, endian).map_err(wrong(crate::Place::SPILL))?;
            out.extend(row.into_iter().map(|(n, part)| (n, spill.slice_ref(part), endian)));
        }
        Ok(out)
    }
}
