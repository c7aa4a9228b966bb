//! `zdb --invariants`: invariants that OpenZFS asserts when it imports a pool and that `-bcc` does not verify.

use crate::failure::Failure;
use weir_machine::{Machine, Request};
use weir_pool::Pool;

/// Maximum number of findings that are listed; all are counted.
const LISTED: usize = 50;
/// Exit code when an invariant does not hold.
const BROKEN: u8 = 2;

/// Tests the pool's invariants, and lists those that do not hold.
pub fn run(machine: &Machine, pool: &Pool) -> Result<u8, Failure> {
    let report = machine.block_on(weir_pool::invariants::check_invariants(pool, &Request::internal("zdb")));
    let report = report.map_err(|error| Failure::failed(format!("{}: {error}", pool.name())))?;
    for finding in report.findings.iter().take(LISTED) {
        println!("{finding}");
    }
    if report.is_clean() {
        println!("All invariants hold");
        return Ok(0);
    }
    println!("{} invariants do not hold", report.count);
    Ok(BROKEN)
}
