//! Modification of one file: SETATTR, WRITE, COMMIT.
//!
//! A WRITE with DATA_SYNC or FILE_SYNC, a COMMIT, and every other modifying call is answered after the change is on stable
//! storage, as the protocol demands; what is served provides that ([`weir_front::Files`]). The verifier in the replies is
//! new at each start of the server: a client that sees it change rewrites its uncommitted data.

use super::arguments::{self, StableHow};
use super::{Context, Status, WRITE_MAX_BYTES, handle_argument, nfs_time, put_wcc};
use crate::reply::Results;
use crate::wire::Decoder;
use weir_front::files::{Attributes, BeforeAfter, Condition};
use weir_machine::compact;

pub(super) async fn setattr(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let set = arguments::attributes(&mut input)?;
    let guard = arguments::guard(&mut input)?;
    let unchanged = |file: &Attributes| guard.is_none_or(|guard| guard == nfs_time(file.ctime_ns));
    let (status, wcc) = match context.id(handle) {
        Err(status) => (status, BeforeAfter::default()),
        Ok(id) => {
            let condition: Option<Condition<'_>> = Some(&unchanged);
            let change = context.files.set_attributes(context.rq, &context.caller, id, &set, condition).await;
            (context.ended(&change), change.file)
        }
    };
    put_wcc(out.status(status), &wcc);
    Some(())
}

pub(super) async fn write(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let offset = input.u64()?;
    let count = input.u32()?;
    let stable = StableHow::read(&mut input)?;
    let data = input.opaque(WRITE_MAX_BYTES as usize)?.get(..count as usize)?;
    let id = match context.id(handle) {
        Ok(id) => id,
        Err(status) => {
            put_wcc(out.status(status), &BeforeAfter::default());
            return Some(());
        }
    };
    // The data stay in memory until they are synced; copy them if the message's buffer is much larger.
    let data = compact(context.message.slice_ref(data), context.message.len());
    let change = context.files.write(context.rq, &context.caller, id, offset, data, stable.stability()).await;
    let out = out.status(context.ended(&change));
    put_wcc(out, &change.file);
    if let Ok(reached) = change.result {
        out.u32(count).u32(StableHow::reached(reached) as u32).fixed(&context.verifier);
    }
    Some(())
}

pub(super) async fn commit(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let _offset = input.u64()?;
    let _count = input.u32()?;
    let (status, wcc) = match context.id(handle) {
        Err(status) => (status, BeforeAfter::default()),
        Ok(id) => {
            let change = context.files.commit(context.rq, &context.caller, id).await;
            (context.ended(&change), change.file)
        }
    };
    let out = out.status(status);
    put_wcc(out, &wcc);
    if status == Status::Ok {
        out.fixed(&context.verifier);
    }
    Some(())
}
