//! Finds the pools, and the dataset or client, that a user's word names.

/// Pools to diagnose, and the dataset or client that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Names of pools that are open.
    pub pools: Vec<String>,
    /// Dataset or client; `None` for whole pools.
    pub subject: Option<String>,
}

/// The word is a dataset of this pool, which is not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolNotOpen(pub String);

/// Selects from the open pools. Without a word, all of them. A word that does not begin with the name of an open pool is a client
/// of any of them.
///
/// # Errors
/// [`PoolNotOpen`] if the word has a slash and does not begin with the name of an open pool. Otherwise a dataset of a closed pool
/// would look like a client without requests.
pub fn select(word: Option<&str>, open: &[String]) -> Result<Selection, PoolNotOpen> {
    let Some(word) = word else { return Ok(Selection { pools: open.to_vec(), subject: None }) };
    let pool = word.split(['/', '@']).next().unwrap_or(word);
    if open.iter().any(|name| name == pool) {
        return Ok(Selection { pools: vec![pool.to_owned()], subject: (word != pool).then(|| word.to_owned()) });
    }
    if word.contains('/') {
        return Err(PoolNotOpen(pool.to_owned()));
    }
    Ok(Selection { pools: open.to_vec(), subject: Some(word.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_pool_a_dataset_or_a_client() {
        let open = ["tank".to_owned(), "data".to_owned()];
        let of = |word| select(word, &open).map(|found| (found.pools.join(" "), found.subject));
        assert_eq!(of(None), Ok(("tank data".into(), None)));
        assert_eq!(of(Some("data")), Ok(("data".into(), None)));
        assert_eq!(of(Some("tank/vm")), Ok(("tank".into(), Some("tank/vm".into()))));
        assert_eq!(of(Some("tank@a")), Ok(("tank".into(), Some("tank@a".into()))));
        assert_eq!(of(Some("127.0.0.1")), Ok(("tank data".into(), Some("127.0.0.1".into()))));
        assert_eq!(of(Some("other/vm")), Err(PoolNotOpen("other".into())));
        assert_eq!(of(Some("/tank")), Err(PoolNotOpen(String::new())));
    }
}
