//! Answers to the questions of a script, in the syncing context of its txg.

use crate::asked::{Ask, Failure, List, Reply, Word};
use crate::errno;
use crate::properties::{self, source_of};
use weir_dmu::ObjectError;
use weir_dsl::props::Value;
use weir_dsl::{Dataset, Dsl, Scope};
use weir_engine::{ProgramChange, ProgramTxg};
use weir_pool::PoolError;

/// Answers questions in a txg.
pub struct Answerer<'t, 's, 'b> {
    /// The txg.
    pub txg: &'t mut ProgramTxg<'s, 'b>,
}

/// The pool in a name.
fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

impl Answerer<'_, '_, '_> {
    /// Answers a question.
    pub async fn answer(&mut self, ask: Ask) -> Reply {
        match ask {
            Ask::Exists { name } => match self.find(&name, Scope::Path(&name)).await {
                Ok(_) => Reply::Is(true),
                Err(Failure::Missing(_)) => Reply::Is(false),
                Err(failure) => Reply::Failed(failure),
            },
            Ask::Property { name, property } => match self.property(&name, &property).await {
                Ok(found) => Reply::Property(found),
                Err(failure) => Reply::Failed(failure),
            },
            Ask::List { list, name } => match self.list(list, &name).await {
                Ok(rows) => Reply::Rows(rows),
                Err(failure) => Reply::Failed(failure),
            },
            Ask::Change { change, only_checks } => self.change(&change, only_checks).await,
            Ask::Debug { text } => {
                tracing::info!(txg = self.txg.txg(), "channel program: {text}");
                Reply::Done
            }
        }
    }

    /// A dataset or snapshot by its name, and the directories in `scope`.
    async fn find(&self, name: &str, scope: Scope<'_>) -> Result<(std::sync::Arc<Dsl>, Dataset), Failure> {
        let unreadable = |error: &dyn std::fmt::Display| {
            tracing::warn!(name, %error, "a channel program cannot read a dataset");
            Failure::Unreadable(name.to_owned())
        };
        let dsl = self.txg.dsl(scope).await.map_err(|error| unreadable(&error))?;
        if dsl.root().is_none_or(|root| root.name != pool_of(name)) {
            return Err(Failure::OtherPool(name.to_owned()));
        }
        if name.contains('#') {
            return Err(Failure::Missing(name.to_owned()));
        }
        match dsl.find(self.txg.rq(), name).await {
            Ok(dataset) => Ok((dsl, dataset)),
            Err(ObjectError::NoName { .. }) => Err(Failure::Missing(name.to_owned())),
            Err(error) => Err(unreadable(&error)),
        }
    }

    async fn property(&self, name: &str, property: &str) -> Result<Option<(Word, Option<String>)>, Failure> {
        // These name datasets elsewhere in the pool.
        let scope = match property {
            "origin" | "clones" | "encryptionroot" => Scope::All,
            _ => Scope::Path(name),
        };
        if !properties::is_known(property) {
            return Err(Failure::NoProperty(property.to_owned()));
        }
        let (dsl, dataset) = self.find(name, scope).await?;
        if let Some(since) = property.strip_prefix("written@") {
            let since = if since.contains('@') { since.to_owned() } else { format!("{name}@{since}") };
            self.find(&since, Scope::Path(&since)).await?;
        }
        properties::read(self.txg, &dsl, &dataset, property).await.map_err(|error| {
            tracing::warn!(name, property, %error, "a channel program cannot read a property");
            Failure::InvalidProperty { name: name.to_owned(), property: property.to_owned() }
        })
    }

    async fn list(&self, list: List, name: &str) -> Result<Vec<Vec<Word>>, Failure> {
        let scope = if list == List::Clones { Scope::All } else { Scope::Path(name) };
        let (dsl, dataset) = self.find(name, scope).await?;
        let needs_snapshot = matches!(list, List::Clones | List::Holds);
        let needs_head = matches!(list, List::Children | List::Snapshots | List::Bookmarks);
        if needs_snapshot && !dataset.is_snapshot() {
            return Err(Failure::NoSnapshot(name.to_owned()));
        }
        if needs_head && dataset.is_snapshot() {
            return Err(Failure::IsSnapshot(name.to_owned()));
        }
        self.rows(list, &dsl, &dataset).await.map_err(|error| {
            tracing::warn!(name, %error, "a channel program cannot read a list");
            Failure::Unreadable(name.to_owned())
        })
    }

    async fn rows(&self, list: List, dsl: &Dsl, dataset: &Dataset) -> Result<Vec<Vec<Word>>, PoolError> {
        let rq = self.txg.rq();
        let missing = || ObjectError::NoName { what: "dataset", name: dataset.name.clone() };
        let dir = dsl.dir(dataset.dir).ok_or_else(missing)?;
        let one = |names: Vec<String>| names.into_iter().map(|name| vec![Word::Text(name)]).collect();
        Ok(match list {
            List::Children => one(dsl.child_names(rq, dir).await?),
            List::Snapshots => {
                one(dsl.snapshots(rq, dir).await?.snapshots.iter().map(|snapshot| snapshot.name.clone()).collect())
            }
            List::Clones => one(dsl.clones(rq, dataset).await?),
            List::Bookmarks => {
                let bookmarks = weir_dsl::bookmarks::bookmarks(dsl, rq, dataset).await?;
                one(bookmarks.into_iter().map(|bookmark| bookmark.name).collect())
            }
            List::Holds => {
                let holds = dsl.holds(rq, dataset).await?.into_iter();
                holds.map(|(tag, time_s)| vec![Word::Text(tag), Word::Number(time_s as i64)]).collect()
            }
            List::UserProperties => {
                let all = dsl.properties(rq, dataset, &self.txg.facts()).await?.into_iter();
                let of_user = all.filter(|property| property.name.contains(':'));
                of_user
                    .map(|property| {
                        let source = source_of(&property, &dataset.name).unwrap_or_default();
                        let value = match property.value {
                            Value::Text(text) => text,
                            Value::Number(number) => number.to_string(),
                        };
                        [property.name, value, source].map(Word::Text).into()
                    })
                    .collect()
            }
            List::SystemProperties => {
                let kind = properties::kind_of(self.txg, dsl, dataset).await?;
                one(properties::names_of(kind, dir))
            }
        })
    }

    async fn change(&mut self, change: &ProgramChange, only_checks: bool) -> Reply {
        if let Some(number) = self.misnamed(change) {
            return Reply::Number(number, Vec::new());
        }
        let done = match only_checks {
            true => self.txg.check(change).await,
            false => self.txg.apply(change).await,
        };
        match done {
            Ok(()) => Reply::Number(0, Vec::new()),
            Err(error) => {
                tracing::debug!(%error, ?change, "a change of a channel program is refused");
                Reply::Number(errno::of_refusal(change, &error), errno::details(&error))
            }
        }
    }

    /// The error number for names and properties that OpenZFS refuses before it looks at the pool.
    fn misnamed(&self, change: &ProgramChange) -> Option<i32> {
        let name = match change {
            ProgramChange::Snapshot { name } if !name.contains('@') => return Some(errno::EINVAL),
            ProgramChange::Inherit { property, .. } if !properties::is_inheritable(property) => {
                return Some(errno::EINVAL);
            }
            ProgramChange::SetUser { property, .. } if !property.contains(':') => return Some(errno::EINVAL),
            ProgramChange::Bookmark { source, .. } => source,
            ProgramChange::Clone { origin, .. } => origin,
            ProgramChange::RenameSnapshot { snapshot, .. } => snapshot,
            ProgramChange::Destroy { name }
            | ProgramChange::DestroySnapshot { name, .. }
            | ProgramChange::Inherit { name, .. }
            | ProgramChange::Promote { name }
            | ProgramChange::Rollback { name }
            | ProgramChange::SetUser { name, .. }
            | ProgramChange::Snapshot { name } => name,
        };
        (pool_of(name) != self.txg.pool()).then_some(errno::EXDEV)
    }
}
