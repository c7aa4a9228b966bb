//! Modification of directories: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK. Each is stable when it is
//! answered.

use super::{Context, Status, attributes, handle_argument, name_argument, post_op, put_wcc};
use super::{arguments, files};
use crate::reply::Results;
use crate::wire::Decoder;
use weir_front::files::{BeforeAfter, Link, New, Rename, SetAttributes};

pub(super) async fn create(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let name = name_argument(&mut input)?;
    let (mode, set) = arguments::create_how(&mut input)?;
    create_entry(context, handle, name, New::Regular(mode), set, out).await;
    Some(())
}

pub(super) async fn mkdir(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let name = name_argument(&mut input)?;
    let set = arguments::attributes(&mut input)?;
    create_entry(context, handle, name, New::Directory, set, out).await;
    Some(())
}

pub(super) async fn symlink(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let name = name_argument(&mut input)?;
    let set = arguments::attributes(&mut input)?;
    let target = arguments::target(&mut input)?.to_vec();
    create_entry(context, handle, name, New::Symlink(target), set, out).await;
    Some(())
}

pub(super) async fn mknod(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let name = name_argument(&mut input)?;
    match arguments::special(&mut input)? {
        (Some(new), set) => create_entry(context, handle, name, new, set, out).await,
        (None, _) => {
            let (status, dir) = match files::file_attributes(context, handle).await {
                Ok(dir) => (Status::BadType, Some(dir)),
                Err(failed) => failed,
            };
            put_wcc(out.status(status), &BeforeAfter::unchanged(dir));
        }
    }
    Some(())
}

async fn create_entry(
    context: &Context<'_>,
    handle: &[u8],
    name: &[u8],
    new: New,
    set: SetAttributes,
    out: &mut Results,
) {
    let dir = match context.id(handle) {
        Ok(dir) => dir,
        Err(status) => return put_wcc(out.status(status), &BeforeAfter::default()),
    };
    let change = context.files.create(context.rq, &context.caller, dir, name, new, set).await;
    let out = out.status(context.ended(&change));
    if let Ok(made) = &change.result {
        out.bool(true).opaque(&context.handles.make(made.id)).bool(true);
        attributes(out, &made.attributes);
    }
    put_wcc(out, &change.file);
}

pub(super) async fn remove(context: &Context<'_>, input: Decoder<'_>, out: &mut Results) -> Option<()> {
    remove_entry(context, input, false, out).await
}

pub(super) async fn rmdir(context: &Context<'_>, input: Decoder<'_>, out: &mut Results) -> Option<()> {
    remove_entry(context, input, true, out).await
}

async fn remove_entry(context: &Context<'_>, mut input: Decoder<'_>, is_dir: bool, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let name = name_argument(&mut input)?;
    let (status, wcc) = match context.id(handle) {
        Err(status) => (status, BeforeAfter::default()),
        Ok(dir) => {
            let change = context.files.remove(context.rq, &context.caller, dir, name, is_dir).await;
            (context.ended(&change), change.file)
        }
    };
    put_wcc(out.status(status), &wcc);
    Some(())
}

pub(super) async fn rename(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let from = handle_argument(&mut input)?;
    let name = name_argument(&mut input)?;
    let to = handle_argument(&mut input)?;
    let new_name = name_argument(&mut input)?;
    let (status, from, to) = match context.id(from).and_then(|from| Ok((from, context.id(to)?))) {
        Err(status) => (status, BeforeAfter::default(), BeforeAfter::default()),
        Ok((old, new)) => {
            let renamed = context.files.rename(context.rq, &context.caller, (old, name), (new, new_name)).await;
            let Rename { result, from, to } = renamed;
            (result.err().map_or(Status::Ok, |error| context.report(&error)), from, to)
        }
    };
    let out = out.status(status);
    put_wcc(out, &from);
    put_wcc(out, &to);
    Some(())
}

pub(super) async fn link(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let file = handle_argument(&mut input)?;
    let dir = handle_argument(&mut input)?;
    let name = name_argument(&mut input)?;
    let (status, file, wcc) = match context.id(file).and_then(|file| Ok((file, context.id(dir)?))) {
        Err(status) => (status, None, BeforeAfter::default()),
        Ok((file, dir)) => {
            let Link { result, file, dir } = context.files.link(context.rq, &context.caller, file, dir, name).await;
            (result.err().map_or(Status::Ok, |error| context.report(&error)), file, dir)
        }
    };
    let out = out.status(status);
    post_op(out, file.as_ref());
    put_wcc(out, &wcc);
    Some(())
}
