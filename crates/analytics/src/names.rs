//! Names of datasets that had requests and are not open any more.

use crate::Sample;
use crate::sample::objset_name;
use std::collections::{BTreeMap, BTreeSet};
use weir_dsl::Dsl;
use weir_engine::Engine;
use weir_format::ObjectId;
use weir_machine::Request;
use weir_pool::PoolError;

/// Names that were found, by pool and object set; none for a dataset that is gone.
#[derive(Clone, Debug, Default)]
pub struct DatasetNames(BTreeMap<(String, u64), Option<String>>);

impl DatasetNames {
    /// Takes a sample of a pool in which all datasets that it has are named, as far as they can be read.
    pub async fn sample(engine: &Engine) -> Sample {
        let mut sample = Sample::take(engine);
        let mut names = DatasetNames::default();
        if names.learn(engine, &sample).await.is_ok() {
            names.apply(&mut sample);
        }
        sample
    }

    /// Gives the datasets of a sample the names that are known.
    pub fn apply(&self, sample: &mut Sample) {
        let pool = sample.guid.clone();
        let of_clients = sample.clients.iter_mut().map(|row| (&mut row.dataset, row.objset));
        let of_files = sample.files.rows.iter_mut().map(|row| (&mut row.dataset, row.objset));
        for (dataset, objset) in of_clients.chain(of_files) {
            if *dataset == objset_name(objset)
                && let Some(Some(name)) = self.0.get(&(pool.clone(), objset))
            {
                dataset.clone_from(name);
            }
        }
    }

    /// Finds the names that a sample of the pool lacks and that were not looked for yet, as of the last synced txg.
    ///
    /// # Errors
    /// Errors of reading the datasets.
    pub async fn learn(&mut self, engine: &Engine, sample: &Sample) -> Result<(), PoolError> {
        let unnamed = sample.clients.iter().filter(|row| row.dataset == objset_name(row.objset));
        let of = |objset: u64| (sample.guid.clone(), objset);
        let wanted: BTreeSet<u64> =
            unnamed.map(|row| row.objset).filter(|objset| !self.0.contains_key(&of(*objset))).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let rq = &Request::internal("names");
        let dsl = engine.synced().dsl(rq).await?;
        for objset in wanted {
            self.0.insert(of(objset), name(rq, &dsl, ObjectId(objset)).await);
        }
        Ok(())
    }
}

/// The name of a dataset or snapshot, given by its object; none if it is gone.
async fn name(rq: &Request, dsl: &Dsl, id: ObjectId) -> Option<String> {
    let dir = dsl.dirs().into_iter().find(|dir| dir.phys.head_dataset == id);
    if let Some(dir) = dir {
        return Some(dir.name.clone());
    }
    // The object may be free, or of another kind by now.
    let snapshot = dsl.dataset(rq, id, String::new()).await.ok()?;
    let dir = dsl.dir(snapshot.phys.dir)?;
    let list = dsl.snapshots(rq, dir).await.ok()?;
    let found = list.snapshots.iter().find(|snapshot| snapshot.id == id)?;
    Some(found.name.clone())
}
