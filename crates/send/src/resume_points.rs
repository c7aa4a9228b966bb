//! How far a stream was received, by txg: noted with each block, and taken by the syncer of the txg, which stores it beside
//! the blocks (OpenZFS `save_resume_state`).

use std::collections::BTreeMap;
use weir_dsl::sync_tasks::receive::ResumePoint;
use weir_format::Txg;
use weir_machine::lock::{Mutex, order};

/// The last point of each txg that was not synced.
#[derive(Default)]
pub struct ResumePoints(Mutex<BTreeMap<Txg, ResumePoint>, { order::RESUME_POINTS }>);

impl ResumePoints {
    /// Notes a point. The caller has a transaction of this txg open.
    pub fn note(&self, txg: Txg, point: ResumePoint) {
        self.0.lock().insert(txg, point);
    }

    /// Takes the last point of a txg, which is being synced.
    pub fn take(&self, txg: Txg) -> Option<ResumePoint> {
        let mut points = self.0.lock();
        let later = points.split_off(&Txg(txg.0 + 1));
        let up_to = std::mem::replace(&mut *points, later);
        up_to.into_values().next_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::ObjectId;

    #[test]
    fn each_txg_has_its_last_point() {
        let points = ResumePoints::default();
        let at = |object, offset| ResumePoint { object: ObjectId(object), offset, bytes: 0 };
        points.note(Txg(5), at(1, 0));
        points.note(Txg(5), at(1, 512));
        points.note(Txg(6), at(2, 0));
        assert_eq!(points.take(Txg(4)), None);
        assert_eq!(points.take(Txg(5)), Some(at(1, 512)));
        assert_eq!(points.take(Txg(5)), None);
        assert_eq!(points.take(Txg(6)), Some(at(2, 0)));
    }
}
