//! Extended attributes: those of files, and two that Weir makes: the ACL, and the name of the dataset.

use crate::inner::{Inner, report_of_file};
use crate::spelling;
use fuser::{Errno, INodeNo};
use weir_files::tree::Node;
use weir_files::{Acl, Cred, FileFlags, acl_xdr};
use weir_machine::Request;

/// Attribute of each file of a mount that is not listed: the name that its file system or snapshot has now. The source of the mount
/// is the name that it had when it was mounted, and a mount may contain several file systems.
pub const DATASET_XATTR: &str = "system.weir_dataset";

/// The value of an attribute.
pub(crate) async fn value(
    inner: &Inner,
    rq: &Request,
    cred: &Cred,
    number: INodeNo,
    name: &[u8],
) -> Result<bytes::Bytes, Errno> {
    let node = inner.node(number)?;
    if let Some(wanted) = spelling::wanted(inner, name) {
        return spelling::find(inner, rq, cred, node, wanted).await;
    }
    if name == DATASET_XATTR.as_bytes() {
        return inner.tree.export_of(node).map(|export| export.name.into()).ok_or(Errno::NO_XATTR);
    }
    inner.permissions().require_xattr(rq, cred, node, name).await?;
    if name == acl_xdr::NAME {
        return Ok(acl_xdr::encode(&acl(inner, rq, node).await?).into());
    }
    inner.tree.xattr(rq, node, name).await.map_err(|e| report_of_file(rq, &e))?.ok_or(Errno::NO_XATTR)
}

/// The ACL of a file, or of the mode of a synthetic directory.
async fn acl(inner: &Inner, rq: &Request, node: Node) -> Result<Acl, Errno> {
    match inner.tree.acl(rq, node).await.map_err(|e| report_of_file(rq, &e))? {
        Some(acl) => Ok(acl),
        None => Ok(Acl::from_mode(inner.tree.attributes(rq, node).await.map_err(|e| report_of_file(rq, &e))?.mode)),
    }
}

/// Names of the extended attributes. The ACL is among them if it is not equivalent to the mode.
pub(crate) async fn names(inner: &Inner, rq: &Request, number: INodeNo) -> Result<Vec<u8>, Errno> {
    let node = inner.node(number)?;
    let mut names = inner.tree.xattr_names(rq, node).await.map_err(|e| report_of_file(rq, &e))?;
    let attributes = inner.tree.attributes(rq, node).await.map_err(|e| report_of_file(rq, &e))?;
    if !node.is_synthetic() && !attributes.flags.has(FileFlags::ACL_TRIVIAL) && !acl(inner, rq, node).await?.trivial {
        names.push(acl_xdr::NAME.to_vec());
    }
    Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
}
