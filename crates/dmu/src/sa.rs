//! System attributes of one object set. The attribute numbers and the layouts are read once; each file's row is then
//! decoded without further reads (encoding: `weir_format::sa`).
//!
//! Each object set assigns attribute numbers in the order of registration, so names are resolved once, when the table
//! is read: [`SaTable::number`].
//!
//! New layouts and attributes are registered on demand ([`SaTable::register_layout`], [`SaTable::register_known`]), in
//! the transaction that needs them. Both functions change the table in memory and the ZAPs together, so the callers
//! that share a table must serialize registration.

use crate::error::ObjectError;
use crate::object::Object;
use crate::object_set::ObjectSet;
use crate::txg::Tx;
use crate::zap::{self, NewZap, Zap};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_format::sa::{self, LEGACY_ATTRIBUTES, SaAttribute, SaHeader, ZPL_ATTRIBUTES, name};
use weir_format::{DecodeError, Endian, ObjectId, ObjectType};
use weir_machine::Request;

/// Maximum accepted entries of the registry and of the layouts, because numbers have 16 bits.
const MAX_SA_ENTRIES: usize = 1 << 16;
/// First number of a registered layout: 0 is the layout of a legacy znode, 1 is the layout without attributes.
const FIRST_LAYOUT: u16 = 2;
/// Layout numbers have 10 bits.
const LAYOUTS_MAX: u16 = 1 << 10;

/// The attributes and layouts of an object set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaTable {
    numbers: BTreeMap<String, u16>,
    lengths: BTreeMap<u16, u16>,
    layouts: BTreeMap<u16, Vec<u16>>,
    master: ObjectId,
    registry: Option<ObjectId>,
    layout_object: Option<ObjectId>,
}

/// Attribute numbers and the bytes of the attributes.
pub type SaRow<'a> = Vec<(u16, &'a [u8])>;

impl SaTable {
    /// Reads the table whose master node is `master` (the entry `SA_ATTRS` of a file system's master node).
    pub async fn read(rq: &Request, set: &Arc<ObjectSet>, master: ObjectId) -> Result<Self, ObjectError> {
        let mut table = SaTable { master, ..SaTable::default() };
        let master = Zap::open(rq, set, master).await?;
        for (what, is_registry) in [(name::REGISTRY, true), (name::LAYOUTS, false)] {
            let found = master.lookup(rq, what.as_bytes(), Default::default()).await?;
            // A file system with only legacy znodes may have neither ZAP yet.
            let Some(id) = found.and_then(|v| v.first()) else { continue };
            match is_registry {
                true => table.registry = Some(ObjectId(id)),
                false => table.layout_object = Some(ObjectId(id)),
            }
            for entry in Zap::open(rq, set, ObjectId(id)).await?.all(rq, MAX_SA_ENTRIES).await? {
                let wrong = |error| ObjectError::decode(set.place(ObjectId(id), 0, 0), error);
                match is_registry {
                    true => table.register(entry.key.text(), entry.value.first().unwrap_or(0)).map_err(wrong)?,
                    false => table.add_layout(&entry.key.text(), &entry.value.words),
                }
            }
        }
        Ok(table)
    }

