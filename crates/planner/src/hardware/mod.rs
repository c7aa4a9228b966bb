//! Modelled hardware: drives, links and processors in virtual time.

pub mod contents;
pub mod disk;
pub mod drive;
pub mod flash;
pub mod link;
pub mod processors;
pub mod rotating;
