//! Bookmarks: the GUID and txgs of a snapshot, which remain when the snapshot is destroyed.

use super::{Dataset, Dsl, MAX_ENTRIES};
use weir_dmu::error::ObjectError;
use weir_dmu::zap::Zap;
use weir_format::ObjectId;
use weir_format::dsl::{Bookmark, dataset_field};
use weir_machine::Request;

/// A bookmark with its full name, `pool/a#b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBookmark {
    /// Full name.
    pub name: String,
    /// Contents.
    pub bookmark: Bookmark,
}

/// The bookmarks of a head, from the oldest to the newest.
pub async fn bookmarks(dsl: &Dsl, rq: &Request, head: &Dataset) -> Result<Vec<NamedBookmark>, ObjectError> {
    let fields = dsl.dataset_fields(rq, head).await?;
    let Some(id) = fields.get(dataset_field::BOOKMARK_NAMES).and_then(|v| v.first()) else {
        return Ok(Vec::new());
    };
    let entries = Zap::open(rq, &dsl.mos, ObjectId(id)).await?.all(rq, MAX_ENTRIES).await?;
    let mut out: Vec<NamedBookmark> = entries
        .into_iter()
        .filter_map(|e| {
            let bookmark = Bookmark::from_words(&e.value.words)?;
            Some(NamedBookmark { name: format!("{}#{}", head.name, e.key.text()), bookmark })
        })
        .collect();
    out.sort_by(|a, b| (a.bookmark.creation_txg, &a.name).cmp(&(b.bookmark.creation_txg, &b.name)));
    Ok(out)
}