    /// Builds a table from malformed input, and returns the remaining bytes. The input holds the number of attributes,
    /// the word of each, the number of attributes in layout 2, and their numbers. For fuzzing.
    #[doc(hidden)]
    pub fn of_bytes(data: &[u8]) -> (Self, &[u8]) {
        let mut table = SaTable::default();
        let mut rest = data;
        let mut take = |count: usize| {
            let (now, later) = rest.split_at_checked(count).unwrap_or((rest, &[]));
            rest = later;
            now
        };
        let attributes = take(1).first().map_or(0, |n| usize::from(n % 32));
        for (index, word) in take(8 * attributes).as_chunks::<8>().0.iter().enumerate() {
            let name = ZPL_ATTRIBUTES.get(index).map_or(String::new(), |known| known.0.to_owned());
            // A malformed word is skipped, because reading a table with such a word fails.
            let _ = table.register(name, u64::from_be_bytes(*word));
        }
        let members = take(1).first().map_or(0, |n| usize::from(n % 32));
        let layout: Vec<u64> = take(members).iter().map(|n| u64::from(*n)).collect();
        table.add_layout("2", &layout);
        (table, rest)
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

    /// Length of an attribute in bytes; 0 if the length is variable.
    pub fn length(&self, number: u16) -> Option<u16> {
        self.lengths.get(&number).copied()
    }

    /// Number of the layout with these attributes in this order, if it is registered.
    pub fn layout_of(&self, attributes: &[u16]) -> Option<u16> {
        self.layouts.iter().find(|(_, own)| *own == attributes).map(|(number, _)| *number)
    }

    /// Returns the number of the layout with these attributes in this order; registers the layout if it is new.
    ///
    /// # Errors
    /// [`ObjectError::TooLong`] if all numbers are in use.
    pub async fn register_layout(
        &mut self,
        rq: &Request,
        set: &Arc<ObjectSet>,
        tx: &Tx,
        attributes: &[u16],
    ) -> Result<u16, ObjectError> {
        if let Some(number) = self.layout_of(attributes) {
            return Ok(number);
        }
        let last = self.layouts.keys().next_back().copied().unwrap_or(0);
        let number = FIRST_LAYOUT.max(last.saturating_add(1));
        if number >= LAYOUTS_MAX {
            return Err(ObjectError::TooLong { what: "the list of layouts of system attributes" });
        }
        let object = match self.layout_object {
            Some(object) => object,
            None => self.make(rq, set, tx, name::LAYOUTS, ObjectType::SA_ATTR_LAYOUTS).await?,
        };
        self.layout_object = Some(object);
        let value = zap::Value { int_size: 2, words: attributes.iter().map(|a| u64::from(*a)).collect() };
        zap::put(rq, set, tx, object, &zap::Key::from(number.to_string().as_str()), &value).await?;
        self.layouts.insert(number, attributes.to_vec());
        Ok(number)
    }

    /// Registers the standard ZPL attributes ([`ZPL_ATTRIBUTES`]) that have no number yet.
    pub async fn register_known(&mut self, rq: &Request, set: &Arc<ObjectSet>, tx: &Tx) -> Result<(), ObjectError> {
        for (index, (name, length, swap)) in ZPL_ATTRIBUTES.into_iter().enumerate() {
            if self.numbers.contains_key(name) {
                continue;
            }
            let object = match self.registry {
                Some(object) => object,
                None => self.make(rq, set, tx, name::REGISTRY, ObjectType::SA_ATTR_REGISTRATION).await?,
            };
            self.registry = Some(object);
            // Legacy attributes have fixed numbers; the others take the next free number.
            let last = self.lengths.keys().next_back().map_or(0, |last| usize::from(*last) + 1);
            let number = if index < LEGACY_ATTRIBUTES { index } else { last.max(LEGACY_ATTRIBUTES) };
            let number = u16::try_from(number);
            let number = number.map_err(|_| ObjectError::TooLong { what: "the list of system attributes" })?;
            let word = SaAttribute { number, length, swap }.to_word();
            zap::put_word(rq, set, tx, object, name, word).await?;
            self.lengths.insert(number, length);
            self.numbers.insert(name.to_owned(), number);
        }
        Ok(())
    }

    /// Creates one of the two ZAPs and adds it to the master node.
    async fn make(
        &self,
        rq: &Request,
        set: &Arc<ObjectSet>,
        tx: &Tx,
        name: &str,
        kind: ObjectType,
    ) -> Result<ObjectId, ObjectError> {
        let id = zap::create(rq, set, tx, &NewZap::new(kind)).await?;
        zap::put_word(rq, set, tx, self.master, name, id.0).await?;
        Ok(id)
    }

    /// Decodes the attributes in a bonus area or spill block.
    ///
    /// # Errors
    /// [`DecodeError`] if the header is malformed, the layout is unknown, or the attributes exceed the bytes.
    pub fn row<'a>(&self, bytes: &'a [u8], endian: Endian) -> Result<SaRow<'a>, DecodeError> {
        let header = SaHeader::decode(bytes, endian)?;
        let unknown = DecodeError::Field { what: "system attributes", field: "layout", value: header.layout.into() };
        let layout = self.layouts.get(&header.layout).ok_or(unknown)?;
        sa::attributes(bytes, endian, layout, |n| self.lengths.get(&n).copied())
    }

    /// Reads all attributes of an object with their bytes and byte order: first those in its bonus area, then those in
    /// its spill block.
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
        if let Some((spill, endian)) = set.reader().read_spill(rq, object).await? {
            let row = self.row(&spill, endian).map_err(wrong(crate::ErrorLocation::SPILL))?;
            out.extend(row.into_iter().map(|(n, part)| (n, spill.slice_ref(part), endian)));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceReserve;
    use crate::live::scratch;
    use weir_format::ObjsetKind;
    use weir_sim::SimWorld;

    #[test]
    fn registered_attributes_and_layouts_are_read_again() {
        let world = SimWorld::new(1);
        let machine = world.machine();
        let run = world.run(async move {
            let rq = &Request::default();
            let set = &scratch(&machine, ObjsetKind::Zfs);
            let tx = &set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
            let master = zap::create(rq, set, tx, &NewZap::new(ObjectType::SA_MASTER_NODE)).await.unwrap();
            let mut table = SaTable::read(rq, set, master).await.unwrap();
            table.register_known(rq, set, tx).await.unwrap();
            for (index, attribute) in ZPL_ATTRIBUTES.iter().enumerate() {
                let number = index as u16;
                assert_eq!((table.number(attribute.0), table.length(number)), (Some(number), Some(attribute.1)));
            }
            assert_eq!(table.layout_of(&[5, 6]), None);
            for (number, layout) in [(2, &[5, 6, 4][..]), (3, &[6, 5, 4]), (2, &[5, 6, 4]), (4, &[19])] {
                assert_eq!(table.register_layout(rq, set, tx, layout).await.unwrap(), number);
            }
            assert_eq!(SaTable::read(rq, set, master).await.unwrap(), table);
            // An attribute that another implementation added keeps its number; missing attributes take the next
            // numbers.
            let registry = table.registry.unwrap();
            assert!(zap::remove_name(rq, set, tx, registry, "ZPL_SEQ").await.unwrap());
            let word = SaAttribute { number: 30, length: 8, swap: weir_format::sa::SaSwap::Uint64 }.to_word();
            zap::put_word(rq, set, tx, registry, "OTHER", word).await.unwrap();
            let mut table = SaTable::read(rq, set, master).await.unwrap();
            table.register_known(rq, set, tx).await.unwrap();
            assert_eq!((table.number("OTHER"), table.number("ZPL_SEQ")), (Some(30), Some(31)));
            assert_eq!(SaTable::read(rq, set, master).await.unwrap(), table);
        });
        run.unwrap();
    }
}
