//! Names without regard to case, for file servers whose clients know no case.

use super::{Node, Opened, Tree, object_of};
use crate::FileError;
use weir_dmu::zap::name::differ_in_case_alone;
use weir_machine::Request;

/// The name in the directory `node` that differs from `name` in case alone, or `name` itself if it exists. Child file systems
/// count, synthetic directories have no other spellings.
///
/// # Errors
/// If the directory cannot be read.
pub async fn spelling(tree: &Tree, rq: &Request, node: Node, name: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
    if node.is_synthetic() {
        return Ok(None);
    }
    if node.object == Node::ROOT {
        let branch = tree.branch(node)?;
        let child = branch.children.get(name).map(|_| name.to_vec());
        let other = || branch.children.by_name.keys().find(|child| differ_in_case_alone(child, name)).cloned();
        if let Some(child) = child.or_else(other) {
            return Ok(Some(child));
        }
    }
    match tree.open(rq, node.branch).await? {
        Opened::Files(files) => files.spelling(rq, object_of(&*files, node), name).await,
        Opened::Shut(why) => Err(why),
    }
}
