//! What would change something: read-only here, so each answers NFS3ERR_ROFS, with the attributes that its results
//! carry. A handle that is not good is said to be so first: clients forget stale files by that.

use super::{Context, Found, Status, handle_argument, name_argument, post_op, wcc};
use crate::reply::Results;
use crate::wire::Decoder;

const RENAME: u32 = 14;
const LINK: u32 = 15;
const LAST: u32 = 21;

impl Context<'_> {
    /// `None` for procedures that there are not, and for arguments that make no sense.
    pub(super) async fn refuse(&self, procedure: u32, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        if procedure > LAST {
            return None;
        }
        let first = handle_argument(&mut input)?;
        let second = match procedure {
            RENAME => {
                name_argument(&mut input)?;
                Some(handle_argument(&mut input)?)
            }
            LINK => Some(handle_argument(&mut input)?),
            _ => None,
        };
        let first = self.resolve(first).await;
        let second = match second {
            Some(handle) => Some(self.resolve(handle).await),
            None => None,
        };
        let broken = |found: &Result<Found, Status>| found.as_ref().err().copied();
        let status = broken(&first).or(second.as_ref().and_then(broken)).unwrap_or(Status::Rofs);
        let out = out.status(status);
        let first = first.as_ref().ok();
        match (procedure, second) {
            (LINK, second) => {
                post_op(out, first);
                wcc(out, second.as_ref().and_then(|found| found.as_ref().ok()));
            }
            (_, Some(second)) => {
                wcc(out, first);
                wcc(out, second.as_ref().ok());
            }
            (_, None) => wcc(out, first),
        }
        Some(())
    }
}
