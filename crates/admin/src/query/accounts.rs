//! Numeric names of properties of users, groups and projects: `userquota@1000`, `groupused@100`, `projectobjquota@7`.
//!
//! Names of users and groups belong to the host of the caller, which sends their numbers.

use std::sync::Arc;
use weir_dmu::{ObjectError, ObjectSet};
use weir_dsl::props::{Property, Source, Value};
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_format::znode::Fuid;
use weir_machine::Request;

/// A use or limit of a user, group or project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountProperty {
    /// User, group or project.
    pub who: QuotaPrincipal,
    /// Accounted quantity.
    pub what: QuotaKind,
    /// The limit, not the use.
    pub is_quota: bool,
    /// The number of the user, group or project.
    pub id: u64,
}

const PREFIXES: [(&str, QuotaPrincipal); 3] =
    [("user", QuotaPrincipal::User), ("group", QuotaPrincipal::Group), ("project", QuotaPrincipal::Project)];
const QUANTITIES: [(&str, QuotaKind, bool); 4] = [
    ("used", QuotaKind::Bytes, false),
    ("quota", QuotaKind::Bytes, true),
    ("objused", QuotaKind::Objects, false),
    ("objquota", QuotaKind::Objects, true),
];

impl AccountProperty {
    /// Splits a property name into its kind, with ID 0, and the part after the `@`; `None` if it is none of these.
    pub fn split(property: &str) -> Option<(AccountProperty, &str)> {
        let (kind, name) = property.split_once('@')?;
        let (rest, who) = PREFIXES.iter().find_map(|(prefix, who)| Some((kind.strip_prefix(prefix)?, *who)))?;
        let (_, what, is_quota) = QUANTITIES.iter().find(|(quantity, ..)| *quantity == rest).copied()?;
        Some((AccountProperty { who, what, is_quota, id: 0 }, name))
    }

    /// Parses a property name that contains a number; `None` for others.
    pub fn parse(property: &str) -> Option<AccountProperty> {
        let (of, name) = Self::split(property)?;
        Some(AccountProperty { id: name.parse::<u32>().ok()?.into(), ..of })
    }

    /// Value of the property in a file system.
    ///
    /// # Errors
    /// Errors of reading the accounts.
    pub async fn value(&self, rq: &Request, set: &Arc<ObjectSet>, property: &str) -> Result<Property, ObjectError> {
        let account = set.accounting().accounts(rq, self.who).await?.remove(&Fuid(self.id)).unwrap_or_default();
        let number = match (self.what, self.is_quota) {
            (QuotaKind::Bytes, false) => account.used_bytes,
            (QuotaKind::Bytes, true) => account.quota_bytes,
            (QuotaKind::Objects, false) => account.used_objects,
            (QuotaKind::Objects, true) => account.quota_objects,
        };
        let value = Value::Number(number);
        Ok(Property { name: property.to_owned(), value, source: Source::Local, received: None })
    }
}
