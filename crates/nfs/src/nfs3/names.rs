//! Modification of directories: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK. Each is stable when it is
//! answered.

use super::arguments;
use super::{Context, Status, attributes, handle_argument, name_argument, post_op, put_wcc};
use crate::reply::Results;
use crate::wire::Decoder;
use weir_front::files::{BeforeAfter, Link, New, Rename, SetAttributes};

impl Context<'_> {
    pub(super) async fn create(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let (mode, set) = arguments::create_how(&mut input)?;
        self.create_entry(handle, name, New::Regular(mode), set, out).await;
        Some(())
    }

    pub(super) async fn mkdir(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let set = arguments::attributes(&mut input)?;
        self.create_entry(handle, name, New::Directory, set, out).await;
        Some(())
    }

    pub(super) async fn symlink(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let set = arguments::attributes(&mut input)?;
        let target = arguments::target(&mut input)?.to_vec();
        self.create_entry(handle, name, New::Symlink(target), set, out).await;
        Some(())
    }

    pub(super) async fn mknod(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        match arguments::special(&mut input)? {
            (Some(new), set) => self.create_entry(handle, name, new, set, out).await,
            (None, _) => {
                let (status, dir) = match self.file_attributes(handle).await {
                    Ok(dir) => (Status::BadType, Some(dir)),
                    Err(failed) => failed,
                };
                put_wcc(out.status(status), &BeforeAfter::unchanged(dir));
            }
        }
        Some(())
    }

    async fn create_entry(&self, handle: &[u8], name: &[u8], new: New, set: SetAttributes, out: &mut Results) {
        let dir = match self.id(handle) {
            Ok(dir) => dir,
            Err(status) => return put_wcc(out.status(status), &BeforeAfter::default()),
        };
        let change = self.files.create(self.rq, &self.caller, dir, name, new, set).await;
        let out = out.status(self.ended(&change));
        if let Ok(made) = &change.result {
            out.bool(true).opaque(&self.handles.make(made.id)).bool(true);
            attributes(out, &made.attributes);
        }
        put_wcc(out, &change.file);
    }

    pub(super) async fn remove(&self, input: Decoder<'_>, out: &mut Results) -> Option<()> {
        self.remove_entry(input, false, out).await
    }

    pub(super) async fn rmdir(&self, input: Decoder<'_>, out: &mut Results) -> Option<()> {
        self.remove_entry(input, true, out).await
    }

    async fn remove_entry(&self, mut input: Decoder<'_>, is_dir: bool, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let (status, wcc) = match self.id(handle) {
            Err(status) => (status, BeforeAfter::default()),
            Ok(dir) => {
                let change = self.files.remove(self.rq, &self.caller, dir, name, is_dir).await;
                (self.ended(&change), change.file)
            }
        };
        put_wcc(out.status(status), &wcc);
        Some(())
    }

    pub(super) async fn rename(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let from = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let to = handle_argument(&mut input)?;
        let new_name = name_argument(&mut input)?;
        let (status, from, to) = match self.id(from).and_then(|from| Ok((from, self.id(to)?))) {
            Err(status) => (status, BeforeAfter::default(), BeforeAfter::default()),
            Ok((old, new)) => {
                let renamed = self.files.rename(self.rq, &self.caller, (old, name), (new, new_name)).await;
                let Rename { result, from, to } = renamed;
                (result.err().map_or(Status::Ok, |error| self.report(&error)), from, to)
            }
        };
        let out = out.status(status);
        put_wcc(out, &from);
        put_wcc(out, &to);
        Some(())
    }

    pub(super) async fn link(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let file = handle_argument(&mut input)?;
        let dir = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let (status, file, wcc) = match self.id(file).and_then(|file| Ok((file, self.id(dir)?))) {
            Err(status) => (status, None, BeforeAfter::default()),
            Ok((file, dir)) => {
                let Link { result, file, dir } = self.files.link(self.rq, &self.caller, file, dir, name).await;
                (result.err().map_or(Status::Ok, |error| self.report(&error)), file, dir)
            }
        };
        let out = out.status(status);
        post_op(out, file.as_ref());
        put_wcc(out, &wcc);
        Some(())
    }
}
