//! A pool whose devices are objects of a faulty store: processes change files and are killed or stopped, and the next process
//! imports the pool. All that was acknowledged as stable is found, and what one process has found, all later ones find.
//!
//! ```text
//!   process: import, replay ─► judge all files ─► clients write and fsync ─┬─ killed at any time
//!                                                                          └─ stopped; another one takes the pool; goes on
//!   store:   answers lost · changes late by seconds · 503 · throttled · slow and hanging · stale reads after an unmet condition
//! ```
//!
//! A process is a machine whose tasks are dropped when it is killed; its requests that are on the way are executed all the
//! same. `WEIR_STORE_SEEDS` is the number of histories, and `WEIR_STORE_SEED` is the seed of the first one.
#![allow(clippy::disallowed_methods, reason = "tests make files")]
#![allow(clippy::unwrap_used, reason = "a failed setup step fails the test")]

#[allow(dead_code, reason = "shared with the histories of single disks")]
#[path = "../../../object-store/tests/histories/bucket.rs"]
mod bucket;
#[path = "../log/client.rs"]
mod client;
mod history;
mod process;
#[allow(dead_code, reason = "shared with the tests of the log")]
#[path = "../log/world.rs"]
mod world;

use bucket::{Behaviour, Faults};
use history::{Count, Plan, run};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use weir_object_store::Bug;
use weir_sim::{SimWorld, run_twice};

/// Tags as of S3; requests are late by less than a lease.
const DIGESTS: Plan = Plan {
    buckets: 1,
    behaviour: Behaviour { faults: 15, tags_are_digests: true, latest: Duration::from_secs(25) },
    stops: false,
    bug: None,
};

/// Each version has its own tag; requests are late by much more than a lease, and processes stop and go on.
const UNIQUE: Plan = Plan {
    buckets: 1,
    behaviour: Behaviour { faults: 10, tags_are_digests: false, latest: Duration::from_secs(100) },
    stops: true,
    bug: None,
};

/// A mirror of two buckets.
const MIRROR: Plan = Plan { buckets: 2, ..DIGESTS };

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn seeds() -> u64 {
    number("WEIR_STORE_SEEDS").unwrap_or(6)
}

fn survives(plan: Plan) {
    let mut faults = Faults::default();
    let mut count = Count::default();
    let first = number("WEIR_STORE_SEED").unwrap_or(0);
    for seed in first..first + seeds() {
        let run = |world: &SimWorld| run(world, plan, seed);
        // That a seed is reproducible is checked once: it costs a second run.
        let (more, counted) = if seed == first {
            run_twice(seed, run).expect("a seed is reproducible")
        } else {
            run(&SimWorld::new(seed))
        };
        faults.add(&more);
        count.add(&counted);
    }
    println!("{} histories: {count:?}, {faults:?}", seeds());
    faults.assert_all_occurred();
    assert!(count.commits > 0 && count.kills > 0 && count.judged > 0, "{count:?}");
    assert_eq!(count.stops > 0, plan.stops, "{count:?}");
}

#[test]
fn a_pool_on_a_store_with_tags_as_of_s3_loses_nothing() {
    survives(DIGESTS);
}

#[test]
fn a_pool_whose_process_stops_and_goes_on_loses_nothing() {
    survives(UNIQUE);
}

#[test]
fn a_mirror_of_two_buckets_loses_nothing() {
    survives(MIRROR);
}

#[test]
fn a_retry_without_looking_at_the_tag_is_found() {
    let behaviour = Behaviour { faults: 40, latest: Duration::from_secs(60), ..DIGESTS.behaviour };
    let plan = Plan { behaviour, bug: Some(Bug::RetriesWithoutEtag), ..DIGESTS };
    let seeds = 6 * seeds();
    let found =
        (0..seeds).find(|seed| catch_unwind(AssertUnwindSafe(|| run(&SimWorld::new(*seed), plan, *seed))).is_err());
    println!("found by seed {found:?}");
    assert!(found.is_some(), "a retry that ignores the tag is not found in {seeds} histories");
}
