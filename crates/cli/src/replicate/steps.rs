//! The decision what is sent. Pure.

use super::side::{DatasetState, Point};

/// A stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The whole snapshot, to a dataset that does not exist.
    Full {
        /// Name with `@`.
        to: String,
    },
    /// The changes since a snapshot or bookmark.
    Since {
        /// Name with `@` or `#`.
        from: String,
        /// Name with `@`.
        to: String,
        /// Whether the snapshots between are sent, too.
        between: bool,
    },
}

impl Step {
    /// The snapshot that the target has afterwards.
    pub fn to(&self) -> &str {
        match self {
            Step::Full { to } | Step::Since { to, .. } => to,
        }
    }

    /// Arguments of `zfs send` for a dataset, after its options.
    pub fn arguments(&self, dataset: &str) -> Vec<String> {
        let of = |name: &str| format!("{dataset}{name}");
        match self {
            Step::Full { to } => vec![of(to)],
            Step::Since { from, to, between } => {
                vec![if *between { "-I" } else { "-i" }.to_owned(), of(from), of(to)]
            }
        }
    }
}

/// Reason why nothing is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The source has no snapshot.
    NothingToSend,
    /// The target exists and has no snapshot.
    NoSnapshots,
    /// The target has snapshots, none of which the source has, not as a bookmark either.
    NothingInCommon,
    /// The target has a snapshot that the source does not have.
    Diverged {
        /// The newest snapshot that both have.
        common: String,
        /// The first one that only the target has.
        first: String,
    },
}

/// The newest snapshot that both sides have: as the source has it (maybe as a bookmark), and as the target has it. A snapshot of
/// the source is preferred to its bookmark.
pub fn common<'a>(source: &'a DatasetState, target: &'a DatasetState) -> Option<(&'a Point, &'a Point)> {
    target.points.iter().rev().filter(|point| point.is_snapshot()).find_map(|there| {
        let same = |point: &&Point| point.guid == there.guid;
        let here = source.points.iter().filter(same).max_by_key(|point| point.is_snapshot())?;
        Some((here, there))
    })
}

/// The streams that bring the target to the newest snapshot of the source, in their order; none if it has it. With `force`, what
/// the target has since the last common snapshot may go; without such a snapshot, the target is left alone nevertheless.
///
/// # Errors
/// [`Refused`].
pub fn plan(source: &DatasetState, target: &DatasetState, force: bool) -> Result<Vec<Step>, Refused> {
    let snapshots: Vec<&Point> = source.points.iter().filter(|point| point.is_snapshot()).collect();
    let (Some(oldest), Some(newest)) = (snapshots.first(), snapshots.last()) else {
        return Err(Refused::NothingToSend);
    };
    let Some((base, there)) = common(source, target) else {
        match target.newest() {
            Some(_) => return Err(Refused::NothingInCommon),
            None if target.exists => return Err(Refused::NoSnapshots),
            None => {}
        }
        let mut steps = vec![Step::Full { to: oldest.name.clone() }];
        if oldest.guid != newest.guid {
            steps.push(Step::Since { from: oldest.name.clone(), to: newest.name.clone(), between: true });
        }
        return Ok(steps);
    };
    let own = target.points.iter().find(|point| point.is_snapshot() && point.createtxg > there.createtxg);
    if let Some(first) = own.filter(|_| !force) {
        return Err(Refused::Diverged { common: there.name.clone(), first: first.name.clone() });
    }
    if base.guid == newest.guid {
        return Ok(Vec::new());
    }
    if base.is_snapshot() {
        return Ok(vec![Step::Since { from: base.name.clone(), to: newest.name.clone(), between: true }]);
    }
    // -I takes no bookmark: first the next snapshot, then the others.
    let next = snapshots.iter().find(|point| point.createtxg > base.createtxg).unwrap_or(newest);
    let mut steps = vec![Step::Since { from: base.name.clone(), to: next.name.clone(), between: false }];
    if next.guid != newest.guid {
        steps.push(Step::Since { from: next.name.clone(), to: newest.name.clone(), between: true });
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points by name and GUID; the txg is the position.
    fn state(points: &[(&str, u64)]) -> DatasetState {
        let point = |(at, (name, guid)): (usize, &(&str, u64))| {
            let createtxg = if name.starts_with('#') { *guid } else { at as u64 + 10 * u64::from(at > 0) + *guid };
            Point { name: (*name).into(), guid: *guid, createtxg, creation: *guid }
        };
        DatasetState { exists: true, points: points.iter().enumerate().map(point).collect(), ..DatasetState::default() }
    }

    fn since(from: &str, to: &str, between: bool) -> Step {
        Step::Since { from: from.into(), to: to.into(), between }
    }

    #[test]
    fn a_new_target_gets_the_oldest_snapshot_and_the_changes() {
        let absent = DatasetState::default();
        let one = state(&[("@a", 1)]);
        assert_eq!(plan(&one, &absent, false), Ok(vec![Step::Full { to: "@a".into() }]));
        let three = state(&[("@a", 1), ("@b", 2), ("@c", 3)]);
        assert_eq!(plan(&three, &absent, false), Ok(vec![Step::Full { to: "@a".into() }, since("@a", "@c", true)]));
        assert_eq!(plan(&state(&[]), &absent, false), Err(Refused::NothingToSend));
        assert_eq!(plan(&state(&[("#a", 1)]), &absent, false), Err(Refused::NothingToSend));
    }

    #[test]
    fn changes_begin_at_the_newest_common_snapshot_whatever_its_name() {
        let source = state(&[("@a", 1), ("@renamed", 2), ("@c", 3)]);
        assert_eq!(plan(&source, &state(&[("@a", 1), ("@b", 2)]), false), Ok(vec![since("@renamed", "@c", true)]));
        assert_eq!(plan(&source, &state(&[("@x", 3)]), false), Ok(vec![]));
    }

    #[test]
    fn a_bookmark_stands_for_a_snapshot_that_is_gone() {
        let mut source = state(&[("@c", 30), ("@d", 40)]);
        source.points.insert(0, Point { name: "#b".into(), guid: 2, createtxg: 5, creation: 2 });
        let target = state(&[("@b", 2)]);
        assert_eq!(plan(&source, &target, false), Ok(vec![since("#b", "@c", false), since("@c", "@d", true)]));
    }

    #[test]
    fn what_only_the_target_has_stays_unless_forced() {
        let source = state(&[("@a", 1), ("@b", 2)]);
        let diverged = state(&[("@a", 1), ("@mine", 9)]);
        let refused = Refused::Diverged { common: "@a".into(), first: "@mine".into() };
        assert_eq!(plan(&source, &diverged, false), Err(refused));
        assert_eq!(plan(&source, &diverged, true), Ok(vec![since("@a", "@b", true)]));
        assert_eq!(plan(&source, &state(&[("@z", 99)]), true), Err(Refused::NothingInCommon));
        for force in [false, true] {
            assert_eq!(plan(&source, &state(&[]), force), Err(Refused::NoSnapshots));
        }
    }
}
